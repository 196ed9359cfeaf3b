"""Landmarks compared, and frequencies drawn: figures beside what they were made from."""

from __future__ import annotations

import numpy as np
import pytest
from commands import streamrf

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.features.fourier import draw
from streamrf.features.kernels import make_kernel
from streamrf.features.learned.ekal import Pairs, fit_weights, relative_error
from streamrf.recipe import Recipe
from streamrf.reports.comparison import Bench, compare
from streamrf.reports.comparison_plots import GRID_SIDE, grid_spectrum, spectra, two_axes
from streamrf.support.errors import InputError
from streamrf.support.threads import Threads

pytest.importorskip("matplotlib")
PLAIN = Recipe(kernel="gaussian", scaling="standard", form="pairs", bits="float64", length_scale=1.0)


def ring(n, d=2, seed=0):
    """Rows near an ellipse, in as many columns."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, n)
    X = np.stack([2 * np.cos(angle), 0.5 * np.sin(angle)], axis=1) @ np.eye(2, d) + 0.05 * rng.normal(size=(n, d))
    return X, np.sin(3 * angle)


@pytest.fixture(scope="module")
def threads():
    with Threads(2) as two:
        yield two


@pytest.fixture(scope="module")
def found(threads):
    source = ArraySource(*ring(300))
    return compare(source, PLAIN, Ds=[8, 16], seeds=2, rows=150, landmarks=[20, 4], threads=threads)


def test_learned_maps_are_measured_at_every_number_of_landmarks(found):
    places = {kind: [(cell.D, cell.landmarks) for cell in found.of_map(kind)] for kind in ("mc", "ekal-sample")}
    assert places["mc"] == [(8, None), (16, None)]
    assert places["ekal-sample"] == [(8, 4), (8, 20), (16, 4), (16, 20)]
    assert {cell.map for cell in found.cells} == {"mc", "orthogonal", "ekal-sample", "ekal-cluster"}
    assert found.of_map("ekal-cluster")[3].kernel_error.mean < 0.5 * found.of_map("mc")[1].kernel_error.mean
    assert "landmarks" not in found.of_map("mc")[0].to_json()
    assert found.of_map("ekal-sample")[0].to_json()["landmarks"] == 4


def test_errors_are_drawn_against_landmarks(found):
    from streamrf.reports.comparison_plots import landmarks_figure

    figure = landmarks_figure(found)
    assert [axes.get_title() for axes in figure.axes] == ["8 features", "16 features"]
    for D, axes in zip((8, 16), figure.axes, strict=True):
        lines = {line.get_label(): line for line in axes.lines}
        cells = [cell for cell in found.of_map("ekal-cluster") if cell.D == D]
        assert list(lines["ekal-cluster"].get_xdata()) == [4, 20]
        assert list(lines["ekal-cluster"].get_ydata()) == [cell.kernel_error.mean for cell in cells]
        level = next(cell for cell in found.of_map("mc") if cell.D == D).kernel_error.mean
        assert set(lines["mc"].get_ydata()) == {level}


def test_without_landmarks_there_is_no_such_picture(threads):
    from streamrf.reports.comparison_plots import landmarks_figure

    plain = compare(ArraySource(*ring(60)), PLAIN, kinds=["mc"], Ds=[8], seeds=1, rows=30, threads=threads)
    with pytest.raises(InputError, match="no map of this comparison has landmarks"):
        landmarks_figure(plain)


def bench(X, y, threads):
    return Bench(Block(X, y, np.arange(len(X))), PLAIN, threads)


def test_frequencies_of_two_columns_are_shown_as_they_are(threads):
    from streamrf.reports.comparison_plots import spectra_figure

    own = bench(*ring(200), threads)
    seen = spectra(own, ["mc", "weighted"], 20, 3)
    assert (seen.axes, [each.name for each in seen.spectra]) == ("columns", ["mc", "weighted", "grid"])
    drawn = own.build("weighted", 20, 3).frequencies
    np.testing.assert_array_equal(seen.spectra[1].W, drawn.dense())
    np.testing.assert_allclose(seen.spectra[1].weights, 10 * drawn.weights)
    figure = spectra_figure(seen)
    offsets = figure.axes[1].collections[0].get_offsets()
    assert {tuple(place) for place in np.round(offsets, 12)} == {
        tuple(place) for place in np.round(np.concatenate([seen.spectra[0].W, -seen.spectra[0].W]), 12)
    }


def test_many_columns_are_shown_along_their_widest_directions(threads):
    X, y = ring(200, d=5)
    own = bench(X, y, threads)
    seen = spectra(own, ["mc"], 20, 0)
    scaled = own.scaling.transform(own.fitted.X, np.float64)
    plane, axes = two_axes(scaled)
    assert (axes, len(seen.spectra)) == ("principal axes", 1)
    np.testing.assert_allclose(plane.T @ plane, np.eye(2), atol=1e-12)
    assert np.var(scaled @ plane, axis=0).sum() == pytest.approx(
        np.sort(np.linalg.eigvalsh(np.cov(scaled.T)))[-2:].sum() * 0.99, rel=0.02
    )
    np.testing.assert_allclose(seen.spectra[0].W, own.build("mc", 20, 0).frequencies.dense() @ plane)


def test_one_column_has_no_plane(threads):
    X, y = ring(40)
    with pytest.raises(InputError, match="the inputs have one column"):
        spectra(bench(X[:, :1], y, threads), ["mc"], 8, 0)


def test_grid_weights_are_the_best_ones_of_the_grid():
    kernel, X = make_kernel("gaussian", length_scale=1.0), ring(60)[0]
    grid = grid_spectrum(kernel, X, 0)
    assert grid.W.shape == (GRID_SIDE**2, 2)
    pairs = Pairs.within(kernel, X)
    np.testing.assert_allclose(grid.weights / GRID_SIDE**2, fit_weights(pairs, grid.W))
    plain = draw("mc", kernel, GRID_SIDE**2, 2, 0)
    fitted = relative_error(pairs, grid.W, grid.weights / GRID_SIDE**2)
    assert fitted < relative_error(pairs, plain.W, plain.weights)


def test_the_command_draws_both_pictures(tmp_path):
    X, y = ring(200)
    for name, array in (("X", X), ("y", y)):
        (tmp_path / "data").mkdir(exist_ok=True)
        np.save(tmp_path / "data" / f"{name}.npy", array)
    given = ["--rows", "60", "--seeds", "1", "--D", "8", "--maps", "mc,ekal-sample", "--landmarks", "4,8"]
    pictures = ["--plot", str(tmp_path / "l.svg"), "--frequencies", str(tmp_path / "f.png")]
    answer = streamrf("compare", str(tmp_path / "data"), *given, *pictures, "--json")
    told = answer.json
    assert (told["plot"], told["frequencies"]) == (pictures[1], pictures[3])
    assert [cell.get("landmarks") for cell in told["cells"]] == [None, 4, 8]
    assert (tmp_path / "l.svg").read_bytes().startswith(b"<?xml")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert (
        "--landmarks must be whole numbers separated by commas, such as 0,2 or 50,100, not few"
        in streamrf("compare", str(tmp_path / "data"), "--landmarks", "few").err
    )
