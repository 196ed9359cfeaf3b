"""The coding of one raw column: what kind it is, its levels, what stands for a missing value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from streamrf.data.columns.levels import LevelTable
from streamrf.support.errors import FileFormatError

MAX_LEVELS = 10_000
LISTED_LEVELS = 100_000  # of a category coded by the target; beyond, levels are hashed
NUMBER, DATE, ONEHOT, ORDINAL, TARGET = KINDS = ("number", "date", "onehot", "ordinal", "target")
PERIODS = {"hour": 1.0, "weekday": 7.0, "day of year": 365.2425}  # circles of a date, in days
INT, FLOAT, BOOL = RAW = ("int", "float", "bool")  # what a category was stored as, where it was not text
MAX_BUCKETS = 1 << 20


@dataclass(frozen=True)
class Column:
    """One raw column. A category has its levels in sorted order; a one-hot feature each, or one feature, the place.

    ``fill`` stands for a missing value (None: it stays missing, which is NaN), and with ``flag`` one more feature is 1
    where it did. A level that is not among ``levels`` is all zeros, or as an ordinal the place after the last.
    ``of`` says how text is to be read for a category that was made of numbers: 01067 is 1067, True is true. How
    the same levels were stored makes no other coding, so it does not count in a comparison.

    A category coded by the target has its levels' sums in ``table`` once they are learned. Too many levels to list are
    hashed into ``buckets``. ``parts`` are the circles of a date: each is a sine and a cosine. ``values`` are those of a
    number that has few: the mean of the target for each of them stands beside the number, where it says more than a
    line does (an hour of the day, the number of an occupation).
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    fill: float | None = None
    flag: bool = False
    of: str | None = field(default=None, compare=False)
    buckets: int = 0
    table: LevelTable | None = None
    parts: tuple[str, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def is_category(self) -> bool:
        return self.kind in (ONEHOT, ORDINAL, TARGET)

    @property
    def places(self) -> int:
        """Levels or buckets; an unknown one has the place after the last, and a missing one that after it."""
        return self.buckets or len(self.levels) or len(self.values)

    @property
    def by_target(self) -> bool:
        """Whether some of its features are means of the target."""
        return self.kind == TARGET or bool(self.values)

    def plain(self) -> Column:
        """Without what is learned of the target: a number alone, and of a category coded by it the places of levels."""
        if self.kind != TARGET:
            return replace(self, values=(), table=None) if self.values else self
        fill = None if self.fill is None else float(self.places + 1)
        return replace(self, kind=ORDINAL, table=None, fill=fill)

    @property
    def width(self) -> int:
        """Features that come of it."""
        return len(self.features)

    @cached_property
    def features(self) -> tuple[str, ...]:
        names: tuple[str, ...] = (self.name,)
        if self.kind == ONEHOT:
            names = tuple(f"{self.name}={level}" for level in self.levels)
        elif self.kind == TARGET:
            names = tuple(f"{self.name} {each}" for each in (*(self.table.names if self.table else ("mean",)), "rows"))
        elif self.values:
            names = (self.name, f"{self.name} {self.table.names[0] if self.table else 'mean'}")
        elif self.parts:
            names = (self.name, *(f"{self.name} {part} {wave}" for part in self.parts for wave in ("sin", "cos")))
        return (*names, f"{self.name} is missing") if self.flag else names

    def to_json(self) -> dict[str, Any]:
        """Without what says nothing."""
        made: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None or (value in ((), 0) and each.name != "fill"):
                continue
            made[each.name] = value.to_json() if isinstance(value, LevelTable) else value
        return {name: list(value) if isinstance(value, tuple) else value for name, value in made.items()}

    @classmethod
    def from_json(cls, entry: object) -> Column:
        """What ``to_json`` described; anything that cannot be that is a FileFormatError."""
        if not isinstance(entry, Mapping) or set(entry) - {each.name for each in fields(cls)}:
            raise FileFormatError(f"damaged coding of columns: {str(entry)[:80]} describes none")
        lists, table = {name: entry.get(name, []) for name in ("levels", "parts", "values")}, entry.get("table")
        if not all(isinstance(values, list) for values in lists.values()):
            raise FileFormatError(f"damaged coding of columns: {str(entry)[:80]} has no list of levels")
        given = {"name": None, "kind": "", **entry, **{name: tuple(values) for name, values in lists.items()}}
        column = cls(**given | {"table": None if table is None else LevelTable.from_json(table)})
        if not _is_sound(column):
            raise FileFormatError(f"damaged coding of columns: that of '{str(column.name)[:80]}' does not fit together")
        return column


def _is_sound(column: Column) -> bool:
    named = isinstance(column.name, str) and column.kind in KINDS
    return named and _has_levels(column) and _has_parts(column) and _has_values(column) and _is_filled(column)


def _has_levels(column: Column) -> bool:
    buckets = column.buckets
    if type(buckets) is not int or not 0 <= buckets <= MAX_BUCKETS or buckets & (buckets - 1):
        return False
    hashed = buckets > 0 and column.kind in (TARGET, ORDINAL)
    levelled = bool(column.levels or hashed) == column.is_category and not (buckets and column.levels)
    few = len(column.levels) <= (MAX_LEVELS if column.kind == ONEHOT else LISTED_LEVELS)
    texts = all(isinstance(level, str) for level in column.levels)
    stored = column.of is None or (column.is_category and column.of in RAW)
    ordered = texts and list(column.levels) == sorted(set(column.levels))
    table = column.table is None or (column.by_target and column.table.places == column.places + 2)
    return levelled and few and ordered and stored and table and (hashed or not buckets)


def _has_parts(column: Column) -> bool:
    known = all(isinstance(part, str) and part in PERIODS for part in column.parts)
    return known and len(set(column.parts)) == len(column.parts) and (column.kind == DATE or not column.parts)


def _has_values(column: Column) -> bool:
    numbers = all(type(value) is float and math.isfinite(value) for value in column.values)
    if not numbers or list(column.values) != sorted(set(column.values)) or len(column.values) > MAX_LEVELS:
        return False
    alone = column.kind == NUMBER and column.fill is not None
    return not column.values or (alone and (column.table is None or len(column.table.names) == 1))


def _is_filled(column: Column) -> bool:
    number = isinstance(column.fill, int | float) and not isinstance(column.fill, bool) and math.isfinite(column.fill)
    return (column.fill is None or number) and isinstance(column.flag, bool)
