"""`train`: whole training against float32 `ssyrk` alone on as many rows and features."""

from __future__ import annotations

from types import SimpleNamespace

from benchlib import growth
from benchlib.context import Context
from benchlib.parts import ssyrk_seconds
from benchlib.results import Cell, Results, rounded
from streamrf.support.threads import Threads

MINUTES = "about 12 minutes"
DEFAULTS = {"rows": 500_000, "inputs": 54, "D": 5000, "repeats": 2}
TOYS = {"rows": 2000, "inputs": 8, "D": 64, "repeats": 1}
WAYS = (("7", "cholesky"), ("8", "cholesky"), ("12", "cholesky"), ("8", "cg"), ("12", "cg"))


def run(context: Context) -> Results:
    results, s = context.open("train"), context.settings(DEFAULTS, TOYS)
    for bits, solver in WAYS:
        if context.wants(f"{bits}-bits-{solver}"):
            results.cell(f"{bits}-bits-{solver}", lambda b=bits, v=solver: measure(context, s, b, v))
    return results


def measure(context: Context, s: SimpleNamespace, bits: str, solver: str) -> Cell:
    """The best run, and the best of what was timed before and after it."""
    size, options = growth.Size(s.rows, s.D, s.inputs), ("--bits", bits, "--solver", solver)
    with Threads(context.threads) as threads:
        before = ssyrk_seconds(s.rows, s.D, threads)
        runs = [growth.measure(context, size, *options) for _ in range(s.repeats)]
        reference = min(before, ssyrk_seconds(s.rows, s.D, threads))
    best = min(runs, key=lambda found: found["total"] if found["ok"] else -1.0)
    ratio = {"ssyrk": reference, "ratio": best["total"] / reference} if best["ok"] else {}
    return rounded({**best, **ratio, "repeats": s.repeats})
