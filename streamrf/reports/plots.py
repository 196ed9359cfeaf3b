"""Pictures. Matplotlib is an extra: it is asked for when a picture is, and not before."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from streamrf.reports.compare.maps import Cell, Comparison, Spread
from streamrf.support.errors import InputError, MissingDependencyError
from streamrf.support.storage.files import atomic_write, refuse_existing

FORMATS = ("png", "svg", "pdf")
# A map has the same look in every picture. Maps of one family share a kind of line; colours stay apart for colour-blind
# eyes, and markers tell all of them apart without any.
STYLES = {
    "mc": ("#000000", "o", "-"),
    "orthogonal": ("#0072B2", "s", "-"),
    "moment-matched": ("#8C510A", "D", "-"),
    "sorf": ("#56B4E9", "v", ":"),
    "fastfood": ("#7F7F7F", "^", ":"),
    "halton": ("#E69F00", "P", "--"),
    "sobol": ("#D55E00", "X", "--"),
    "lattice": ("#882255", "<", "--"),
    "digital-net": ("#CC79A7", ">", "--"),
    "weighted": ("#009E73", "p", "-."),
    "aligned": ("#332288", "h", "-."),
    "ekal-sample": ("#44AA99", "*", (0, (4, 1, 1, 1, 1, 1))),
    "ekal-cluster": ("#117733", "d", (0, (4, 1, 1, 1, 1, 1))),
    "binning": ("#999933", "8", (0, (1, 1))),
    "supervised": ("#AA4499", "H", (0, (4, 1, 1, 1, 1, 1))),
}
OTHER = ("#555555", ".", "-")
INK, GRID = "#333333", "#E3E3E3"
LABEL_GAP = 0.052  # of the height of the axes: a line of text


def check_picture(path: str | Path, *, overwrite: bool) -> None:
    """Whether a picture can be drawn there: ask before minutes are spent."""
    _format(path)
    load_matplotlib()
    if not overwrite:
        refuse_existing(Path(path))


def _format(path: str | Path) -> str:
    ending = Path(path).suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise InputError(f"{path} is not a picture: choose a name that ends in {', '.join('.' + f for f in FORMATS)}")
    return ending


def load_matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("pictures need matplotlib: pip install 'streamrf[report]'") from error
    return matplotlib


def save(figure: Any, path: str | Path, *, overwrite: bool = True) -> None:
    """Write a figure whole or not at all; the same figure gives the same bytes."""
    kind, matplotlib, picture = _format(path), load_matplotlib(), io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "streamrf"}):
        figure.savefig(picture, format=kind, dpi=150, metadata=undated)
    atomic_write(path, picture.getvalue(), overwrite=overwrite)


def comparison_figure(comparison: Comparison) -> Any:
    """Kernel error and hold-out error against D, one line a map, with one standard deviation over seeds."""
    load_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 5.0), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    kernel, rows = comparison.kernel, comparison.rows["measured"]
    figure.suptitle(
        f"{kernel.label} kernel, length scale {kernel.length_scale:.3g}, {comparison.inputs} inputs, {rows:,} rows,"
        f" {_plural(len(comparison.seeds), 'seed')} (bands: ± 1 standard deviation)",
        color=INK, fontsize=10,
    )  # fmt: skip
    _panel(left, comparison, lambda cell: cell.kernel_error)
    left.set_ylabel("relative kernel error ‖K̃ − K‖ / ‖K‖")
    _panel(right, comparison, lambda cell: cell.holdout_error)
    wrong = comparison.metric == "error"
    right.set_ylabel("hold-out error (share of wrong classes)" if wrong else "hold-out RMSE (units of the target)")
    return figure


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _panel(axes: Any, comparison: Comparison, figure_of: Callable[[Cell], Spread]) -> None:
    ends: list[tuple[str, int, float]] = []
    for kind in dict.fromkeys(cell.map for cell in comparison.cells):
        cells = comparison.of_map(kind)
        D, spreads = [cell.D for cell in cells], [figure_of(cell) for cell in cells]
        _line(axes, kind, D, np.array([s.mean for s in spreads]), np.array([s.deviation for s in spreads]))
        ends.append((kind, D[-1], spreads[-1].mean))
    _dress(axes, sorted({cell.D for cell in comparison.cells}))
    _label_ends(axes, ends)


def _line(axes: Any, kind: str, D: list[int], mean: np.ndarray, deviation: np.ndarray) -> None:
    colour, marker, line = STYLES.get(kind, OTHER)
    low = np.maximum(mean - deviation, mean / 10)  # a logarithmic axis has no room for zero
    axes.fill_between(D, low, mean + deviation, color=colour, alpha=0.09, linewidth=0)
    axes.plot(D, mean, color=colour, marker=marker, linestyle=line, linewidth=1.6, markersize=5, label=kind)


def _dress(axes: Any, D: list[int]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(D[:: -(-len(D) // 8)]))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("features D")
    _scale_errors(axes)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)


def _scale_errors(axes: Any) -> None:
    """Logarithmic, with plain numbers at steps that people count in; linear where an error is zero."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = min(line.get_ydata().min() for line in axes.lines), axes.get_ylim()[1]
    if low <= 0:
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    decades = np.log10(high / low)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if decades > 0.7 else MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _label_ends(axes: Any, ends: list[tuple[str, int, float]]) -> None:
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
    """Rising heights moved as little as keeps them ``gap`` apart and between 0 and 1 (least squares)."""
    from scipy.optimize import isotonic_regression

    steps = gap * np.arange(len(heights))
    return np.clip(isotonic_regression(heights - steps).x, 0.0, max(0.0, 1.0 - steps[-1])) + steps
