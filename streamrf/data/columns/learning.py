"""Which columns are features and targets, and how they are coded: learned in one pass over those that need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from streamrf.data.columns import DATE, MAX_FEATURES, NUMBER, TARGET, Choice, Columns, Handling, RawTable, names_of
from streamrf.data.columns.encoding import is_text, role_of
from streamrf.data.columns.scanning import LevelScan, NumberScan, Sampler, Scan
from streamrf.data.locations import listed, no_such
from streamrf.support.errors import DataError, InputError

TEXT = np.dtype("U")  # strings of any width
_INDEX = ("__index_level_", "__null_dask_index__")  # columns that pandas and dask add to their files


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
        check_shared([(first, [*self.all]), (path, schema.names)], self.all)
        for name, dtype in self.all.items():
            found = schema.field(name).type
            if numpy_type(found) != dtype:
                raise DataError(f"column '{name}' is of type {dtype.name} in {first} but {found} in {path}")


def choose_columns(schema: pa.Schema, where: str, choice: Choice) -> Chosen:
    """Features and targets of a file by name and type, or a sentence saying which name or type is wrong."""
    check_unique(schema.names, where)
    targets = target_names(schema.names, where, choice)
    types = coded_types if choice.columns is not None else feature_types
    features = feature_names(schema.names, where, choice, targets)
    chosen = Chosen(types(schema, features, where), target_types(schema, targets, where))
    if not chosen.features:
        raise DataError(f"no column of {where} is left to be a feature: {listed(schema.names)}")
    return chosen


def check_unique(names: Sequence[str], where: str) -> None:
    """Raise a DataError naming a column that is there twice."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{where} has more than one column called '{twice[0]}': names must be unique")


def check_shared(files: Sequence[tuple[str, Sequence[str]]], names: Iterable[str]) -> None:
    """Raise a DataError naming a column that a file lacks and the first one has."""
    for where, known in files:
        absent = [name for name in names if name not in known]
        if absent:
            raise no_such("column", absent[0], known, f"{where}, but {files[0][0]} has it")


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
    return [name for name in known if name not in rest and not name.startswith(_INDEX)]


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
            " a model that was trained on numbers needs numbers there; to train, code it with `categories='auto'` (in"
            f" Python a field of Handling), or leave it out with `exclude={wrong}`"
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
        if pa.types.is_null(schema.field(name).type):
            raise DataError(f"target column '{name}' of {where} has no values: name another column with `target`")
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


Say = Callable[[str], None]
MOST_READ = 1 << 29  # numbers that are read only to look for gaps
NO_ROLE = "is neither a number nor text nor a date"


def silent(said: object) -> None:
    """Nothing is shown."""


def needs_coding(schema: pa.Schema, names: Sequence[str], handling: Handling) -> bool:
    """Whether these columns are, or may be, anything but plain numbers to be taken as they are."""
    roles = {role_of(schema.field(name).type) for name in names}
    return roles != {"number"} or handling.fills or bool(handling.categorical)


def learn_columns(
    table: RawTable,
    names: Sequence[str],
    handling: Handling,
    progress: Callable[[int], None] = silent,
    *,
    rows: int | None = None,
    asked: Collection[str] = (),
    say: Say = silent,
) -> Columns:
    """The coding of these columns, from all rows or about the first so many; ``progress`` hears how many were read.

    Columns that cannot be used are left out, and ``say`` hears which; those in ``asked`` are wanted by name, and must
    be usable.
    """
    if table.n_rows == 0:
        raise DataError(f"{table.location} has no rows")
    check_shared(table.files(), names)
    asked = {*asked, *handling.categorical}
    roles, left_out = column_roles(table, names, handling, asked)
    scans = _scans(table, roles, handling, asked)
    _read(table, scans, progress, rows)
    found = {name: scan.column() for name, scan in scans.items()}
    left_out |= {name: scans[name].why for name, column in found.items() if column is None}
    if left_out:
        _leave_out(table, left_out, asked, len(left_out) == len(names), say)
    infinite = {name: scan.infinite for name, scan in scans.items() if isinstance(scan, NumberScan) and scan.infinite}
    if infinite:
        say(f"infinite values count as missing: {', '.join(f'{n:,} in {name!r}' for name, n in infinite.items())}")
    kept = tuple(column for column in found.values() if column is not None)
    if not any(column.kind == TARGET for column in kept):  # no pass over the targets is made for numbers alone
        kept = tuple(column.plain() for column in kept)
    columns = Columns(kept, _dtype(table.schema, roles), handling, tuple(left_out.items()))
    columns.check_unique()
    if columns.width > MAX_FEATURES:
        raise DataError(
            f"the columns of {table.location} would become {columns.width:,} features, and {MAX_FEATURES:,} are allowed"
        )
    return columns


