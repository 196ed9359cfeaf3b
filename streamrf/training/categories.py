"""What categories with many levels say about the target, learned in one exact pass before anything else is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import numpy as np

from streamrf.data.columns import TARGET, Columns
from streamrf.data.source import Block, Source
from streamrf.data.split import Split
from streamrf.data.wrappers import Shards
from streamrf.engines.base import Engine, Pass, showing
from streamrf.features.targets import TargetCoding
from streamrf.solvers.plan import Plan
from streamrf.statistics.holdout import FitRows
from streamrf.statistics.levels import LevelSums
from streamrf.support.progress import Reporter

SAME = 1e-9  # share of the variance of a target that a category determines
FEWEST_ROWS, FEWEST_OTHERS = 100, 10  # of a sample, and of those that have not the commonest target


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
    statistic = LevelSums(coding, tuple(inputs), tuple(places))
    sizes = {"span_rows": plan.span_rows, "span_bytes": plan.span_bytes}
    job = Pass.start(FitRows(statistic, split), source.recoded(columns.plain()), nan="drop", **sizes)
    reporter.started("target by level", source.n_rows, 0)
    state = engine.run(job, showing(reporter))
    reporter.finished()
    tables, left = iter(statistic.tables(state)), statistic.unexplained(state)
    _warn([column.name for column, share in zip(columns.by_target, left, strict=True) if share < SAME], reporter)
    known = [replace(c, table=next(tables)) if c in columns.by_target else c for c in columns.columns]
    members = source.members()
    starts = accumulate((member.n_rows for member in members), initial=0)
    shards = tuple((member.fingerprint(), start) for member, start in zip(members, starts, strict=False))
    return source.recoded(replace(columns, columns=tuple(known), shards=shards, first=0))


def warn_of_targets(sample: Block, source: Source, coding: TargetCoding, reporter: Reporter) -> None:
    """Say which columns determine the target on all rows of a sample: most often they are made of it."""
    y = coding.values(sample.targets)
    if len(y) < FEWEST_ROWS or (y.shape[1] > 1 and not coding.classes):
        return
    target = y.argmax(axis=1) if y.shape[1] > 1 else y[:, 0]
    values, counts = np.unique(target, return_counts=True)
    if len(values) < 2 or len(target) - counts.max() < FEWEST_OTHERS:
        return
    _warn([name for name, X in _by_column(sample.X, source) if determines(X, target)], reporter)


def _by_column(X: np.ndarray, source: Source) -> Iterator[tuple[str, np.ndarray]]:
    """The features of each raw column, but for those that are coded by the target."""
    if source.columns is None:
        names = source.feature_names or [f"column {j}" for j in range(X.shape[1])]
        yield from ((name, X[:, j : j + 1]) for j, name in enumerate(names))
        return
    place = 0
    for column in source.columns.columns:
        if column.kind != TARGET:
            width = column.width if column.is_category else 1
            yield column.name, X[:, place : place + width]
        place += column.width


def determines(X: np.ndarray, target: np.ndarray) -> bool:
    """Whether equal inputs always have equal targets, in an order that goes with a number, or in few groups."""
    if X.shape[1] == 1:
        order = np.lexsort((target, X[:, 0]))
        x, y = X[order, 0], target[order]
        steps = np.diff(y)
        return bool((steps[np.diff(x) == 0] == 0).all() and ((steps >= 0).all() or (steps <= 0).all()))
    group = X @ np.arange(1.0, X.shape[1] + 1)
    order = np.argsort(group, kind="stable")
    same = np.diff(group[order]) == 0
    return bool((np.diff(target[order])[same] == 0).all() and same.sum() > len(target) / 2)


def _warn(names: list[str], reporter: Reporter) -> None:
    if names:
        listed = ", ".join(map(repr, names))
        told = f"columns {listed} determine" if len(names) > 1 else f"column {listed} determines"
        reporter.note(
            f"warning: {told} the target. If it is not known before the target is, leave it out with `exclude={names}`"
        )


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
