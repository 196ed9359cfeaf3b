"""Pictures of learned maps: error against the number of landmarks, and frequencies with their weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.reports.compare.maps import Cell, Comparison
from streamrf.reports.compare.spectra import Spectra, Spectrum
from streamrf.reports.plots import GRID, INK, OTHER, STYLES, load_matplotlib
from streamrf.support.errors import InputError

PANEL = 3.6  # inches


def _figure(panels: int) -> Any:
    load_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(0.8 + PANEL * panels, 4.2), layout="constrained", facecolor="white")


# -- error against landmarks


def landmarks_figure(comparison: Comparison) -> Any:
    """Kernel error against the number of landmarks, a panel for each D; maps that have no landmarks are level lines."""
    sizes = sorted({cell.D for cell in comparison.cells})
    if not any(cell.landmarks for cell in comparison.cells):
        raise InputError("no map of this comparison has landmarks: compare ekal-sample or ekal-cluster")
    figure = _figure(len(sizes))
    kernel = comparison.kernel
    title = f"{kernel.label} kernel, length scale {kernel.length_scale:.3g}, {comparison.inputs} inputs"
    figure.suptitle(f"{title}, {len(comparison.seeds)} seeds (bands: ± 1 standard deviation)", color=INK, fontsize=10)
    for axes, D in zip(np.atleast_1d(figure.subplots(1, len(sizes), sharey=True)), sizes, strict=True):
        _landmarks_panel(axes, [cell for cell in comparison.cells if cell.D == D])
        axes.set_title(f"{D} features", fontsize=10, color=INK)
    figure.axes[0].set_ylabel("relative kernel error ‖K̃ − K‖ / ‖K‖")
    figure.axes[-1].legend(frameon=False, fontsize=9)
    return figure


def _landmarks_panel(axes: Any, cells: list[Cell]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    for kind in dict.fromkeys(cell.map for cell in cells):
        own = sorted((cell for cell in cells if cell.map == kind), key=lambda cell: cell.landmarks or 0)
        if own[0].landmarks is None:
            _level(axes, kind, own[0])
        else:
            _swept(axes, kind, own)
    counts = sorted({cell.landmarks for cell in cells if cell.landmarks})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("landmarks")
    axes.set_yscale("log")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)


def _swept(axes: Any, kind: str, cells: list[Cell]) -> None:
    colour, marker, line = STYLES.get(kind, OTHER)
    at = [cell.landmarks for cell in cells]
    mean = np.array([cell.kernel_error.mean for cell in cells])
    deviation = np.array([cell.kernel_error.deviation for cell in cells])
    low = np.maximum(mean - deviation, mean / 10)  # a logarithmic axis has no room for zero
    axes.fill_between(at, low, mean + deviation, color=colour, alpha=0.12, linewidth=0)
    axes.plot(at, mean, color=colour, marker=marker, linestyle=line, linewidth=1.6, markersize=6, label=kind)


def _level(axes: Any, kind: str, cell: Cell) -> None:
    colour, _, line = STYLES.get(kind, OTHER)
    axes.axhline(cell.kernel_error.mean, color=colour, linestyle=line, linewidth=1.2, label=kind)


# -- frequencies and weights


def spectra_figure(found: Spectra) -> Any:
    """The rows, and for each map its frequencies coloured by weight; w and -w are one cosine, and both are shown."""
    figure = _figure(1 + len(found.spectra))
    first, *others = figure.subplots(1, 1 + len(found.spectra))
    first.scatter(*found.rows.T, s=4, color="#0072B2", alpha=0.5, linewidths=0)
    _square(first, f"rows ({found.axes})")
    limit = max(float(np.quantile(each.weights, 0.98)) for each in found.spectra)
    reach = max(float(np.quantile(np.abs(each.W), 0.97)) for each in found.spectra)
    for axes, each in zip(others, found.spectra, strict=True):
        dots = _spectrum(axes, each, limit, reach)
    bar = figure.colorbar(dots, ax=others, shrink=0.8)
    bar.set_label("weight, as a multiple of 1 / frequencies", color=INK, fontsize=9)
    figure.suptitle(
        f"{found.kernel.label} kernel, length scale {found.kernel.length_scale:.3g}", color=INK, fontsize=10
    )
    return figure


def _spectrum(axes: Any, each: Spectrum, limit: float, reach: float) -> Any:
    W, weights = np.concatenate([each.W, -each.W]), np.tile(each.weights, 2)
    order = np.argsort(weights, kind="stable")  # heavy ones on top
    dots = axes.scatter(*W[order].T, c=weights[order], s=9, cmap="viridis", vmin=0.0, vmax=limit, linewidths=0)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    _square(axes, "weights on a grid" if each.name == "grid" else f"{each.name}, {len(each.W)} frequencies")
    return dots


def _square(axes: Any, title: str) -> None:
    axes.set_aspect("equal", adjustable="box")
    axes.set_title(title, fontsize=10, color=INK)
    axes.tick_params(colors=INK, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
