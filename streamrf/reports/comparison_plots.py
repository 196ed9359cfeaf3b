"""Pictures of a comparison: errors against D or against landmarks, and frequencies with their weights.

Frequencies are shown along two axes, as in Figure 1 of Li et al. (2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import isotonic_regression

from streamrf.features.kernels import Kernel
from streamrf.features.learned.ekal import Pairs, fit_weights
from streamrf.recipe import BINNING
from streamrf.reports.comparison import Bench, Cell, Comparison, Spread
from streamrf.reports.plots import INK, OTHER, STYLES, draw_band, dress, new_figure, scale_errors
from streamrf.support.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

LABEL_GAP = 0.052  # of the height of the axes: a line of text
PANEL = 3.6  # inches
GRID = "grid"
GRID_SIDE, GRID_ROWS = 25, 400
REACH = 0.97  # share of the draws of a column that lie inside the grid
SHOWN_ROWS = 1000
KERNEL_ERROR = "relative kernel error ‖K̃ − K‖ / ‖K‖"


# -- errors


def comparison_figure(comparison: Comparison) -> Figure:
    """Kernel error and hold-out error against D, one line for each map, with one standard deviation over seeds."""
    figure = new_figure((11.5, 5.0), background="white")
    left, right = figure.subplots(1, 2)
    figure.suptitle(_title(comparison, f"{comparison.rows['measured']:,} rows, "), color=INK, fontsize=10)
    _panel(left, comparison, lambda cell: cell.kernel_error)
    left.set_ylabel(KERNEL_ERROR)
    _panel(right, comparison, lambda cell: cell.holdout_error)
    wrong = comparison.metric == "error"
    right.set_ylabel("hold-out error (share of wrong classes)" if wrong else "hold-out RMSE (units of the target)")
    return figure


def _title(comparison: Comparison, rows: str = "") -> str:
    kernel, seeds = comparison.kernel, len(comparison.seeds)
    return (
        f"{kernel.label} kernel, length scale {kernel.length_scale:.3g}, {comparison.inputs} inputs, {rows}"
        f"{seeds} seed{'' if seeds == 1 else 's'} (bands: ± 1 standard deviation)"
    )


def _panel(axes: Axes, comparison: Comparison, spread_of: Callable[[Cell], Spread]) -> None:
    ends: list[tuple[str, int, float]] = []
    for kind in dict.fromkeys(cell.map for cell in comparison.cells):
        cells = comparison.of_map(kind)
        _draw_spreads(axes, kind, [cell.D for cell in cells], [spread_of(cell) for cell in cells])
        ends.append((kind, cells[-1].D, spread_of(cells[-1]).mean))
    dress(axes, sorted({cell.D for cell in comparison.cells}), "features D")
    scale_errors(axes)
    _label_ends(axes, ends)


def _draw_spreads(axes: Axes, kind: str, x: Sequence[int], spreads: Sequence[Spread]) -> None:
    draw_band(axes, kind, x, np.array([s.mean for s in spreads]), np.array([s.deviation for s in spreads]))


def _label_ends(axes: Axes, ends: list[tuple[str, int, float]]) -> None:
    """The name of each map beside the end of its line, moved apart where ends are close."""
    ends = sorted(ends, key=lambda end: end[2])
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = np.array([to_axes.transform((D, value))[1] for _, D, value in ends])
    for (kind, D, value), height in zip(ends, spaced(heights, LABEL_GAP), strict=True):
        colour = STYLES.get(kind, OTHER)[0]
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 4, "relpos": (0, 0.5)}
        axes.annotate(
            kind, (D, value), (1.05, height), textcoords="axes fraction", va="center", color=INK, fontsize=9,
            arrowprops=leader, annotation_clip=False,
        )  # fmt: skip


def spaced(heights: np.ndarray, gap: float) -> np.ndarray:
    """Rising heights, moved as little as possible to be ``gap`` apart and between 0 and 1 (least squares)."""
    steps = gap * np.arange(len(heights))
    return np.clip(isotonic_regression(heights - steps).x, 0.0, max(0.0, 1.0 - steps[-1])) + steps


def landmarks_figure(comparison: Comparison) -> Figure:
    """Kernel error against the number of landmarks, a panel for each D; maps without landmarks are level lines."""
    sizes = sorted({cell.D for cell in comparison.cells})
    if not any(cell.landmarks for cell in comparison.cells):
        raise InputError("no map of this comparison has landmarks: compare ekal-sample or ekal-cluster")
    figure = _row_of_panels(len(sizes))
    figure.suptitle(_title(comparison), color=INK, fontsize=10)
    for axes, D in zip(np.atleast_1d(figure.subplots(1, len(sizes), sharey=True)), sizes, strict=True):
        _landmarks_panel(axes, [cell for cell in comparison.cells if cell.D == D])
        axes.set_title(f"{D} features", fontsize=10, color=INK)
    figure.axes[0].set_ylabel(KERNEL_ERROR)
    figure.axes[-1].legend(frameon=False, fontsize=9)
    return figure


def _row_of_panels(count: int) -> Figure:
    return new_figure((0.8 + PANEL * count, 4.2), background="white")


def _landmarks_panel(axes: Axes, cells: list[Cell]) -> None:
    for kind in dict.fromkeys(cell.map for cell in cells):
        own = sorted((cell for cell in cells if cell.map == kind), key=lambda cell: cell.landmarks or 0)
        if own[0].landmarks:
            _draw_spreads(axes, kind, [cell.landmarks or 0 for cell in own], [cell.kernel_error for cell in own])
        else:
            colour, _, line = STYLES.get(kind, OTHER)
            axes.axhline(own[0].kernel_error.mean, color=colour, linestyle=line, linewidth=1.2, label=kind)
    dress(axes, sorted({cell.landmarks for cell in cells if cell.landmarks}), "landmarks")
    axes.set_yscale("log")


# -- frequencies and weights


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Frequencies of one map along two axes, (F, 2), and their weights times their number: 1 on average."""

    name: str
    W: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Spectra:
    """Rows and frequencies along the same two axes."""

    rows: np.ndarray  # (n, 2)
    axes: str
    spectra: list[Spectrum]
    kernel: Kernel


