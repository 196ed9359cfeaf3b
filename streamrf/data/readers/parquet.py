"""Parquet: one file, or several that are read one after the other; row groups are the chunks.

Only the columns that are needed are read. Features are in the file's order unless ``features`` gives another; nulls
are NaN, so a column of integers or booleans that has any is read as floats. A target that is not named is the column
called ``y``. Columns pandas added for its index (``__index_level_0__``) are never features. Dates are read as days
since 1970; with a coding of columns (``Choice.columns``) categories and missing values become numbers too.
"""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from streamrf.data.columns import Choice
from streamrf.data.columns.encoding import about_column
from streamrf.data.locations import drop_pages, filesystem, is_url, reading
from streamrf.data.meanings import meanings_in_footer
from streamrf.data.parts import ENDINGS, data_files
from streamrf.data.readers.base import BatchReader, Progress, silent
from streamrf.data.readers.columns import ColumnSource, RowGroup
from streamrf.data.source import Source, Span, Spec
from streamrf.data.stored import base_name, file_marks
from streamrf.support.errors import DataError

BATCH_ROWS = 32_768
PAGE_BYTES = 1 << 20  # what writers put into a page, and into a dictionary
BUFFER_BYTES = 1 << 17
FOOTER_READERS = 8
LEFT_OPEN = 4  # readers of row groups that are read in parts
CHECKED = {"page_checksum_verification": True}  # where a file has checksums
ORIGIN = b"streamrf.origin"  # in a footer: the file of text that was converted


Opened: TypeAlias = AbstractContextManager[pq.ParquetFile]


class ParquetSource(ColumnSource):
    """Parquet files with the same columns as one table."""

    format, endings, magic = "parquet", ENDINGS, b"PAR1"
    reads_folders = joins_files = is_remote = True

    def __init__(self, location: str, choice: Choice) -> None:
        files = ParquetFiles(data_files(location))
        self._place, self._paths, self._stored = location, files.paths, files
        super().__init__(files.names[0] if files.paths == [location] else location, files, choice)
        self.reading = files.meanings()

    def members(self) -> tuple[Source, ...]:
        """The files, as each would be read alone: one that is named later by itself is recognised."""
        return (self,) if len(self._paths) == 1 else self._members

    @cached_property
    def _members(self) -> tuple[Source, ...]:
        names = None if self.columns is not None else list(self._columns.features)  # in one order, whatever a file's is
        choice, starts = replace(self._choice, features=names), dict[int, int]()
        for group in reversed(self._files.groups):
            starts[group.file] = group.rows.start
        return tuple(ParquetSource(self._paths[i], _from_row(choice, starts[i])) for i in sorted(starts))

    def drop_pages(self, span: Span) -> None:
        self._stored.drop_pages(span)

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

    def files(self) -> list[tuple[str, list[str]]]:
        schemas = self._files.schemas()
        return [(where, schema.names) for where, schema in zip(self._files.names, schemas, strict=True)]

    def gaps(self, name: str) -> int | None:
        return self._files.null_count(name)

    def origin(self, name: str) -> str:
        """What the conversion found out about a column."""
        return about_column(self.schema, name)

    def has_gaps(self, name: str) -> bool:
        return name in self._gaps

    @cached_property
    def _gaps(self) -> set[str]:
        return self._files.nullable(self.schema.names, certain=True)

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        for _, batch in self._files.batches(Span(0, self.n_rows), names, BATCH_ROWS):
            yield batch


