"""Comparing maps: figures against plain computations, what is left out and why, pictures, and `plan --epsilon`."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from commands import done, streamrf
from hypothesis import given
from hypothesis import strategies as st
from tables import labelled, smooth, write_zarr

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.features.fourier import KINDS, draw, draw_phases, kind_of
from streamrf.features.kernels import make_kernel
from streamrf.recipe import Recipe
from streamrf.reports import bounds, comparison, comparison_plots, plots
from streamrf.reports.bounds import draw_grids
from streamrf.reports.comparison import DRAWN, Bench, Cell, Comparison, Spread, compare, crossed_scores
from streamrf.solvers import rates as calibrate
from streamrf.support.errors import BudgetError, DataError, InputError, MissingDependencyError
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE, Threads
from streamrf.training.pilot.choice import RIDGES

PLAIN = Recipe(D=20, kernel="gaussian", length_scale=2.0, scaling="none", form="pairs", bits="float64")
QUASI = ("halton", "sobol", "lattice", "digital-net")


@pytest.fixture(scope="module")
def threads():
    with Threads(2) as threads:
        yield threads


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_zarr(tmp_path_factory.mktemp("compare") / "data.zarr", *smooth(1500))


@pytest.fixture(scope="module")
def found(threads):
    """Every map on 400 rows to fit and 400 to measure."""
    X, y = smooth(1000)
    recipe = PLAIN.with_(scaling="standard", bits="12", length_scale=2.5)
    return compare(ArraySource(X, y), recipe, Ds=(256, 16, 64), seeds=4, rows=400, threads=threads)


@pytest.fixture
def lonely():
    """One map, one D, one seed, and a fit that is never wrong."""
    cell = Cell("mc", 16, Spread((0.1,)), Spread((0.0,)), 1.0)
    return Comparison([cell], {}, PLAIN, (0,), {"fitted": 30, "measured": 30}, 6, "classification", 1.0)


def block(X, y):
    return Block(X, y, np.arange(len(X)))


def plain_features(form, X, D, seed):
    """Features as the papers write them."""
    if form == "phase":
        W = draw("mc", make_kernel("gaussian", length_scale=2.0), D, X.shape[1], seed).dense()
        return np.sqrt(2 / D) * np.cos(X @ W.T + draw_phases(D, seed))
    W = draw("mc", make_kernel("gaussian", length_scale=2.0), D // 2, X.shape[1], seed).dense()
    return np.sqrt(2 / D) * np.concatenate([np.cos(X @ W.T), np.sin(X @ W.T)], axis=1)


# -- figures against plain computations


@pytest.mark.parametrize("form", ["pairs", "phase"])
def test_kernel_error_is_that_of_a_plain_computation(form):
    X, y = smooth(60)
    bench = Bench(block(X, y), PLAIN.with_(form=form), ALONE)
    unseen = X[30:].astype(np.float64)
    K = np.array([[np.exp(-((a - b) ** 2).sum() / (2 * 2.0**2)) for b in unseen] for a in unseen])
    cell = bench.measure("mc", 20, (3, 7))
    for seed, error in zip((3, 7), cell.kernel_error.values, strict=True):
        Z = plain_features(form, unseen, 20, seed)
        assert error == pytest.approx(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K), rel=1e-9)


def dense_scores(Z, y, Zt, ridge):
    centred = Z - Z.mean(axis=0)
    w = np.linalg.solve(centred.T @ centred / len(Z) + ridge * np.eye(Z.shape[1]), centred.T @ (y - y.mean(0)) / len(Z))
    return y.mean(0) + (Zt - Z.mean(axis=0)) @ w


@pytest.mark.parametrize("form", ["pairs", "phase"])
def test_holdout_error_is_that_of_a_plain_computation(form):
    X, y = smooth(120)
    bench = Bench(block(X, y), PLAIN.with_(form=form), ALONE)
    X = X.astype(np.float64)
    Z, Zt = plain_features(form, X[:60], 20, 5), plain_features(form, X[60:], 20, 5)
    errors = np.array([(dense_scores(Z, y[:60], Zt, ridge) - y[60:]) ** 2 for ridge in RIDGES])
    first, second = errors[:, :30], errors[:, 30:]
    squares = [*first[second.mean(axis=1).argmin()], *second[first.mean(axis=1).argmin()]]
    cell = bench.measure("mc", 20, (5,))
    assert cell.holdout_error.values[0] == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_holdout_error_of_classes_is_the_share_of_wrong_ones(classes):
    X, c = labelled(200, classes)
    names = np.array(["low", "middle", "high"])[c]
    bench = Bench(block(X, names), PLAIN, ALONE)
    X, labels = X.astype(np.float64), np.unique(names)
    T = (names[:, None] == labels).astype(float) if classes == 3 else np.where(names == labels[1], 1.0, -1.0)[:, None]
    Z, Zt = plain_features("pairs", X[:100], 20, 0), plain_features("pairs", X[100:], 20, 0)
    paths = np.stack([dense_scores(Z, T[:100], Zt, ridge) for ridge in RIDGES])
    cost = ((paths - T[100:]) ** 2 / T[100:].var(axis=0)).mean(axis=2)
    best = [cost[:, 50:].mean(axis=1).argmin()] * 50 + [cost[:, :50].mean(axis=1).argmin()] * 50
    scores = paths[best, np.arange(100)]
    guess = labels[scores.argmax(axis=1)] if classes == 3 else labels[(scores[:, 0] > 0).astype(int)]
    assert bench.measure("mc", 20, (0,)).holdout_error.values[0] == np.mean(guess != names[100:])


@given(st.integers(2, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_no_row_has_a_say_in_its_own_lambda(rows, lambdas, outputs, seed):
    rng = np.random.default_rng(seed)
    scores, truth = rng.standard_normal((rows, lambdas, outputs)), rng.standard_normal((rows, outputs))
    picked = crossed_scores(scores, truth)
    half, scale = rows // 2, truth.var(axis=0)
    for row in range(rows):
        others = [i for i in range(rows) if (i < half) != (row < half)]
        costs = [sum(((scores[i, k] - truth[i]) ** 2 / scale).sum() for i in others) for k in range(lambdas)]
        chosen = [k for k in range(lambdas) if np.array_equal(picked[row], scores[row, k])]
        assert min(costs[k] for k in chosen) == pytest.approx(min(costs), rel=1e-9)


def test_time_is_the_median_of_runs_over_a_block(monkeypatch):
    X, y = smooth(60)
    bench = Bench(block(X, y), PLAIN, ALONE)
    map = bench.build("mc", 20, 0)
    lengths = [5.0, 1.0, 2.0, 3.0, 30.0, 4.0, 2.5, 2.75, 3.5, 9.0, 8.0, 1.5, 0.5, 7.0, 2.9]
    ticks = itertools.chain.from_iterable((0.0, length) for length in lengths)
    monkeypatch.setattr(comparison.time, "perf_counter", lambda: next(ticks))
    assert bench.microseconds(map) == 3.0 / 30 * 1e6


def test_spread_is_one_standard_deviation():
    assert Spread((1.0, 2.0, 3.0)).to_json() == {"mean": 2.0, "spread": 1.0, "values": [1.0, 2.0, 3.0]}
    assert Spread((1.0,)).deviation == 0.0


def test_figures_do_not_depend_on_threads():
    X, y = smooth(200)
    recipe = PLAIN.with_(bits="12")

    def figures(count):
        with Threads(count) as threads:
            cells = compare(ArraySource(X, y), recipe, kinds=("mc", "sobol"), Ds=(20,), rows=90, threads=threads).cells
        return [(cell.map, cell.kernel_error.values, cell.holdout_error.values) for cell in cells]

    one, three = figures(1), figures(3)
    for mine, yours in zip(one, three, strict=True):
        assert mine[0] == yours[0]
        np.testing.assert_allclose(mine[1:], yours[1:], rtol=1e-9)


def test_large_fits_go_one_by_one(monkeypatch, threads):
    X, y = smooth(100)
    bench = Bench(block(X, y), PLAIN.with_(bits="12"), threads)
    side_by_side = bench.measure("mc", 20, (0, 1))
    monkeypatch.setattr(comparison, "SMALL_D", 10)
    one_by_one = bench.measure("mc", 20, (0, 1))
    np.testing.assert_allclose(one_by_one.kernel_error.values, side_by_side.kernel_error.values, rtol=1e-9)
    np.testing.assert_allclose(one_by_one.holdout_error.values, side_by_side.holdout_error.values, rtol=1e-9)


# -- what a comparison shows


def test_every_map_is_measured_at_every_D(found):
    assert [(cell.map, cell.D) for cell in found.cells] == list(itertools.product(DRAWN, (16, 64, 256)))
    assert found.rows == {"fitted": 400, "measured": 400}
    assert all(len(cell.kernel_error.values) == 4 and cell.microseconds > 0 for cell in found.cells)


@pytest.mark.parametrize("kind", [kind for kind in DRAWN if kind != "aligned"])
def test_errors_fall_with_D(found, kind):
    few, some, many = found.of_map(kind)
    assert many.kernel_error.mean < some.kernel_error.mean < few.kernel_error.mean
    assert many.kernel_error.mean < 0.45 * few.kernel_error.mean
    assert many.holdout_error.mean < few.holdout_error.mean


@pytest.mark.parametrize("kind", [*QUASI, "orthogonal", "weighted"])
def test_better_maps_are_better(found, kind):
    assert found.of_map(kind)[2].kernel_error.mean < found.of_map("mc")[2].kernel_error.mean


def test_small_tables_are_halved(threads):
    X, y = smooth(31)
    found = compare(ArraySource(X, y), PLAIN, kinds=["mc"], Ds=[4], seeds=1, rows=2000, threads=threads)
    assert found.rows == {"fitted": 15, "measured": 16}


def test_maps_that_are_not_defined_are_left_out_with_the_reason(threads):
    X, y = smooth(60)
    notes = []
    reporter = Reporter()
    reporter.note = notes.append
    recipe = PLAIN.with_(kernel="laplacian", bits="12")
    found = compare(ArraySource(X, y), recipe, Ds=[8], seeds=1, rows=30, threads=threads, reporter=reporter)
    assert set(found.skipped) == {"orthogonal", "sorf", "fastfood", "moment-matched"}
    assert {cell.map for cell in found.cells} == {*DRAWN, "binning"} - set(found.skipped)
    assert "no second moment" not in found.skipped["orthogonal"]
    assert "second moment" in found.skipped["moment-matched"]
    assert all("laplacian" in reason for reason in found.skipped.values())
    assert any(note.startswith("comparing: sorf is left out: ") for note in notes)
    assert sum("of 12)" in note for note in notes) == 12


def plain_grids(map, X):
    """Features of random binning as they are defined: a one for the cell of each grid, scaled."""
    cells = np.floor((X[:, None] - map.shifts.astype(float)) / map.widths.astype(float))
    columns = [np.unique(cells[:, p], axis=0, return_inverse=True)[1].reshape(-1) for p in range(map.grids)]
    return np.concatenate([np.eye(c.max() + 1)[c] for c in columns], axis=1) / np.sqrt(map.grids)


def test_random_binning_is_measured_as_its_features_would_be(threads):
    X, y = smooth(200)
    recipe = PLAIN.with_(kernel="laplacian", length_scale=6.0)
    bench = Bench(block(X.astype(np.float32), y), recipe, threads)
    cell = bench.measure("binning", 40, [3, 4])
    for seed, kernel_error, holdout_error in zip(
        [3, 4], cell.kernel_error.values, cell.holdout_error.values, strict=True
    ):
        map = draw_grids(bench.kernel, X.shape[1], 40, seed)
        Z = plain_grids(map, X.astype(np.float32).astype(float))
        K = Z[100:] @ Z[100:].T
        assert kernel_error == pytest.approx(np.linalg.norm(K - bench.exact) / np.linalg.norm(bench.exact), rel=1e-9)
        scores = np.stack([dense_scores(Z[:100], y[:100], Z[100:], ridge) for ridge in RIDGES], axis=1)
        truth = y[100:, None].astype(float)
        picked = crossed_scores(scores.reshape(100, len(RIDGES), 1), truth)
        assert holdout_error == pytest.approx(np.sqrt(((picked - truth) ** 2).mean()), rel=1e-4)
    assert cell.microseconds > 0


def test_grids_come_closer_to_their_kernel(threads):
    X, y = smooth(300)
    recipe = PLAIN.with_(kernel="laplacian", length_scale=6.0)
    found = compare(ArraySource(X, y), recipe, kinds=["binning"], Ds=[10, 400], seeds=2, rows=150, threads=threads)
    few, many = (cell.kernel_error.mean for cell in found.of_map("binning"))
    assert many < few / 4
    with pytest.raises(InputError, match="cannot be drawn by random binning"):
        compare(ArraySource(X, y), PLAIN, kinds=["binning"], Ds=[10], seeds=1, rows=100, threads=threads)


def test_structured_maps_have_no_float64(threads):
    X, y = smooth(60)
    found = compare(ArraySource(X, y), PLAIN, kinds=["sorf", "mc"], Ds=[8], seeds=1, rows=30, threads=threads)
    assert "use `bits` 7, 8, 12 or float32" in found.skipped["sorf"]
    with pytest.raises(InputError, match="no map is left to compare: sorf frequencies are projected in float32"):
        compare(ArraySource(X, y), PLAIN, kinds=["sorf"], Ds=[8], seeds=1, rows=30, threads=threads)


def test_what_cannot_be_right_is_refused_before_a_row_is_read(threads, monkeypatch):
    source = ArraySource(*smooth(60))
    monkeypatch.setattr(comparison, "draw_sample", lambda *_: pytest.fail("rows were read"))

    def refused(error, message, **settings):
        with pytest.raises(error, match=message):
            compare(source, PLAIN, threads=threads, **settings)

    refused(InputError, "there are no 'best' frequencies", kinds=["mc", "best"])
    refused(InputError, "`D=51`: must be even", Ds=[50, 51])
    refused(InputError, "no number of features", Ds=[])
    refused(InputError, "`seeds` must be at least 1, not 0", seeds=0)
    refused(InputError, "`rows` must be at least 4, not 3", rows=3)
    refused(BudgetError, "on 10000000 rows is projected to need .* are free: lower `rows` or `D`", rows=10_000_000)


def test_too_few_rows_and_no_targets(threads):
    X, y = smooth(7)
    with pytest.raises(DataError, match="7 usable rows: comparing maps needs at least 8"):
        compare(ArraySource(X, y), PLAIN, threads=threads)
    with pytest.raises(InputError, match="the data has no targets"):
        compare(ArraySource(smooth(50)[0]), PLAIN, threads=threads)


# -- the command


def test_json(data):
    answer = done("compare", data, "--maps", "mc, sobol,orthogonal", "--D", "8,16", "--kernel", "cauchy", "--seeds", 2,
                  "--rows", 100, "--seed", 5, "--json")  # fmt: skip
    found = answer.json
    assert answer.err == ""
    assert list(found) == ["data", "kernel", "scaling", "form", "bits", "task", "holdout_metric", "rows", "inputs",
                           "seeds", "cells", "skipped", "seconds", "plot", "frequencies"]  # fmt: skip
    assert found["kernel"]["name"] == "cauchy"
    assert found["kernel"]["gamma"] == pytest.approx(found["kernel"]["length_scale"] ** -2)
    assert (found["scaling"], found["form"], found["bits"], found["task"]) == ("standard", "pairs", "12", "regression")
    assert (found["holdout_metric"], found["inputs"], found["seeds"]) == ("rmse", 6, [5, 6])
    assert found["rows"] == {"fitted": 100, "measured": 100}
    assert [(cell["map"], cell["D"]) for cell in found["cells"]] == [("mc", 8), ("mc", 16), ("sobol", 8), ("sobol", 16)]
    for cell in found["cells"]:
        assert list(cell) == ["map", "D", "kernel_error", "holdout_error", "microseconds_per_row"]
        for figure in (cell["kernel_error"], cell["holdout_error"]):
            assert figure["mean"] == pytest.approx(np.mean(figure["values"]))
            assert figure["spread"] == pytest.approx(np.std(figure["values"], ddof=1))
    assert [skip["map"] for skip in found["skipped"]] == ["orthogonal"]
    assert "cauchy" in found["skipped"][0]["reason"]
    assert found["plot"] is None


def test_table(data):
    few = (
        "--maps",
        "mc,sobol,sorf",
        "--D",
        "8,64",
        "--seeds",
        2,
        "--rows",
        200,
        "--bits",
        "float64",
        "--form",
        "phase",
    )
    found = done("compare", data, *few, "--json").json
    answer = done("compare", data, *few)
    lines = [line.split() for line in answer.out.splitlines() if line.strip()]
    table = {(line[1], line[0]): line for line in lines if line[0] in ("8", "64")}
    assert len(table) == len(found["cells"]) == 4
    for cell in found["cells"]:
        line = table[cell["map"], str(cell["D"])]
        assert float(line[2]) == pytest.approx(cell["kernel_error"]["mean"], abs=6e-5)
        assert float(line[4]) == pytest.approx(cell["kernel_error"]["spread"], abs=6e-5)
        assert float(line[5]) == pytest.approx(cell["holdout_error"]["mean"], rel=1e-3)
    errors = [float(line[2]) for line in table.values()]
    assert errors[0] < errors[1]
    assert errors[2] < errors[3]
    assert "left out: sorf: " in answer.out
    assert answer.err.splitlines()[1] == "comparing: mc (1 of 3)"


def test_words_that_cannot_be_right(data, tmp_path):
    def ends(code, *options):
        answer = streamrf("compare", data, "--rows", 50, *options)
        assert answer.code == code, answer.err
        return answer.sentence

    assert "must be whole numbers separated by commas" in ends(2, "--D", "50;100")
    assert "ends in .png, .svg, .pdf" in ends(2, "--plot", tmp_path / "errors.jpeg2")
    (tmp_path / "there.png").write_bytes(b"mine")
    assert "already exists" in ends(7, "--plot", tmp_path / "there.png")
    assert (tmp_path / "there.png").read_bytes() == b"mine"


# -- pictures


def test_the_command_draws_a_picture(data, tmp_path):
    import matplotlib.image

    few = ("--maps", "mc,sobol", "--D", "8,16", "--seeds", 2, "--rows", 50, "--quiet")
    (tmp_path / "errors.png").write_bytes(b"old")
    answer = done("compare", data, *few, "--plot", tmp_path / "errors.png", "--overwrite")
    assert f"picture: {tmp_path}/errors.png" in answer.out
    assert answer.err == ""
    pixels = matplotlib.image.imread(tmp_path / "errors.png")
    assert pixels.shape[0] > 500
    assert pixels.shape[1] > 1000
    colours = (255 * pixels[..., :3]).astype(np.int64) @ [65536, 256, 1]
    assert len(np.unique(colours)) > 50  # lines, bands, letters


def test_a_picture_has_one_line_a_map(found):
    figure = comparison_plots.comparison_figure(found)
    for axes, name in zip(figure.axes, ("kernel_error", "holdout_error"), strict=True):
        assert [line.get_label() for line in axes.lines] == list(DRAWN)
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert axes.get_xlabel() == "features D"
        assert axes.get_ylabel()
        for line in axes.lines:
            cells = found.of_map(line.get_label())
            assert list(line.get_xdata()) == [16, 64, 256]
            assert list(line.get_ydata()) == [getattr(cell, name).mean for cell in cells]
        assert len(axes.collections) == len(DRAWN)  # bands
        heights = sorted(text.xyann[1] for text in axes.texts)
        assert sorted(text.get_text() for text in axes.texts) == sorted(DRAWN)
        assert np.diff(heights).min() >= comparison_plots.LABEL_GAP * (1 - 1e-9)


def test_maps_differ_in_more_than_colour():
    assert set(plots.STYLES) == {*(kind for kind in KINDS if not kind_of(kind).whole), "binning"}
    assert len({marker for _, marker, _ in plots.STYLES.values()}) == len(plots.STYLES)
    assert len({colour for colour, _, _ in plots.STYLES.values()}) == len(plots.STYLES)


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_the_same_figure_gives_the_same_bytes(lonely, tmp_path, ending, start):
    for name in ("a", "b"):
        plots.save(comparison_plots.comparison_figure(lonely), tmp_path / f"{name}.{ending}")
    drawn = (tmp_path / f"a.{ending}").read_bytes()
    assert drawn == (tmp_path / f"b.{ending}").read_bytes()
    assert drawn.startswith(start)
    assert len(drawn) > 5000


def test_one_D_one_seed_and_no_error_at_all(lonely):
    figure = comparison_plots.comparison_figure(lonely)
    assert figure.axes[1].get_yscale() == "linear"
    assert "wrong classes" in figure.axes[1].get_ylabel()


@given(st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=15), st.floats(0.01, 0.06))
def test_labels_are_moved_apart_and_no_further(heights, gap):
    heights = np.sort(heights)
    moved = comparison_plots.spaced(heights, gap)
    assert np.all(np.diff(moved) >= gap - 1e-9)
    assert moved[0] >= -1e-9
    assert moved[-1] <= 1 + 1e-9
    if len(heights) > 1 and np.diff(heights).min() >= gap and heights[0] >= 0 and heights[-1] <= 1:
        np.testing.assert_allclose(moved, heights, atol=1e-12)


def test_without_matplotlib_the_extra_is_named_at_once(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(comparison, "compare", lambda *_, **__: pytest.fail("minutes were spent"))
    answer = streamrf("compare", data, "--plot", tmp_path / "errors.png")
    assert answer.code == MissingDependencyError.exit_code
    assert "pip install 'streamrf[report]'" in answer.sentence


# -- plan --epsilon


def test_epsilon_says_what_theory_asks_and_what_is_measured(threads):
    X, y = smooth(800, noise=0.0)
    recipe = PLAIN.with_(D=200, map="mc", form="phase")
    found = bounds.assess(ArraySource(X, y), recipe, 0.2, 0.05, threads)
    distances = np.linalg.norm(X[:, None].astype(np.float64) - X, axis=2)
    assert distances.max() <= found.diameter <= 2 * distances.max()
    sigma = math.sqrt(6) / 2.0
    assert bounds.features_uniform(0.2, 0.05, 6, found.diameter, sigma) == found.claim_1.D
    assert found.claim_1.epsilon_at_D == bounds.epsilon_uniform(200, 0.05, 6, found.diameter, sigma)
    assert found.claim_1.reason is None
    assert bounds.features_pointwise(0.2, 0.05) == found.hoeffding.D
    assert found.hoeffding.epsilon_at_D == bounds.epsilon_pointwise(200, 0.05)
    assert found.sample_rows == 800
    assert found.measured.rows == 400
    assert found.measured.relative < found.measured.largest < found.claim_1.epsilon_at_D
    assert found.measured.share_above_epsilon < 0.05


def test_epsilon_measures_as_a_plain_computation_does(threads, monkeypatch):
    X, y = smooth(60)
    monkeypatch.setattr(bounds, "draw_sample", lambda *_: block(X, y))
    recipe = PLAIN.with_(map="mc", form="phase")
    found = bounds.assess(ArraySource(X, y), recipe, 0.25, 0.05, threads).measured
    unseen = X[30:].astype(np.float64)
    Z, K = plain_features("phase", unseen, 20, 0), make_kernel("gaussian", length_scale=2.0)(unseen)
    gap = np.abs(Z @ Z.T - K)
    assert found.rows == 30
    assert found.relative == pytest.approx(np.linalg.norm(gap) / np.linalg.norm(K), rel=1e-9)
    assert found.largest == pytest.approx(gap.max(), rel=1e-9)
    assert found.share_above_epsilon == np.mean(gap > 0.25)
    assert 0.1 < found.share_above_epsilon < 0.9


def test_kernels_without_a_second_moment_get_hoeffding_alone(threads):
    found = bounds.assess(ArraySource(*smooth(100)), PLAIN.with_(kernel="laplacian"), 0.1, 0.05, threads)
    assert (found.claim_1.D, found.claim_1.epsilon_at_D) == (None, None)
    assert "laplacian kernel has no second moment" in found.claim_1.reason
    assert bounds.features_pointwise(0.1, 0.05, "pairs") == found.hoeffding.D


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not (kind_of(kind).targets or kind_of(kind).whole)])
def test_epsilon_measures_every_map_of_the_kernel(threads, kind):
    recipe = PLAIN.with_(D=64, map=kind, bits="12")
    found = bounds.assess(ArraySource(*smooth(100)), recipe, 0.1, 0.05, threads)
    assert found.map == kind
    assert 0 < found.measured.relative < 0.6


def test_epsilon_is_about_the_kernel(threads):
    with pytest.raises(InputError, match="the aligned map does not draw from the kernel's spectral measure"):
        bounds.assess(ArraySource(*smooth(100)), PLAIN.with_(map="aligned"), 0.1, 0.05, threads)
    with pytest.raises(InputError, match="`epsilon` must be a positive number"):
        bounds.assess(ArraySource(*smooth(100)), PLAIN, -0.1, 0.05, threads)


@pytest.fixture
def known_rates(monkeypatch):
    """Measuring this machine's speed takes a second, and is not what is tested here."""
    monkeypatch.setattr(calibrate, "measure_rates", lambda *_: calibrate.Rates(1e9, 1e9, 1e9, 1e9))


