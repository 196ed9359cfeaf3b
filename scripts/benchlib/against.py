"""`peers`: streamrf and the peers on seven tasks: time, peak resident memory and test error together."""

from __future__ import annotations

import click

from benchlib import ours
from benchlib.contest import OURS, PEERS, Task, compete
from benchlib.context import Context
from benchlib.sets import SETS

TASKS = ("covtype2", "covtype7", "kddcup99", "adult", "cpu", "casp", "mnist")
ENTRANTS = (*OURS, *(name for name in PEERS if name != "exact"))
MINUTES = "about 30 minutes, of which covtype2 takes 14, covtype7 6 and mnist 6"
NYSTROEM_D = 2000  # in memory: N x D floats, twice


def task_of(context: Context, name: str, entrant: str) -> Task:
    each = SETS[name]
    D = 64 if context.quick else each.D
    more = (("D", min(D, NYSTROEM_D)),) if entrant == "nystroem-ridge" else ()
    rounds = 5 if context.quick else (200 if each.classes > 2 else 500)
    return Task(
        name, each.tables(context.work, context.quick), each.classes, D, 4 if context.quick else each.grids,
        timeout=600, epochs=2 if context.quick else 5, rounds=rounds, more=more,
    )  # fmt: skip


def run(context: Context) -> None:
    results = context.open("peers")
    for name in TASKS:
        if not context.wants(name):
            continue
        if not (context.quick or SETS[name].there):
            click.echo(f"{name}: {SETS[name].file} is not there: skipped")
            continue
        if not context.quick:
            ours.warm_up(context, SETS["adult"].tables(context.work, True))
        for entrant in ENTRANTS:
            compete(context, results, task_of(context, name, entrant), entrant)
    results.write()
