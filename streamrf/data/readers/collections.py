"""Dask collections as sources: arrays of numbers, and data frames whose columns are coded as those of parquet are.

The driver of a cluster looks at every partition once (how many rows, which types, which gaps) and reads samples. All
else is computed on the workers that sum it; see ``data.partitions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Collection as Some
from operator import getitem
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from streamrf.data.columns import Choice
from streamrf.data.columns.learning import numpy_type
from streamrf.data.partitions import (
    DIGEST,
    TOKEN,
    Collection,
    Names,
    asked,
    each_part,
    is_collection,
    kept_there,
    read_there,
    targets_there,
)  # fmt: skip
from streamrf.data.readers.arrays import as_matrix, as_targets, set_arrays
from streamrf.data.readers.base import BatchReader, RowReader, describe_size
from streamrf.data.readers.columns import BATCH_ROWS, TEXT_BYTES, ColumnSource, RowGroup
from streamrf.data.readers.table import pandas_table
from streamrf.data.source import Block, Partition, Source, Span, Spec
from streamrf.support.errors import DataError, InputError
from streamrf.support.progress import Reporter

if TYPE_CHECKING:
    import pyarrow as pa
    from dask.delayed import Delayed

T = TypeVar("T")
COLLECTION = "the dask collection"


class DaskSource(RowReader):
    """What both kinds have in common: where they are read, and what they are called elsewhere."""

    dask: Collection

    def read(self, span: Span) -> Block:
        self._check(span)
        return asked(read_there, self, [(span,)])[0] if self.dask.is_remote else super().read(span)

    def read_targets(self, span: Span) -> np.ndarray:
        remote = self.dask.is_remote and self.has_targets
        return asked(targets_there, self, [(span,)])[0] if remote else super().read_targets(span)

    def stored(self) -> dict[str, str]:
        """Dask's name for the tasks: another one, and nobody knows whether they still give the same rows."""
        return {COLLECTION: self.dask.token}

    def _named(self) -> Spec:
        return {TOKEN: self.dask.token, DIGEST: self.fingerprint()}

    def describe(self) -> str:
        return f"{self.location}: {describe_size(self)}"


# -- arrays


class DaskArrays(Collection):
    """X and y in the same chunks of rows, each row in one chunk."""

    location = "the dask array"

    def __init__(self, X: Any, y: Any = None, names: Sequence[str] | None = None) -> None:
        from dask.base import tokenize

        self.X, self.feature_names = _whole_rows(X), names
        self.y = None if y is None else _beside(y, self.X)
        super().__init__(tokenize(self.X, self.y), [int(length) for length in self.X.chunks[0]])

    def __getstate__(self) -> dict[str, Any]:
        """Elsewhere only shapes and types are known."""
        state = super().__getstate__()
        return state | {name: _Shape.of(state[name]) for name in ("X", "y") if state[name] is not None}

    def _delayed(self, names: Names) -> list[Delayed]:
        blocks = {"X": self.X, "y": self.y}[names[0]]
        return list(blocks.to_delayed().ravel())

    def _ready(self, value: Any, names: Names) -> np.ndarray:
        return np.asarray(value.toarray() if hasattr(value, "toarray") else value)

    def opened(self, choice: Choice) -> Source:
        return DaskArraySource(self, choice)


def column_of(values: Any) -> Source:
    """One value for each row, as the targets of an array that has nothing else."""
    import dask.array as da

    values = _whole_rows(values if is_collection(values) else da.from_array(np.asarray(values), chunks=BATCH_ROWS))
    return DaskArrays(da.zeros((values.shape[0], 1), np.float32, chunks=(values.chunks[0], 1)), values).opened(Choice())