@pytest.mark.usefixtures("known_rates")
def test_plan_with_epsilon(data):
    found = done("plan", data, "--D", 64, "--epsilon", 0.1, "--json").json["kernel_error"]
    assert list(found) == ["epsilon", "delta", "D", "map", "form", "kernel", "length_scale", "scaling", "sample_rows",
                           "diameter", "claim_1", "hoeffding", "measured"]  # fmt: skip
    assert (found["epsilon"], found["delta"], found["D"], found["kernel"]) == (0.1, 0.01, 64, "gaussian")
    assert list(found["claim_1"]) == list(found["hoeffding"]) == ["D", "epsilon_at_D", "reason"]
    assert list(found["measured"]) == ["rows", "relative", "largest", "share_above_epsilon"]
    text = done("plan", data, "--D", 64, "--epsilon", 0.1, "--kernel", "laplacian", "--delta", 0.2).out
    assert f"D = {bounds.features_pointwise(0.1, 0.2):,} keeps any one pair below 0.1 with probability 80 %" in text
    assert "error, Claim 1     says nothing: the spectral measure of the laplacian kernel has no second moment" in text
    assert "error, measured    D = 64 (" in text


@pytest.mark.usefixtures("known_rates")
def test_plan_without_epsilon_says_nothing_of_errors(data):
    answer = done("plan", data, "--D", 64, "--json")
    assert "kernel_error" not in answer.json


@pytest.mark.usefixtures("known_rates")
def test_a_plan_that_does_not_fit_measures_nothing(data, monkeypatch):
    monkeypatch.setattr(bounds, "assess", lambda *_: pytest.fail("memory was spent"))
    answer = streamrf("plan", data, "--epsilon", 0.1, "--memory", "1MB")
    assert answer.code == BudgetError.exit_code
