"""How the columns of a raw table become numbers: learned once, kept in the model, applied to every shard.

``Handling`` is what the user asks for. ``Columns`` is the coding that is learned from it, as a plain document: which
raw columns there are, and the numbers that stand for each. ``learning`` picks features and targets by name and learns a
coding from batches of rows (``scanning``), ``levels`` holds what is learned of the target, ``encoding`` applies it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from streamrf.data.columns.column import BOOL as BOOL
from streamrf.data.columns.column import DATE, KINDS, MAX_LEVELS, NUMBER, ONEHOT, ORDINAL, TARGET, Column
from streamrf.data.columns.column import FLOAT as FLOAT
from streamrf.data.columns.column import INT as INT
from streamrf.data.columns.column import LISTED_LEVELS as LISTED_LEVELS
from streamrf.data.columns.column import PERIODS as PERIODS
from streamrf.support.errors import DataError, FileFormatError, InputError

if TYPE_CHECKING:
    import pyarrow as pa

JSON: TypeAlias = dict[str, Any]
WORDS = {  # one of a kind, and several
    NUMBER: ("number", "numbers"), DATE: ("date", "dates"), ONEHOT: ("one-hot category", "one-hot categories"),
    ORDINAL: ("ordinal category", "ordinal categories"),
    TARGET: ("category by the target", "categories by the target"),
}  # fmt: skip
T = TypeVar("T")

CATEGORIES = ("auto", "onehot", "target", "ordinal", "error")
MISSING = ("auto", "median", "error")
MATRIX_LEVELS = 100  # of a category in a zarr store, unless more are allowed
FEW_LEVELS = 30  # so many are one-hot where nothing is set: each level is one more input
DTYPES = ("float32", "float64")
MAX_COLUMNS = 100_000
MAX_FEATURES = 1_000_000


@dataclass(frozen=True)
class Handling:
    """How a user wants categories and missing values handled.

    ``categories="auto"`` is one-hot for few levels and by the target for many; ``missing="auto"`` is the median.
    ``categorical`` names columns of numbers that are categories all the same.
    """

    categories: str = "auto"
    missing: str = "auto"
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
    def fills(self) -> bool:
        """Whether missing values are filled in."""
        return self.missing != "error"

    @property
    def limit(self) -> int:
        """Levels that a category may have, or with ``auto`` those that are one-hot."""
        if self.max_levels is not None:
            return self.max_levels
        return FEW_LEVELS if self.categories == "auto" else MAX_LEVELS

    def without_target(self) -> Handling:
        """For a matrix that is written once and knows no rows to be judged: one-hot, up to a hundred levels."""
        if self.categories == TARGET:
            raise InputError(
                "`categories='target'` is learned while training, and numbers in a zarr store are final: convert to"
                " parquet, and train on that"
            )
        if self.categories != "auto":
            return self
        return replace(self, categories=ONEHOT, max_levels=self.max_levels or MATRIX_LEVELS)

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
class Columns:
    """All raw columns of a table in order, and the type of the features they become.

    ``handling`` is what was asked for when the coding was learned, to learn it again of other rows (None: not known).
    ``left_out`` are columns that could not be used, and why. ``shards`` are the tables whose targets are in the sums of
    levels: fingerprint and number of the first row of each. ``first`` is the number of the first row of the table at
    hand in those sums, so that its rows are coded without their own fold; None for a table of other rows.
    """

    columns: tuple[Column, ...]
    dtype: str = "float64"
    handling: Handling | None = field(default=None, compare=False)
    left_out: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    shards: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    first: int | None = field(default=None, compare=False)

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

    @property
    def is_plain(self) -> bool:
        """Whether all columns are numbers as they come, and none was left out."""
        return not self.left_out and all(column.kind == NUMBER and not column.flag for column in self.columns)

    @property
    def by_target(self) -> tuple[Column, ...]:
        """Columns that are coded by the target: categories of many levels, and numbers of few values."""
        return tuple(column for column in self.columns if column.by_target)

    def made_of_target(self, *, categories: bool) -> tuple[int, ...]:
        """Features that are means of the target over the values of a number, or codes of categories that are."""
        found: list[int] = []
        place = 0
        for column in self.columns:
            if categories and column.kind == TARGET:
                found += range(place, place + column.width - column.flag)
            elif not categories and column.values:
                found.append(place + 1)
            place += column.width
        return tuple(found)

    @property
    def knows_rows(self) -> bool:
        """Whether the code of a row depends on its number, so that features do not tell which row it is."""
        return any(column.table is None for column in self.by_target) or (self.first is not None and bool(self.shards))

    def at(self, first: int | None) -> Columns:
        """The same coding for a table that begins with this row of the sums, or with None for other rows."""
        return self if first == self.first or not self.by_target else replace(self, first=first)

    def plain(self) -> Columns:
        """The coding with places for levels instead of what was learned of the target: what rows are known by."""
        if not self.by_target:
            return self
        return replace(self, columns=tuple(column.plain() for column in self.columns), first=None)

    def check_unique(self) -> None:
        """A DataError where two features would have one name."""
        twice = [name for name, count in Counter(self.feature_names).items() if count > 1]
        if twice:
            raise DataError(f"two features would be called '{twice[0]}' once columns are coded: rename a column")

    def describe(self) -> str:
        """One line for people."""
        kinds = Counter(column.kind for column in self.columns)
        counts = [(kinds[kind], *WORDS[kind]) for kind in KINDS]
        means, flags = sum(bool(column.values) for column in self.columns), sum(column.flag for column in self.columns)
        counts += [
            (means, "number by the target too", "numbers by the target too"),
            (flags, "flag for missing values", "flags for missing values"),
        ]
        parts = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
        become = "column becomes" if len(self.columns) == 1 else "columns become"
        left = f"; left out: {', '.join(name for name, _ in self.left_out)}" if self.left_out else ""
        features = "feature" if self.width == 1 else "features"
        return f"{len(self.columns)} {become} {self.width} {features} ({', '.join(parts)}){left}"

    def to_json(self) -> JSON:
        document: JSON = {"dtype": self.dtype, "columns": [column.to_json() for column in self.columns]}
        rest = {"left_out": [*map(list, self.left_out)], "shards": [*map(list, self.shards)], "first": self.first}
        document |= {name: value for name, value in rest.items() if value not in ([], None)}
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
        first = document.get("first")
        if not (first is None or (type(first) is int and first >= 0)):
            raise FileFormatError("damaged coding of columns: it does not say which rows it is for")
        made = cls(
            tuple(Column.from_json(entry) for entry in listed), document["dtype"], handling,
            _pairs(document.get("left_out", []), str), _pairs(document.get("shards", []), int), first,
        )  # fmt: skip
        if made.width > MAX_FEATURES or len(set(made.feature_names)) != made.width:
            raise FileFormatError(f"damaged coding of columns: {made.width:,} features, some with the same name")
        return made


def describe_unknown(unknown: Mapping[str, int]) -> str:
    """One sentence about values of categories that training had not seen, counted by column."""
    listed = ", ".join(f"{count:,} in '{name}'" for name, count in sorted(unknown.items()))
    return (
        f"values that training had not seen: {listed}; each stands for no known category (where categories are coded by"
        " the target, so do values of a single training row)"
    )


class RawTable(ABC):
    """A table whose columns may be of any type, read in batches from first row to last as often as one asks."""

    location: str  # what messages call it
    schema: pa.Schema
    n_rows: int | None = None  # None where only reading to the end would tell

    @abstractmethod
    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Batches of these columns, a few megabytes each."""

    def spread(self, names: list[str], work: Callable[[Iterable[pa.RecordBatch], int], T]) -> list[T] | None:
        """``work(batches, number of the first row)`` of every part of the table, done where the parts are; None for a
        table that is read here."""
        return None

    def files(self) -> list[tuple[str, list[str]]]:
        """Each file with the names of its columns, which should be those of the first."""
        return [(self.location, self.schema.names)]

    def has_gaps(self, name: str) -> bool:
        """Whether the table knows, without being read, that values of a column are missing."""
        return False

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
    if not isinstance(names, str | Iterable):
        raise InputError(f"columns are named by text, as in '{names}', not by {names!r}")
    return [names] if isinstance(names, str) else list(names)


class KnowsColumns(Protocol):
    """A model, or what was prepared for one: the names and the coding of the columns it was trained on."""

    @property
    def feature_names(self) -> Sequence[str] | None: ...

    @property
    def target_names(self) -> Sequence[str] | None: ...

    @property
    def columns(self) -> Columns | None: ...


class KnowsReading(KnowsColumns, Protocol):
    """Knows also how values of text files were read."""

    @property
    def reading(self) -> Mapping[str, Any]: ...


def known_choice(known: KnowsReading | None) -> JSON:
    """The arguments of ``open_source`` that choose the columns a model was trained on, and read them as then."""
    if known is None:
        return {}
    coded = known.columns is not None
    names: JSON = {"target": known.target_names, "trained_reading": known.reading}
    return names | ({"columns": known.columns} if coded else {"features": known.feature_names})


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


def _pairs(listed: object, kind: type) -> tuple[Any, ...]:
    """Names, each with a fact."""
    good = isinstance(listed, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is kind
        for pair in listed
    )
    if not good:
        raise FileFormatError(f"damaged coding of columns: {str(listed)[:80]} is no list of names")
    return tuple((name, fact) for name, fact in listed) if isinstance(listed, list) else ()
