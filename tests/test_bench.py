"""The benchmarks at toy size: every command and every peer runs, results are kept, the page is made of them alone."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import sys
import time

import commands
import numpy as np
import pytest
from click.testing import CliRunner
from commands import PROJECT

sys.path.insert(0, str(PROJECT / "scripts"))

from benchlib import contest, growth, larger, ours, page, tables, tables23
from benchlib.context import Context
from benchlib.machine import describe, version
from benchlib.peers import __main__ as peers
from benchlib.peers.common import Cosines, Scaling, Sums, solved
from benchlib.places import PAGE, RESULTS
from benchlib.results import Results, read
from benchlib.running import Ended, run
from benchlib.sets import SETS


def load_bench():
    loader = importlib.machinery.SourceFileLoader("bench", str(PROJECT / "scripts" / "bench"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench", loader))
    loader.exec_module(module)
    return module


bench = load_bench()


# -- everything, without processes of its own


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


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """The folder of results after a run of everything; a part of the tasks will do."""
    work = tmp_path_factory.mktemp("bench")
    only = {"table1": "cpu,kddcup99", "peers": "casp,covtype7", "curve": "streamrf,loop"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "streamrf", here)
        patch.setattr(growth, "streamrf", here)
        patch.setattr(contest, "_start", peer_here)
        patch.setattr(tables23, "DATA", work)
        for name in bench.COMMANDS:
            some = ["--only", only[name]] if name in only else []
            answer = CliRunner().invoke(bench.main, [name, "--quick", "--work", str(work), *some])
            assert answer.exit_code == 0, (name, answer.output, answer.exception)
    return work / "quick"


def cells_of(folder):
    return {f"{path.stem}:{key}": cell for path in folder.glob("*.json") for key, cell in read(path)["cells"].items()}


def test_every_command_runs_and_writes_what_it_found(toys):
    assert {path.stem for path in toys.glob("*.json")} == set(bench.COMMANDS)
    cells = cells_of(toys)
    failed = {key: cell["why"] for key, cell in cells.items() if cell.get("ok") is False}
    assert all(why.endswith("is not installed") for why in failed.values()), failed
    assert len(cells) > 50


@pytest.mark.parametrize(
    "name", ["streamrf", "loop-float32", "loop-ssyrk", "loop-float64", "dask-array", "nystroem-ridge"]
)
def test_contestants_learn_something(toys, name):
    cells = cells_of(toys)
    assert cells[f"peers:casp/{name}"]["error"] < 0.7  # the spread of the targets is 0.83
    assert cells[f"peers:covtype7/{name}"]["error"] < 0.8


def test_a_second_run_measures_nothing(toys):
    before = {path: path.read_bytes() for path in toys.glob("*.json")}
    answer = CliRunner().invoke(bench.main, ["memory", "--quick", "--work", str(toys.parent)])
    assert answer.exit_code == 0
    assert all(": is there" in line for line in answer.output.splitlines() if "/" in line)
    assert {path: path.read_bytes() for path in toys.glob("*.json")} == before


def test_the_page_has_every_section_and_its_pictures(toys, tmp_path):
    out = tmp_path / "page.md"
    answer = CliRunner().invoke(
        bench.main, ["page", "--results", str(toys), "--out", str(out), "--pictures", str(tmp_path / "pictures")]
    )
    assert answer.exit_code == 0, answer.exception
    text = out.read_text(encoding="utf-8")
    assert "Not measured yet: `scripts" not in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == [f"## {each}" for each in page.SECTIONS]
    for line in text.splitlines():
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


# -- peers


SETTINGS = {
    "D": 48, "scaling": "standard", "length_scale": 2.5, "ridge": 1e-4, "C": 10.0, "alpha": 1e-6, "eta0": 0.1,
    "loss": "hinge",
    "epochs": 2, "rounds": 3, "num_leaves": 15, "max_depth": 4, "learning_rate": 0.3, "toy": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A task of two classes, and one of regression."""
    folder = tmp_path_factory.mktemp("small")
    return {
        classes: [
            tables.generated(folder / f"{part}-{classes}.zarr", 800, 4, classes=classes, seed=part) for part in (0, 1)
        ]
        for classes in (0, 2)
    }


def answer_of(name, pair, classes, capsys):
    given = json.dumps({"classes": classes, "settings": SETTINGS, "threads": 1})
    peers.main(name, *map(str, pair), given)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("classes", [0, 2])
@pytest.mark.parametrize("name", peers.PEERS)
def test_every_peer_beats_the_mean(name, classes, small, capsys):
    package = contest.PEERS[name].package
    if version(package) is None:
        pytest.skip(f"{package} is not installed")
    found = answer_of(name, small[classes], classes, capsys)
    assert found["train"] > 0
    assert found["peak"] > 10**7
    assert found["error"] < (0.5 if classes else 0.9)


@pytest.mark.parametrize("name", peers.SEARCHES)
def test_every_search_settles_something(name, small, capsys):
    needed = {"tune-lightgbm": "lightgbm", "tune-xgboost": "xgboost"}.get(name, "scikit-learn")
    if version(needed) is None:
        pytest.skip(f"{needed} is not installed")
    found = answer_of(name, small[0], 0, capsys)
    assert found["tried"] > 1
    assert found["seconds"] > 0


def test_sums_give_the_weights_of_ridge():
    rng = np.random.default_rng(0)
    Z, y = rng.standard_normal((200, 5)), rng.standard_normal((200, 2))
    w, a = Sums(Z.T @ Z, Z.T @ y, Z.sum(axis=0), y.sum(axis=0), 200).weights(0.1)
    Zc, yc = Z - Z.mean(axis=0), y - y.mean(axis=0)
    np.testing.assert_allclose(w, np.linalg.solve(Zc.T @ Zc / 200 + 0.1 * np.eye(5), Zc.T @ yc / 200), rtol=1e-9)
    np.testing.assert_allclose(a, y.mean(axis=0) - Z.mean(axis=0) @ w, atol=1e-12)


