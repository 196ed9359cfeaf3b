"""`curve`: error against training time on Forest Cover, one curve a system. It uses what `peers` has measured."""

from __future__ import annotations

from dataclasses import replace

from benchlib import against
from benchlib.contest import Task, compete, ready
from benchlib.context import Context
from benchlib.results import Cell, Results
from benchlib.sets import SETS

SET = "covtype2"
SIZES = {  # systems that have no rounds: a run for each size
    "streamrf": ("D", (250, 500, 1000, 2000)),
    "streamrf-cg": ("D", (1000, 2000, 10_000, 20_000)),
    "streamrf-binning": ("grids", (5, 10, 20, 100, 200)),
    "loop-ssyrk": ("D", (250, 500, 1000, 2000)),
    "nystroem-ridge": ("D", (250, 500, 1000)),
}
TOYS = {
    "streamrf": ("D", (32,)), "streamrf-cg": ("D", (32,)), "streamrf-binning": ("grids", (2,)),
    "loop-ssyrk": ("D", (32,)),
}  # fmt: skip
ROUNDS = ("rbfsampler-sgd", "lightgbm", "xgboost")  # these keep errors and times on their way
MINUTES = "about 13 minutes after `peers`, else 20"


def run(context: Context) -> Results:
    shared, results = context.open("peers"), context.open("curve")
    if not ready(replace(context, only=()), SETS[SET]):
        return results
    for name in (*SIZES, *ROUNDS):
        if context.wants(name) and not context.quick:
            compete(context, shared, against.task_of(context, SET, name), name)
    for name, (what, sizes) in (TOYS if context.quick else SIZES).items():
        for size in sizes:
            if context.wants(name):
                compete(context, results, sized(context, name, what, size), name, f"{name}/{size}")
    return results


def sized(context: Context, name: str, what: str, size: int) -> Task:
    task = against.task_of(context, SET, name)
    D, grids = (size, task.grids) if what == "D" else (task.D, size)
    return Task(SET, task.tables, task.classes, D, grids, timeout=400)


def points(own: dict[str, Cell], peers: dict[str, Cell]) -> dict[str, list[tuple[str, float, float]]]:
    """For each system: label, seconds of training and error, in the order of time."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    for name, (what, _) in SIZES.items():
        cells = {key: cell for key, cell in own.items() if key.startswith(f"{SET}/{name}/")}
        if f"{SET}/{name}" in peers:
            cells[f"{SET}/{name}"] = peers[f"{SET}/{name}"]
        found[name] = [(f"{what} = {_size(cell, key, what)}", cell["train"], cell["error"])
                       for key, cell in cells.items() if cell["ok"]]  # fmt: skip
    for name in ROUNDS:
        cell = peers.get(f"{SET}/{name}", {"ok": False})
        found[name] = [tuple(point) for point in cell["curve"]] if cell["ok"] else []
    return {name: sorted(each, key=lambda point: point[1]) for name, each in found.items() if each}


def _size(cell: Cell, key: str, what: str) -> object:
    last = key.rsplit("/", 1)[1]
    return last if last.isdigit() else cell["settings"].get(what, SETS[SET].D if what == "D" else SETS[SET].grids)
