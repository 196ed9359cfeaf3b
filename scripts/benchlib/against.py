"""`peers`: time, peak resident memory and test error of streamrf and the peers on seven tasks."""

from __future__ import annotations

from pathlib import Path

import zarr

from benchlib.contest import OURS, PEERS, Task, compete, ready
from benchlib.context import Context
from benchlib.results import Results
from benchlib.sets import SETS

TASKS = ("covtype2", "covtype7", "kddcup99", "adult", "cpu", "casp", "mnist")
ENTRANTS = (*OURS, *(name for name in PEERS if name != "exact"))
LEFT_OUT = {  # what would tell nothing more, and takes minutes
    "loop-float32": ("covtype2",),  # in-place ssyrk is there, and faster
    "xgboost-external": tuple(name for name in TASKS if name != "covtype2"),
    "streamrf-auto": ("covtype7", "kddcup99", "mnist"),
    "streamrf-cg": tuple(name for name in TASKS if name != "covtype2"),
}
MINUTES = "about 45 minutes, of which covtype2 takes 20, covtype7 8 and mnist 8"
VISITS = 1_500_000  # of rows that stochastic gradients are given, in 3 to 100 epochs; large tables get one of dask-ml
NYSTROEM_D = 1000  # in memory: N x D floats, twice


def task_of(context: Context, name: str, entrant: str) -> Task:
    each = SETS[name]
    D = 64 if context.quick else each.D
    more = (("D", min(D, NYSTROEM_D)),) if entrant == "nystroem-ridge" else ()
    tables = each.tables(context.work, context.quick)
    rounds = 5 if context.quick else (100 if each.classes > 2 else 500)
    return Task(
        name, tables, each.classes, D, 4 if context.quick else each.grids,
        timeout=600, epochs=epochs_of(context, tables[0], entrant), rounds=rounds, more=more,
    )  # fmt: skip


def epochs_of(context: Context, table: Path, entrant: str) -> int:
    rows = zarr.open_group(str(table), mode="r")["X"].shape[0]
    if context.quick:
        return 2
    return 1 if entrant == "dask-ml-incremental" and rows > 100_000 else min(100, max(3, VISITS // rows))


def run(context: Context) -> Results:
    results = context.open("peers")
    for name in TASKS:
        if not ready(context, SETS[name]):
            continue
        for entrant in (each for each in ENTRANTS if name not in LEFT_OUT.get(each, ())):
            compete(context, results, task_of(context, name, entrant), entrant)
    return results
