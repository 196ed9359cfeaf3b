"""`growth`: time and memory of training against rows, features, columns, classes and workers; exponents are fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchlib import ours
from benchlib.context import Context
from benchlib.results import Cell, Results, rounded
from benchlib.tables import generated

MINUTES = "about 11 minutes, of which D = 20,000 takes 3"
FIXED = ("--kernel", "gaussian", "--length-scale", 5, "--scaling", "standard", "--bits", 8, "--lambda", 1e-5,
         "--solver", "cholesky", "--pilot", "none", "--map", "mc", "--no-checkpoint", "--no-statistics",
         "--overwrite")  # fmt: skip


@dataclass(frozen=True)
class Size:
    """One run: what the table and the machine are like."""

    rows: int
    D: int
    inputs: int = 20
    classes: int = 0
    workers: int = 0

    def table(self, work: Path) -> Path:
        name = f"grow-{self.rows}-{self.inputs}-{self.classes}.zarr"
        return generated(work / "tables" / name, self.rows, self.inputs, classes=self.classes)


AXES: dict[str, list[Size]] = {
    "rows": [Size(rows, 500) for rows in (10_000, 100_000, 1_000_000, 10_000_000, 30_000_000)],
    "D": [Size(50_000, D) for D in (500, 1000, 2000, 5000, 10_000, 20_000)],
    "inputs": [Size(100_000, 1000, inputs) for inputs in (5, 20, 100, 300, 1000)],
    "classes": [Size(200_000, 1000, classes=classes) for classes in (0, 2, 10, 30, 100)],
    "workers": [Size(1_000_000, 2000, workers=workers) for workers in (1, 2)],
}
TOYS: dict[str, list[Size]] = {
    "rows": [Size(1000, 32), Size(4000, 32)],
    "D": [Size(1000, 64)],
    "classes": [Size(1000, 32, classes=3)],
}


def run(context: Context) -> Results:
    results = context.open("growth")
    ours.warm_up(context)
    for axis, sizes in (TOYS if context.quick else AXES).items():
        for size in sizes:
            if context.wants(axis):
                value = getattr(size, axis) or 1
                results.cell(f"{axis}/{value}", lambda size=size: measure(context, size))
    return results


def measure(context: Context, size: Size, *options: Any) -> Cell:
    """Training at fixed settings: the pass, the solve, and the most memory it held."""
    task, threads = "classification" if size.classes else "regression", context.threads
    if size.workers:
        options, threads = (*options, "--workers", size.workers), 1
    given = ("--D", size.D, *FIXED, "--out", ours.model_of(context), "--task", task, *options)
    ended = ours.streamrf(context, "train", size.table(context.work), *given, threads=threads)
    if not ended.ok:
        return ours.failure(ended)
    report = ended.json()
    return rounded({"ok": True, "rows": size.rows, "D": size.D, "inputs": size.inputs, "classes": size.classes or 1,
                    "workers": size.workers, "pass": report["seconds"]["pass"], "solve": report["seconds"]["solve"],
                    "total": report["seconds"]["total"], "peak": ended.peak,
                    "projected": report["memory"]["projected"]})  # fmt: skip


# -- exponents


def points(axis: str, cells: dict[str, Cell], what: str) -> tuple[list[float], list[float]]:
    found = sorted(
        (cell[axis], cell[what]) for name, cell in cells.items() if name.startswith(f"{axis}/") and cell["ok"]
    )
    return [float(x) for x, _ in found], [float(y) for _, y in found]


def exponent(x: Sequence[float], y: Sequence[float], last: int = 3) -> float | None:
    """The slope of log y against log x over the last points, where what is constant no longer counts."""
    x, y = x[-last:], y[-last:]
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(x) > 1 and min(y) > 0 else None


ASKED = {"time": (1.0, 0.03), "memory": (0.0, 0.02)}  # exponents in rows, and how far they may be off
NAMES = {"rows": "rows", "D": "features D", "inputs": "columns", "classes": "classes"}


def sentences(axis: str, cells: dict[str, Cell]) -> list[str]:
    """What the page and the run say of an axis."""
    x, seconds = points(axis, cells, "total" if axis != "D" else "pass")
    if len(x) < 2:
        return []
    if axis == "workers":
        return [f"{x[-1]:.0f} workers take {seconds[-1] / seconds[0]:.2f} of the time of one."]
    found = [f"Time grows with {NAMES[axis]} to the power {exponent(x, seconds):.2f}{' (the pass)' * (axis == 'D')}"]
    peaks = points(axis, cells, "peak")[1]
    found[0] += f", memory to the power {exponent(x, peaks):.2f} (over the last three sizes)."
    if axis == "D":
        found.append(f"The solve grows with D to the power {exponent(x, points(axis, cells, 'solve')[1]):.2f}.")
    if axis == "rows":
        found.append(f"From {x[0]:,.0f} to {x[-1]:,.0f} rows the peak goes from {peaks[0] / 1e6:.0f}"
                     f" to {peaks[-1] / 1e6:.0f} MB.")  # fmt: skip
        found.append(_verdict({"time": exponent(x, seconds, 2), "memory": exponent(x, peaks, 2)}))
    return found


def _verdict(found: dict[str, float | None]) -> str:
    """The exponents in rows where starting counts least, beside what was asked for."""
    near = {name: round(value or 0.0, 2) + 0.0 for name, value in found.items()}  # no -0.00
    words = [
        f"{name} {near[name]:.2f} (asked for: {power:.2f} ± {margin:g}"
        f"{'' if abs(near[name] - power) <= margin else ', missed'})"
        for name, (power, margin) in ASKED.items()
    ]
    return f"Between the last two sizes: {', '.join(words)}."