def spectra(bench: Bench, kinds: Sequence[str], D: int, seed: int) -> Spectra:
    """Frequencies of each map; for two columns also the best weights of frequencies on a grid, as in the paper."""
    X = bench.scaling.transform(bench.fitted.X, np.float64)
    if X.shape[1] < 2:
        raise InputError("frequencies are drawn along two axes, and the inputs have one column: compare errors instead")
    plane, axes = two_axes(X)
    found = []
    for kind in kinds:
        if kind != BINNING:  # it has none
            drawn = bench.build(kind, D, seed).frequencies
            found.append(Spectrum(kind, drawn.dense() @ plane, drawn.weights * len(drawn)))
    if not found:
        raise InputError("random binning has no frequencies to draw: name other `maps`")
    if X.shape[1] == 2:
        found.append(grid_spectrum(bench.kernel, X[:GRID_ROWS], seed))
    return Spectra(X[:SHOWN_ROWS] @ plane, axes, found, bench.kernel)


def two_axes(X: np.ndarray) -> tuple[np.ndarray, str]:
    """Two orthogonal axes and their name: the columns themselves, or the first two principal axes."""
    if X.shape[1] == 2:
        return np.eye(2), "columns"
    _, vectors = np.linalg.eigh(np.cov(X, rowvar=False))
    return vectors[:, :-3:-1], "principal axes"


def grid_spectrum(kernel: Kernel, X: np.ndarray, seed: int) -> Spectrum:
    """The best weights of frequencies on a grid, for the kernel between these rows."""
    draws = kernel.sample(np.random.default_rng(seed), 2000, 2)
    side = np.linspace(-1.0, 1.0, GRID_SIDE) * np.quantile(np.abs(draws), REACH)
    W = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    weights = fit_weights(Pairs.within(kernel, X), W)
    return Spectrum(GRID, W, weights * len(W))


def spectra_figure(found: Spectra) -> Figure:
    """The rows, and for each map its frequencies coloured by weight; w and -w are one cosine, and both are shown."""
    figure = _row_of_panels(1 + len(found.spectra))
    first, *others = figure.subplots(1, 1 + len(found.spectra))
    first.scatter(found.rows[:, 0], found.rows[:, 1], s=4, color="#0072B2", alpha=0.5, linewidths=0)
    _square(first, f"rows ({found.axes})")
    limit = max(float(np.quantile(each.weights, 0.98)) for each in found.spectra)
    reach = max(float(np.quantile(np.abs(each.W), 0.97)) for each in found.spectra)
    for axes, each in zip(others, found.spectra, strict=True):
        dots = _draw_spectrum(axes, each, limit, reach)
    bar = figure.colorbar(dots, ax=others, shrink=0.8)
    bar.set_label("weight, as a multiple of 1 / frequencies", color=INK, fontsize=9)
    kernel = found.kernel
    figure.suptitle(f"{kernel.label} kernel, length scale {kernel.length_scale:.3g}", color=INK, fontsize=10)
    return figure


def _draw_spectrum(axes: Axes, each: Spectrum, limit: float, reach: float) -> PathCollection:
    W, weights = np.concatenate([each.W, -each.W]), np.tile(each.weights, 2)
    order = np.argsort(weights, kind="stable")  # heavy ones on top
    dots = axes.scatter(
        W[order, 0], W[order, 1], c=weights[order], s=9, cmap="viridis", vmin=0.0, vmax=limit, linewidths=0
    )
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    _square(axes, "weights on a grid" if each.name == GRID else f"{each.name}, {len(each.W)} frequencies")
    return dots


def _square(axes: Axes, title: str) -> None:
    axes.set_aspect("equal", adjustable="box")
    axes.set_title(title, fontsize=10, color=INK)
    axes.tick_params(colors=INK, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
