"""The coding of columns as a plain document: which raw columns there are, and the numbers that stand for each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from streamrf.data.columns.handling import MAX_LEVELS, Handling
from streamrf.support.errors import DataError, FileFormatError

NUMBER, DATE, ONEHOT, ORDINAL = "number", "date", "onehot", "ordinal"
KINDS = (NUMBER, DATE, ONEHOT, ORDINAL)
RAW = (INT, FLOAT, BOOL) = ("int", "float", "bool")  # what a category was stored as, where it was not text
DTYPES = ("float32", "float64")
MAX_COLUMNS = 100_000
MAX_FEATURES = 1_000_000


@dataclass(frozen=True)
class Column:
    """One raw column. A category has its levels in sorted order; a one-hot feature each, or one feature, the place.

    ``fill`` stands for a missing value (None: it stays missing, which is NaN), and with ``flag`` one more feature is 1
    where it did. A level that is not among ``levels`` is all zeros, or as an ordinal the place after the last.
    ``of`` says how text is to be read for a category that was made of numbers: 01067 is 1067, True is true. How
    the same levels were stored makes no other coding, so it does not count in a comparison.
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    fill: float | None = None
    flag: bool = False
    of: str | None = field(default=None, compare=False)

    @property
    def is_category(self) -> bool:
        return self.kind in (ONEHOT, ORDINAL)

    @property
    def width(self) -> int:
        """Features that come of it."""
        return (len(self.levels) if self.kind == ONEHOT else 1) + self.flag

    @property
    def features(self) -> tuple[str, ...]:
        names = tuple(f"{self.name}={level}" for level in self.levels) if self.kind == ONEHOT else (self.name,)
        return (*names, f"{self.name} is missing") if self.flag else names


@dataclass(frozen=True)
class Columns:
    """All raw columns of a table in order, and the type of the features they become.

    ``handling`` is what was asked for when the coding was learned, to learn it again of other rows (None: not known).
    """

    columns: tuple[Column, ...]
    dtype: str = "float64"
    handling: Handling | None = field(default=None, compare=False)

    @property
    def names(self) -> list[str]:
        """The raw columns: what a shard must have, in whatever order."""
        return [column.name for column in self.columns]

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.features)

    @cached_property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def check_unique(self) -> None:
        """A DataError where two features would have one name."""
        twice = [name for name, count in Counter(self.feature_names).items() if count > 1]
        if twice:
            raise DataError(f"two features would be called '{twice[0]}' once columns are coded: rename a column")

    def describe(self) -> str:
        """One line for people."""
        kinds = Counter(column.kind for column in self.columns)
        words = {NUMBER: "numbers", DATE: "dates", ONEHOT: "one-hot categories", ORDINAL: "ordinal categories"}
        parts = [f"{kinds[kind]} {words[kind]}" for kind in KINDS if kinds[kind]]
        flags = sum(column.flag for column in self.columns)
        if flags:
            parts.append(f"{flags} flags for missing values")
        return f"{len(self.columns)} columns become {self.width} features ({', '.join(parts)})"

    def to_json(self) -> dict[str, Any]:
        document = {"dtype": self.dtype, "columns": [_lean(asdict(column)) for column in self.columns]}
        return document if self.handling is None else {**document, "handling": self.handling.to_json()}

    @classmethod
    def from_json(cls, document: Any) -> Columns:
        """The coding that ``to_json`` described; anything that cannot be one is a FileFormatError."""
        if not isinstance(document, Mapping) or document.get("dtype") not in DTYPES:
            raise FileFormatError("damaged coding of columns: it has no type of features")
        listed = document.get("columns")
        if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_COLUMNS:
            raise FileFormatError(f"damaged coding of columns: a list of 1 to {MAX_COLUMNS:,} columns is wanted")
        asked = document.get("handling")
        handling = None if asked is None else Handling.from_json(asked)
        made = cls(tuple(_column(entry) for entry in listed), document["dtype"], handling)
        if made.width > MAX_FEATURES or len(set(made.feature_names)) != made.width:
            raise FileFormatError(f"damaged coding of columns: {made.width:,} features, some with the same name")
        return made


def describe_unknown(unknown: Mapping[str, int]) -> str:
    """One sentence about values of categories that training had not seen, counted by column."""
    listed = ", ".join(f"{count:,} in '{name}'" for name, count in sorted(unknown.items()))
    return f"values that training had not seen: {listed}; each stands for no known category"


def names_to_json(kept: Any) -> dict[str, Any]:
    """What a model, or what was prepared for one, knows about names and columns."""
    columns: Columns | None = kept.columns
    return {
        "feature_names": kept.feature_names,
        "target_names": kept.target_names,
        "columns": None if columns is None else columns.to_json(),
    }


def names_from_json(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same back, by the names of the fields; files from before there were codings have none."""
    names, targets = document["feature_names"], document.get("target_names")
    return {
        "feature_names": tuple(names) if names else None,
        "target_names": tuple(targets) if targets else None,
        "columns": optional_columns(document.get("columns")),
    }


def optional_columns(document: Any) -> Columns | None:
    """The coding in a file, or None where the file has none."""
    return None if document is None else Columns.from_json(document)


def _lean(column: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it, and without what says nothing."""
    kept = {name: value for name, value in column.items() if not (value is None or value is False or value == ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def _column(entry: Any) -> Column:
    if not isinstance(entry, Mapping) or set(entry) - {"name", "kind", "levels", "fill", "flag", "of"}:
        raise FileFormatError(f"damaged coding of columns: {str(entry)[:80]} describes none")
    levels = entry.get("levels", ())
    column = Column(
        entry.get("name", ""), entry.get("kind", ""), tuple(levels), entry.get("fill"), entry.get("flag", False),
        entry.get("of"),
    )  # fmt: skip
    if not _is_sound(column):
        raise FileFormatError(f"damaged coding of columns: that of '{str(column.name)[:80]}' does not fit together")
    return column


def _is_sound(column: Column) -> bool:
    named = isinstance(column.name, str) and column.name != "" and column.kind in KINDS
    levelled = bool(column.levels) == column.is_category and len(column.levels) <= MAX_LEVELS
    texts = all(isinstance(level, str) for level in column.levels)
    stored = column.of is None or (column.is_category and column.of in RAW)
    ordered = texts and list(column.levels) == sorted(set(column.levels))
    return named and levelled and ordered and stored and _is_filled(column)


def _is_filled(column: Column) -> bool:
    number = isinstance(column.fill, int | float) and not isinstance(column.fill, bool) and math.isfinite(column.fill)
    return (column.fill is None or number) and isinstance(column.flag, bool)
