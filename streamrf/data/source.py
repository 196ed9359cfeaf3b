"""What a chunked table looks like to everything else: row ranges in storage order, and a way to read one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streamrf.data.columns.document import Columns
from streamrf.support.errors import InputError

LABEL_BYTES = 64  # a guess at a string label, for memory only


class Span(NamedTuple):
    """Rows ``start <= row < stop`` of a source."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass
class Block:
    """Rows read from a source. ``index`` numbers each row in the whole source; it survives any filtering of rows.

    A block may share memory with the arrays it was read from: it is for reading, not for writing into.
    """

    X: np.ndarray  # (n, d), in the numeric type it is stored in
    y: (
        np.ndarray | None
    )  # (n,) or (n, k > 1); integers, booleans or floats as stored; strings as "U", None where missing
    index: np.ndarray  # (n,) int64
    weights: np.ndarray | None = None  # (n,) float64: what each row counts for, where they do not count the same

    def __len__(self) -> int:
        return len(self.X)

    @property
    def targets(self) -> np.ndarray:
        """y, where there must be one."""
        if self.y is None:
            raise InputError("the data has no targets: name them with --y (zarr, npy) or --target (parquet)")
        return self.y

    def take(self, rows: Any) -> Block:
        """The block of the chosen rows (a slice, a mask or positions)."""
        y, weights = (None if array is None else array[rows] for array in (self.y, self.weights))
        return Block(self.X[rows], y, self.index[rows], weights)


class Source(ABC):
    """A table in chunks. Opening one reads metadata only, never rows."""

    n_rows: int
    n_features: int
    n_outputs: int  # columns of y; 0 where there is no target
    x_dtype: np.dtype  # what ``read`` gives for X: a native boolean, integer or float of 16, 32 or 64 bits
    y_dtype: np.dtype | None  # likewise; np.dtype("U") for strings of whatever width
    feature_names: tuple[str, ...] | None
    columns: Columns | None = None  # how raw columns became features, where they are not numbers as stored
    target_names: tuple[str, ...] | None = None  # columns the targets come from, where they have names

    has_weights: bool = False  # whether ``read`` gives weights of rows
    picks_columns: bool = False  # whether columns are chosen by name and coded as they are read, as from parquet

    @property
    def has_targets(self) -> bool:
        return self.n_outputs > 0

    @property
    def unknown_levels(self) -> Mapping[str, int]:
        """By column, how many values were read that the coding of columns does not know."""
        return {}

    @abstractmethod
    def chunks(self) -> tuple[Span, ...]:
        """The storage's own units of reading, in row order, covering every row once."""

    @abstractmethod
    def read(self, span: Span) -> Block:
        """Rows of one span; a span within one chunk (or a union of whole chunks) costs no wasted decoding."""

    @abstractmethod
    def read_targets(self, span: Span) -> np.ndarray:
        """The targets alone, without touching X."""

    def read_weights(self, span: Span) -> np.ndarray:
        """What each of these rows counts for."""
        return np.ones(len(span))

    @abstractmethod
    def read_bytes(self, span: Span) -> int:
        """Memory that reading this span needs at its peak: what is decoded and what is handed over."""

    def block_bytes(self, span: Span) -> int:
        """Memory of the block alone, once it is handed over: X, y and the row numbers."""
        y_bytes = 0 if self.y_dtype is None else self.n_outputs * (self.y_dtype.itemsize or LABEL_BYTES)
        return len(span) * (self.n_features * self.x_dtype.itemsize + y_bytes + 8)

    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest of what the data is, not of where it lies: shape, types, names, first and last rows."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """JSON from which another process re-opens this source: ``open_source(**spec)``."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people: format, rows, columns, types, chunking."""

    def has_partial_reads(self) -> bool:
        """Whether a span smaller than a chunk can be read without decoding the whole chunk."""
        return False

    def shards(self) -> tuple[Span, ...]:
        """The rows of each part this source was put together from; a source that is not a list has one part."""
        return (Span(0, self.n_rows),)

    def first_array(self) -> Source | None:
        """The first table in it that is read whole, where there is one; columns of the others are chosen by name."""
        return None if self.picks_columns else self

    def members(self) -> tuple[Source, ...]:
        """The tables this source was put together from, in row order, each known by its own fingerprint."""
        return (self,)
