"""One contestant on one task: streamrf through its commands, a peer in its own environment after its own search."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchlib import ours
from benchlib.context import Context
from benchlib.environment import find, versions
from benchlib.peers import PEERS
from benchlib.results import Cell, Results, rounded
from benchlib.running import run
from benchlib.sets import DataSet

OURS = {
    "streamrf": "**streamrf**, Fourier features",
    "streamrf-cg": "**streamrf**, Fourier features by `--solver cg`",
    "streamrf-binning": "**streamrf**, random binning",
    "streamrf-auto": "**streamrf**, nothing set",
}
TITLES = {**OURS, **{name: peer.title for name, peer in PEERS.items()}}


@dataclass(frozen=True)
class Task:
    """A task of a contest: tables, classes, sizes, and the limits that hold for all."""

    name: str
    tables: ours.Tables
    classes: int
    D: int
    grids: int
    timeout: float = 600.0
    limit: int | None = None
    epochs: int = 5
    rounds: int = 500
    more: tuple[tuple[str, Any], ...] = ()  # settings of the peer, instead of what its searches found
    search: bool = True
    options: tuple[object, ...] = ()  # of streamrf


def ready(context: Context, each: DataSet) -> bool:
    """Whether a data set is wanted and there. What there is to compile is compiled before any clock runs."""
    found = context.wants(each.name) and is_there(context, each)
    if found:
        ours.warm_up(context, each.classes)
    return found


def is_there(context: Context, each: DataSet) -> bool:
    """Whether its file is; toy sizes need none."""
    if context.quick or each.there:
        return True
    context.say(f"{each.name}: {each.file} is not there: skipped")
    return False


def compete(context: Context, results: Results, task: Task, name: str, label: str | None = None) -> Cell:
    """The cell of one contestant; its searches are cells of their own and stand before it."""
    key = f"{task.name}/{label or name}"
    if name in OURS:
        return results.cell(key, lambda: _ours(context, task, name))
    python = find(context)
    if PEERS[name].package not in _installed(python, results):
        return results.cell(key, lambda: {"ok": False, "why": f"{PEERS[name].package} is not installed"})
    settings: dict[str, Any] = {"D": task.D, "epochs": task.epochs, "rounds": task.rounds}
    settings |= {"toy": True} if context.quick else {}
    seconds = 0.0
    for step in PEERS[name].searches if task.search else ():
        measure = partial(_search, context, task, step, python, dict(settings))
        found = results.cell(f"{task.name}/{step}", measure)
        if found.get("ok") is False:
            why = f"its search failed: {found['why']}"
            return results.cell(key, lambda why=why: {"ok": False, "why": why})
        settings |= {k: v for k, v in found.items() if k not in ("seconds", "tried", "held_out", "peak", "ok")}
        seconds += found["seconds"]
    settings |= dict(task.more)
    return results.cell(key, lambda: _peer(context, task, name, python, settings, seconds))


def _installed(python: Path, results: Results) -> dict[str, str]:
    if "peers" not in results.machine:
        results.machine["peers"] = versions(python)
    return {"scipy": "", **results.machine["peers"]}


def _ours(context: Context, task: Task, name: str) -> Cell:
    sizes: dict[str, tuple[object, ...]] = {
        "streamrf": ("--D", task.D), "streamrf-cg": ("--D", task.D, "--solver", "cg"),
        "streamrf-binning": ("--map", "binning", "--grids", task.grids),
    }  # fmt: skip
    given = (*sizes.get(name, ()), *task.options)
    return ours.train(context, task.tables, *given, limit=task.limit, timeout=task.timeout)


def _start(context: Context, task: Task, name: str, python: Path, settings: dict[str, Any], limit: int | None):
    given = json.dumps({"classes": task.classes, "settings": settings, "threads": context.threads})
    command = [str(python), "-m", "benchlib.peers", name, *map(str, task.tables), given]
    return run(command, timeout=task.timeout, threads=context.threads, limit=limit)


def _search(context: Context, task: Task, step: str, python: Path, settings: dict[str, Any]) -> Cell:
    ended = _start(context, task, step, python, settings, None)
    return rounded({"ok": True, **ended.json()}) if ended.ok else ours.failure(ended)


def _peer(context: Context, task: Task, name: str, python: Path, settings: dict[str, Any], search: float) -> Cell:
    ended = _start(context, task, name, python, settings, task.limit)
    if not ended.ok:
        return {**ours.failure(ended), "settings": settings}
    found = ended.json()
    peak = max(ended.peak, found.pop("peak"))
    return rounded({"ok": True, **found, "search": search, "wall": ended.seconds, "cpu": ended.cpu,
                    "peak": peak, "settings": settings})  # fmt: skip
