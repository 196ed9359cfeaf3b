"""The benchmark of learned features runs, on toys, and writes what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "bench_learned"


def test_the_quick_benchmark_writes_its_numbers(tmp_path):
    out = tmp_path / "numbers.json"
    run = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--json", out], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    told = json.loads(out.read_text())
    (cell,) = told["table 2"].values()
    assert cell["CLUSTER fresh"] < 0.5 * cell["MC"]
    assert told["table 3"]["toy"]["SUPERVISE"] > 0
    assert told["metric"]["smooth"]["learned"] < 1.05 * told["metric"]["smooth"]["none"]
    assert told["paper"]["table 3"]["CPU"][3] == 3.687
    assert all(seconds["learning"] > 0 < seconds["pass"] for seconds in told["cost"].values())
    for title in ("Table 2", "Table 3", "Learned metric", "Cost of learning"):
        assert title in run.stdout
