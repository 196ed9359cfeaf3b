"""Zarr groups of format 2 and 3 with arrays X and y, and bare arrays; local, or at any address fsspec knows.

Chunks are the row bands of X; of a sharded array they are the inner chunks, which zarr reads one by one.

Zarr reads a missing chunk as the fill value without a word. That is right for a chunk that held nothing else, which by
default is never written, and wrong for one whose file was lost; the store cannot tell the two apart. So:

- rows of X with no chunk at all are refused: rows in which every feature is the fill value teach nothing, and a lost
  file is the likelier reason; a store that really holds such rows can be written with ``write_empty_chunks=True``;
- where only some column chunks of X are missing (sparse columns), or a chunk of numeric targets (a rare class), the
  fill value is believed, with one warning for each array;
- missing string targets are refused: the empty string is nobody's label.

The check is free: the store is asked only about chunks whose rows all came back as the fill value.
"""

from __future__ import annotations

import atexit
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import zarr
from zarr.core.sync import sync

from streamrf.data.columns import JSON, Choice, optional_columns
from streamrf.data.locations import drop_pages, is_url, missing_package, no_such, reading
from streamrf.data.meanings import IN_ZARR, kept_meanings
from streamrf.data.readers.arrays import as_matrix, as_targets, set_arrays
from streamrf.data.readers.base import RowReader
from streamrf.data.source import LABEL_BYTES, Span, Spec, even_spans
from streamrf.data.stored import folder_marks
from streamrf.support.errors import DataError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

AHEAD_BYTES = 2 << 20
KEPT_RUNS = 2  # one for each of two readers, a little apart
_closed_at_exit: set[int] = set()


class ZarrSource(RowReader):
    """One zarr group (or, for prediction, one bare array)."""

    format, endings, is_remote = "zarr", (".zarr",), True
    markers = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")

    def __init__(self, location: str, choice: Choice) -> None:
        self.location, self._choice = location, choice
        node = open_node(location)
        self._X = StoredArray(find_features(node, choice.x, location), choice.x, location)
        targets = find_targets(node, choice, location)
        self._y = None if targets is None else StoredArray(targets, choice.y, location)
        set_arrays(self, self._X.array, targets, choice.x, choice.y)
        if self._y is not None:
            self._ahead = ReadAhead(self._fetch_targets, self.n_rows, self._y.chunk_rows, self._y.row_bytes)
        self._set_names(kept_names(node, location))

    def _set_names(self, kept: JSON) -> None:
        """What `streamrf convert` noted about the columns that became X and y."""
        names, targets = kept.get("feature_names"), kept.get("target_names")
        self.columns, self.reading = optional_columns(kept.get("columns")), kept_meanings(kept.get(IN_ZARR))
        self.feature_names = None if names is None else tuple(names)
        self.target_names = None if targets is None else tuple(targets)
        if self.feature_names is not None and len(self.feature_names) != self.n_features:
            raise DataError(f"{self.location} names {len(self.feature_names)} columns, and X has {self.n_features}")

    def chunks(self) -> Sequence[Span]:
        return even_spans(self.n_rows, self._X.chunk_rows)

    def _features(self, span: Span) -> np.ndarray:
        values, gaps = self._X.read(span)
        for gap in gaps:
            if gap.is_whole_band:
                raise DataError(
                    f"{self._X.name} of {self.location} has no chunk for rows {gap.rows.start}:{gap.rows.stop}: a file"
                    " is lost, or these rows hold nothing but the fill value"
                    " (then write the array with write_empty_chunks=True)"
                )
            self._warn(self._X, gap.rows)
        return as_matrix(values, self.x_dtype)

    def _targets(self, span: Span) -> np.ndarray:
        return self._ahead.read(span)

    def _fetch_targets(self, span: Span) -> np.ndarray:
        assert self._y is not None
        assert self.y_dtype is not None
        values, gaps = self._y.read(span)
        if gaps and self.y_dtype.kind == "U":
            rows = gaps[0].rows
            raise DataError(f"{self._y.name} of {self.location} has no chunk for rows {rows.start}:{rows.stop}")
        for gap in gaps:
            self._warn(self._y, gap.rows)
        return as_targets(values, self.y_dtype, f"{self._y.name} in {self.location}")

    def _warn(self, stored: StoredArray, rows: Span) -> None:
        if not stored.has_warned:
            stored.has_warned = True
            warnings.warn(
                f"{stored.name} of {self.location} has no chunk for some of rows {rows.start}:{rows.stop}: it is read"
                f" as the fill value {stored.array.fill_value}, as zarr leaves out chunks that hold nothing else",
                stacklevel=2,
            )

    def read_bytes(self, span: Span) -> int:
        """Every chunk the span touches is decoded in full, up to ten at once, then copied into what is returned."""
        returned = len(span) * (self.n_features * self.x_dtype.itemsize + 8)
        copied = returned if self._X.array.dtype != self.x_dtype else 0
        targets = 0
        if self._y is not None:
            targets = self._y.decode_bytes(span) + self._ahead.kept_bytes(span)
        return returned + copied + self._X.decode_bytes(span) + targets

    def drop_pages(self, span: Span) -> None:
        for stored in (self._X, self._y):
            if stored is not None and not is_url(self.location):
                stored.drop_pages(span)

    def stored(self) -> dict[str, str]:
        arrays = [each.array for each in (self._X, self._y) if each is not None]
        return {name: mark for each in arrays for name, mark in folder_marks(self.location, each.path).items()}

    def spec(self) -> Spec:
        return {"data": self.location, **self._choice.arrays_to_json()}

    def _format(self) -> str:
        return f"zarr v{self._X.array.metadata.zarr_format}"


