"""Parquet: one file, or several that are read one after the other; row groups are the chunks.

Only the columns that are needed are read. Features are in the file's order unless ``features`` gives another; nulls
are NaN, so a column of integers or booleans that has any is read as floats. A target that is not named is the column
called ``y``. Columns pandas added for its index (``__index_level_0__``) are never features. Dates are read as days
since 1970; with a coding of columns (``Choice.columns``) categories and missing values become numbers too.
"""

from __future__ import annotations

import hashlib
import io
import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamrf.data.columns import Choice
from streamrf.data.columns.encoding import Encoder, as_numbers, as_texts
from streamrf.data.columns.learning import choose_columns
from streamrf.data.locations import filesystem, is_url, reading
from streamrf.data.parts import ENDINGS, data_files
from streamrf.data.readers.arrays import as_targets, rows_of
from streamrf.data.readers.base import BatchReader, Progress, RowReader, row_numbers, silent
from streamrf.data.source import Block, Source, Span, Spec
from streamrf.data.stored import base_name, file_marks
from streamrf.support.errors import DataError

if TYPE_CHECKING:
    pass

TEXT_BYTES = 128  # a guess at a label as a Python string, for memory only
BATCH_ROWS = 32_768
BATCH_BYTES = 8 << 20  # decoded at a time; more is hardly faster
PAGE_BYTES = 1 << 20  # what writers put into a page, and into a dictionary
BUFFER_BYTES = 1 << 17
FOOTER_READERS = 8
CHECKED = {"page_checksum_verification": True}  # where a file has checksums
ORIGIN, ABOUT = b"streamrf.origin", b"streamrf.about"  # in a footer: the file it was made of, and about its columns


class ColumnFiles(Protocol):
    """Columns in row groups: parquet files, or a table in memory."""

    names: list[str]  # what messages call each of the files
    groups: tuple[RowGroup, ...]

    def schemas(self) -> list[pa.Schema]: ...

    def touched(self, span: Span) -> list[RowGroup]: ...

    def batches(self, span: Span, names: list[str], batch_rows: int) -> Iterator[tuple[Span, pa.RecordBatch]]: ...

    def nullable(self, names: Collection[str]) -> set[str]: ...

    def stored_bytes(self, group: RowGroup, names: Collection[str]) -> int: ...


