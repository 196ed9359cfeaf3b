"""`predict`: rows a second of prediction against sgemm and cosine on arrays in memory."""

from __future__ import annotations

from types import SimpleNamespace

from benchlib import growth, ours
from benchlib.context import Context
from benchlib.parts import bare_map
from benchlib.results import Cell, Results, rounded
from benchlib.tables import arrays
from streamrf.support.threads import Threads, seconds_of

MINUTES = "about 2 minutes"
DEFAULTS = {"rows": 200_000, "inputs": 54, "D": 5000}
TOYS = {"rows": 2000, "inputs": 8, "D": 64}


def run(context: Context) -> Results:
    results, s = context.open("predict"), context.settings(DEFAULTS, TOYS)
    results.cell("predict", lambda: measure(context, s))
    return results


def measure(context: Context, s: SimpleNamespace) -> Cell:
    size = growth.Size(s.rows, s.D, s.inputs)
    trained = growth.measure(context, size)
    if not trained["ok"]:
        return trained
    table, out = size.table(context.work), context.work / "models" / "predictions.npy"
    command = ("predict", ours.model_of(context), table, "--out", out, "--overwrite")
    runs = [ours.streamrf(context, *command) for _ in range(3)]
    if not all(ended.ok for ended in runs):
        return ours.failure(next(ended for ended in runs if not ended.ok))
    with Threads(context.threads) as threads, threads.blas():
        bare = s.rows / min(seconds_of(bare_map(arrays(table)[0], s.D, 2048, predict=True), 3))
    found = s.rows / min(ended.json()["seconds"] for ended in runs)
    return rounded({"ok": True, "D": s.D, "rows_per_second": found, "bare": bare, "ratio": found / bare})
