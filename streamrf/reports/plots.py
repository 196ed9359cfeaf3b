"""Pictures as files, and what they have in common. Matplotlib is an extra: it is imported when a picture is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from streamrf.support.errors import InputError, MissingDependencyError
from streamrf.support.storage.files import atomic_write, refuse_existing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def check_picture(path: str | Path, *, overwrite: bool) -> None:
    """Refuse a picture that cannot be written to ``path``, before time is spent on it."""
    _format(path)
    load_matplotlib()
    if not overwrite:
        refuse_existing(Path(path))


def _format(path: str | Path) -> str:
    ending = Path(path).suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise InputError(f"{path} is not a picture: choose a name that ends in {', '.join('.' + f for f in FORMATS)}")
    return ending


def load_matplotlib() -> ModuleType:
    """The module, or MissingDependencyError that names the extra to install."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("pictures need matplotlib: pip install 'streamrf[report]'") from error
    return matplotlib


def save(figure: Figure, path: str | Path, *, overwrite: bool = True) -> None:
    """Write a figure whole or not at all. The same figure gives the same bytes."""
    kind, matplotlib, picture = _format(path), load_matplotlib(), io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "streamrf"}):
        figure.savefig(picture, format=kind, dpi=150, metadata=undated)
    atomic_write(path, picture.getvalue(), overwrite=overwrite)


def new_figure(size: tuple[float, float], background: str | None = None) -> Figure:
    """An empty figure that no window shows."""
    load_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained", facecolor=background)


def draw_band(axes: Axes, kind: str, x: Sequence[int], mean: np.ndarray, deviation: np.ndarray) -> None:
    """A line in the style of a map, inside a band of one standard deviation."""
    colour, marker, line = STYLES.get(kind, OTHER)
    low = np.maximum(mean - deviation, mean / 10)  # a logarithmic axis has no room for zero
    axes.fill_between(x, low, mean + deviation, color=colour, alpha=0.09, linewidth=0)
    axes.plot(x, mean, color=colour, marker=marker, linestyle=line, linewidth=1.6, markersize=5, label=kind)


def dress(axes: Axes, x: Sequence[int], label: str) -> None:
    """A grid, and a logarithmic x axis with plain numbers at these values."""
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(x[:: -(-len(x) // 8)]))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)


def scale_errors(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers at round steps; linear if an error is zero."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = min(float(np.min(line.get_ydata())) for line in axes.lines), axes.get_ylim()[1]
    if low <= 0:
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    decades = np.log10(high / low)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if decades > 0.7 else MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.yaxis.set_minor_locator(NullLocator())