def kept_names(node: zarr.Group | zarr.Array, location: str) -> JSON:
    """The note of `streamrf convert` in a group's attributes; empty where there is none."""
    kept = node.attrs.get("streamrf") if isinstance(node, zarr.Group) else None
    if kept is None:
        return {}
    lists = [kept.get("feature_names"), kept.get("target_names")] if isinstance(kept, dict) else [0]
    if not all(
        names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names)) for names in lists
    ):
        raise DataError(f"the attribute 'streamrf' of {location} is damaged: remove it, or convert the data again")
    return kept


class StoredArray:
    """One zarr array read by rows: names the chunk that cannot be decoded, and finds those that are not there."""

    def __init__(self, array: zarr.Array, name: str, location: str) -> None:
        self.array, self.name, self.location = array, name, location
        self.chunk_rows: int = array.chunks[0]
        self.has_warned = False
        width = LABEL_BYTES if array.dtype.kind in "TO" else array.dtype.itemsize
        self.row_bytes: int = width * math.prod(array.shape[1:])
        self._gaps = Gaps(array)
        self._is_sharded = array.shards is not None
        self._column_chunks = math.prod(-(-n // c) for n, c in zip(array.shape[1:], array.chunks[1:], strict=True))
        self._at_once: int = zarr.config.get("async.concurrency")

    def read(self, span: Span) -> tuple[np.ndarray, list[Gap]]:
        """Values of these rows, and the chunks among them that the store does not hold."""
        try:
            values = self.array[span.start : span.stop]
        except Exception as error:
            with reading(self._culprit(span)):
                raise error
        return values, self._gaps.within(span, values)

    def _culprit(self, span: Span) -> str:
        """The first chunk of the span that cannot be read by itself."""
        first = span.start // self.chunk_rows * self.chunk_rows
        for start in range(first, span.stop, self.chunk_rows):
            chunk = Span(start, min(start + self.chunk_rows, self.array.shape[0]))
            try:
                self.array[chunk.start : chunk.stop]
            except Exception:
                return f"the chunk with rows {chunk.start}:{chunk.stop} of {self.name} in {self.location}"
        return f"rows {span.start}:{span.stop} of {self.name} in {self.location}"

    def decode_bytes(self, span: Span) -> int:
        """Chunks in flight: as stored (never counted as smaller than decoded), and decoded."""
        band_bytes = self.chunk_rows * self.row_bytes
        bands = -(-span.stop // self.chunk_rows) - span.start // self.chunk_rows
        if self._is_sharded:  # inner chunks are decoded together and joined once more before they are returned
            return 3 * bands * band_bytes
        in_flight = min(1.0, self._at_once / max(1, bands * self._column_chunks))
        return int(2 * in_flight * bands * band_bytes)

    def drop_pages(self, span: Span) -> None:
        """Of the files that end within the span; others are read again for the next one."""
        grid: tuple[int, ...] = self.array.shards or self.array.chunks
        rows, columns = grid[0], zip(self.array.shape[1:], grid[1:], strict=True)
        last = self.array.shape[0] if span.stop == self.array.shape[0] else span.stop // rows * rows
        bands = range(span.start // rows, -(-last // rows))
        for place in product(bands, *(range(-(-n // c)) for n, c in columns)):
            drop_pages(os.path.join(self.location, self.array.path, self.array.metadata.encode_chunk_key(place)))


class Gap(NamedTuple):
    """Rows with a chunk that is not stored."""

    rows: Span
    is_whole_band: bool  # no chunk of these rows is stored, in any column


class Gaps:
    """Which chunks of one array are missing."""

    def __init__(self, array: zarr.Array) -> None:
        self._array = array
        self._grid: tuple[int, ...] = array.shards or array.chunks  # one stored file each
        self._fill = _fill_value(array)
        self._is_stored: dict[tuple[int, ...], bool] = {}

    def within(self, span: Span, values: np.ndarray) -> list[Gap]:
        """Gaps among these rows, which were read as ``values``."""
        if not len(values):
            return []
        rows = self._grid[0]
        bands = range(span.start // rows, -(-span.stop // rows))
        found = (self._gap(band, span, values) for band in bands)
        return [gap for gap in found if gap is not None]

    def _gap(self, band: int, span: Span, values: np.ndarray) -> Gap | None:
        start, stop = band * self._grid[0], (band + 1) * self._grid[0]
        part = values[max(start - span.start, 0) : stop - span.start]
        found = [self._is_missing((band, *column), part) for column in self._columns()]
        return Gap(Span(start, min(stop, self._array.shape[0])), all(found)) if any(found) else None

    def _columns(self) -> Iterator[tuple[int, ...]]:
        """The places of chunks beside each other; there may be very many."""
        grid = zip(self._array.shape[1:], self._grid[1:], strict=True)
        return product(*(range(-(-n // c)) for n, c in grid))

    def _is_missing(self, chunk: tuple[int, ...], part: np.ndarray) -> bool:
        inner = tuple(slice(i * size, (i + 1) * size) for i, size in zip(chunk[1:], self._grid[1:], strict=True))
        return self._is_filled(part[(slice(None), *inner)]) and not self._stored(chunk)

    def _is_filled(self, part: np.ndarray) -> bool:
        return self._equal_fill(part[:1]) and self._equal_fill(part)

    def _equal_fill(self, part: np.ndarray) -> bool:
        same = part == self._fill
        return bool(np.all(same | (part != part)) if self._fill != self._fill else np.all(same))

    def _stored(self, chunk: tuple[int, ...]) -> bool:
        if chunk not in self._is_stored:
            key = self._array.metadata.encode_chunk_key(chunk)
            self._is_stored[chunk] = sync((self._array.store_path / key).exists())
        return self._is_stored[chunk]


def _fill_value(array: zarr.Array) -> object:
    if array.fill_value is None:  # format 2 may leave it out; zarr then gives the zero of the type
        return "" if array.dtype.kind in "TOU" else np.zeros((), array.dtype)[()]
    return array.fill_value


class ReadAhead:
    """Reads whole chunks of one array through ``fetch`` and answers spans from the last few runs it read.

    Targets are thin: fetched in long runs and kept for a moment, they cost a fraction of one small read per block.

    A read that continues a run fetches about AHEAD_BYTES; any other fetches only the chunks it touches, so reading
    in random order does not decode what nobody asked for. A chunk much longer than a span is decoded once, not once
    for each span.
    """

    def __init__(self, fetch: Callable[[Span], np.ndarray], n_rows: int, chunk_rows: int, row_bytes: int) -> None:
        self._fetch = fetch
        self._n_rows, self._chunk_rows, self._row_bytes = n_rows, chunk_rows, max(1, row_bytes)
        self._runs: deque[tuple[Span, np.ndarray]] = deque(maxlen=KEPT_RUNS)
        self._lock = Lock()

    def read(self, span: Span) -> np.ndarray:
        with self._lock:
            run, values = self._kept(span) or self._next(span)
        return values[span.start - run.start : span.stop - run.start]

    def kept_bytes(self, span: Span) -> int:
        """Most that may be held at once when spans of this size are read."""
        return KEPT_RUNS * len(self._run_of(span, ahead=True)) * self._row_bytes

    def _kept(self, span: Span) -> tuple[Span, np.ndarray] | None:
        return next((kept for kept in self._runs if kept[0].start <= span.start and span.stop <= kept[0].stop), None)

    def _next(self, span: Span) -> tuple[Span, np.ndarray]:
        continues = span.start == 0 or any(run.start <= span.start <= run.stop for run, _ in self._runs)
        run = self._run_of(span, continues)
        self._runs.append((run, self._fetch(run)))
        return self._runs[-1]

    def _run_of(self, span: Span, ahead: bool) -> Span:
        """The span widened to whole chunks, and on to a long run where that pays."""
        start = span.start // self._chunk_rows * self._chunk_rows
        wanted = max(span.stop, start + AHEAD_BYTES // self._row_bytes) if ahead else span.stop
        stop = -(-wanted // self._chunk_rows) * self._chunk_rows
        return Span(start, min(stop, self._n_rows))


def open_node(location: str) -> zarr.Group | zarr.Array:
    """The group or array at a path or URL."""
    with reading(f"the zarr store {location}"):
        try:
            return zarr.open(remote_store(location) if is_url(location) else location, mode="r")
        except ImportError as error:
            raise missing_package(location) from error


def remote_store(url: str) -> zarr.storage.FsspecStore:
    store = zarr.storage.FsspecStore.from_url(url, read_only=True)
    if id(store.fs) not in _closed_at_exit:  # fsspec gives the same file system for the same service
        _closed_at_exit.add(id(store.fs))
        atexit.register(close_session, store.fs)
    return store


def close_session(fs: AbstractFileSystem) -> None:
    """End the connections that zarr keeps open, which else complain when the program ends."""

    async def close() -> None:
        await (await fs.set_session()).close()

    with suppress(Exception):
        sync(close(), timeout=5)


def find_features(node: zarr.Group | zarr.Array, name: str, location: str) -> zarr.Array:
    return node if isinstance(node, zarr.Array) else find_array(node, name, location, "x")


def find_targets(node: zarr.Group | zarr.Array, choice: Choice, location: str) -> zarr.Array | None:
    """The array of targets; None where none are needed, or where they are optional and there are none."""
    is_array = isinstance(node, zarr.Array)
    if choice.need_targets is False or (choice.need_targets is None and (is_array or choice.y not in node)):
        return None
    if is_array:
        raise DataError(f"{location} is a single array without targets: give a group with X and y, or the path of one")
    return find_array(node, choice.y, location, "y")


def find_array(group: zarr.Group, name: str, location: str, option: str) -> zarr.Array:
    with reading(f"array {name} in {location}"):
        found = group.get(name)
    if isinstance(found, zarr.Array):
        return found
    raise no_such("array", name, array_names(group), location, f" (name another with `{option}`)")


def array_names(group: zarr.Group) -> list[str]:
    """Arrays of a group; none where the store cannot list, as over HTTP."""
    try:
        return [name for name, _ in group.arrays()]
    except Exception:
        return []