def _read(table: RawTable, scans: dict[str, Scan], progress: Callable[[int], None], rows: int | None) -> None:
    done, read = 0, [name for name, scan in scans.items() if scan.reads]
    if not read:
        return
    n_rows = table.n_rows if rows is None else min(rows, table.n_rows or rows)
    sample = Sampler(n_rows, sum(isinstance(scans[name], NumberScan) for name in read))
    work = partial(_scanned, scans={name: scans[name] for name in read}, sample=sample)
    parts = None if rows is not None else table.spread(read, work)
    for part in parts or ():
        for name, scan in part.items():
            scans[name].add(scan)
    for batch in table.batches(read) if parts is None else ():
        _scan(batch, done, scans, sample)
        done += len(batch)
        progress(done)
        if rows is not None and done >= rows:
            break


def _scan(batch: pa.RecordBatch, start: int, scans: dict[str, Scan], sample: Sampler) -> None:
    kept = sample.rows(start, len(batch))
    for name in batch.schema.names:
        scans[name].update(batch.column(name), kept)


def _scanned(batches: Iterable[pa.RecordBatch], start: int, scans: dict[str, Scan], sample: Sampler) -> dict[str, Scan]:
    """What new scans find in some rows."""
    scans = deepcopy(scans)
    for batch in batches:
        _scan(batch, start, scans, sample)
        start += len(batch)
    return scans


def _leave_out(table: RawTable, left_out: dict[str, str], asked: Collection[str], every: bool, say: Say) -> None:
    """Say which columns are left out; an error where one of them was asked for by name, or none is left."""
    reasons = "; ".join(f"'{name}' {why}" for name, why in left_out.items())
    flag = f"`exclude={[*left_out]}`"
    if every or any(name in asked for name in left_out):
        raise DataError(f"these columns of {table.location} cannot be used: {reasons}. Leave them out with {flag}")
    say(f"left out: {reasons}. To leave them out yourself: {flag}")


def column_roles(
    table: RawTable, names: Sequence[str], handling: Handling, asked: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """``number``, ``date`` or ``category`` for each column that can be used, and what is wrong with the others."""
    for name in handling.categorical:
        if name not in names:
            raise DataError(f"`categorical={[name]}`: {table.location} has no such feature")
    known = {name: role_of(table.schema.field(name).type) for name in names}
    texts = [name for name, role in known.items() if role == "text"]
    if texts and handling.categories == "error":
        raise DataError(not_numeric(table, texts))
    categories = {*texts, *handling.categorical}
    roles = {name: "category" if name in categories else role for name, role in known.items() if role is not None}
    types = {name: table.schema.field(name).type for name, role in known.items() if role is None}
    return roles, {name: f"{NO_ROLE} ({kind})" for name, kind in types.items()}


def not_numeric(table: RawTable, texts: list[str]) -> str:
    return (
        f"column '{texts[0]}' of {table.location} is of type {table.schema.field(texts[0]).type}, which is not"
        f" numeric{table.origin(texts[0])}: code it with `categories='auto'`, or leave it out with"
        f" `exclude={texts}`"
    )


def _scans(table: RawTable, roles: dict[str, str], handling: Handling, asked: Collection[str]) -> dict[str, Scan]:
    """Numbers of a very large table are not read only to look for gaps, unless the table says that it has some."""
    numbers = sum(role == "number" for role in roles.values()) * (table.n_rows or 0)
    trusted = handling.missing == "auto" and numbers > MOST_READ
    scans: dict[str, Scan] = {}
    for name, role in roles.items():
        if role == "category":
            scans[name] = LevelScan(name, table, handling, asked=name in asked)
            continue
        fills = handling.fills and not (trusted and role == "number" and not table.has_gaps(name))
        scans[name] = NumberScan(name, table.schema.field(name).type, DATE if role == "date" else NUMBER, fills)
    return scans


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