class ColumnSource(RowReader):
    """Columns chosen by name and coded as they are read."""

    picks_columns = True

    def __init__(self, location: str, files: ColumnFiles, choice: Choice) -> None:
        self.location, self._choice, self._files = location, choice, files
        first, *others = files.schemas()
        self._columns = choose_columns(first, files.names[0], self._choice)
        self.columns = self._choice.columns
        self._encoder = None if self.columns is None else Encoder(self.columns)
        for name, schema in zip(files.names, [first, *others], strict=True):
            self._check_schema(schema, name)
        self.n_rows = sum(len(group.rows) for group in self._files.groups)
        if not self.n_rows:
            raise DataError(f"{location} has no rows")
        self.feature_names = tuple(self._columns.features) if self.columns is None else self.columns.feature_names
        self.n_features, self.n_outputs = len(self.feature_names), len(self._columns.targets)
        self.target_names = tuple(self._columns.targets) or None
        self._set_types()

    def _check_schema(self, schema: pa.Schema, name: str) -> None:
        if self._encoder is not None:
            self._encoder.check(schema, name)
        if name != self._files.names[0]:
            same = self._columns if self._encoder is None else replace(self._columns, features={})
            same.check_same(schema, self._files.names[0], name)

    def _set_types(self) -> None:
        whole = {name for name, dtype in self._columns.all.items() if dtype.kind in "biu"}
        nulls = self._files.nullable(whole)
        self.x_dtype = self._feature_type({n: widened(t, n in nulls) for n, t in self._columns.features.items()})
        y_types = [widened(t, name in nulls) for name, t in self._columns.targets.items()]
        self.y_dtype = np.result_type(*y_types) if y_types else None

    def _feature_type(self, types: dict[str, np.dtype]) -> np.dtype:
        return np.result_type(*types.values()) if self.columns is None else np.dtype(self.columns.dtype)

    @property
    def declared_dtypes(self) -> tuple[np.dtype, np.dtype | None]:
        """Types before nulls widen them."""
        targets = list(self._columns.targets.values())
        return self._feature_type(self._columns.features), np.result_type(*targets) if targets else None

    @property
    def unknown_levels(self) -> Counter[str]:
        """By column, how many values were read that the coding does not know."""
        return Counter() if self._encoder is None else self._encoder.unknown

    def chunks(self) -> tuple[Span, ...]:
        return tuple(group.rows for group in self._files.groups)

    def read(self, span: Span) -> Block:
        """Features and targets in one go over the file."""
        self._check(span)
        X, y = self._load(span, list(self._columns.features), list(self._columns.targets))
        return Block(X, y if self.has_targets else None, row_numbers(span))

    def _features(self, span: Span) -> np.ndarray:
        return self._load(span, list(self._columns.features), [])[0]

    def _targets(self, span: Span) -> np.ndarray:
        return self._load(span, [], list(self._columns.targets))[1]

    def _load(self, span: Span, features: list[str], targets: list[str]) -> tuple[np.ndarray, np.ndarray]:
        y_dtype = self.y_dtype or np.dtype(float)
        X = np.empty((len(span), self.n_features if features else 0), self.x_dtype)
        y = np.empty((len(span), len(targets)), object if y_dtype.kind == "U" else y_dtype)
        for rows, batch in self._files.batches(span, [*features, *targets], self._batch_rows):
            part = slice(rows.start, rows.stop)
            if self._encoder is not None and features:
                self._encoder.encode(batch, X[part])
            else:
                self._fill(X[part], batch, features)
            self._fill(y[part], batch, targets)
        return X, as_targets(y, y_dtype, f"the target of {self.location}")

    def _fill(self, out: np.ndarray, batch: pa.RecordBatch, names: list[str]) -> None:
        for j, name in enumerate(names):
            fill_column(out[:, j], batch.column(name), f"column '{name}' of {self.location}")

    def read_bytes(self, span: Span) -> int:
        """What is returned, the pages of one row group at a time, and two decoded batches."""
        text = self.y_dtype is not None and self.y_dtype.kind == "U"
        row = self.n_features * self.x_dtype.itemsize + self.n_outputs * (TEXT_BYTES if text else 16) + 8
        touched = self._files.touched(span)
        stored = max((self._stored_bytes[group] for group in touched), default=0)
        decoded = min(self._batch_rows, max((len(group.rows) for group in touched), default=0))
        return len(span) * row + stored + 2 * decoded * self._decoded_row_bytes

    @property
    def _decoded_row_bytes(self) -> int:
        return sum(dtype.itemsize or TEXT_BYTES for dtype in self._columns.all.values())

    @property
    def _batch_rows(self) -> int:
        return rows_of(BATCH_BYTES, self._decoded_row_bytes)

    @cached_property
    def _stored_bytes(self) -> dict[RowGroup, int]:
        return {group: self._files.stored_bytes(group, self._columns.all) for group in self._files.groups}


class ParquetSource(ColumnSource):
    """Parquet files with the same columns as one table."""

    format, endings, magic = "parquet", ENDINGS, b"PAR1"
    reads_folders = joins_files = is_remote = True

    def __init__(self, location: str, choice: Choice) -> None:
        files = ParquetFiles(data_files(location))
        self._place, self._paths, self._stored = location, files.paths, files
        super().__init__(files.names[0] if files.paths == [location] else location, files, choice)

    def members(self) -> tuple[Source, ...]:
        """The files, as each would be read alone: one that is named later by itself is recognised."""
        return (self,) if len(self._paths) == 1 else self._members

    @cached_property
    def _members(self) -> tuple[Source, ...]:
        names = None if self.columns is not None else list(self._columns.features)  # in one order, whatever a file's is
        choice = replace(self._choice, features=names)
        filled = sorted({group.file for group in self._files.groups})
        return tuple(ParquetSource(self._paths[i], choice) for i in filled)

    def stored(self) -> dict[str, str]:
        return self._stored.stored()

    def spec(self) -> Spec:
        return {"data": self._place, **self._choice.columns_to_json()}

    def _format(self) -> str:
        count = len(self._paths)
        return "parquet" if count == 1 else f"parquet ({count} files)"


