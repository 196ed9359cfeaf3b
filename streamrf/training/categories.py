"""What categories with many levels say about the target, learned in one exact pass before anything else is chosen."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from streamrf.data.columns import Columns
from streamrf.data.source import Source
from streamrf.data.split import Split
from streamrf.data.wrappers import Shards
from streamrf.engines.base import Engine, Pass, showing
from streamrf.features.targets import TargetCoding
from streamrf.solvers.plan import Plan
from streamrf.statistics.levels import LevelSums
from streamrf.support.progress import Reporter


def learn_levels(
    source: Source, coding: TargetCoding, split: Split, plan: Plan, engine: Engine, reporter: Reporter
) -> Source:
    """The source with its categories coded by the target, each row by the folds that it is not in.

    Only rows that are fitted enter the sums, none of those that choose or judge.
    """
    columns = source.columns
    assert columns is not None
    inputs = _inputs(columns)
    places = [column.places + 2 for column in columns.by_target]
    statistic = LevelSums(coding, tuple(inputs), tuple(places), split)
    sizes = {"span_rows": plan.span_rows, "span_bytes": plan.span_bytes}
    job = Pass.start(statistic, source.recoded(columns.plain()), nan="drop", **sizes)
    reporter.started("target by level", source.n_rows, 0)
    tables = iter(statistic.tables(engine.run(job, showing(reporter))))
    reporter.finished()
    known = [replace(c, table=next(tables)) if c in columns.by_target else c for c in columns.columns]
    members = source.members()
    starts = accumulate((member.n_rows for member in members), initial=0)
    shards = tuple((member.fingerprint(), start) for member, start in zip(members, starts, strict=False))
    return source.recoded(replace(columns, columns=tuple(known), shards=shards, first=0))


def _inputs(columns: Columns) -> list[int]:
    """Where the places of categories stand among the features of the plain coding."""
    plain = columns.plain().columns
    starts = accumulate((column.width for column in plain), initial=0)
    return [
        start for column, start in zip(columns.columns, starts, strict=False) if column in columns.by_target
    ]  # fmt: skip


def as_trained(source: Source, columns: Columns | None) -> Source:
    """The source with rows that are in the sums of levels coded as they were in training; others are new rows."""
    if columns is None or not columns.shards:
        return source
    first, members = dict(columns.shards), source.members()
    parts = [member.recoded(columns.at(first.get(member.fingerprint()))) for member in members]
    return parts[0] if len(parts) == 1 else Shards(parts)
