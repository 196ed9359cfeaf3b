"""`learned`: whole training with a learned metric against none, and what learning features costs beside the pass."""

from __future__ import annotations

import numpy as np

from benchlib import ours
from benchlib.contest import is_there
from benchlib.context import Context
from benchlib.results import Cell, Results, rounded
from benchlib.sets import SETS
from benchlib.tables import Rows, once, write_table

MINUTES = "about 10 minutes"
DEFAULTS = {"metric": "learned", "D": 5000, "rows": 500_000}
TOYS = {"D": 64, "rows": 2000}
METRICS = {"covtype2": (2000, 200_000), "cpu": (400, 6500), "casp": (1000, 36_000), "smooth": (1000, 40_000)}  # D, rows
FIXED = ("--kernel", "gaussian", "--length-scale", 3.3, "--scaling", "quantile", "--bits", 8, "--lambda", 1e-8,
         "--solver", "cholesky", "--pilot", "none", "--holdout", 0)  # fmt: skip


def run(context: Context) -> Results:
    results, s = context.open("learned"), context.settings(DEFAULTS, TOYS)
    for name, (D, rows) in METRICS.items():
        if context.wants(f"metric/{name}") and (tables := tables_of(context, name, rows)):
            D = 64 if context.quick else D
            results.cell(f"metric/{name}", lambda t=tables, D=D: metric(context, t, D, s.metric))
    name = "smooth" if context.quick else "covtype2"
    for kind in ("ekal-sample", "ekal-cluster", "supervised"):
        if context.wants(f"cost/{kind}") and (tables := tables_of(context, name, s.rows)):
            results.cell(f"cost/{kind}", lambda t=tables, k=kind: cost(context, t, s.D, k))
    return results


def shuffled_rows(name: str, rows: int) -> Rows:
    if name != "smooth":
        return tuple(np.concatenate(parts) for parts in zip(*SETS[name].load(0), strict=True))
    X = np.random.default_rng(0).normal(size=(rows + 20_000, 8))
    y, order = np.sin(X @ np.ones(8) / 2) + np.cos(X**2 @ np.full(8, 0.3)), np.random.default_rng(0).permutation(len(X))
    return X[order], y[order]


def tables_of(context: Context, name: str, rows: int) -> ours.Tables | None:
    """A training and a test table. Toys have made-up rows only; None for a set whose file is not there."""
    if name != "smooth" and (context.quick or not is_there(context, SETS[name])):
        return None
    rows = min(rows, 2000) if context.quick else rows
    paths = tuple(context.work / "tables" / f"learned-{name}-{rows}" / part for part in ("train.zarr", "test.zarr"))
    if not all(path.exists() for path in paths):
        X, y = shuffled_rows(name, rows)
        tests = min(20_000, len(X) // 5)
        for path, part in zip(paths, (slice(tests, tests + rows), slice(tests)), strict=True):
            once(path, lambda place, part=part: write_table(place, X[part].astype(np.float32), y[part]))
    return paths


def metric(context: Context, tables: ours.Tables, D: int, asked: str) -> Cell:
    """Test errors of whole runs, everything but the map left to the pilot."""
    runs = {}
    for each in ("none", asked):
        runs[each] = ours.train(context, tables, "--D", D, "--map", "sobol", "--pilot", "auto", "--metric", each)
        if not runs[each]["ok"]:
            return runs[each]
    found = {"ok": True, "D": D, "form": runs[asked]["learning"]["metric"]["form"]}
    for name, cell in runs.items():
        found |= {name: cell["error"], f"{name} seconds": cell["search"] + cell["train"]}
    return rounded({**found, "ratio": found[asked] / found["none"]})


def cost(context: Context, tables: ours.Tables, D: int, kind: str) -> Cell:
    """Seconds of learning beside those of the pass of the same run."""
    cell = ours.train(context, tables, *FIXED, "--D", D, "--map", kind)
    if not cell["ok"]:
        return cell
    learning, one_pass = cell["seconds"]["pilot"], cell["seconds"]["pass"]
    return rounded({"ok": True, "D": D, "learning": learning, "pass": one_pass, "ratio": learning / one_pass})
