"""Every benchmark at toy size: each one runs and keeps what it found, and the page is made of that alone."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import sys
from functools import cache

import commands
import numpy as np
import pytest
from click.testing import CliRunner
from cluster_tools import quick_to_start
from commands import PROJECT

sys.path.insert(0, str(PROJECT / "scripts"))

from benchlib import binning, contest, faults, fuzz, growth, honest, ours, page, startup
from benchlib.li import TABLE_3
from benchlib.peers import __main__ as peers
from benchlib.places import PAGE, RESULTS
from benchlib.results import read
from benchlib.running import Ended
from benchlib.sets import SETS


def load_bench():
    loader = importlib.machinery.SourceFileLoader("bench", str(PROJECT / "scripts" / "bench"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench", loader))
    loader.exec_module(module)
    return module


bench = load_bench()
ONLY = {
    "table1": "cpu,kddcup99",
    "peers": "casp,covtype7",
    "curve": "streamrf,loop",
    "train": "8-bits",
    "fuzz": "checkpoint,zarr",
    "larger": "long zarr",
}  # will do
ON_PAGE = {name for name, _ in page.SECTIONS.values()}


# -- every benchmark, without processes of its own


def here(context, *args, threads=0, timeout=0, limit=None):
    """Instead of a process: the same command in this one."""
    answer = commands.streamrf(*args, "--threads", threads or context.threads, "--json")
    return Ended(answer.code, answer.out, answer.err, 1.0, 10**8, False)


def peer_here(context, task, name, python, settings, limit):
    out = io.StringIO()
    given = json.dumps({"classes": task.classes, "settings": settings, "threads": 1})
    with contextlib.redirect_stdout(out):
        peers.main(name, *map(str, task.tables), given)
    return Ended(0, out.getvalue(), "", 1.0, 10**8, False)


def command_here(context, folder, cache, *arguments):
    if arguments != ("warm",):  # it has a test of its own
        assert commands.streamrf(*arguments).code == 0
    return 1.0


@pytest.fixture(scope="module")
def toys(tmp_path_factory, in_little_time):
    """Runs a benchmark at toy size, once: the folder of results, and what it printed."""
    work = tmp_path_factory.mktemp("bench")

    @cache
    def run_once(name):
        some = ["--only", ONLY[name]] if name in ONLY else []
        answer = CliRunner().invoke(bench.main, [name, "--quick", "--work", str(work), *some])
        assert answer.exit_code == 0, (name, answer.output, answer.exception)
        return work / "quick", answer.output

    with pytest.MonkeyPatch.context() as patch, quick_to_start():
        patch.setattr(ours, "streamrf", here)
        patch.setattr(contest, "_start", peer_here)
        patch.setattr(startup, "alone", command_here)
        yield run_once


def cells_of(toys, name):
    return read(toys(name)[0] / f"{name}.json")["cells"]


@pytest.mark.filterwarnings("ignore:Liblinear failed to converge")
@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_every_benchmark_runs_and_writes_what_it_found(toys, name):
    cells = cells_of(toys, name)
    failed = {key: cell["why"] for key, cell in cells.items() if cell.get("ok") is False}
    assert all(why.endswith("is not installed") for why in failed.values()), failed
    assert len(cells) > len(failed)
    assert all(f"{key}: " in toys(name)[1] for key in cells)


def test_help_names_every_benchmark():
    text = CliRunner().invoke(bench.main, ["--help"]).output
    assert all(f"  {name}  " in text for name in ("all", "page", *bench.BENCHMARKS))


@pytest.mark.parametrize(
    "name", ["streamrf", "loop-float32", "loop-ssyrk", "loop-float64", "dask-array", "nystroem-ridge"]
)
def test_contestants_learn_something(toys, name):
    cells = cells_of(toys, "peers")
    assert cells[f"casp/{name}"]["error"] < 0.7  # the spread of the targets is 0.83
    assert cells[f"covtype7/{name}"]["error"] < 0.8


def test_a_second_run_measures_nothing_and_prints_json(toys):
    folder = toys("memory")[0]
    before = (folder / "memory.json").read_bytes()
    answer = CliRunner().invoke(bench.main, ["memory", "--quick", "--json", "--work", str(folder.parent)])
    assert answer.exit_code == 0
    assert all(": is there" in line for line in answer.stderr.splitlines() if line.startswith("larger/"))
    assert (folder / "memory.json").read_bytes() == before
    assert json.loads(answer.stdout)["memory"]["cells"] == json.loads(before)["cells"]


def test_settings_change_the_names_of_cells(toys):
    work = toys("binning")[0].parent
    options = ["--quick", "--only", "pass", "--work", str(work)]
    assert CliRunner().invoke(bench.main, ["binning", *options, "--set", "rows=1000"]).exit_code == 0
    assert "pass (rows=1000)" in read(work / "quick" / "binning.json")["cells"]
    assert "no setting wrong" in CliRunner().invoke(bench.main, ["binning", *options, "--set", "wrong=1"]).output


def test_binning(toys):
    ours_is = cells_of(toys, "binning")["covtype2/101/P = 20"]
    assert ours_is["error"] < 0.2
    assert ours_is["train"] > 0
    assert ours_is["settings"]["grids"] == 20
    speeds = cells_of(toys, "binning")["pass"]["rows_per_second"]
    assert set(speeds) == {"index and accumulate", "accumulate, slots kept", "predict"}
    assert min(speeds.values()) > 0


def test_what_is_asked_of_binning_is_judged():
    def cell(seconds, error):
        return {"error": error, "search": 1.0, "train": seconds - 1}

    cells = {
        "covtype2/101/P = 50": cell(10.0, 0.022), "covtype2/101/P = 100": cell(30.0, 0.033),
        "covtype2/101/LightGBM": cell(9.0, 0.042),
        "casp/101/defaults": cell(1.0, 3.4), "casp/102/defaults": cell(1.0, 3.7),
        "pass": {"rows_per_second": {"index and accumulate": 2e6}},
    }  # fmt: skip
    assert [reached for _, reached in binning.verdicts(cells)] == [True, True, True, False, False, True]


def test_cluster(toys):
    cells = cells_of(toys, "cluster")
    engines, chunks = cells["engines"], cells["chunks"]
    assert engines["same_bits"]
    assert set(engines["seconds"]) == {"one worker", "two workers", "two threads"}
    assert engines["speedup"] == engines["seconds"]["one worker"] / engines["seconds"]["two workers"]
    assert engines["overhead"] == engines["seconds"]["two workers"] / engines["seconds"]["two threads"]
    sizes = [(table["rows"], table["chunks"]) for table in chunks["tables"].values()]
    assert sizes == [(400, 2), (4000, 20), (4000, 2)]
    few, many, _ = chunks["tables"].values()
    assert chunks["cpu_ratio"] == many["cpu"] / few["cpu"] > 0
    collected = cells["collections"]
    rates = collected["rows_per_second"]
    assert collected["same_model"]
    assert collected["parquet_recomputed"] == rates["parquet, recomputed"] / rates["parquet, path"]
    assert collected["zarr_kept"] == rates["zarr, kept"] / rates["zarr, path"]
    assert cells["adaptive"]["seconds_to_three"] > 0
    limits = ("at least 1.9", "at most 1.15", "at most 1.2", "at least 0.8", "at most 20")
    assert all(limit in toys("cluster")[1] for limit in limits)
    shown = CliRunner().invoke(bench.main, ["cluster", "--help"]).output
    assert "10,000 chunks against 100" in " ".join(shown.split())


def test_scaling(toys):
    shown = toys("scaling")[1]
    assert sum(line.startswith("| --- |") for line in shown.splitlines()) == len(page.scaled.TABLES)
    assert "10 workers" in shown
    times = cells_of(toys, "scaling")["simulated"]["times"]["2000"]["10"]
    assert f"simulated, busy: {times['ideal'] / times['seconds']:.3g} (at least 0.8)" in shown
    assert "docs/scaling.md" in CliRunner().invoke(bench.main, ["scaling", "--help"]).output


def test_larger_than_memory(toys):
    (cell,) = cells_of(toys, "larger").values()
    assert cell["same bits"]
    assert cell["rows"] / 4 <= cell["resumed from"] < cell["rows"]
    assert cell["killed"] == "ended by signal SIGKILL"
    assert cell["peak"] <= cell["budget"]
    assert cell["points"][0][0] == 0
    assert cell["rate against a loop"] > 0 < cell["rate against threads"]


def test_learned_features(toys):
    found = cells_of(toys, "tables23")["learned/toy"]["found"]
    (cell,) = found["table 2"].values()
    assert cell["CLUSTER fresh"] < 0.5 * cell["MC"]
    assert found["table 3"]["toy"]["SUPERVISE"] > 0
    assert all(title in toys("tables23")[1] for title in ("Table 2", "Table 3"))
    assert TABLE_3["CPU"][3] == 3.687
    cells = cells_of(toys, "learned")
    assert cells["metric/smooth"]["learned"] < 1.05 * cells["metric/smooth"]["none"]
    costs = [cell for key, cell in cells.items() if key.startswith("cost/")]
    assert len(costs) == 3
    assert all(cell["learning"] > 0 < cell["pass"] for cell in costs)


@pytest.mark.filterwarnings("ignore:Liblinear failed to converge")
def test_reported_figures_are_compared_with_fresh_rows(toys):
    cells = cells_of(toys, "honest")
    assert len(cells) == honest.TOYS["problems"]
    for cell in cells.values():
        assert cell["inside"] == (cell["low"] <= cell["fresh"] <= cell["high"])
        assert cell["figure"] == ("error" if cell["classes"] else "rmse")
    assert set(cells_of(toys, "honest-tables")) == {"r-toy", "c-toy"}


def test_problems_are_of_every_kind():
    drawn = [honest.Problem.draw(number, 100, honest.MANY) for number in range(100)]
    assert drawn[3] == honest.Problem.draw(3, 100, honest.MANY)
    assert {problem.map for problem in drawn} == set(honest.MAPS)
    rows = sorted(problem.rows for problem in drawn)
    assert honest.FEW <= rows[0] < 300
    assert 40_000 < rows[-1] <= honest.MANY
    assert 1000 < rows[50] < 10_000
    assert sum(problem.weighted for problem in drawn) > 20
    assert {0, 2} < {problem.classes for problem in drawn}
    assert max(problem.classes for problem in drawn) > 30
    X, y, weights = drawn[5].sample(500, fresh=True)
    assert all(np.array_equal(a, b) for a, b in zip((X, y), drawn[5].sample(500, fresh=True), strict=False))
    assert not np.array_equal(X, drawn[5].sample(500, fresh=False)[0])
    assert (weights is None) == (not drawn[5].weighted)


def test_honest_figures_are_counted():
    def cell(reported, fresh, low, high):
        return {"reported": reported, "fresh": fresh, "low": low, "high": high, "inside": low <= fresh <= high}

    cells = {str(i): cell(1.0, 1.05, 0.9, 1.1) for i in range(9)} | {"9": cell(1.0, 2.0, 0.9, 1.1)}
    assert honest.lines(cells) == [
        "yes  fresh rows within the reported 95 % interval in 9 of 10 problems (wanted: 90%)",
        "reported better than fresh rows in 10 of 10, median of reported / fresh 0.952",
    ]
    assert honest.lines({**cells, "8": cells["9"]})[0].startswith("NO ")
    assert honest.lines({"0": {"ok": False, "why": "no"}}) == []
    assert honest.compared(None, {"error": 0.1})["ok"] is False


def test_files_changed_at_random(toys):
    cells = cells_of(toys, "fuzz")
    assert set(cells) == {"checkpoint", "zarr"}
    assert all(sum(cell["outcomes"].values()) == cell["mutations"] for cell in cells.values())
    assert all(cell["outcomes"]["refused"] for cell in cells.values())
    assert not any(cell["examples"] for cell in cells.values())
    assert "yes  " in toys("fuzz")[1]


def test_a_change_that_ends_badly_is_said():
    cell = {"mutations": 3, "outcomes": {"refused": 2, "hang": 1}, "examples": {"hang": ["0: x"]}}
    assert fuzz.lines({"zarr": cell})[-1].startswith("NO   3 changes: hang 1, refused 2")


def test_a_run_that_ends_badly_is_said():
    def cell(kinds, outcome):
        return {"kinds": kinds, "outcome": outcome, "told": "why", "command": "train", "engine": "local"}

    cells = {"0": cell("killed, slow read", "killed, resumed"), "1": cell("killed", "right")}
    assert faults.lines(cells)[0] == "killed: killed, resumed 1, right 1"
    assert faults.lines(cells)[-1].startswith("yes  2 runs: killed, resumed 1, right 1 ")
    found = faults.lines({**cells, "2": cell("Ctrl-C", "wrong bits")})
    assert found[-2:][0] == "2: wrong bits: why"
    assert found[-1].startswith("NO   3 runs")


def test_solvers(toys):
    cells = cells_of(toys, "solvers")
    keys = {
        "pass/200": {"D", "rows_per_second", "bare", "ratio"},
        **{f"large/covtype2/{D}/{solver}": {"D", "solver", "seconds", "error", "holdout", "peak"}
           for D in (50, 100) for solver in ("cg", "cholesky")},
        "hinge/covtype2": {"error", "linear_svc", "sklearn_seconds", "time_ratio"},
        "logistic/covtype2": {"loss", "sklearn", "gap"},
    }  # fmt: skip
    assert all(cells[name].keys() >= wanted for name, wanted in keys.items())
    assert abs(cells["logistic/covtype2"]["gap"]) < 1e-3
    errors = [cells[f"large/covtype2/100/{solver}"]["error"] for solver in ("cg", "cholesky")]
    assert abs(errors[0] - errors[1]) < 0.02
    assert cells["large/covtype2/100/cg"]["ratio"] > 0


def test_the_page_has_every_section_and_its_pictures(toys, tmp_path):
    for name in (*ON_PAGE, "scaling"):
        folder = toys(name)[0]
    out = tmp_path / "page.md"
    answer = CliRunner().invoke(
        bench.main, ["page", "--results", str(folder), "--out", str(out), "--pictures", str(tmp_path / "pictures")]
    )
    assert answer.exit_code == 0, answer.exception
    text = out.read_text(encoding="utf-8")
    assert "Not measured yet: `scripts" not in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == [f"## {each}" for each in page.SECTIONS]
    for line in (text + (tmp_path / "scaling.md").read_text(encoding="utf-8")).splitlines():
        if line.startswith("!["):
            assert (tmp_path / line.partition("(")[2].rstrip(")")).exists(), line
    for name in ("casp", "covtype7"):
        assert f"### {SETS[name].title}" in text


def test_the_page_that_is_kept_is_made_of_the_results_that_are_kept():
    assert PAGE.read_text(encoding="utf-8") == page.text(page.load(RESULTS)), "run scripts/bench page"


def test_kept_results_name_no_folder_and_no_host():
    for path in RESULTS.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert not any(f"{word}/" in text for word in ("/home", "/root", "/tmp", "/work", "/usr")), path


def test_exponents_are_those_of_a_power():
    cells = {f"rows/{n}": {"ok": True, "rows": n, "total": 3e-6 * n**1.5, "peak": 4e8} for n in (10, 100, 1000, 10_000)}
    (first, second, third) = growth.sentences("rows", cells)
    assert first == "Time grows with rows to the power 1.50, memory to the power 0.00 (over the last three sizes)."
    assert second == "From 10 to 10,000 rows the peak goes from 400 to 400 MB."
    assert third == "Between the last two sizes: time 1.50 (asked for: 1.00 ± 0.03, missed), memory 0.00" \
                    " (asked for: 0.00 ± 0.02)."  # fmt: skip


def test_a_better_peer_is_named():
    good = {"ok": True, "error": 0.1, "train": 2.0, "peak": 10**8, "search": 0.0, "settings": {"D": 5}}
    ours_is = {**good, "error": 0.2, "train": 1.0, "peak": 2 * 10**8}
    lines = page.compared.peers({"peers": {"cells": {"adult/streamrf": ours_is, "adult/lightgbm": good}}})
    assert "- **A peer is better**: lower error than the best of ours, streamrf, Fourier features (20.00 % in 1.0 s):" \
           " LightGBM (10.00 % in 2.0 s)." in lines  # fmt: skip
    assert "- Lowest error on adult: LightGBM." in lines
    turned = page.compared.peers({"peers": {"cells": {"adult/streamrf": good, "adult/lightgbm": ours_is}}})
    assert "- No peer has a lower error than streamrf, Fourier features (10.00 % in 2.0 s)." in turned