class _Shape:
    """What is left of an array that is elsewhere."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    @classmethod
    def of(cls, array: Any) -> _Shape:
        return cls(array.shape, np.dtype(array.dtype))


def _whole_rows(X: Any) -> Any:
    """An array whose rows are counted and not cut."""
    if hasattr(X, "to_dask_array"):
        X = X.to_dask_array(lengths=True)
    X = _counted(X)
    return X.rechunk({1: -1}) if X.ndim == 2 and len(X.chunks[1]) > 1 else X


def _counted(array: Any) -> Any:
    return array.compute_chunk_sizes() if any(np.isnan(size) for size in array.shape) else array


def _beside(y: Any, X: Any) -> Any:
    """Targets in the chunks of X; what is no dask array yet is cut into such."""
    import dask.array as da

    y = y if is_collection(y) else da.from_array(np.asarray(y))
    y = _whole_rows(y)
    if y.shape[0] != X.shape[0]:
        raise DataError(f"X has {X.shape[0]:,} rows but y has {y.shape[0]:,}: they must match")
    return y.rechunk({0: X.chunks[0]})


class DaskArraySource(DaskSource):
    """Dask arrays as X and y; a chunk of rows is a partition."""

    def __init__(self, dask: DaskArrays, choice: Choice) -> None:
        self.dask, self.location, self._choice = dask, dask.location, choice
        if dask.y is None and choice.need_targets:
            raise InputError("an array of features has no targets: give the pair (X, y), or y=")
        set_arrays(self, dask.X, None if choice.need_targets is False else dask.y)
        self.feature_names = None if dask.feature_names is None else tuple(map(str, dask.feature_names))

    def chunks(self) -> Sequence[Span]:
        return tuple(self.dask.rows(i) for i, length in enumerate(self.dask.lengths) if length)

    def _rows(self, span: Span, name: str) -> np.ndarray:
        pieces = [piece for _, piece in self.dask.pieces(span, (name,))]
        array = getattr(self.dask, name)
        return np.concatenate(pieces) if pieces else np.empty((0, *array.shape[1:]), array.dtype)

    def _features(self, span: Span) -> np.ndarray:
        return as_matrix(self._rows(span, "X"), self.x_dtype)

    def _targets(self, span: Span) -> np.ndarray:
        assert self.y_dtype is not None
        return as_targets(self._rows(span, "y"), self.y_dtype, "y")

    def partitions(self, span: Span, *, targets_only: bool = False) -> Iterable[Partition]:
        arrays = (["y"] if self.has_targets else []) + ([] if targets_only else ["X"])
        return [(self.dask, number, (name,)) for number in self.dask.numbers(span) for name in arrays]

    def read_bytes(self, span: Span) -> int:
        """What is returned, and the partitions it comes from."""
        rows = sum(self.dask.lengths[number] for number in self.dask.numbers(span)[:1])
        return 2 * self.block_bytes(span) + self.block_bytes(Span(0, rows))

    def spec(self) -> Spec:
        return {"data": self._named(), "need_targets": self._choice.need_targets}


# -- data frames


class DaskFrame(Collection):
    """A dask data frame as columns in row groups: the schema of all partitions, and which columns have gaps."""

    location = "the dask frame"

    def __init__(self, frame: Any) -> None:
        from dask.base import tokenize

        self.collection, self.names = frame, [self.location]
        self._labels = {str(label): label for label in frame.columns}
        self._schema, self._gaps, lengths = looked_at(frame)
        super().__init__(tokenize(frame), lengths)
        numbers = [number for number, length in enumerate(self.lengths) if length]
        self.groups = tuple(RowGroup(0, number, self.rows(number)) for number in numbers)

    def _delayed(self, names: Names) -> list[Delayed]:
        return projected(self.collection, [self._labels[name] for name in names])

    def _ready(self, value: Any, names: Names) -> pa.Table:
        return as_table(value[[self._labels[name] for name in names]], self._schema)

    def opened(self, choice: Choice) -> Source:
        return DaskFrameSource(self, choice)

    def columns(self) -> BatchReader:
        return DaskBatches(self)

    def tables(self, names: Names) -> Iterator[pa.Table]:
        """One partition after the other, in this process."""
        for group in self.groups:
            if self.is_remote:
                yield each_part(as_table, [self.parts(names)[group.group]], [self._schema])[0]
            else:
                yield from (table for _, table in self.pieces(group.rows, names))

    # What ``ColumnSource`` asks of files.

    def schemas(self) -> list[pa.Schema]:
        return [self._schema]

    def touched(self, span: Span) -> list[RowGroup]:
        return [RowGroup(0, number, self.rows(number)) for number in self.numbers(span)]

    def batches(self, span: Span, names: list[str], batch_rows: int) -> Iterator[tuple[Span, pa.RecordBatch]]:
        for rows, table in self.pieces(span, tuple(names)):
            done = rows.start
            for batch in table.to_batches(max_chunksize=batch_rows):
                yield Span(done, done + len(batch)), batch
                done += len(batch)

    def nullable(self, names: Some[str]) -> set[str]:
        return self._gaps & set(names)

    def stored_bytes(self, group: RowGroup, names: Some[str]) -> int:
        """A partition as Dask has it, and as a table."""
        widths = (numpy_type(self._schema.field(name).type) for name in names)
        return 2 * len(group.rows) * sum((width and width.itemsize) or TEXT_BYTES for width in widths)


def projected(frame: Any, labels: list[Any]) -> list[Delayed]:
    """Some columns of every partition. Dask itself reads only these where each partition is one task: elsewhere it may
    cut partitions in another way once columns are left out, as it joins small parts of files."""
    narrow, whole = frame[labels].to_delayed(), frame.to_delayed()
    if all(len(parts) == frame.npartitions == len(parts[0].dask) for parts in (narrow, whole)):
        return list(narrow)
    return list(frame.map_partitions(getitem, labels, meta=frame._meta[labels]).to_delayed())


def looked_at(frame: Any) -> tuple[pa.Schema, set[str], list[int]]:
    """The schema of a dask frame, its whole numbers with gaps, and the rows of each partition: one look at every
    partition, at those columns whose dtype does not tell what they hold."""
    import pyarrow as pa

    known = pandas_table(frame._meta, Reporter()).schema  # which finds names that are there twice
    labels = {str(label): label for label in frame.columns}
    unsure = [name for name in labels if not _tells(frame.dtypes[labels[name]])]
    read = [labels[name] for name in unsure or list(labels)[:1]]
    parts = projected(frame, read)
    looks = each_part(_look, parts, [bool(unsure)] * len(parts))
    types = {name: _common_type(known.field(name).type, [look[1][name] for look in looks]) for name in unsure}
    schema = pa.schema([(field.name, _plain_type(types.get(field.name, field.type))) for field in known])
    return schema, {name for look in looks for name in look[2]}, [look[0] for look in looks]


def _tells(dtype: Any) -> bool:
    """Whether a dtype tells the type of every value: not objects and categories, nor integers, which a partition with
    gaps has as floats."""
    return dtype.kind in "bfMm" if isinstance(dtype, np.dtype) else str(dtype).startswith(("str", "datetime64"))


def _look(frame: Any, at_values: bool) -> tuple[int, dict[str, pa.DataType], set[str]]:
    """Rows, types and columns with gaps of a partition."""
    if not at_values:
        return len(frame), {}, set()
    table = pandas_table(frame, Reporter())
    gaps = {name for name in table.column_names if table.column(name).null_count}
    return len(frame), {name: table.schema.field(name).type for name in table.column_names}, gaps


def _common_type(declared: pa.DataType, found: Sequence[pa.DataType]) -> pa.DataType:
    """The type of a column in all partitions: as declared where that is whole numbers, else what holds all, or text."""
    import pyarrow as pa

    types = {_plain_type(each) for each in found if not pa.types.is_null(each)}
    if pa.types.is_integer(declared) and all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in types):
        return declared
    try:
        one = [pa.schema([("", each)]) for each in types or {declared}]
        return pa.unify_schemas(one, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return pa.string()


def _plain_type(stored: pa.DataType) -> pa.DataType:
    """Without the coding of a category, which differs from partition to partition."""
    import pyarrow as pa

    return stored.value_type if pa.types.is_dictionary(stored) else stored


def as_table(frame: Any, schema: pa.Schema) -> pa.Table:
    """A partition as arrow, in the types of the whole."""
    import pyarrow as pa

    table = pandas_table(frame, Reporter())
    return table.cast(pa.schema([schema.field(name) for name in table.column_names]))


class DaskFrameSource(DaskSource, ColumnSource):
    """A dask data frame; rows are coded as they are read."""

    def __init__(self, dask: DaskFrame, choice: Choice) -> None:
        self.dask = dask
        ColumnSource.__init__(self, dask.location, dask, choice)

    def partitions(self, span: Span, *, targets_only: bool = False) -> Iterable[Partition]:
        names = tuple(self._columns.targets if targets_only else self._columns.all)
        return [(self.dask, number, names) for number in self.dask.numbers(span)] if names else ()

    def read_kept(self, span: Span, types: Sequence[tuple[str, np.dtype]]) -> dict[str, np.ndarray]:
        return asked(kept_there, self, [(span, types)])[0] if self.dask.is_remote else super().read_kept(span, types)

    def spec(self) -> Spec:
        return {"data": self._named(), **self._choice.columns_to_json()}


class DaskBatches(BatchReader):
    """The same frame as batches of raw columns; on a cluster its partitions are worked on where they are."""

    def __init__(self, frame: DaskFrame) -> None:
        self._frame, self.location = frame, frame.location
        self.schema, self.n_rows = frame.schemas()[0], frame.starts[-1]

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        for table in self._frame.tables(tuple(names)):
            yield from table.to_batches(max_chunksize=BATCH_ROWS)

    def spread(self, names: list[str], work: Callable[[Iterable[pa.RecordBatch], int], T]) -> list[T] | None:
        frame = self._frame
        if not frame.is_remote:
            return None
        numbers = [group.group for group in frame.groups]
        parts, starts = frame.parts(tuple(names)), [frame.starts[number] for number in numbers]
        alike = [[each] * len(numbers) for each in (frame.schemas()[0], work)]
        return each_part(_worked_on, [parts[number] for number in numbers], *alike, starts)


def _worked_on(frame: Any, schema: pa.Schema, work: Callable[[Iterable[pa.RecordBatch], int], T], start: int) -> T:
    return work(as_table(frame, schema).to_batches(max_chunksize=BATCH_ROWS), start)
