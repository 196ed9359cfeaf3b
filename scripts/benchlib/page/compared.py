"""Sections that put streamrf beside its peers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchlib import memory as benchmark
from benchlib.against import ENTRANTS, LEFT_OUT, TASKS
from benchlib.contest import TITLES
from benchlib.curve import points
from benchlib.page.words import (
    called,
    error,
    finished,
    is_ours,
    joined,
    of_task,
    seconds,
    shown,
    size,
    table,
    times,
)
from benchlib.results import Cell
from benchlib.sets import SETS

Found = dict[str, dict[str, Any]]
FOURIER = ("streamrf", "streamrf-cg")
SAME_FEATURES = ("loop-float32", "loop-ssyrk", "loop-float64", "intelex", "dask-array")
MARGIN = 1.01  # errors closer than this are called equal


# -- peers


def peers(found: Found) -> list[str]:
    cells = found["peers"]["cells"]
    tasks = [name for name in TASKS if of_task(cells, name)]
    remark = found["peers"].get("remark")  # put there by hand; a new measurement writes the file without it
    lines = [f"**{remark}**", ""] if remark else []
    lines += ["![Error against training time](pictures/benchmarks-peers.png)", "", *_overall(cells, tasks)]
    for name in tasks:
        mine = of_task(cells, name)
        wanted = [each for each in ENTRANTS if name not in LEFT_OUT.get(each, ())]
        lines += ["", f"### {SETS[name].title}", "", *_task(mine, name), *_missing(mine, wanted)]
    absent = [SETS[name].title for name in TASKS if name not in tasks]
    return lines + (["", f"Not measured yet: {joined(absent)}."] if absent else [])


def _missing(mine: dict[str, Cell], wanted: Iterable[str]) -> list[str]:
    """Who has not had a turn is not to look like someone who lost."""
    absent = [called(each) for each in wanted if each not in mine]
    return [f"- Not measured yet: {joined(absent)}."] if absent else []


def _overall(cells: dict[str, Cell], tasks: list[str]) -> list[str]:
    winners: dict[str, list[str]] = {}
    for name in tasks:
        done = finished(of_task(cells, name))
        if done:
            winners.setdefault(min(done, key=lambda each: done[each]["error"]), []).append(name)
    return [f"- Lowest error on {joined(names)}: {called(who)}." for who, names in winners.items()]


def _task(mine: dict[str, Cell], name: str) -> list[str]:
    order = sorted(mine, key=lambda each: mine[each].get("error", float("inf")))
    rows = [[TITLES[each], *_figures(mine[each], name)] for each in order]
    heads = ("system", "size", "test error", "search", "training", "peak memory")
    done = finished(mine)
    return [*table(heads, rows, left=2), "", *_same_features(done, name), *_better_peers(done, name)]


def _figures(cell: Cell, name: str) -> list[str]:
    peak = size(cell["peak"]) if "peak" in cell else ""
    if not cell["ok"]:
        return ["", cell["why"], "", seconds(cell["wall"]) if "wall" in cell else "", peak]
    return [_size(cell), error(cell["error"], name), seconds(cell["search"]), seconds(cell["train"]), peak]


def _size(cell: Cell) -> str:
    if cell.get("curve") and "rounds" in cell["curve"][-1][0]:
        return cell["curve"][-1][0]
    settings = cell["settings"]
    if settings.get("grids"):
        return f"{settings['grids']} grids"
    epochs = f", {cell['curve'][-1][0]}" if cell.get("curve") else ""
    return f"D = {settings['D']:,}{epochs}" if settings.get("D") else ""


def _same_features(done: dict[str, Cell], name: str) -> list[str]:
    """Each of our solvers against those that do the same thing with the same number of features."""
    same = sorted((each for each in SAME_FEATURES if each in done), key=lambda each: done[each]["train"])
    solvers = [each for each in FOURIER if each in done]
    return [f"- {_beside(each, same, done, name)}." for each in solvers if same]


def _beside(who: str, same: list[str], done: dict[str, Cell], name: str) -> str:
    ours = done[who]
    parts = [
        f"{called(each)} takes {times(done[each]['train'] / ours['train'])} times as long"
        f" ({error(done[each]['error'], name)})"
        for each in same
    ]
    return f"Ridge on as many Fourier features: {called(who)}, has {shown(ours, name)}; {'; '.join(parts)}"


def _better_peers(done: dict[str, Cell], name: str) -> list[str]:
    """Said plainly: peers with a lower error than all of ours, or as good and faster, or with less memory."""
    ours = {each: cell for each, cell in done.items() if is_ours(each)}
    if not ours:
        return []
    best = min(ours, key=lambda each: ours[each]["error"])
    theirs = {each: cell for each, cell in done.items() if not is_ours(each)}
    return [*_errors(theirs, ours[best], called(best), name), *_less_memory(ours, theirs)]


def _errors(theirs: dict[str, Cell], ours: Cell, who: str, name: str) -> list[str]:
    lower = [each for each, cell in theirs.items() if cell["error"] * MARGIN < ours["error"]]
    as_good = [each for each, cell in theirs.items() if cell["error"] <= ours["error"] * MARGIN and each not in lower]
    faster = [called(each) for each in as_good if theirs[each]["train"] < ours["train"]]
    lines = [f"- No peer has a lower error than {who} ({shown(ours, name)})."]
    if lower:
        words = joined([f"{called(each)} ({shown(theirs[each], name)})" for each in lower])
        lines = [f"- **A peer is better**: lower error than the best of ours, {who} ({shown(ours, name)}): {words}."]
    return lines + ([f"- **A peer is better**: as good within 1 % and faster: {joined(faster)}."] if faster else [])


def _less_memory(ours: dict[str, Cell], theirs: dict[str, Cell]) -> list[str]:
    least = min(cell["peak"] for cell in ours.values())
    fewer = [each for each, cell in theirs.items() if cell["peak"] < least]
    if not fewer:
        return [f"- Lowest peak memory: streamrf ({size(least)})."]
    words = joined([f"{called(each)} ({size(theirs[each]['peak'])})" for each in fewer])
    return [f"- **A peer is better** in memory (the least of ours is {size(least)}): {words}."]


# -- more rows than memory


def memory(found: Found) -> list[str]:
    cells = found["memory"]["cells"]
    about, mine = cells["larger/table"], of_task(cells, "larger")
    done = finished(mine)
    order = sorted(mine, key=lambda each: (each not in done, mine[each].get("peak", 0)))
    rows = [[TITLES[each], *_outcome(mine[each])] for each in order]
    heads = ("system", "outcome", "test error", "peak memory", "training")
    return [
        f"{about['rows']:,} generated rows of {about['inputs']} columns, {size(about['bytes'])} as float32; every",
        f"process may hold {size(about['limit'])} of data (`ulimit -d`). D = {about['D']}, one pass,",
        f"{about['rounds']} rounds for trees; each contestant reads in the way its documentation has for large",
        "data. Searches ran without the limit.",
        "", "![Peak memory](pictures/benchmarks-memory.png)", "",
        *table(heads, rows, left=2), "", *_survivors(mine, done), *_missing(mine, benchmark.ENTRANTS),
    ]  # fmt: skip


def _outcome(cell: Cell) -> list[str]:
    peak = size(cell["peak"]) if "peak" in cell else ""
    if not cell["ok"]:
        return [f"died: {cell['why']}", "", peak, ""]
    return ["finished", error(cell["error"], "larger"), peak, seconds(cell["train"])]


def _survivors(mine: dict[str, Cell], done: dict[str, Cell]) -> list[str]:
    dead = [called(each) for each in mine if each not in done]
    lines = [f"- Finished: {len(done)} of {len(mine)}." + (f" Died or did not end: {joined(dead)}." if dead else "")]
    if done:
        least, best, fastest = (min(done, key=lambda each: done[each][key]) for key in ("peak", "error", "train"))
        lines += [
            f"- Lowest peak: {called(least)} ({size(done[least]['peak'])}).",
            f"- Lowest error: {called(best)} ({shown(done[best], 'larger')}).",
            f"- Fastest: {called(fastest)} ({shown(done[fastest], 'larger')}).",
        ]
    return lines


# -- error against time

BUDGETS = (2, 5, 10, 20, 40, 80, 160, 320)


def curve(found: Found) -> list[str]:
    curves = points(found["curve"]["cells"], found.get("peers", {"cells": {}})["cells"])
    rows = []
    for budget in BUDGETS:
        reached = [
            (value, name, label) for name, each in curves.items() for label, spent, value in each if spent <= budget
        ]
        if reached:
            value, name, label = min(reached)
            rows.append([f"{budget} s", TITLES[name], label, error(value, "covtype2")])
    heads = ("training time", "lowest error", "size", "test error")
    return [
        "Forest Cover, type 2 against the rest, 522,000 rows. One curve a system: numbers of features, of grids, of",
        "rounds or of epochs. Search is not counted.",
        "", "![Error against time](pictures/benchmarks-curve.png)", "", "The best that can be had in so much time:",
        "", *table(heads, rows, left=3),
    ]  # fmt: skip