class ParquetBatches(BatchReader):
    """Parquet files with the same columns, one after the other, as batches of raw columns."""

    format, endings = "parquet", ENDINGS

    def __init__(self, location: str, *, progress: Progress = silent) -> None:
        self._files = ParquetFiles(data_files(location))
        self.location = self._files.names[0] if self._files.paths == [location] else location
        self.schema = self._files.schemas()[0]
        self.n_rows: int = sum(len(group.rows) for group in self._files.groups)

    def origin(self, name: str) -> str:
        """What the conversion found out about a column."""
        return json.loads((self.schema.metadata or {}).get(ABOUT, b"{}")).get(name, "")

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        for _, batch in self._files.batches(Span(0, self.n_rows), names, BATCH_ROWS):
            yield batch


class RowGroup(NamedTuple):
    """One row group of one of the files, and the rows of the whole it holds."""

    file: int
    group: int
    rows: Span


class ParquetFiles:
    """Files one after the other as row groups with running row numbers, decoded a batch at a time.

    Footers are read once, on opening; rows only on demand.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self._is_remote = is_url(self.paths[0])
        with ThreadPoolExecutor(FOOTER_READERS) as pool:
            self._footers = list(pool.map(self._read_footer, self.paths))
        self.names = [_origin(footer) or path for footer, path in zip(self._footers, self.paths, strict=True)]
        self.groups = self._row_groups()
        self._starts = [group.rows.start for group in self.groups]
        self._stops = [group.rows.stop for group in self.groups]

    def _read_footer(self, path: str) -> pq.FileMetaData:
        with reading(f"the parquet file {path}"), self._opened(path) as file:
            return file.metadata

    @contextmanager
    def _opened(self, path: str, footer: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
        """A reader of its own for each use: they are not safe to share between threads."""
        if self._is_remote:  # a row group's columns in few requests
            fs, name = filesystem(path)
            file = pq.ParquetFile(fs.open(name, "rb", cache_type="none"), metadata=footer, pre_buffer=True, **CHECKED)
        else:  # page by page
            file = pq.ParquetFile(path, metadata=footer, pre_buffer=False, buffer_size=BUFFER_BYTES, **CHECKED)
        try:
            yield file
        finally:
            file.close(force=True)

    def _row_groups(self) -> tuple[RowGroup, ...]:
        places = [(i, g) for i, footer in enumerate(self._footers) for g in range(footer.num_row_groups)]
        sizes = [self._footers[i].row_group(g).num_rows for i, g in places]
        spans = [Span(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
        return tuple(RowGroup(i, g, rows) for (i, g), rows in zip(places, spans, strict=True) if len(rows))

    def schemas(self) -> list[pa.Schema]:
        return [footer.schema.to_arrow_schema() for footer in self._footers]

    def stored(self) -> dict[str, str]:
        """Size, time or ETag of each file, and a digest of its footer as it was read when it was opened."""
        short = [base_name(path) for path in self.paths]
        names = short if len(set(short)) == len(short) else self.paths
        marks = file_marks(dict(zip(names, self.paths, strict=True)))
        digests = map(_footer_digest, self._footers)
        return {name: f"{marks.get(name, '')}, footer {digest}" for name, digest in zip(names, digests, strict=True)}

    def touched(self, span: Span) -> list[RowGroup]:
        """Row groups that hold some of these rows."""
        first = bisect_right(self._stops, span.start)
        last = bisect_left(self._starts, span.stop)
        return list(self.groups[first:last])

    def batches(self, span: Span, names: list[str], batch_rows: int) -> Iterator[tuple[Span, pa.RecordBatch]]:
        """Decoded batches of these columns, each with the rows of the span it holds, counted from the span's start."""
        for group in self.touched(span):
            yield from self._group_batches(group, span, names, batch_rows)
            pa.default_memory_pool().release_unused()  # else it keeps the pages, several times a block's size

    def _group_batches(
        self, group: RowGroup, span: Span, names: list[str], batch_rows: int
    ) -> Iterator[tuple[Span, pa.RecordBatch]]:
        path, at = self.paths[group.file], group.rows.start
        what = f"row group {group.group} (rows {group.rows.start}:{group.rows.stop}) of {path}"
        with reading(what), self._opened(path, self._footers[group.file]) as file:
            for batch in file.iter_batches(batch_rows, row_groups=[group.group], columns=names):
                kept = Span(max(at, span.start), min(at + len(batch), span.stop))
                if kept.start < kept.stop:
                    yield Span(kept.start - span.start, kept.stop - span.start), batch.slice(kept.start - at, len(kept))
                at += len(batch)
                if at >= span.stop:
                    return
        if at != group.rows.stop:
            raise DataError(f"{what} is truncated: it ends at row {at}")

    def nullable(self, names: Collection[str]) -> set[str]:
        """Those columns whose statistics count a null, or that have no statistics to deny one."""
        found: set[str] = set()
        for group in self.groups if names else ():
            for name, chunk in self._column_chunks(group, names):
                if name not in found and _may_hold_nulls(chunk):
                    found.add(name)
        return found

    def stored_bytes(self, group: RowGroup, names: Collection[str]) -> int:
        """Memory to decode a row group's columns: the pages at hand, and from afar all of them as stored."""
        chunks = [chunk for _, chunk in self._column_chunks(group, names)]
        stored = sum(chunk.total_compressed_size for chunk in chunks) if self._is_remote else 0
        return stored + sum(map(_page_bytes, chunks))

    def _column_chunks(self, group: RowGroup, names: Collection[str]) -> Iterator[tuple[str, pq.ColumnChunkMetaData]]:
        footer = self._footers[group.file]
        metadata = footer.row_group(group.group)
        for i in range(metadata.num_columns):
            name = footer.schema.column(i).path
            if name in names:
                yield name, metadata.column(i)


