"""The benchmark of the Dask engine runs at toy size, and shows both sides of what it compares."""

import json

from cluster_tools import quick_to_start
from test_scaling_model import load_script


def test_toy_sizes(capsys):
    bench = load_script("bench_cluster")
    with quick_to_start():
        bench.main(["--quick", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    engines, chunks = found["engines"], found["chunks"]
    assert engines["same_bits"]
    assert set(engines["seconds"]) == {"one worker", "two workers", "two threads"}
    assert engines["speedup"] == engines["seconds"]["one worker"] / engines["seconds"]["two workers"]
    assert engines["overhead"] == engines["seconds"]["two workers"] / engines["seconds"]["two threads"]
    assert [(table["rows"], table["chunks"]) for table in chunks["tables"].values()] == [
        (400, 2),
        (4000, 20),
        (4000, 2),
    ]
    bench.show(found)
    shown = capsys.readouterr().out
    assert all(limit in shown for limit in ("at least 1.8", "at most 1.15", "at most 1.3"))


def test_help_says_what_is_measured(capsys):
    load_script("bench_cluster").main(["--help"], standalone_mode=False)
    assert "10,000 chunks against 100" in " ".join(capsys.readouterr().out.split())
