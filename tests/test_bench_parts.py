"""What the benchmarks are made of: the peers and their searches, measured processes, kept results, tables."""

import json
import sys
import time

import numpy as np
import pytest
from commands import PROJECT

sys.path.insert(0, str(PROJECT / "scripts"))

from benchlib import bare, contest, larger, memory, startup, tables
from benchlib.context import Context
from benchlib.machine import describe, version
from benchlib.peers import PEERS, SEARCHES
from benchlib.peers import __main__ as peers
from benchlib.peers.common import Cosines, Scaling, Sums, solved
from benchlib.results import Results, read
from benchlib.running import run

from streamrf.data.open import open_source
from streamrf.data.source import Span

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
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_beats_the_mean(name, classes, small, capsys):
    package = PEERS[name].package
    if version(package) is None:
        pytest.skip(f"{package} is not installed")
    found = answer_of(name, small[classes], classes, capsys)
    assert found["train"] > 0
    assert found["peak"] > 10**7
    assert found["error"] < (0.5 if classes else 0.9)


@pytest.mark.parametrize("name", SEARCHES)
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
    task = contest.Task("small", tuple(small[2]), 2, 32, 4, limit=memory.LIMIT)
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


def test_a_command_has_kernels_of_its_own(tmp_path):
    assert startup.alone(Context(), str(tmp_path), "kernels", "--version") > 0
    with pytest.raises(RuntimeError, match="No such command"):
        startup.alone(Context(), str(tmp_path), "kernels", "wram")


@pytest.mark.parametrize(("name", "write"), [("t.zarr", bare.write_zarr), ("t.parquet", bare.write_parquet)])
def test_large_tables_are_written_and_read_in_chunks(name, write, tmp_path):
    write(tmp_path / name, 1300, 5, 100, 2)
    assert [bare.read_all(tmp_path / name, threads) for threads in (0, 2)] == [1300, 1300]
    bare.drop_all_pages(tmp_path / name)
    source = open_source(tmp_path / name, **({"target": "y"} if name.endswith("parquet") else {}))
    assert source.n_rows == 1300
    for number, span in ((0, Span(0, 100)), (12, Span(1200, 1300))):
        X, y = bare.block(number, 100, 5)
        block = source.read(span)
        assert np.array_equal(block.X, X)
        assert np.array_equal(block.y, y)
    assert len(np.unique(X * 256)) > 300
    assert np.array_equal(X * 256, np.round(X * 256))


def test_a_line_through_memory():
    flat = [(rows, 10**9) for rows in range(0, 1000, 10)]
    assert larger.line([(0, 10**8), *flat[5:]], 1000) == pytest.approx(
        {"growth": 0, "bytes a million rows": 0}, abs=1e-3
    )
    grown = larger.line([(rows, 10**9 + 10**5 * rows) for rows in range(1000)], 1000)
    assert grown == pytest.approx({"growth": 1e8 / 1.0549e9, "bytes a million rows": 1e11}, rel=1e-3)
    assert len(larger.thinned(flat * 7)) <= larger.SHOWN
