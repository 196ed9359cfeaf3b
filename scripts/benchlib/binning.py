"""`binning`: random binning against LightGBM (500 rounds, 127 leaves) on several shuffles; the speed of a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from benchlib.contest import Task, compete, ready
from benchlib.context import Context
from benchlib.results import Cell, Results, judged, rounded
from benchlib.sets import SETS
from streamrf.features.binning.map import BinningMap, GammaWidths
from streamrf.features.binning.normal import add_product, scores
from streamrf.support.threads import Threads, in_turn

MINUTES = "about 7 minutes"
DEFAULTS = {"grids": (50, 100), "shuffles": (101, 102, 103), "rows": 1_000_000}
TOYS = {"grids": (20,), "shuffles": (101,), "rows": 2000}
LIGHTGBM = {"num_leaves": 127, "learning_rate": 0.1, "all_rows": True}
COVTYPE_LIMIT, BEST_LIMIT, CASP_LIMIT, PASS_LIMIT = 0.045, 0.032, 3.5, 1e6


def run(context: Context) -> Results:
    results, s = context.open("binning"), context.settings(DEFAULTS, TOYS)
    for name in ("covtype2", "casp"):
        if ready(context, SETS[name]):
            for shuffle in s.shuffles:
                compare(context, results, s, name, shuffle)
    if context.wants("pass"):
        results.cell("pass", lambda: throughput(s.rows))
    return results


def compare(context: Context, results: Results, s: SimpleNamespace, name: str, shuffle: int) -> None:
    """Numbers of grids on covtype and the default on casp, and LightGBM on the same rows."""
    each = SETS[name]
    tables = each.tables(context.work, context.quick, seed=shuffle)
    given: dict[str, Any] = {"rounds": 5 if context.quick else 500, "more": tuple(LIGHTGBM.items()), "search": False}

    def enter(entrant: str, grids: int, label: str, *options: object) -> None:
        task = Task(f"{name}/{shuffle}", tables, each.classes, 0, grids, options=options, **given)
        compete(context, results, task, entrant, label)

    for grids in s.grids if name == "covtype2" else ():
        enter("streamrf-binning", grids, f"P = {grids}")
    if name == "casp":
        enter("streamrf-auto", 0, "defaults", "--map", "binning")
    enter("lightgbm", 0, "LightGBM")


def throughput(rows: int) -> Cell:
    """Rows a second of one thread at P = 50, d = 10: with slots made, with slots kept, and predictions."""
    X = np.random.default_rng(0).standard_normal((rows, 10)).astype(np.float32)
    map = BinningMap.draw(GammaWidths(), 10, 50, 17, 0)
    table = np.random.default_rng(1).integers(-1000, 1000, (1, 50, map.buckets)).astype(np.int32)
    weights, totals = table.astype(np.float32), np.zeros(table.shape, np.int64)
    with Threads(1) as one:
        slots = map.indices(X, threads=one)
        passes = {
            "index and accumulate": lambda: add_product(map.indices(X, slots, one), table, totals, one),
            "accumulate, slots kept": lambda: add_product(slots, table, totals, one),
            "predict": lambda: scores(map.indices(X, slots, one), weights, one),
        }
        seconds = in_turn(passes, 5)
    return rounded({"ok": True, "rows_per_second": {name: rows / value for name, value in seconds.items()}})


# -- what was reached


def means(cells: dict[str, Cell], data: str) -> dict[str, tuple[float, float]]:
    """Mean error and seconds, searches included, of each contestant over the shuffles."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for key, cell in cells.items():
        if key.startswith(f"{data}/") and "error" in cell:
            name = key.split("/")[2].partition(" (")[0]
            groups.setdefault(name, []).append((cell["error"], cell["search"] + cell["train"]))
    return {name: tuple(np.mean(group, axis=0).tolist()) for name, group in groups.items()}


def verdicts(cells: dict[str, Cell]) -> list[tuple[str, bool]]:
    """Each thing that was asked for, and whether it was reached."""
    found, ours, casp = [], means(cells, "covtype2"), means(cells, "casp")
    if "P = 50" in ours:
        error, seconds = ours["P = 50"]
        best = min(value[0] for name, value in ours.items() if name != "LightGBM")
        found += [(f"covtype, error at P = 50: {error:.2%} <= {COVTYPE_LIMIT:.1%}", error <= COVTYPE_LIMIT),
                  (f"covtype, error at the best P: {best:.2%} <= {BEST_LIMIT:.1%}", best <= BEST_LIMIT)]  # fmt: skip
        if "LightGBM" in ours:
            other, spent = ours["LightGBM"]
            found += [(f"covtype, error {error:.2%} <= LightGBM {other:.2%}", error <= other),
                      (f"covtype, {seconds:.1f} s <= LightGBM {spent:.1f} s", seconds <= spent)]  # fmt: skip
    if "defaults" in casp:
        found.append((f"casp, mean RMSE {casp['defaults'][0]:.3f} <= {CASP_LIMIT}", casp["defaults"][0] <= CASP_LIMIT))
    if "pass" in cells:
        rate = cells["pass"]["rows_per_second"]["index and accumulate"]
        found.append((f"one pass, {rate / 1e6:.2f} million rows/s and core >= 1", rate >= PASS_LIMIT))
    return found


def lines(cells: dict[str, Cell]) -> list[str]:
    told = [judged(*verdict) for verdict in verdicts(cells)]
    for data in ("covtype2", "casp"):
        found = means(cells, data)
        spent = found.get("LightGBM", (0.0, float("nan")))[1]
        told += [f"{data}, {name}: {error:.4g} in {seconds:.1f} s, {seconds / spent:.2f} of LightGBM's time"
                 for name, (error, seconds) in found.items()]  # fmt: skip
    rates = cells["pass"]["rows_per_second"] if "pass" in cells else {}
    return told + [f"{name}: {rate / 1e6:.2f} million rows/s on one thread" for name, rate in rates.items()]
