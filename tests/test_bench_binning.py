"""The benchmark of random binning runs, on toys, and judges what it found."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys

import pytest
from commands import PROJECT


@pytest.fixture(scope="module")
def bench():
    loader = importlib.machinery.SourceFileLoader("bench_binning", str(PROJECT / "scripts" / "bench_binning"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_binning", loader))
    sys.modules["bench_binning"] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


def test_toys_run_through_both_sides(bench, tmp_path, capsys):
    place = tmp_path / "found.json"
    assert bench.main(["--toy", "--grids", "20", "--threads", "1", "--only", "covtype", "--json", str(place)]) == 0
    found = json.loads(place.read_text())
    ours = next(result for result in found["results"] if result["what"] == "P = 20")
    assert ours["error"] < 0.2
    assert ours["seconds"] > 0
    assert ours["detail"]["binning"]["grids"] == 20
    assert "covtype, shuffle 101, P = 20" in capsys.readouterr().out


def test_the_pass_is_timed(bench):
    speeds = bench.throughput(2000)
    assert set(speeds) == {"index and accumulate", "accumulate, slots kept", "predict"}
    assert min(speeds.values()) > 0


def test_what_was_asked_for_is_judged(bench):
    def result(data, what, seconds, error):
        return bench.Result(data, 1, what, seconds, error, {})

    results = [
        result("covtype", "P = 50", 10.0, 0.022), result("covtype", "P = 100", 30.0, 0.033),
        result("covtype", "LightGBM", 9.0, 0.042),
        result("casp", "defaults", 1.0, 3.4), result("casp", "defaults", 1.0, 3.7),
    ]  # fmt: skip
    judged = bench.verdicts(results, {"index and accumulate": 2e6})
    assert [reached for _, reached in judged] == [True, True, True, False, False, True]
