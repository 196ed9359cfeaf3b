"""Parquet files one after the other as row groups with running row numbers, decoded a batch at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streamrf.data.failures import reading
from streamrf.data.locations import filesystem, is_url
from streamrf.data.source import Span
from streamrf.support.errors import DataError

BATCH_BYTES = 8 << 20  # decoded at a time; more is hardly faster
PAGE_BYTES = 1 << 20  # what writers put into a page, and into a dictionary
BUFFER_BYTES = 1 << 17
FOOTER_READERS = 8


class RowGroup(NamedTuple):
    """One row group of one of the files, and the rows of the whole it holds."""

    file: int
    group: int
    rows: Span


class ParquetFiles:
    """Footers are read once, on opening; rows only on demand."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self._is_remote = is_url(self.paths[0])
        with ThreadPoolExecutor(FOOTER_READERS) as pool:
            self._footers = list(pool.map(self._read_footer, self.paths))
        self.groups = self._row_groups()
        self._starts = [group.rows.start for group in self.groups]
        self._stops = [group.rows.stop for group in self.groups]

    def _read_footer(self, path: str) -> Any:
        with reading(f"the parquet file {path}"), self._opened(path) as file:
            return file.metadata

    @contextmanager
    def _opened(self, path: str, footer: Any = None) -> Iterator[Any]:
        """A reader of its own for each use: they are not safe to share between threads."""
        if self._is_remote:  # a row group's columns in few requests
            fs, name = filesystem(path)
            file = pq.ParquetFile(fs.open(name, "rb", cache_type="none"), metadata=footer, pre_buffer=True)
        else:  # page by page
            file = pq.ParquetFile(path, metadata=footer, pre_buffer=False, buffer_size=BUFFER_BYTES)
        try:
            yield file
        finally:
            file.close(force=True)

    def _row_groups(self) -> tuple[RowGroup, ...]:
        places = [(i, g) for i, footer in enumerate(self._footers) for g in range(footer.num_row_groups)]
        sizes = [self._footers[i].row_group(g).num_rows for i, g in places]
        spans = [Span(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
        return tuple(RowGroup(i, g, rows) for (i, g), rows in zip(places, spans, strict=True) if len(rows))

    def schemas(self) -> list[Any]:
        return [footer.schema.to_arrow_schema() for footer in self._footers]

    def touched(self, span: Span) -> list[RowGroup]:
        """Row groups that hold some of these rows."""
        first = bisect_right(self._stops, span.start)
        last = bisect_left(self._starts, span.stop)
        return list(self.groups[first:last])

    def batches(self, span: Span, names: list[str], batch_rows: int) -> Iterator[tuple[Span, Any]]:
        """Decoded batches of these columns, each with the rows of the span it holds, counted from the span's start."""
        for group in self.touched(span):
            yield from self._group_batches(group, span, names, batch_rows)
            pa.default_memory_pool().release_unused()  # else it keeps the pages, several times a block's size

    def _group_batches(
        self, group: RowGroup, span: Span, names: list[str], batch_rows: int
    ) -> Iterator[tuple[Span, Any]]:
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

    def _column_chunks(self, group: RowGroup, names: Collection[str]) -> Iterator[tuple[str, Any]]:
        footer = self._footers[group.file]
        metadata = footer.row_group(group.group)
        for i in range(metadata.num_columns):
            name = footer.schema.column(i).path
            if name in names:
                yield name, metadata.column(i)


def _page_bytes(column: Any) -> int:
    """Measured: a page as stored and decompressed, and a dictionary in those two forms and decoded."""
    if column.has_dictionary_page:
        return 3 * min(column.total_uncompressed_size, 2 * PAGE_BYTES)
    return 2 * min(column.total_uncompressed_size, PAGE_BYTES)


def _may_hold_nulls(column: Any) -> bool:
    statistics = column.statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0
