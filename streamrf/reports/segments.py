"""The section on where errors are: by levels of categories and quarters of numbers, the worst first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from streamrf.data.columns.column import DATE, ONEHOT, ORDINAL, TARGET, Column
from streamrf.reports.evidence import Evidence
from streamrf.reports.importance import column_groups, value_of
from streamrf.reports.page import Section
from streamrf.support.units import format_count

FEWEST_ROWS, SHOWN, MOST_LEVELS = 30, 10, 50
FEW_VALUES = 6  # a number that has so few is split by them, not into quarters


def segments(evidence: Evidence) -> Section:
    """The segments of the sample whose errors are largest, with their counts."""
    section, rows = Section("segments", "Errors by segment"), evidence.rows
    if rows is None or len(rows) < 2 * FEWEST_ROWS:
        return section
    losses, what = _losses(evidence)
    whole = _figure(losses, what)
    found = [(_figure(losses[inside], what), name, int(inside.sum())) for name, inside in _segments(evidence)]
    worst = sorted((each for each in found if each[2] >= FEWEST_ROWS), key=lambda each: -each[0])[:SHOWN]
    section.text = (
        f"{what} on all rows of the sample: {whole:.4g}. The worst segments of {FEWEST_ROWS} rows or more follow; of"
        " many segments, the worst are partly so by chance."
    )
    section.table = [(name, f"{what} {figure:.4g} on {format_count(count)} rows") for figure, name, count in worst]
    return section


def _losses(evidence: Evidence) -> tuple[np.ndarray, str]:
    """Of each row of the sample: a squared error, or whether its class is wrong."""
    if evidence.model.is_classifier:
        return (evidence.judged.codes(evidence.scores) != evidence.truth).astype(np.float64), "Share of wrong classes"
    return ((evidence.scores - evidence.truth) ** 2).mean(axis=1), "RMSE"


def _figure(losses: np.ndarray, what: str) -> float:
    mean = float(losses.mean()) if len(losses) else 0.0
    return mean**0.5 if what == "RMSE" else mean


def _segments(evidence: Evidence) -> Iterator[tuple[str, np.ndarray]]:
    """A name and the rows of each segment."""
    assert evidence.rows is not None
    model, X = evidence.model, evidence.rows.X
    known = {} if model.columns is None else {column.name: column for column in model.columns.columns}
    for name, codes in column_groups(model).items():
        yield from column_segments(name, known.get(name), X[:, codes])


def column_segments(name: str, column: Column | None, codes: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Levels of a category, or quarters of a number; and the rows in which the value is missing."""
    missing = codes[:, -1] > 0 if column is not None and column.flag else np.zeros(len(codes), bool)
    if missing.any():
        yield f"{name} is missing", missing
    if column is not None and column.kind in (ONEHOT, ORDINAL):
        levels, place = np.unique(codes, axis=0, return_inverse=True)
        for number, level in enumerate(levels[:MOST_LEVELS]):
            inside = (place.ravel() == number) & ~missing
            yield f"{name} = {value_of(column, level)}", inside
        return
    values, found = codes[~missing, 0], np.unique(codes[~missing, 0])
    if column is not None and column.kind == TARGET:
        name = f"{name}, by its mean of the target,"
    elif len(found) <= FEW_VALUES:
        yield from ((f"{name} = {_shown(column, value)}", (codes[:, 0] == value) & ~missing) for value in found)
        return
    edges = np.unique(np.quantile(values, [0, 0.25, 0.5, 0.75, 1], method="nearest")) if len(values) else np.zeros(0)
    for number, (low, high) in enumerate(pairwise(edges.tolist())):
        above = codes[:, 0] >= low if number == 0 else codes[:, 0] > low
        ends = (_shown(column, low), _shown(column, high))
        yield f"{name} from {ends[0]} to {ends[1]}", above & (codes[:, 0] <= high) & ~missing


def _shown(column: Column | None, value: float) -> str:
    found = (
        value_of(column, np.array([value, 0.0]))
        if column is not None and column.flag
        else value_of(column, np.array([value]))
    )
    if column is not None and column.kind == DATE and isinstance(found, str):
        return found.replace("T", " ")[:16]  # seconds say nothing here
    return f"{found:.4g}" if isinstance(found, float) else found
