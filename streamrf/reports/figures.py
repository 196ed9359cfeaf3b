"""Pictures of a report. Ink and grid are placeholders that the page's own colours replace, in light and in dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.reports.plots import load_matplotlib

INK, FAINT = "#010203", "#040506"  # stand for the page's text and grid colours
COLOURS = ("#3b82c4", "#d9772b", "#2f9e6e", "#b65fa5", "#b8932f", "#4fb3bf", "#d1495b", "#8a8f98",
           "#9d7bd8")  # fmt: skip
WIDE, HALF = (8.6, 3.4), (4.6, 3.4)
POINTS = 1500  # of a scatter


@dataclass
class Picture:
    """A figure, its name in files, what it shows, and what a reader who cannot see it should know."""

    name: str
    caption: str
    figure: Any
    alt: str

    def svg(self) -> str:
        """Inline markup whose identifiers are its own and whose ink is the page's."""
        matplotlib = load_matplotlib()
        out = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": self.name, "svg.fonttype": "none"}):
            self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        text = out.getvalue()
        return themed(with_own_ids(text[text.index("<svg") :], self.name), self.alt)

    def png(self) -> bytes:
        """The same on white."""
        out = io.BytesIO()
        figure = self.figure
        for artist in figure.findobj():
            _repaint(artist)
        figure.savefig(out, format="png", dpi=150, facecolor="white")
        return out.getvalue()


def with_own_ids(svg: str, name: str) -> str:
    """Identifiers with the picture's name before them: several pictures stand on one page."""
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    return re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)


def themed(svg: str, alt: str) -> str:
    svg = svg.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" role="img">', svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace('role="img">', f'role="img"><title>{_escaped(alt)}</title>', 1)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _repaint(artist: Any) -> None:
    """Placeholders become grey and black, for a picture that stands alone."""
    from matplotlib.colors import to_hex

    for get, put in (("get_color", "set_color"), ("get_edgecolor", "set_edgecolor")):
        if not (hasattr(artist, get) and hasattr(artist, put)):
            continue
        colour = getattr(artist, get)()
        if isinstance(colour, str) and colour in (INK, FAINT):
            getattr(artist, put)("#222222" if colour == INK else "#dddddd")
        elif isinstance(colour, tuple) and len(colour) == 4 and to_hex(colour) in (INK, FAINT):
            getattr(artist, put)("#222222" if to_hex(colour) == INK else "#dddddd")


