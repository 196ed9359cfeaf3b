"""Zarr groups of format 2 and 3 with arrays X and y, and bare arrays; local, or at any address fsspec knows.

Chunks are the row bands of X; of a sharded array they are the inner chunks, which zarr reads one by one. Missing chunk
files are treated as ``zarr_gaps`` says.
"""

from __future__ import annotations

import atexit
import math
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import zarr
from zarr.core.sync import sync

from streamrf.data.columns.document import optional_columns
from streamrf.data.dtypes import as_matrix, as_targets, feature_dtype, target_dtype
from streamrf.data.failures import no_such, reading
from streamrf.data.locations import is_url, missing_package
from streamrf.data.readahead import ReadAhead
from streamrf.data.readers.zarr_gaps import Gaps
from streamrf.data.source import LABEL_BYTES, Span
from streamrf.data.table import Table, even_spans
from streamrf.support.errors import DataError

_closed_at_exit: set[int] = set()


class ZarrSource(Table):
    """One zarr group (or, for prediction, one bare array)."""

    def __init__(self, location: str, *, x: str = "X", y: str = "y", targets: bool | None = True) -> None:
        self.location, self._names, self._wanted = location, (x, y), targets
        node = open_node(location)
        self._X = StoredArray(find_features(node, x, location), x, location)
        found = find_targets(node, y, location, targets)
        self._check_shapes(self._X.array.shape, None if found is None else found.shape, x, y)
        self.x_dtype = feature_dtype(self._X.array.dtype, f"{x} in {location}")
        self._set_targets(None if found is None else StoredArray(found, y, location))
        self._zarr_format = self._X.array.metadata.zarr_format
        self._set_names(kept_names(node, location))

    def _set_names(self, kept: dict[str, Any]) -> None:
        """What `streamrf convert` noted about the columns that became X and y."""
        names, targets = kept.get("feature_names"), kept.get("target_names")
        self.columns = optional_columns(kept.get("columns"))
        self.feature_names = None if names is None else tuple(names)
        self.target_names = None if targets is None else tuple(targets)
        if self.feature_names is not None and len(self.feature_names) != self.n_features:
            raise DataError(f"{self.location} names {len(self.feature_names)} columns, and X has {self.n_features}")

    def _set_targets(self, y: StoredArray | None) -> None:
        self._y, self.y_dtype, self._ahead = y, None, None
        if y is not None:
            self.y_dtype = target_dtype(y.array.dtype, f"{y.name} in {self.location}")
            self._ahead = ReadAhead(self._fetch_targets, self.n_rows, y.chunk_rows, y.row_bytes)

    def chunks(self) -> tuple[Span, ...]:
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
        assert self._ahead is not None
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
        """Every chunk the span touches is decoded in full, up to ten at once, then copied into what is handed over."""
        handed_over = len(span) * (self.n_features * self.x_dtype.itemsize + 8)
        copied = handed_over if self._X.array.dtype != self.x_dtype else 0
        targets = 0
        if self._y is not None and self._ahead is not None:
            targets = self._y.decode_bytes(span) + self._ahead.kept_bytes(span)
        return handed_over + copied + self._X.decode_bytes(span) + targets

    def spec(self) -> dict[str, Any]:
        x, y = self._names
        return {"data": self.location, "x": x, "y": y, "need_targets": self._wanted}

    def _format(self) -> str:
        return f"zarr v{self._zarr_format}"


def kept_names(node: Any, location: str) -> dict[str, Any]:
    """The note of `streamrf convert` in a group's attributes; empty where there is none."""
    kept = node.attrs.get("streamrf") if isinstance(node, zarr.Group) else None
    if kept is None:
        return {}
    lists = [kept.get("feature_names"), kept.get("target_names")] if isinstance(kept, dict) else [0]
    if not all(names is None or (isinstance(names, list) and all(map(_is_text, names))) for names in lists):
        raise DataError(f"the attribute 'streamrf' of {location} is damaged: remove it, or convert the data anew")
    return kept


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


class StoredArray:
    """One zarr array read by rows: names the chunk that cannot be decoded, and finds those that are not there."""

    def __init__(self, array: Any, name: str, location: str) -> None:
        self.array, self.name, self.location = array, name, location
        self.chunk_rows: int = array.chunks[0]
        self.has_warned = False
        width = LABEL_BYTES if array.dtype.kind in "TO" else array.dtype.itemsize
        self.row_bytes: int = width * math.prod(array.shape[1:])
        self._gaps = Gaps(array)
        self._is_sharded = array.shards is not None
        self._column_chunks = math.prod(-(-n // c) for n, c in zip(array.shape[1:], array.chunks[1:], strict=True))
        self._at_once: int = zarr.config.get("async.concurrency")

    def read(self, span: Span) -> tuple[np.ndarray, list[Any]]:
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
        if self._is_sharded:  # inner chunks are decoded together and joined once more before they are handed over
            return 3 * bands * band_bytes
        in_flight = min(1.0, self._at_once / max(1, bands * self._column_chunks))
        return int(2 * in_flight * bands * band_bytes)


def open_node(location: str) -> Any:
    """The group or array at a path or URL."""
    with reading(f"the zarr store {location}"):
        try:
            return zarr.open(remote_store(location) if is_url(location) else location, mode="r")
        except ImportError as error:
            raise missing_package(location) from error


def remote_store(url: str) -> Any:
    store = zarr.storage.FsspecStore.from_url(url, read_only=True)
    if id(store.fs) not in _closed_at_exit:  # fsspec gives the same file system for the same service
        _closed_at_exit.add(id(store.fs))
        atexit.register(close_session, store.fs)
    return store


def close_session(fs: Any) -> None:
    """End the connections that zarr keeps open, which else complain when the program ends."""

    async def close() -> None:
        await (await fs.set_session()).close()

    with suppress(Exception):
        sync(close(), timeout=5)


def find_features(node: Any, name: str, location: str) -> Any:
    return node if isinstance(node, zarr.Array) else find_array(node, name, location, "--x")


def find_targets(node: Any, name: str, location: str, wanted: bool | None) -> Any:
    """The array of targets; None where none are wanted, or where they were asked for only if there are any."""
    if wanted is False or (wanted is None and (isinstance(node, zarr.Array) or name not in node)):
        return None
    if isinstance(node, zarr.Array):
        raise DataError(f"{location} is a single array without targets: give a group with X and y, or the path of one")
    return find_array(node, name, location, "--y")


def find_array(group: Any, name: str, location: str, option: str) -> Any:
    with reading(f"array {name} in {location}"):
        found = group.get(name)
    if isinstance(found, zarr.Array):
        return found
    raise no_such("array", name, array_names(group), location, f" (name another with {option})")


def array_names(group: Any) -> list[str]:
    """Arrays of a group; none where the store cannot list, as over HTTP."""
    try:
        return [name for name, _ in group.arrays()]
    except Exception:
        return []
