"""The benchmark of the solvers, on toys: every figure is there, and the promises that need no large machine hold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "bench_solvers"
KEYS = {
    "pass": {"D", "rows_per_second", "bare", "ratio"},
    "large": {"D", "solver", "seconds", "error", "holdout", "peak"},
    "hinge": {"error", "linear_svc", "sklearn_seconds", "time_ratio"},
    "logistic": {"loss", "sklearn", "gap"},
}


@pytest.mark.parametrize("name", KEYS)
def test_toys_give_every_figure(name):
    command = [sys.executable, str(SCRIPT), name, "--quick"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert answer.returncode == 0, answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert lines
    assert all(line.keys() >= KEYS[name] for line in lines)
    if name == "logistic":
        assert all(abs(line["gap"]) < 1e-3 for line in lines)
    if name == "large":
        by_solver = {(line["D"], line["solver"]): line["error"] for line in lines}
        assert abs(by_solver[100, "cg"] - by_solver[100, "cholesky"]) < 2
