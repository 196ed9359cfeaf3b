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
from streamrf.statistics.targets import Weighting
from streamrf.support.progress import Reporter

BEYOND = 0.03  # share of the variance of a target that values of a number explain beyond a line
SAME = 1e-9  # share of the variance of a target that a category determines
FEW_SORTED = 500  # rows that are looked at before all are sorted
FEWEST_ROWS, FEWEST_OTHERS = 100, 10  # of a sample, and of those that have not the commonest target


def learn_levels(
    source: Source, coding: TargetCoding, weighting: Weighting, split: Split, plan: Plan, engine: Engine,
    reporter: Reporter,
) -> Source:  # fmt: skip
    """The source with its categories coded by the target, each row by the folds that it is not in.

    Only rows that are fitted enter the sums, none of those that choose or judge. Numbers keep the means of their values
    where these say more than a line.
    """
    columns = source.columns
    assert columns is not None
    places, values = zip(*((column.places + 2, column.values) for column in columns.by_target), strict=True)
    statistic = LevelSums(coding, tuple(_inputs(columns)), places, values, weighting, source.n_rows)
    sizes = {"span_rows": plan.span_rows, "span_bytes": plan.span_bytes}
    job = Pass.start(FitRows(statistic, split), source.recoded(columns.plain()), nan="drop", **sizes)
    reporter.started("target by level", source.n_rows, 0)
    state = engine.run(job, showing(reporter))
    reporter.finished()
    left = zip(columns.by_target, statistic.unexplained(state), strict=True)
    _warn([column.name for column, share in left if share < SAME and column.kind == TARGET], reporter)
    learned = zip(columns.by_target, statistic.tables(state), statistic.beyond_lines(state), strict=True)
    coded = {
        column.name: replace(column, table=table) if column.kind == TARGET or gain > BEYOND else column.plain()
        for column, table, gain in learned
    }
    known = [coded.get(column.name, column) for column in columns.columns]
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
    if X.shape[1] == 1:  # what holds for all rows holds for some: those few tell nearly always
        x = X[:, 0]
        return _in_order(x[:FEW_SORTED], target[:FEW_SORTED]) and _in_order(x, target)
    group = X @ np.arange(1.0, X.shape[1] + 1)
    order = np.argsort(group, kind="stable")
    same = np.diff(group[order]) == 0
    return bool((np.diff(target[order])[same] == 0).all() and same.sum() > len(target) / 2)


def _in_order(x: np.ndarray, target: np.ndarray) -> bool:
    order = np.lexsort((target, x))
    steps = np.diff(target[order])
    return bool((steps[np.diff(x[order]) == 0] == 0).all() and ((steps >= 0).all() or (steps <= 0).all()))


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
        start for column, start in zip(columns.columns, starts, strict=False) if column.by_target
    ]  # fmt: skip


def as_trained(source: Source, columns: Columns | None) -> Source:
    """The source with rows that are in the sums of levels coded as they were in training; others are new rows."""
    if columns is None or not columns.shards:
        return source
    first, members = dict(columns.shards), source.members()
    parts = [member.recoded(columns.at(first.get(member.fingerprint()))) for member in members]
    return parts[0] if len(parts) == 1 else Shards(parts)
