"""The pictures of the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchlib.against import TASKS
from benchlib.curve import points
from benchlib.growth import AXES, NAMES
from benchlib.page.flat import draw as draw_larger
from benchlib.page.grown import best_of, numbered
from benchlib.page.scaled import draw as draw_scaling
from benchlib.page.whole import draw as draw_tables
from benchlib.page.words import called as in_words
from benchlib.page.words import finished, is_ours, of_task
from benchlib.sets import SETS

Found = dict[str, dict[str, Any]]
FILES = {"limits": "benchmarks-roofline.png", "scaling": "scaling.png"}
MARKERS = "osD^v<>PX*hp"


def draw(found: Found, folder: Path) -> list[Path]:
    """Draw what there are results for."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = []
    for name, picture in PICTURES.items():
        if name in found:
            figure = picture(plt, found)
            path = folder / FILES.get(name, f"benchmarks-{name}.png")
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
            plt.close(figure)
            drawn.append(path)
    return drawn


def called(name: str) -> str:
    return in_words(name).replace("`", "")


def _style(number: int, ours: bool) -> dict[str, Any]:
    color = ("#c0392b", "#e67e22", "#8e44ad", "#16a085")[number % 4] if ours else f"C{number % 10}"
    return {"color": color, "marker": MARKERS[number % len(MARKERS)], "markersize": 8 if ours else 6}


def _plain_numbers(axis: Any) -> None:
    """1, 2, 5, 10 and so on along an axis of logarithms, instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def peers(plt: Any, found: Found) -> Any:
    """A panel a task: error against training time."""
    cells = found["peers"]["cells"]
    tasks = [name for name in TASKS if finished(of_task(cells, name))]
    figure, axes = plt.subplots(-(-len(tasks) // 2), 2, figsize=(11, 3.4 * -(-len(tasks) // 2)), squeeze=False)
    names: dict[str, Any] = {}
    for axis, task in zip(axes.flat, tasks, strict=False):
        for name, cell in finished(of_task(cells, task)).items():
            place = names.setdefault(name, _style(len(names), is_ours(name)))
            scale = 100 if SETS[task].classes else 1
            axis.plot(max(cell["train"], 0.01), scale * cell["error"], linestyle="", label=called(name), **place)
        axis.set(title=SETS[task].title, xscale="log", xlabel="training, seconds",
                 ylabel="wrong, %" if SETS[task].classes else "RMSE")  # fmt: skip
        _plain_numbers(axis.xaxis)
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(tasks) :]:
        axis.axis("off")
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.tight_layout()
    figure.legend(handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=3, fontsize=8)
    return figure


def memory(plt: Any, found: Found) -> Any:
    cells = found["memory"]["cells"]
    mine, limit = of_task(cells, "larger"), cells["larger/table"]["limit"]
    order = sorted(mine, key=lambda each: (not mine[each]["ok"], mine[each].get("peak", 0)), reverse=True)
    figure, axis = plt.subplots(figsize=(9, 0.4 * len(order) + 1.2))
    for place, name in enumerate(order):
        cell = mine[name]
        color = "#bbbbbb" if not cell["ok"] else ("#c0392b" if is_ours(name) else "C0")
        axis.barh(place, cell.get("peak", 0) / 1e9, color=color)
        axis.text(cell.get("peak", 0) / 1e9, place, "" if cell["ok"] else f"  {cell['why']}", va="center", fontsize=8)
    axis.axvline(limit / 1e9, color="k", linestyle="--")
    axis.set_yticks(range(len(order)), [called(name) for name in order], fontsize=8)
    axis.set_xlabel("peak of resident memory, GB (dashed: the limit)")
    return figure


def curve(plt: Any, found: Found) -> Any:
    curves = points(found["curve"]["cells"], found.get("peers", {"cells": {}})["cells"])
    figure, axis = plt.subplots(figsize=(9, 5.5))
    for number, (name, each) in enumerate(curves.items()):
        width = 2.5 if is_ours(name) else 1.2
        axis.plot([p[1] for p in each], [100 * p[2] for p in each], label=called(name), linewidth=width,
                  **_style(number, is_ours(name)))  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="training, seconds", ylabel="test error, %")
    for each in (axis.xaxis, axis.yaxis):
        _plain_numbers(each)
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncol=3)
    return figure


def limits(plt: Any, found: Found) -> Any:
    """Operations done (not counted twice) against operations a byte that is moved."""
    cells = found["limits"]["cells"]
    figure, axis = plt.subplots(figsize=(9, 5.5))
    peak = cells["peak"]
    span = [2.0**e for e in range(-2, 13)]
    for number, (name, top) in enumerate(peak["gops"].items()):
        axis.plot(span, [min(top, x * peak["copy"]) for x in span], "--", color=f"C{number}", label=f"peak, {name}")
    for number, gram in enumerate(numbered(cells, "gram")):
        rows, D = gram["rows"], gram["D"]
        for color, (name, rate, width) in enumerate(_products(gram["gops"])):
            intensity = rows * D * D / (width * rows * D + 8 * D * D)  # read the block; read and write half the totals
            axis.plot(intensity, rate / 2, color=f"C{color}", marker=MARKERS[number], linestyle="",
                      label=f"{name}, D = {D:,}")  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="billions of operations a second")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=7, ncol=2)
    return figure


def _products(gops: dict[str, float]) -> list[tuple[str, float, int]]:
    """Name, rate and bytes of a feature, in the order of the peaks: float32, float64, 12 and 8 bits."""
    return [("ssyrk", gops["ssyrk"], 4), ("dsyrk", gops["dsyrk"], 8), (*best_of(gops, 12), 2), (*best_of(gops, 8), 1)]


def growth(plt: Any, found: Found) -> Any:
    cells = found["growth"]["cells"]
    axes_there = [axis for axis in AXES if axis in NAMES and any(cell["ok"] for cell in numbered(cells, axis))]
    figure, axes = plt.subplots(2, len(axes_there), figsize=(3.2 * len(axes_there), 6), squeeze=False)
    for column, axis in enumerate(axes_there):
        each = [cell for cell in numbered(cells, axis) if cell["ok"]]
        x = [cell[axis] for cell in each]
        for part in ("pass", "solve", "total"):
            axes[0][column].plot(x, [max(cell[part], 1e-3) for cell in each], marker="o", label=part)
        axes[1][column].plot(x, [cell["peak"] / 1e9 for cell in each], marker="o", color="C3", label="peak")
        axes[1][column].plot(x, [cell["projected"] / 1e9 for cell in each], "--", color="C3", label="projected")
        for row in (0, 1):
            axes[row][column].set(xscale="log", yscale="log", xlabel=NAMES[axis])
            axes[row][column].grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel("seconds")
    axes[1][0].set_ylabel("GB")
    axes[0][0].legend(fontsize=8)
    axes[1][0].legend(fontsize=8)
    figure.tight_layout()
    return figure


PICTURES: dict[str, Callable[[Any, Found], Any]] = {
    "tables": draw_tables,
    "peers": peers,
    "memory": memory,
    "curve": curve,
    "limits": limits,
    "growth": growth,
    "larger": lambda plt, found: draw_larger(plt, found["larger"]["cells"]),
    "scaling": lambda plt, found: draw_scaling(plt, found["scaling"]["cells"]),
}
