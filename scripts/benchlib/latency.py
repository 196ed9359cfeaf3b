"""`latency`: training on a table that is 50 ms away, against the same table on this machine and in a bucket at hand.

The bucket is a server of this machine, which shares its cores: a real one takes nothing from the run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from benchlib.context import Context
from benchlib.results import Cell, Results, rounded
from benchlib.running import SCRIPTS
from benchlib.running import run as run_alone
from benchlib.slow_bucket import BUCKET, environment
from benchlib.tables import generated

MINUTES = "about 5 minutes"
DEFAULTS = {"rows": 2_000_000, "columns": 20, "D": 1000, "delay": 0.05, "chunk": 50_000}
TOYS = {"rows": 4000, "D": 32, "delay": 0.01, "chunk": 500}
LIMITS = {"rate against local": ("at least", 0.8)}
SETTLED = ("--pilot", "none", "--kernel", "gaussian", "--length-scale", "4", "--bits", "8", "--lambda", "1e-6")


def run(context: Context) -> Results:
    results, s = context.open("latency"), context.settings(DEFAULTS, TOYS)
    folder = context.work / "tables" / f"latency-{s.rows}-{s.columns}-{s.chunk}"
    generated(folder / "table.zarr", s.rows, s.columns, chunk=s.chunk)
    near = results.cell("local", lambda: trained(context, s, str(folder / "table.zarr"), {}))
    for name, delay in (("bucket", 0.0), ("bucket, late", s.delay)):
        results.cell(name, lambda delay=delay: from_bucket(context, s, folder, delay, near))
    return results


def from_bucket(context: Context, s: SimpleNamespace, folder: Path, delay: float, near: Cell) -> Cell:
    with bucket(folder, delay) as address:
        cell = trained(context, s, f"s3://{BUCKET}/table.zarr", environment(address))
    return rounded({**cell, "delay": delay, "rate against local": cell["rows a second"] / near["rows a second"]})


@contextmanager
def bucket(folder: Path, delay: float) -> Iterator[str]:
    """The address of a server that has the folder."""
    command = [sys.executable, "-m", "benchlib.slow_bucket", str(folder), str(delay)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}  # it tells of every request
    with subprocess.Popen(command, text=True, cwd=SCRIPTS, **quiet) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def trained(context: Context, s: SimpleNamespace, table: str, where: dict[str, str]) -> Cell:
    """Seconds of the pass alone: what comes before and after it does not read."""
    out = context.work / "latency.model"
    command = [sys.executable, "-m", "streamrf", "train", table, "--D", str(s.D), *SETTLED, "--no-statistics"]
    command += ["--no-checkpoint", "--out", str(out), "--overwrite", "--json", "--quiet"]
    ended = run_alone(command, timeout=1200, threads=context.threads, **where)
    if not ended.ok:
        raise RuntimeError(ended.why)
    seconds = ended.json()["seconds"]["pass"]
    return rounded({"seconds": seconds, "rows a second": s.rows / seconds, "peak": ended.peak, "D": s.D})