def figure(size: tuple[float, float] = HALF, columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes, in the look of the report."""
    load_matplotlib()
    from matplotlib.figure import Figure

    made = Figure(figsize=size, layout="constrained")
    axes = made.subplots(1, columns)
    for one in np.atleast_1d(axes):
        dress(one)
    return made, axes


def dress(axes: Any) -> None:
    axes.set_facecolor("none")
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, which="both", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(INK)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_color(INK)
        label.set_fontsize(9)


def legend(axes: Any, **options: Any) -> None:
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, **options)


def note(axes: Any, x: float, text: str) -> None:
    """A dashed line at x, with a word at its top."""
    axes.axvline(x, color=INK, linestyle="--", linewidth=1)
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points", va="top",
        fontsize=8, color=INK,
    )  # fmt: skip


def widths(trials: Sequence[dict[str, Any]], chosen: float | None) -> Any:
    """Error of every pilot trial against the length scale: a colour for each scaling and kernel, a line each stage."""
    made, axes = figure(WIDE)
    pairs = list(dict.fromkeys((trial["kernel"], trial["scaling"]) for trial in trials))
    stages = list(dict.fromkeys(map(_stage, trials)))
    for (pair, stage), line in _lines(trials).items():
        last = stage == stages[-1]
        axes.plot(*np.array(sorted(line)).T, "-" if last else ":", marker="o", markersize=5 if last else 3.5,
                  color=COLOURS[pairs.index(pair) % len(COLOURS)])  # fmt: skip
    for number, pair in enumerate(pairs):
        axes.plot([], [], "-", marker="o", markersize=3.5, color=COLOURS[number % len(COLOURS)], label=", ".join(pair))
    axes.set_xscale("log")
    axes.set_xlabel("length scale, in units of the scaled inputs")
    axes.set_ylabel("unexplained share of variance")
    if chosen:
        note(axes, chosen, "chosen")
    legend(axes, loc="upper left", bbox_to_anchor=(1.01, 1))
    return made


Stage = tuple[int, int]


def _stage(trial: dict[str, Any]) -> Stage:
    return trial["D"], trial.get("rows", 0)


def _lines(trials: Sequence[dict[str, Any]]) -> dict[tuple[tuple[str, str], Stage], list[tuple[float, float]]]:
    """Points of each pairing and stage; the first trial of a width counts, as precisions come later."""
    found: dict[Any, dict[float, float]] = {}
    for trial in trials:
        key = (trial["kernel"], trial["scaling"]), _stage(trial)
        found.setdefault(key, {}).setdefault(trial["length_scale"], trial["error"])
    return {key: list(points.items()) for key, points in found.items()}


def path(ridges: Sequence[float], errors: Sequence[float], chosen: float, what: str) -> Any:
    made, axes = figure()
    axes.plot(ridges, errors, marker="o", markersize=4, color=COLOURS[0])
    axes.set_xscale("log")
    axes.set_xlabel("λ")
    axes.set_ylabel(what)
    axes.ticklabel_format(axis="y", useOffset=False)
    if chosen > 0:
        note(axes, chosen, "chosen")
    return made


def learning(rows: Sequence[int], errors: Sequence[float], what: str) -> Any:
    from matplotlib.ticker import FuncFormatter, LogLocator

    made, axes = figure()
    axes.plot(rows, errors, marker="o", markersize=4, color=COLOURS[0])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.minorticks_off()
    axes.set_xlabel("rows in the sums")
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    return made


def steps(places: Sequence[int], errors: Sequence[float], along: str, what: str) -> Any:
    """An error as something goes on."""
    made, axes = figure()
    axes.plot(list(places), errors, marker="o", markersize=4, color=COLOURS[0])
    axes.set_xlabel(along)
    axes.set_ylabel(what)
    axes.set_ylim(bottom=min(0.0, min(errors)))
    return made


def amounts(names: Sequence[str], values: np.ndarray, what: str) -> Any:
    """A bar for each name, the first at the top."""
    made, axes = figure((HALF[0], 0.9 + 0.26 * len(names)))
    places = np.arange(len(names))[::-1]
    axes.barh(places, values, color=COLOURS[0], height=0.7)
    axes.set_yticks(places, [name[:28] for name in names])
    axes.set_xlabel(what)
    return made


def eigenvalues(values: np.ndarray) -> Any:
    made, axes = figure()
    positive = values[values > values[0] * 1e-16]
    axes.plot(np.arange(1, len(positive) + 1), positive, color=COLOURS[0])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("number")
    axes.set_ylabel("eigenvalue")
    return made


def dimensions(ridges: np.ndarray, dimension: Sequence[float], chosen: float, D: int) -> Any:
    made, axes = figure()
    axes.plot(ridges, dimension, color=COLOURS[0])
    axes.set_xscale("log")
    axes.set_ylim(0, D * 1.05)
    axes.set_xlabel("λ")
    axes.set_ylabel("effective dimension")
    if chosen > 0:
        note(axes, chosen, "chosen")
    return made


def kernel_error(sizes: Sequence[int], curves: Mapping[str, Sequence[float]]) -> Any:
    made, axes = figure()
    for number, (name, errors) in enumerate(curves.items()):
        axes.plot(sizes, errors, marker="o", markersize=4, color=COLOURS[number], label=name,
                  linestyle="-" if number == 0 else "--")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    axes.minorticks_off()
    axes.set_xlabel("features D")
    axes.set_ylabel("relative kernel error")
    legend(axes)
    return made


def residuals(truth: np.ndarray, predicted: np.ndarray) -> Any:
    """Prediction against truth, and the errors."""
    made, (left, right) = figure(WIDE, 2)
    some = slice(0, POINTS)
    left.plot(truth[some], predicted[some], ".", markersize=3, alpha=0.5, color=COLOURS[0])
    ends = [float(min(truth.min(), predicted.min())), float(max(truth.max(), predicted.max()))]
    left.plot(ends, ends, color=INK, linewidth=1, linestyle="--")
    left.set_xlabel("target")
    left.set_ylabel("prediction")
    right.hist(truth - predicted, bins=60, color=COLOURS[0])
    right.set_xlabel("target − prediction")
    right.set_ylabel("rows")
    return made


def confusion(counts: np.ndarray, labels: Sequence[str]) -> Any:
    """Shares of each true class; the numbers are counts where there is room."""
    k = len(labels)
    made, axes = figure((min(8.6, 2.6 + 0.5 * k), min(8.0, 1.9 + 0.42 * k)))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.grid(False)
    axes.pcolormesh(np.arange(k + 1) - 0.5, np.arange(k + 1) - 0.5, shares, cmap="Blues", vmin=0, vmax=1)
    axes.invert_yaxis()
    if k <= 12:
        for i, j in np.ndindex(k, k):
            colour = "#ffffff" if shares[i, j] > 0.5 else "#1c2733"  # on the cell's own colour, in either theme
            axes.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", fontsize=7.5, color=colour)
    step = max(1, k // 20)
    axes.set_xticks(range(0, k, step), [str(label)[:10] for label in labels[::step]], rotation=45 if k > 4 else 0)
    axes.set_yticks(range(0, k, step), [str(label)[:10] for label in labels[::step]])
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    return made


def rocs(curves: Sequence[tuple[str, np.ndarray, np.ndarray, float]]) -> Any:
    made, axes = figure()
    for number, (name, false, true, area) in enumerate(curves):
        axes.plot(false, true, color=COLOURS[number % len(COLOURS)], label=f"{name} (AUC {area:.3f})")
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    legend(axes, loc="lower right")
    return made


def reliability(forecast: np.ndarray, observed: np.ndarray, counts: np.ndarray) -> Any:
    made, axes = figure()
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--")
    axes.plot(forecast, observed, color=COLOURS[0], marker="o", markersize=4)
    axes.scatter(forecast, observed, s=20 + 180 * counts / counts.max(), color=COLOURS[0], alpha=0.3, linewidths=0)
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("observed share")
    return made


def importance(names: Sequence[str], mean: np.ndarray, spread: np.ndarray, what: str) -> Any:
    made, axes = figure((8.6, 0.9 + 0.26 * len(names)))
    places = np.arange(len(names))[::-1]
    axes.barh(places, mean, xerr=spread, color=COLOURS[0], ecolor=INK, height=0.7)
    axes.set_yticks(places, [name[:28] for name in names])
    axes.set_xlabel(f"rise of {what} when the input is shuffled")
    return made


def dependence(curves: Sequence[tuple[str, np.ndarray, np.ndarray]], lines: Sequence[str], what: str) -> Any:
    """One panel for each input, on one scale; a line for each output or class."""
    made, panels = figure((min(8.6, 2.4 * len(curves) + 0.6), 2.9), len(curves))
    panels = np.atleast_1d(panels)
    low, high = min(c[2].min() for c in curves), max(c[2].max() for c in curves)
    margin = 0.05 * (high - low or 1.0)
    for axes, (name, grid, answers) in zip(panels, curves, strict=True):
        for number, line in enumerate(lines):
            marker = "o" if len(grid) < 4 else None
            axes.plot(grid, answers[:, number], color=COLOURS[number % len(COLOURS)], label=line, marker=marker)
        axes.set_xlabel(name[:24])
        axes.set_ylim(low - margin, high + margin)
    panels[0].set_ylabel(what)
    for axes in panels[1:]:
        axes.tick_params(labelleft=False)
    if len(lines) > 1:
        legend(panels[-1])
    return made
