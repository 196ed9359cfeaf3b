"""Learns the coding of columns in one pass over those that need it: levels of categories, medians of numbers.

A median is exact up to SAMPLE_ROWS rows (fewer where there are many columns); beyond, it is that of a sample of about
so many rows, chosen by a hash of the row's number, so that it does not depend on how the table is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamrf.data.columns import (
    DATE,
    MAX_FEATURES,
    NUMBER,
    ORDINAL,
    Choice,
    Column,
    Columns,
    Handling,
    RawTable,
    names_of,
)
from streamrf.data.columns.encoding import as_levels, as_numbers, is_text, raw_type, role_of
from streamrf.data.locations import listed, no_such
from streamrf.support.errors import DataError, InputError

TEXT = np.dtype("U")  # strings of any width
_PANDAS_INDEX = "__index_level_"


@dataclass(frozen=True)
class Chosen:
    """Names in order, each with the numpy type it has where nothing is null."""

    features: dict[str, np.dtype]
    targets: dict[str, np.dtype]

    @cached_property
    def all(self) -> dict[str, np.dtype]:
        return {**self.features, **self.targets}

    def check_same(self, schema: pa.Schema, first: str, path: str) -> None:
        """Raise a DataError naming both files where another one has not the same columns."""
        for name, dtype in self.all.items():
            if name not in schema.names:
                raise no_such("column", name, schema.names, f"{path}, but {first} has it")
            found = schema.field(name).type
            if numpy_type(found) != dtype:
                raise DataError(f"column '{name}' is of type {dtype.name} in {first} but {found} in {path}")


def choose_columns(schema: pa.Schema, where: str, choice: Choice) -> Chosen:
    """Features and targets of a file by name and type, or a sentence saying which name or type is wrong."""
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise DataError(f"{where} has more than one column called '{twice[0]}': names must be unique")
    targets = target_names(schema.names, where, choice)
    types = coded_types if choice.columns is not None else feature_types
    features = feature_names(schema.names, where, choice, targets)
    chosen = Chosen(types(schema, features, where), target_types(schema, targets, where))
    if not chosen.features:
        raise DataError(f"no column of {where} is left to be a feature: {listed(schema.names)}")
    return chosen


def target_names(known: Sequence[str], where: str, choice: Choice) -> list[str]:
    """The target columns to read; none where none are needed, or where they were asked for only if there are any."""
    asked = names_of(choice.target if choice.target is not None else choice.y)
    absent = [name for name in asked if name not in known]
    if choice.need_targets is False or (choice.need_targets is None and absent):
        return []
    if absent and choice.target is None:
        raise InputError(f"which column of {where} is the target? name it with `target`: {listed(known)}")
    if absent:
        raise no_such("column", absent[0], known, where, " (the target)")
    return asked


def feature_names(known: Sequence[str], where: str, choice: Choice, targets: list[str]) -> list[str]:
    """The feature columns: those asked for, or all that are nothing else."""
    if choice.columns is not None:
        return _asked_features(known, where, choice.columns.names, targets)
    if choice.features is not None:
        return _asked_features(known, where, names_of(choice.features), targets)
    excluded = names_of(choice.exclude)
    absent = [name for name in excluded if name not in known]
    if absent and choice.need_targets is not False:  # rows to predict need not have what training left out
        raise no_such("column", absent[0], known, where, " (to exclude)")
    rest = {*excluded, *targets, *names_of(choice.target if choice.target is not None else choice.y)}
    return [name for name in known if name not in rest and not name.startswith(_PANDAS_INDEX)]


def _asked_features(known: Sequence[str], where: str, asked: list[str], targets: list[str]) -> list[str]:
    for name in asked:
        if name not in known:
            raise no_such("column", name, known, where, " (a feature)")
        if name in targets or asked.count(name) > 1:
            role = "also the target" if name in targets else "named twice"
            raise InputError(f"feature column '{name}' is {role}: each column has one part to play")
    return asked


def feature_types(schema: pa.Schema, names: Iterable[str], where: str) -> dict[str, np.dtype]:
    types = {name: numpy_type(schema.field(name).type) for name in names}
    wrong = [name for name, dtype in types.items() if dtype is None or dtype.kind == "U"]
    if wrong:
        raise DataError(
            f"column '{wrong[0]}' of {where} is of type {schema.field(wrong[0]).type}, which is not numeric:"
            " code it with `categories='auto'` (in Python a field of Handling), or leave it out with"
            f" `exclude={wrong}`"
        )
    return {name: dtype for name, dtype in types.items() if dtype is not None}


def coded_types(schema: pa.Schema, names: Iterable[str], where: str) -> dict[str, np.dtype]:
    """Types of columns that a coding turns into numbers: for memory, and to compare files."""
    types = {name: numpy_type(schema.field(name).type) for name in names}
    return {name: TEXT if dtype is None else dtype for name, dtype in types.items()}


def target_types(schema: pa.Schema, names: Iterable[str], where: str) -> dict[str, np.dtype]:
    types: dict[str, np.dtype] = {}
    for name in names:
        dtype = numpy_type(schema.field(name).type)
        if dtype is None or pa.types.is_temporal(schema.field(name).type):
            raise DataError(
                f"target column '{name}' of {where} is of type {schema.field(name).type},"
                " but targets must be numbers, booleans or strings"
            )
        types[name] = dtype
    if len({dtype.kind == "U" for dtype in types.values()}) > 1:
        raise DataError(f"the target columns {', '.join(types)} of {where} mix strings and numbers")
    return types


def numpy_type(stored: pa.DataType) -> np.dtype | None:
    """What an arrow type is in numpy; None for what is neither a number nor a string."""
    if pa.types.is_dictionary(stored):
        return numpy_type(stored.value_type)
    if pa.types.is_boolean(stored) or pa.types.is_integer(stored) or pa.types.is_floating(stored):
        return np.dtype(stored.to_pandas_dtype())
    if pa.types.is_decimal(stored) or (pa.types.is_temporal(stored) and not pa.types.is_interval(stored)):
        return np.dtype(np.float64)
    return TEXT if is_text(stored) else None


SAMPLE_ROWS = 200_000
SAMPLE_BYTES = 64 << 20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Kept: TypeAlias = slice | np.ndarray  # which rows of a batch


def needs_coding(schema: pa.Schema, names: Sequence[str], handling: Handling) -> bool:
    """Whether these columns are anything but plain numbers to be taken as they are."""
    roles = {role_of(schema.field(name).type) for name in names}
    return roles != {"number"} or handling.missing == "median" or bool(handling.categorical)


def learn_columns(
    table: RawTable,
    names: Sequence[str],
    handling: Handling,
    progress: Callable[[int], None] = lambda rows: None,
    *,
    rows: int | None = None,
) -> Columns:
    """The coding of these columns, from all rows or about the first so many; ``progress`` hears how many were read."""
    roles = column_roles(table, names, handling)
    scans = {name: _scan(name, role, table, handling) for name, role in roles.items()}
    done, read = 0, [name for name, scan in scans.items() if scan.reads]
    n_rows = table.n_rows if rows is None else min(rows, table.n_rows or rows)
    sample = _Sampler(n_rows, sum(isinstance(scans[name], _NumberScan) for name in read))
    for batch in table.batches(read) if read else ():
        kept = sample.rows(done, len(batch))
        for name in read:
            scans[name].update(batch.column(name), done, kept)
        done += len(batch)
        progress(done)
        if rows is not None and done >= rows:
            break
    columns = Columns(tuple(scan.column() for scan in scans.values()), _dtype(table.schema, roles), handling)
    columns.check_unique()
    if columns.width > MAX_FEATURES:
        raise DataError(
            f"the columns of {table.location} would become {columns.width:,} features, and {MAX_FEATURES:,} are allowed"
        )
    return columns


def column_roles(table: RawTable, names: Sequence[str], handling: Handling) -> dict[str, str]:
    """``number``, ``date`` or ``category`` for each column, or a sentence about the one that cannot be used."""
    for name in handling.categorical:
        if name not in names:
            raise DataError(f"`categorical={[name]}`: {table.location} has no such feature")
    roles = {name: role_of(table.schema.field(name).type) for name in names}
    for name, role in roles.items():
        if role is None:
            kind = table.schema.field(name).type
            raise DataError(
                f"column '{name}' of {table.location} is of type {kind}, which is neither numeric nor text nor a date:"
                f" leave it out with `exclude={[name]}`"
            )
    texts = [name for name, role in roles.items() if role == "text"]
    if texts and handling.categories == "error":
        raise DataError(not_numeric(table, texts))
    return {name: "category" if name in texts or name in handling.categorical else str(roles[name]) for name in names}


def not_numeric(table: RawTable, texts: list[str]) -> str:
    return (
        f"column '{texts[0]}' of {table.location} is of type {table.schema.field(texts[0]).type}, which is not"
        f" numeric{table.origin(texts[0])}: code it with `categories='onehot'` (or auto), or leave it out"
        f" with `exclude={texts}`"
    )


def _scan(name: str, role: str, table: RawTable, handling: Handling) -> _NumberScan | _LevelScan:
    if role == "category":
        return _LevelScan(name, table, handling)
    return _NumberScan(name, DATE if role == "date" else NUMBER, handling.missing == "median", table)


def _dtype(schema: pa.Schema, roles: dict[str, str]) -> str:
    """float32 where that holds every number: floats and whole numbers of up to 16 bits, and categories."""
    for name, role in roles.items():
        stored = schema.field(name).type
        stored = stored.value_type if pa.types.is_dictionary(stored) else stored
        narrow = role == "category" or (role == "number" and not pa.types.is_decimal(stored) and _is_narrow(stored))
        if not narrow:
            return "float64"
    return "float32"


def _is_narrow(stored: pa.DataType) -> bool:
    bits = stored.bit_width
    return bits <= 32 if pa.types.is_floating(stored) else bits <= 16


class _Sampler:
    """Which rows of a batch count for medians: all where there is room for them."""

    def __init__(self, n_rows: int | None, columns: int) -> None:
        room = min(SAMPLE_ROWS, SAMPLE_BYTES // (8 * max(1, columns)))
        share = 1.0 if n_rows is None else min(1.0, room / max(1, n_rows))
        self._bound = None if share == 1.0 else np.uint64(share * 2**64)

    def rows(self, start: int, count: int) -> Kept:
        if self._bound is None:
            return slice(None)
        with np.errstate(over="ignore"):
            mixed = np.arange(start, start + count, dtype=np.uint64) * _GOLDEN
            mixed = (mixed ^ (mixed >> np.uint64(32))) * _GOLDEN
        return mixed < self._bound


class _NumberScan:
    """Missing values and the median; nothing is read where missing values are to stay."""

    def __init__(self, name: str, kind: str, median: bool, table: RawTable) -> None:
        self.name, self.kind, self.reads, self._where = name, kind, median, table.location
        self._missing = 0
        self._kept: list[np.ndarray] = []

    def update(self, values: pa.Array, start: int, kept: Kept) -> None:
        numbers = as_numbers(values).astype(np.float64, copy=False)
        missing = np.isnan(numbers)
        self._missing += int(missing.sum())
        kept_numbers = numbers[kept]
        self._kept.append(kept_numbers[~np.isnan(kept_numbers)])

    def column(self) -> Column:
        if not self.reads:
            return Column(self.name, self.kind)
        known = np.concatenate([np.empty(0), *self._kept])
        known = known[np.isfinite(known)]
        if not len(known):
            raise DataError(
                f"column '{self.name}' of {self._where} has no values: leave it out with `exclude={[self.name]}`"
            )
        return Column(self.name, self.kind, fill=float(np.median(known)), flag=self._missing > 0)


class _LevelScan:
    """The different values of a category, as long as they are few."""

    reads = True

    def __init__(self, name: str, table: RawTable, handling: Handling) -> None:
        self.name, self._table, self._handling = name, table, handling
        self._of = raw_type(table.schema.field(name).type)
        self._counts: Counter[str] = Counter()
        self._missing = 0

    def update(self, values: pa.Array, start: int, kept: Kept) -> None:
        levels = as_levels(values)
        self._missing += levels.null_count
        for entry in pc.value_counts(levels.drop_null()).to_pylist():
            self._counts[entry["values"]] += entry["counts"]
        if len(self._counts) > self._handling.limit:
            raise self._too_many(start + len(levels))

    def _too_many(self, rows: int) -> DataError:
        return DataError(
            f"column '{self.name}' of {self._table.location} is not numeric, and as a category it has"
            f" {len(self._counts):,} different values in its first {rows:,} rows, where {self._handling.limit:,} are"
            f" allowed{self._table.origin(self.name)}: leave it out with `exclude={[self.name]}`, or allow more"
            " with `max_levels`"
        )

    def column(self) -> Column:
        if not self._counts:
            raise DataError(
                f"column '{self.name}' of {self._table.location} has no values: leave it out with"
                f" `exclude={[self.name]}`"
            )
        levels = tuple(sorted(self._counts))
        flag = self._missing > 0 and self._handling.missing == "median"
        fill = None
        if self._handling.missing == "median":
            fill = float(levels.index(_commonest(self._counts))) if self._handling.style == ORDINAL else 0.0
        return Column(self.name, self._handling.style, levels, fill, flag, self._of)


def _commonest(counts: Counter[str]) -> str:
    """Of equally common ones the first in order: the answer must not depend on the order of rows."""
    return min(counts, key=lambda level: (-counts[level], level))