def _origin(footer: pq.FileMetaData) -> str | None:
    """The file that this one was made of, where it says so."""
    name = (footer.metadata or {}).get(ORIGIN)
    return None if name is None else name.decode()


def _footer_digest(footer: pq.FileMetaData) -> str:
    """Row groups, places and statistics of columns: what differs between two files of one size."""
    text = io.BytesIO()
    footer.write_metadata_file(text)
    return hashlib.sha256(text.getvalue()).hexdigest()[:16]


def _page_bytes(column: pq.ColumnChunkMetaData) -> int:
    """Measured: a page as stored and decompressed, and a dictionary in those two forms and decoded."""
    if column.has_dictionary_page:
        return 3 * min(column.total_uncompressed_size, 2 * PAGE_BYTES)
    return 2 * min(column.total_uncompressed_size, PAGE_BYTES)


def _may_hold_nulls(column: pq.ColumnChunkMetaData) -> bool:
    statistics = column.statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0


def widened(dtype: np.dtype, has_nulls: bool) -> np.dtype:
    """The type that can also hold NaN: the smallest float that keeps every value of narrow integers."""
    if not has_nulls or dtype.kind in "fU":
        return dtype
    return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def fill_column(out: np.ndarray, values: pa.Array, what: str) -> None:
    """Write one decoded arrow column into ``out``, nulls as NaN (None among strings)."""
    if values.null_count and out.dtype.kind not in "fO":
        raise DataError(f"{what} has nulls that its own statistics deny: write the file again")
    out[:] = as_texts(values) if out.dtype.kind == "O" else as_numbers(values)
