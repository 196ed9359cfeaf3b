"""`predict`: rows a second of prediction against sgemm and cosine on arrays in memory, of random binning by CPU time,
and of few features against a bare read of the same table."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

from benchlib import bare, growth, ours
from benchlib.context import Context
from benchlib.parts import bare_map
from benchlib.results import Cell, Results, rounded
from benchlib.running import Ended
from benchlib.tables import arrays, once
from streamrf.support.threads import Threads, seconds_of

MINUTES = "about 2 minutes"
DEFAULTS = {"rows": 200_000, "inputs": 54, "D": 5000, "many": 10_000_000, "columns": 20, "grids": 50, "few": 64}
TOYS = {"rows": 2000, "inputs": 8, "D": 64, "many": 2000, "grids": 4, "few": 16}
LIMITS = {"rows a CPU second": ("at least", 3e6), "of its reader": ("at least", 0.9)}
FITTED, NEXT_TO_NONE = 50_000, 100  # rows of the tables that models are fitted to, and that tell what starting takes
CHUNK = 250_000
REPEATS = 3


def run(context: Context) -> Results:
    results, s = context.open("predict"), context.settings(DEFAULTS, TOYS)
    if context.wants("predict"):
        results.cell("predict", lambda: measure(context, s))
    if context.wants("binning"):
        options = ("--map", "binning", "--grids", s.grids)
        results.cell("binning", lambda: by_cpu(context, s, *options))
    if context.wants("few"):
        results.cell("few", lambda: against_reader(context, s, "--D", s.few))
    return results


def measure(context: Context, s: SimpleNamespace) -> Cell:
    size = growth.Size(s.rows, s.D, s.inputs)
    trained = growth.measure(context, size)
    if not trained["ok"]:
        return trained
    table = size.table(context.work)
    runs = [predicted(context, table) for _ in range(REPEATS)]
    if not all(ended.ok for ended in runs):
        return ours.failure(next(ended for ended in runs if not ended.ok))
    with Threads(context.threads) as threads, threads.blas():
        plain = s.rows / min(seconds_of(bare_map(arrays(table)[0], s.D, 2048, predict=True), REPEATS))
    found = s.rows / min(ended.json()["seconds"] for ended in runs)
    return rounded({"ok": True, "D": s.D, "rows_per_second": found, "bare": plain, "ratio": found / plain})


def predicted(context: Context, table: Path, threads: int = 0) -> Ended:
    out = context.work / "models" / "predictions.npy"
    return ours.streamrf(
        context, "predict", ours.model_of(context), table, "--out", out, "--overwrite", threads=threads
    )


def by_cpu(context: Context, s: SimpleNamespace, *options: object) -> Cell:
    """Rows a second of CPU time on one thread, reading and writing included; what starting takes is taken off."""
    many, none = (table(context, s, rows) for rows in (s.many, NEXT_TO_NONE))
    if why := untrained(context, s, *options):
        return why
    runs = [[predicted(context, each, threads=1) for _ in range(REPEATS)] for each in (many, none)]
    whole, starting = (min(ended.cpu for ended in each) for each in runs)
    return rounded({"ok": True, "rows": s.many, "columns": s.columns, "cpu": whole, "starting": starting,
                    "rows a CPU second": s.many / max(whole - starting, 1e-9)})  # fmt: skip


def against_reader(context: Context, s: SimpleNamespace, *options: object) -> Cell:
    """Rows a second beside a plain loop over the chunks of the table, timed in turn."""
    many = table(context, s, s.many)
    if why := untrained(context, s, *options):
        return why
    seconds, loops = [], []
    for _ in range(REPEATS):
        seconds.append(predicted(context, many).json()["seconds"])
        start = time.perf_counter()
        bare.read_all(many, 0)
        loops.append(time.perf_counter() - start)
    return rounded({"ok": True, "D": s.few, "rows": s.many, "columns": s.columns, "reader": s.many / min(loops),
                    "rows_per_second": s.many / min(seconds), "of its reader": min(loops) / min(seconds)})  # fmt: skip


def table(context: Context, s: SimpleNamespace, rows: int) -> Path:
    place = context.work / "tables" / f"read-{rows}-{s.columns}.zarr"
    return once(place, lambda part: bare.write_zarr(part, rows, s.columns, min(CHUNK, rows), context.threads))


def untrained(context: Context, s: SimpleNamespace, *options: object) -> Cell | None:
    """Train the model that is predicted with; why, where that fails."""
    few = table(context, s, min(FITTED, s.many))
    given = ("--pilot", "none", "--no-statistics", "--no-checkpoint", "--overwrite", "--out", ours.model_of(context))
    ended = ours.streamrf(context, "train", few, *options, *given)
    return None if ended.ok else ours.failure(ended)
