"""`larger`: tables larger than the machine's memory, trained on under a small budget: rows/s against a bare read of the
same files (a plain loop, and one of as many threads), memory against rows, and a run that is killed in the middle and
resumed.

One table at a time is made, and deleted after use. `--gb 1` makes small ones, `--only long` measures one of them.
Before every reading the pages that the system keeps of the files are dropped.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchlib import bare, followed, ours
from benchlib.context import Context
from benchlib.results import Cell, Results, rounded
from benchlib.running import Ended
from benchlib.running import run as run_alone
from streamrf.support.units import parse_bytes

MINUTES = "about half an hour, and up to 30 GB of disk"
DEFAULTS = {"gb": 40.0, "memory": "2GB", "D": 64}
TOYS = {"gb": 0.02, "memory": "600MB", "D": 16}
OPTIONS = ("gb",)
LIMITS = {"rate against a loop": ("at least", 0.7), "peak of budget": ("at most", 1.0), "growth": ("at most", 0.02),
          "same bits": ("at least", True)}  # fmt: skip
FIXED = ("--kernel", "gaussian", "--scaling", "standard", "--bits", 8, "--lambda", 1e-5, "--solver", "cholesky",
         "--pilot", "none", "--map", "mc", "--no-statistics", "--overwrite", "--quiet")  # fmt: skip
TIMEOUT = 3600.0
HELD_OUT = 2000  # rows, which are kept as the run goes on; by default up to 40,000 are, 160 MB of 1,000 columns
SETTLED = 0.1  # share of the rows after which all that is ever held at once has been
LEAST_CHUNKS = 8  # of a small table
SHOWN = 200  # points that are kept of a run
DISK = 0.75  # bytes on disk for a byte of the table, at most


@dataclass(frozen=True)
class Shape:
    columns: int
    chunk: int  # rows
    ending: str
    write: Callable[[Path, int, int, int, int], None]
    rows_a_gb: int = 250_000


SHAPES = {
    "wide zarr": Shape(1000, 5000, "zarr", bare.write_zarr),
    "wide parquet": Shape(1000, 20_000, "parquet", bare.write_parquet),
    "long zarr": Shape(20, 250_000, "zarr", bare.write_zarr, rows_a_gb=10_000_000),
}


def run(context: Context) -> Results:
    results, s = context.open("larger"), context.settings(DEFAULTS, TOYS)
    ours.warm_up(context)
    for name, shape in SHAPES.items():
        if context.wants(name):
            results.cell(name, lambda shape=shape: measured(context, s, shape))
    return results


def measured(context: Context, s: SimpleNamespace, shape: Shape) -> Cell:
    folder = context.work / "larger"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows, table = int(s.gb * shape.rows_a_gb), folder / f"table.{shape.ending}"
    chunk = min(shape.chunk, -(-rows // LEAST_CHUNKS))
    try:
        if shutil.disk_usage(folder).free < DISK * s.gb * 1e9:
            return {"ok": False, "why": f"the disk has no room for {DISK * s.gb:g} GB"}
        shape.write(table, rows, shape.columns, chunk, context.threads)
        stored = sum(each.stat().st_size for each in bare.files(table))
        about = {"rows": rows, "columns": shape.columns, "bytes": 4 * rows * shape.columns, "stored": stored}
        return rounded({**about, **trained(context, s, table, rows, shape.columns)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def trained(context: Context, s: SimpleNamespace, table: Path, rows: int, columns: int) -> Cell:
    """A bare read, a whole run, and one that is killed half-way and resumed."""
    given = ("--D", s.D, "--length-scale", float(np.sqrt(columns)), "--memory", s.memory,
             "--holdout", min(0.1, HELD_OUT / rows))  # fmt: skip
    if table.suffix == ".parquet":
        given += ("--target", "y")
    loop, threads = (bare_read(context, table, count) for count in (0, context.threads))
    ended = command(context, table, "whole", *given)
    if failed := [each for each in (loop, threads, ended) if not each.ok]:
        return ours.failure(failed[0])
    given += ("--checkpoint-every", "0s")  # so that there is a save whenever it is killed
    killed = command(context, table, "resumed", *given, die=rows // 2)
    resumed = command(context, table, "resumed", *given, "--resume")
    if not resumed.ok:
        return ours.failure(resumed)
    report, again, budget = ended.json(), resumed.json(), parse_bytes(s.memory)
    seconds, bare_seconds = report["seconds"]["total"], [each.json()["seconds"] for each in (loop, threads)]
    held = followed.points(trace_of(table, "whole"))
    return {
        "ok": True, "D": s.D, "budget": budget, "seconds": seconds, "pass": report["seconds"]["pass"],
        "rows a second": rows / seconds, "loop": rows / bare_seconds[0], "threads": rows / bare_seconds[1],
        "rate against a loop": bare_seconds[0] / seconds, "rate against threads": bare_seconds[1] / seconds,
        "peak": ended.peak, "peak of budget": ended.peak / budget, **line(held, rows), "points": thinned(held),
        "cpu": ended.cpu, "bare cpu": threads.cpu,
        "killed": killed.why, "resumed from": followed.points(trace_of(table, "resumed"))[0][0],
        "same bits": again["statistics_digest"] == report["statistics_digest"],
    }  # fmt: skip


def bare_read(context: Context, table: Path, threads: int) -> Ended:
    bare.drop_all_pages(table)
    command = [sys.executable, "-m", "benchlib.bare", str(table), str(threads)]
    return run_alone(command, timeout=TIMEOUT, threads=context.threads)


def command(context: Context, table: Path, name: str, *given: object, die: int = 0) -> Ended:
    bare.drop_all_pages(table)
    trace = trace_of(table, "killed" if die else name)
    start = (sys.executable, "-m", "benchlib.followed", trace, die, "train", table)
    places = ("--out", table.with_name(f"{name}.model"), "--checkpoint", table.with_name(f"{name}.checkpoint"))
    words = (*start, *places, *FIXED, *given, "--threads", context.threads, "--json")
    return run_alone([str(word) for word in words], timeout=TIMEOUT, threads=context.threads)


def trace_of(table: Path, name: str) -> Path:
    return table.with_name(f"{name}.txt")


def line(held: list[tuple[int, int]], rows: int) -> Cell:
    """Memory against rows: what a fitted line gains over the whole run, as a share of what is held on average."""
    later = np.array([point for point in held if point[0] >= SETTLED * rows], float)
    if len(later) < 2 or np.ptp(later[:, 0]) == 0:
        return {"growth": 0.0, "bytes a million rows": 0.0}
    slope = np.polyfit(later[:, 0], later[:, 1], 1)[0]
    return {"growth": float(abs(slope) * rows / later[:, 1].mean()), "bytes a million rows": float(slope * 1e6)}


def thinned(held: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return held[:: max(1, -(-len(held) // SHOWN))]