def test_sums_that_rounding_spoilt_are_solved_at_a_larger_penalty():
    sums = Sums(np.diag([1.0, -5e-6]), np.ones((2, 1)), np.zeros(2), np.zeros(1), 1)
    with pytest.raises(np.linalg.LinAlgError):
        sums.weights(1e-6)
    np.testing.assert_allclose(solved(sums, 1e-6)[0], sums.weights(1e-5)[0], rtol=1e-9)


def test_cosines_approximate_the_gaussian_kernel():
    X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    Z = Cosines(3, 20_000, 2.0)(X)
    distances = ((X[:, None] - X) ** 2).sum(axis=2)
    np.testing.assert_allclose(Z @ Z.T, np.exp(-distances / 8), atol=0.04)


def test_scaling_leaves_columns_of_zeros_and_ones():
    X = np.array([[0, 5.0, 1], [1, 9.0, 1], [1, -3.0, 1]], np.float32)
    scaled = Scaling.fit("standard", X)(X)
    np.testing.assert_array_equal(scaled[:, [0, 2]], X[:, [0, 2]])
    assert scaled[:, 1].mean() == pytest.approx(0, abs=1e-6)
    assert scaled[:, 1].std() == pytest.approx(1)


# -- processes


def python(code, **more):
    return run([sys.executable, "-c", code], **{"timeout": 60, "threads": 1, **more})


def test_a_process_is_measured():
    code = "import os, time; x = bytearray(300_000_000); time.sleep(1); print(os.environ['OMP_NUM_THREADS'])"
    ended = python(code, threads=3)  # it is looked at now and then: it must live to be seen
    assert ended.ok
    assert ended.out == "3\n"
    assert 250e6 < ended.peak < 500e6


def test_a_process_that_takes_too_long_is_ended():
    start = time.perf_counter()
    ended = python("import time; time.sleep(100)", timeout=0.5)
    assert time.perf_counter() - start < 30
    assert not ended.ok
    assert ended.why.startswith("not done after")


def test_a_process_that_wants_too_much_memory_is_told_so():
    assert python("x = bytearray(500_000_000)", limit=200_000_000).why == "out of memory"


def test_a_failure_is_one_line_without_folders():
    ended = python("raise ValueError('no /some/where/file here')")
    assert ended.why == "ValueError: no ... here"


def test_a_peer_runs_in_a_process_of_its_own(small, tmp_path):
    context = Context(quick=True, work=tmp_path, results=tmp_path, threads=1)
    task = contest.Task("small", tuple(small[2]), 2, 32, 4, limit=larger.LIMIT)
    results = Results(tmp_path / "found.json", say=lambda line: None)
    cell = contest.compete(context, results, task, "loop-float64")
    assert cell["ok"], cell
    assert 0 < cell["train"] < cell["wall"]
    assert set(results.cells) == {"small/tune-fourier", "small/loop-float64"}


# -- results


def test_cells_are_written_at_once_and_kept(tmp_path):
    path, calls = tmp_path / "found.json", []

    def measure():
        calls.append(1)
        return {"ok": True, "value": len(calls)}

    assert Results(path).cell("a", measure)["value"] == 1
    assert read(path)["cells"] == {"a": {"ok": True, "value": 1}}
    assert Results(path).cell("a", measure)["value"] == 1
    again = Results(path, again=True)
    assert again.cell("a", measure)["value"] == 2
    assert again.cell("a", measure)["value"] == 2  # once a run


def test_half_a_table_is_never_taken_for_one(tmp_path):
    def broken(path):
        path.mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tables.once(tmp_path / "table", broken)
    assert tables.once(tmp_path / "table", lambda path: path.mkdir()).exists()


def test_the_machine_is_described_without_its_name():
    import platform

    found = describe()
    assert found["cores"] >= 1
    assert found["memory"] > 1e8
    assert found["versions"]["numpy"] == np.__version__
    assert platform.node() not in json.dumps(found) or not platform.node()


def test_exponents_are_those_of_a_power():
    cells = {f"rows/{n}": {"ok": True, "rows": n, "total": 3e-6 * n**1.5, "peak": 4e8} for n in (10, 100, 1000, 10_000)}
    (first, second) = growth.sentences("rows", cells)
    assert first == "Time grows with rows to the power 1.50, memory to the power 0.00 (over the last three sizes)."
    assert second == "From 10 to 10,000 rows the peak goes from 400 to 400 MB."


def test_a_better_peer_is_named():
    good = {"ok": True, "error": 0.1, "train": 2.0, "peak": 10**8, "search": 0.0, "settings": {"D": 5}}
    ours_is = {**good, "error": 0.2, "train": 1.0, "peak": 2 * 10**8}
    lines = page.compared.peers({"peers": {"cells": {"adult/streamrf": ours_is, "adult/lightgbm": good}}})
    assert "- **A peer is better**: lower error than the best of ours, streamrf, Fourier features (20.00 % in 1.0 s):" \
           " LightGBM (10.00 % in 2.0 s)." in lines  # fmt: skip
    assert "- Lowest error on adult: LightGBM." in lines
    turned = page.compared.peers({"peers": {"cells": {"adult/streamrf": good, "adult/lightgbm": ours_is}}})
    assert "- No peer has a lower error than streamrf, Fourier features (10.00 % in 2.0 s)." in turned
