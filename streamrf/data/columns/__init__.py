"""How the columns of a raw table become numbers: learned once, kept in the model, applied to every shard.

``Handling`` is what the user asks for. ``Columns`` is the coding that is learned from it, as a plain document: which
raw columns there are, and the numbers that stand for each. ``choice`` picks features and targets by name,
``learning`` learns a coding from batches of rows, ``encoding`` applies it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from streamrf.support.errors import DataError, FileFormatError, InputError

if TYPE_CHECKING:
    import pyarrow as pa

JSON: TypeAlias = dict[str, Any]

CATEGORIES = ("auto", "onehot", "ordinal", "error")
MISSING = ("error", "median")
MAX_LEVELS = 10_000
ONEHOT_LEVELS = 100  # each level is one more input
NUMBER, DATE, ONEHOT, ORDINAL = "number", "date", "onehot", "ordinal"
KINDS = (NUMBER, DATE, ONEHOT, ORDINAL)
RAW = (INT, FLOAT, BOOL) = ("int", "float", "bool")  # what a category was stored as, where it was not text
DTYPES = ("float32", "float64")
MAX_COLUMNS = 100_000
MAX_FEATURES = 1_000_000


@dataclass(frozen=True)
class Handling:
    """How a user wants categories and missing values handled.

    ``auto`` is one-hot. ``categorical`` names columns of numbers that are categories all the same.
    """

    categories: str = "auto"
    missing: str = "error"
    max_levels: int | None = None
    categorical: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.categories not in CATEGORIES:
            raise InputError(f"`categories={self.categories!r}`: choose one of {', '.join(CATEGORIES)}")
        if self.missing not in MISSING:
            raise InputError(f"`missing={self.missing!r}`: choose one of {', '.join(MISSING)}")
        if self.max_levels is not None and not 1 <= self.max_levels <= MAX_LEVELS:
            raise InputError(f"`max_levels={self.max_levels}`: must be from 1 to {MAX_LEVELS:,}")

    @property
    def style(self) -> str:
        """The kind of coding that a category gets."""
        return "ordinal" if self.categories == "ordinal" else "onehot"

    @property
    def limit(self) -> int:
        """Levels that a category may have."""
        if self.max_levels is not None:
            return self.max_levels
        return MAX_LEVELS if self.categories == "ordinal" else ONEHOT_LEVELS

    def to_json(self) -> JSON:
        return {**asdict(self), "categorical": list(self.categorical)}

    @classmethod
    def from_json(cls, document: object) -> Handling:
        """What ``to_json`` described; anything that cannot be that is a FileFormatError."""
        if not isinstance(document, Mapping) or set(document) - set(asdict(cls())):
            raise FileFormatError(f"damaged coding of columns: {str(document)[:80]} does not say how it was asked for")
        levels, names = document.get("max_levels"), document.get("categorical", [])
        listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not listed or not (levels is None or type(levels) is int):
            raise FileFormatError(f"damaged coding of columns: {str(document)[:80]} cannot have been asked for")
        try:
            return cls(**{**document, "categorical": tuple(names)})
        except InputError as error:
            raise FileFormatError(f"damaged coding of columns: {error}") from None


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

    @classmethod
    def of_numbers(cls, names: Sequence[str]) -> Columns:
        """The coding of columns that are numbers, taken as they are."""
        return cls(tuple(Column(name, NUMBER) for name in names))

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

    def to_json(self) -> JSON:
        document = {"dtype": self.dtype, "columns": [_lean(asdict(column)) for column in self.columns]}
        return document if self.handling is None else {**document, "handling": self.handling.to_json()}

    @classmethod
    def from_json(cls, document: object) -> Columns:
        """The coding that ``to_json`` described; anything that cannot be one is a FileFormatError."""
        if not isinstance(document, Mapping) or document.get("dtype") not in DTYPES:
            raise FileFormatError("damaged coding of columns: it has no type of features")
        listed = document.get("columns")
        if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_COLUMNS:
            raise FileFormatError(f"damaged coding of columns: it must list 1 to {MAX_COLUMNS:,} columns")
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


class RawTable(ABC):
    """A table whose columns may be of any type, read in batches from first row to last as often as one asks."""

    location: str  # what messages call it
    schema: pa.Schema
    n_rows: int | None = None  # None where only reading to the end would tell

    @abstractmethod
    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Batches of these columns, a few megabytes each."""

    def origin(self, name: str) -> str:
        """What else is known about a column, for messages about it: a half sentence, or nothing."""
        return ""


@dataclass(frozen=True)
class Choice:
    """Which arrays (``x``, ``y``) or columns of a table are features and targets.

    ``y`` names the target column too, where ``target`` is not given. With ``need_targets=False`` targets are not
    read, with None they are read where there are any.
    """

    x: str = "X"
    y: str = "y"
    target: str | Sequence[str] | None = None
    features: Sequence[str] | None = None
    exclude: str | Sequence[str] = ()
    need_targets: bool | None = True
    columns: Columns | None = None  # how raw columns become features; it names them too

    def arrays_to_json(self) -> JSON:
        """What matters for named arrays, as arguments of ``open_source``."""
        return {"x": self.x, "y": self.y, "need_targets": self.need_targets}

    def columns_to_json(self) -> JSON:
        """What matters for named columns, as arguments of ``open_source``."""
        return {
            "target": None if self.target is None else names_of(self.target),
            "features": None if self.features is None else names_of(self.features),
            "exclude": names_of(self.exclude),
            "y": self.y,
            "need_targets": self.need_targets,
            "columns": None if self.columns is None else self.columns.to_json(),
        }


def names_of(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


class KnowsColumns(Protocol):
    """A model, or what was prepared for one: the names and the coding of the columns it was trained on."""

    @property
    def feature_names(self) -> Sequence[str] | None: ...

    @property
    def target_names(self) -> Sequence[str] | None: ...

    @property
    def columns(self) -> Columns | None: ...


def known_choice(known: KnowsColumns | None) -> JSON:
    """The arguments of ``open_source`` that choose the columns a model was trained on."""
    if known is None:
        return {}
    coded = known.columns is not None
    return {"target": known.target_names} | ({"columns": known.columns} if coded else {"features": known.feature_names})


def names_to_json(known: KnowsColumns) -> JSON:
    return {
        "feature_names": known.feature_names,
        "target_names": known.target_names,
        "columns": None if known.columns is None else known.columns.to_json(),
    }


def names_from_json(document: Mapping[str, Any]) -> JSON:
    """The fields that ``names_to_json`` wrote; old files have no coding."""
    names, targets = document["feature_names"], document.get("target_names")
    return {
        "feature_names": tuple(names) if names else None,
        "target_names": tuple(targets) if targets else None,
        "columns": optional_columns(document.get("columns")),
    }


def optional_columns(document: object) -> Columns | None:
    """The coding in a file, or None where the file has none."""
    return None if document is None else Columns.from_json(document)


def _lean(column: JSON) -> JSON:
    """As JSON has it, and without what says nothing."""
    kept = {name: value for name, value in column.items() if not (value is None or value is False or value == ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def _column(entry: object) -> Column:
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
