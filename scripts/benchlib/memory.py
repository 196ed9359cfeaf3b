"""`memory`: a table that does not fit the memory that all are allowed. Who finishes, who dies, and with what peak."""

from __future__ import annotations

import zarr

from benchlib import ours
from benchlib.contest import Task, compete
from benchlib.context import Context
from benchlib.results import Cell, Results
from benchlib.tables import generated

ROWS, INPUTS, LIMIT = 20_000_000, 20, 1_500_000_000
ENTRANTS = (
    "streamrf", "loop-ssyrk", "loop-float64", "intelex", "rbfsampler-sgd", "dask-ml-incremental", "dask-array",
    "nystroem-ridge", "lightgbm", "xgboost", "xgboost-external",
)  # fmt: skip
MINUTES = "about 15 minutes; each contestant is given 6 at most"


def task_of(context: Context) -> Task:
    rows = 3000 if context.quick else ROWS
    folder = context.work / "tables" / f"generated-{rows}"
    tables = (
        generated(folder / "train.zarr", rows, INPUTS),
        generated(folder / "test.zarr", max(500, rows // 100), INPUTS, seed=1),
    )
    budget = "4GB" if context.quick else "900MB"  # the toy runs in a process that has loaded much else
    return Task(
        "larger", tables, 0, 64 if context.quick else 500, 4, timeout=360, limit=LIMIT, epochs=1,
        rounds=3 if context.quick else 50, more=(("stream", True),), options=("--memory", budget),
    )  # fmt: skip


def run(context: Context) -> Results:
    results, task = context.open("memory"), task_of(context)
    results.cell("larger/table", lambda: describe(task))
    ours.warm_up(context)
    for name in ENTRANTS:
        if context.wants(name):
            compete(context, results, task, name)
    return results


def describe(task: Task) -> Cell:
    rows, inputs = zarr.open_group(str(task.tables[0]), mode="r")["X"].shape
    return {"rows": rows, "inputs": inputs, "bytes": rows * inputs * 4, "limit": task.limit, "D": task.D,
            "rounds": task.rounds}  # fmt: skip