def _from_row(choice: Choice, start: int) -> Choice:
    """The choice for a part of a table that begins with this row."""
    if choice.columns is None or choice.columns.first is None:
        return choice
    return replace(choice, columns=choice.columns.at(choice.columns.first + start))


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
        self._left: list[Cursor] = []  # readers within a row group of which a part was read
        self._lock = Lock()

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

    def meanings(self) -> dict[str, Any]:
        """What was said of values, where the files were converted from text."""
        return meanings_in_footer(self._footers[0].metadata)

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

    def drop_pages(self, span: Span) -> None:
        """Of the row groups that end within the span; others are read on for the next one."""
        ended = [] if self._is_remote else [group for group in self.touched(span) if group.rows.stop <= span.stop]
        for group in ended:
            stored = self._footers[group.file].row_group(group.group)
            columns = [stored.column(i) for i in range(stored.num_columns)]
            start = min(each.dictionary_page_offset or each.data_page_offset for each in columns)
            drop_pages(self.paths[group.file], start, sum(each.total_compressed_size for each in columns))

    def batches(self, span: Span, names: list[str], batch_rows: int) -> Iterator[tuple[Span, pa.RecordBatch]]:
        """Decoded batches of these columns, each with the rows of the span it holds, counted from the span's start."""
        for group in self.touched(span):
            yield from self._group_batches(group, span, names, batch_rows)
            pa.default_memory_pool().release_unused()  # else it keeps the pages, several times a block's size

    def _group_batches(
        self, group: RowGroup, span: Span, names: list[str], batch_rows: int
    ) -> Iterator[tuple[Span, pa.RecordBatch]]:
        what = f"row group {group.group} (rows {group.rows.start}:{group.rows.stop}) of {self.paths[group.file]}"
        start, stop = max(group.rows.start, span.start), min(group.rows.stop, span.stop)
        with reading(what), self._cursor(group, names, batch_rows, start) as cursor:
            while cursor.at < stop:
                at, batch = cursor.at, cursor.take(start - cursor.at if cursor.at < start else stop - cursor.at)
                if batch is None:
                    raise DataError(f"{what} is truncated: it ends at row {at}")
                if at >= start:
                    yield Span(at - span.start, cursor.at - span.start), batch

    @contextmanager
    def _cursor(self, group: RowGroup, names: list[str], batch_rows: int, start: int) -> Iterator[Cursor]:
        """A reader of one row group: one that an earlier read left at or before this row, or a new one."""
        key = (group, tuple(names), batch_rows)
        with self._lock:
            left = [cursor for cursor in self._left if cursor.key == key and cursor.at <= start]
            cursor = max(left, key=lambda each: each.at, default=None)
            if cursor is not None:
                self._left.remove(cursor)
        if cursor is None:
            opened = self._opened(self.paths[group.file], self._footers[group.file])
            cursor = Cursor(key, opened, group.rows.start)
        try:
            yield cursor
        except BaseException:
            cursor.close()
            raise
        self._leave(cursor, group)

    def _leave(self, cursor: Cursor, group: RowGroup) -> None:
        """Keep a reader that is within its row group for the next read; of more than a few, the oldest is closed."""
        with self._lock:
            if cursor.at < group.rows.stop:
                self._left.append(cursor)
            surplus = self._left[:-LEFT_OPEN] if cursor.at < group.rows.stop else [cursor]
            self._left = self._left[-LEFT_OPEN:]
        for each in surplus:
            each.close()

    def nullable(self, names: Collection[str], *, certain: bool = False) -> set[str]:
        """Those columns whose statistics count a null, or (unless ``certain``) that have none to deny one."""
        found: set[str] = set()
        for group in self.groups if names else ():
            for name, chunk in self._column_chunks(group, names):
                if name not in found and _may_hold_nulls(chunk, certain):
                    found.add(name)
        return found

    def null_count(self, name: str) -> int | None:
        """Nulls of a column by the statistics of its row groups, where all have them."""
        chunks = [chunk for group in self.groups for _, chunk in self._column_chunks(group, [name])]
        known = [c.statistics.null_count for c in chunks if c.statistics is not None and c.statistics.has_null_count]
        return sum(known) if len(known) == len(self.groups) else None

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


class Cursor:
    """Batches of one row group, from the first row on; what is not taken of a batch is kept."""

    def __init__(self, key: tuple[RowGroup, tuple[str, ...], int], opened: Opened, at: int) -> None:
        self.key, self.at, self._opened = key, at, opened
        group, names, rows = key
        file = opened.__enter__()
        self._batches = file.iter_batches(rows, row_groups=[group.group], columns=list(names))
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int) -> pa.RecordBatch | None:
        """The next rows, at most so many; None after the last."""
        batch = self._rest if self._rest is not None else next(self._batches, None)
        if batch is None:
            return None
        taken = batch.slice(0, rows)
        self._rest = batch.slice(rows) if len(batch) > rows else None
        self.at += len(taken)
        return taken

    def close(self) -> None:
        self._rest = None
        self._opened.__exit__(None, None, None)


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


def _may_hold_nulls(column: pq.ColumnChunkMetaData, certain: bool) -> bool:
    statistics = column.statistics
    if statistics is None or not statistics.has_null_count:
        return not certain
    return bool(statistics.null_count > 0)
