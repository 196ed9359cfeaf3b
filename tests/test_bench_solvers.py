"""The benchmark of the solvers, on toys: every figure is there, and the promises that need no large machine hold."""

import importlib.machinery
import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "bench_solvers"
KEYS = {
    "pass": {"D", "rows_per_second", "bare", "ratio"},
    "large": {"D", "solver", "seconds", "error", "holdout", "peak"},
    "hinge": {"error", "linear_svc", "sklearn_seconds", "time_ratio"},
    "logistic": {"loss", "sklearn", "gap"},
}


@pytest.fixture(scope="module")
def bench():
    loader = importlib.machinery.SourceFileLoader("bench_solvers", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module.cli


@pytest.mark.filterwarnings("ignore:Liblinear failed to converge")
@pytest.mark.parametrize("name", KEYS)
def test_toys_give_every_figure(bench, name):
    threads = [] if name == "pass" else ["--threads", "1"]
    answer = CliRunner().invoke(bench, [name, "--quick", *threads], catch_exceptions=False)
    assert answer.exit_code == 0
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert lines
    assert all(line.keys() >= KEYS[name] for line in lines)
    if name == "logistic":
        assert all(abs(line["gap"]) < 1e-3 for line in lines)
    if name == "large":
        by_solver = {(line["D"], line["solver"]): line["error"] for line in lines}
        assert abs(by_solver[100, "cg"] - by_solver[100, "cholesky"]) < 2
