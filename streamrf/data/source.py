"""What a table looks like to everything else: its sizes and types, its row spans in storage order, a way to read one.

A ``Matrix`` gives its rows in order, a ``Source`` any span of them. ``work_spans`` cuts a source into units of work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np

from streamrf.data.columns import Columns
from streamrf.data.locations import is_url
from streamrf.support import memory
from streamrf.support.errors import BudgetError, InputError
from streamrf.support.units import format_bytes

MANY = 100_000  # chunks: beyond, they are joined by arithmetic
LABEL_BYTES = 64  # a guess at a string label, for memory only
READERS_FROM_AFAR = 8  # spans that may be on their way at once

Spec: TypeAlias = dict[str, Any]  # JSON: the arguments of ``open_source``, as names and plain values
Partition: TypeAlias = tuple[Any, int, tuple[str, ...]]  # a collection, the number of a partition, its columns
Rows: TypeAlias = tuple[np.ndarray, np.ndarray | None]  # X (n, d), and y (n,) or (n, k) where there are targets


class Span(NamedTuple):
    """Rows ``start <= row < stop`` of a source."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass
class Block:
    """Rows read from a source. ``index`` numbers each row in the whole source; it survives any filtering of rows.

    A block may share memory with the arrays it was read from: do not write into it.
    """

    X: np.ndarray  # (n, d), in the numeric type it is stored in
    y: np.ndarray | None  # (n,) or (n, k > 1): booleans, integers, floats; strings as "U", None where one is missing
    index: np.ndarray  # (n,) int64
    weights: np.ndarray | None = None  # (n,) float64: the weight of each row, where weights differ
    key: np.ndarray | None = None  # (n,) uint64: what decides the role of each row, where that is not in X or ``index``

    def __len__(self) -> int:
        return len(self.X)

    @property
    def targets(self) -> np.ndarray:
        """y, where there must be one."""
        if self.y is None:
            raise InputError("the data has no targets: name them with `y` (zarr, npy) or `target` (parquet)")
        return self.y

    def take(self, rows: slice | np.ndarray) -> Block:
        """The block of the chosen rows (a slice, a mask or positions)."""
        y, weights, key = (None if array is None else array[rows] for array in (self.y, self.weights, self.key))
        return Block(self.X[rows], y, self.index[rows], weights, key)

    def copy(self) -> Block:
        """In memory of its own."""
        y, weights, key = (None if array is None else array.copy() for array in (self.y, self.weights, self.key))
        return Block(self.X.copy(), y, self.index.copy(), weights, key)


def joined(blocks: Sequence[Block]) -> Block:
    """Blocks of one source, one after the other."""

    def together(name: str) -> Any:
        parts = [getattr(block, name) for block in blocks]
        return None if parts[0] is None else np.concatenate(parts)

    return Block(*(together(name) for name in ("X", "y", "index", "weights", "key")))


class Matrix(ABC):
    """A table of numbers whose size and types are known. Its rows come in order."""

    location: str = "the data"  # what messages call it
    n_rows: int
    n_features: int
    n_outputs: int = 0  # columns of y; 0 where there is no target
    x_dtype: np.dtype  # of X as it is read: a native boolean, integer or float of 16, 32 or 64 bits
    y_dtype: np.dtype | None = None  # likewise; np.dtype("U") for strings of any width
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None  # columns the targets come from, where they have names
    columns: Columns | None = None  # how raw columns became features, where they are not numbers as stored

    @property
    def has_targets(self) -> bool:
        return self.n_outputs > 0

    @abstractmethod
    def blocks(self, rows: int) -> Iterator[Rows]:
        """All rows in order, at most about so many at a time."""

    def take_shape(self, other: Matrix) -> None:
        """Have the location, sizes, types and names of another table."""
        self.location, self.columns = other.location, other.columns
        self.n_rows, self.n_features, self.n_outputs = other.n_rows, other.n_features, other.n_outputs
        self.x_dtype, self.y_dtype = other.x_dtype, other.y_dtype
        self.feature_names, self.target_names = other.feature_names, other.target_names


class Source(Matrix):
    """A table in chunks, of which any span of rows can be read. Opening one reads metadata only, never rows."""

    has_weights: bool = False  # whether ``read`` gives weights of rows
    holdout_key: str = ""  # the kind of the keys that ``read`` gives, where a column decides which rows are held out
    keeps: tuple[object, ...] = ()  # what must live as long: temporary folders, which vanish with it
    reading: Mapping[str, Any] | None = None  # what was said of values in text files, which a model keeps
    picks_columns: bool = False  # whether columns are chosen by name and coded as they are read, as from parquet

    @property
    def unknown_levels(self) -> Mapping[str, int]:
        """By column, how many values were read that the coding of columns does not know."""
        return {}

    def note_unknown_levels(self, counts: Mapping[str, int]) -> None:
        """Add those that another process has read of this source."""

    @property
    def declared_dtypes(self) -> tuple[np.dtype, np.dtype | None]:
        """Types of X and y as the storage declares them, before nulls widen integers to floats."""
        return self.x_dtype, self.y_dtype

    @abstractmethod
    def chunks(self) -> Sequence[Span]:
        """The storage's own units of reading, in row order, covering every row once."""

    @abstractmethod
    def read(self, span: Span) -> Block:
        """Rows of one span; a span within one chunk (or a union of whole chunks) costs no wasted decoding."""

    @abstractmethod
    def read_targets(self, span: Span) -> np.ndarray:
        """The targets alone, without touching X."""

    def read_weights(self, span: Span) -> np.ndarray:
        """The weight of each of these rows."""
        return np.ones(len(span))

    def kept_types(self, asked: Sequence[str]) -> list[tuple[str, np.dtype]]:
        """Raw columns that go beside predictions: their names, and the types that ``read_kept`` gives them."""
        raise InputError(f"`keep` is about tables with named columns, and {self.location} is an array: leave it out")

    def read_kept(self, span: Span, types: Sequence[tuple[str, np.dtype]]) -> dict[str, np.ndarray]:
        """Raw columns of these rows; text where a column is anything but numbers without gaps."""
        raise InputError(f"{self.location} has no raw columns")

    @abstractmethod
    def read_bytes(self, span: Span) -> int:
        """Memory that reading this span needs at its peak: what is decoded and what is returned."""

    def block_bytes(self, span: Span) -> int:
        """Memory of the block alone, once it is read: X, y and the row numbers."""
        y_bytes = 0 if self.y_dtype is None else self.n_outputs * (self.y_dtype.itemsize or LABEL_BYTES)
        return len(span) * (self.n_features * self.x_dtype.itemsize + y_bytes + 8)

    @property
    def readers(self) -> int:
        """How many spans may be read at once: what comes from afar is mostly waited for."""
        return READERS_FROM_AFAR if is_url(self.location) else 1

    def drop_pages(self, span: Span) -> None:
        """Let the operating system forget the stored bytes of these rows, where it keeps copies of them in memory."""

    def recoded(self, columns: Columns) -> Source:
        """The same rows with their raw columns coded in another way."""
        raise InputError(f"{self.location} has no raw columns to code: store it as parquet")

    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest of what the data is, not of where it lies: shape, types, names, first and last rows."""

    def stored(self) -> dict[str, str]:
        """By the name of each file, what tells that it has changed; empty where nothing does, as for arrays in memory.

        Listed anew at every call, without reading: see ``data.stored``.
        """
        return {}

    @abstractmethod
    def spec(self) -> Spec:
        """JSON from which another process re-opens this source: ``open_source(**spec)``."""

    @abstractmethod
    def describe(self) -> str:
        """One line for people: format, rows, columns, types, chunking."""

    def blocks(self, rows: int) -> Iterator[Rows]:
        for chunk in self.chunks():
            step = rows if self.has_partial_reads() else len(chunk)
            for start in range(chunk.start, chunk.stop, step):
                block = self.read(Span(start, min(start + step, chunk.stop)))
                yield block.X, block.y

    def partitions(self, span: Span, *, targets_only: bool = False) -> Iterable[Partition]:
        """Of a dask collection, what must be computed to read a span, or its targets."""
        return ()

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


class EvenSpans(Sequence[Span]):
    """Spans of one size, the last one shorter. They are computed, not held: there may be a hundred million."""

    def __init__(self, n_rows: int, step: int) -> None:
        self._starts, self._n_rows, self.step = range(0, n_rows, step), n_rows, step

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Span, ...]: ...
    def __getitem__(self, index: int | slice) -> Span | tuple[Span, ...]:
        if isinstance(index, slice):
            return tuple(self._span(start) for start in self._starts[index])
        return self._span(self._starts[index])

    def _span(self, start: int) -> Span:
        return Span(start, min(start + self.step, self._n_rows))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Span.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


def even_spans(n_rows: int, step: int) -> Sequence[Span]:
    """Spans of ``step`` rows, the last one shorter."""
    return EvenSpans(n_rows, step)


def touched(chunks: Sequence[Span], runs: Iterable[Span]) -> Iterator[Span]:
    """The chunks that hold rows of these runs, which are in order; each of them once."""
    last, covered = -1, -1
    for run in runs:
        if run.stop <= covered:  # a sample has thousands of runs in few chunks
            continue
        at = max(last + 1, bisect_right(chunks, run.start, key=lambda chunk: chunk.start) - 1)
        while at < len(chunks) and chunks[at].start < run.stop:
            covered = chunks[at].stop
            yield chunks[at]
            last, at = at, at + 1


def some_of(spans: Sequence[Span]) -> Sequence[Span]:
    """All spans, or of equal ones the first thousand: enough to see what one costs."""
    return spans[:1000] if isinstance(spans, EvenSpans) else spans


def largest_chunks(source: Source, count: int = 100) -> Sequence[Span]:
    """Those chunks that may need most memory: of equal ones, the first."""
    chunks = source.chunks()
    return chunks[:1] if isinstance(chunks, EvenSpans) else sorted(chunks, key=len)[-count:]


def check_reading(source: Source, budget: int | None) -> None:
    """BudgetError where not even the smallest unit of reading fits; asked before the first read of anything."""
    units = largest_chunks(source)
    if source.has_partial_reads():
        units = [Span(chunk.start, chunk.start + 1) for chunk in units]
    needed, most = max((source.read_bytes(unit), len(unit)) for unit in units)
    held = memory.resident()
    room = memory.available() if budget is None else budget - held
    if needed > (room if room > 0 else budget or 0):  # a budget that Python alone exceeds is for the plan to refuse
        allowed = f"{format_bytes(room)} are free" if budget is None else f"the budget is {format_bytes(budget)}"
        raise BudgetError(
            f"reading one chunk of {source.location} ({most:,} rows of {source.n_features:,} columns) needs"
            f" {format_bytes(needed)} on top of {format_bytes(held)} that Python holds, and {allowed}: raise `memory`,"
            " or store the data in smaller chunks"
        )


def work_spans(source: Source, target_rows: int, max_bytes: int) -> Sequence[Span]:
    """Spans that cover every row once, in order, of about ``target_rows`` that need at most ``max_bytes`` to read.

    Small neighbours within a shard are joined. A chunk that is too large is split only where part of it can be read
    by itself; elsewhere it stays whole, above the limit, because decoding it needs all of it at once.
    """
    if target_rows < 1 or max_bytes < 1:
        raise InputError(
            f"a unit of work needs at least 1 row and 1 byte, not {target_rows} rows and {max_bytes} bytes"
        )

    def fits(span: Span) -> bool:
        return len(span) <= target_rows and source.read_bytes(span) <= max_bytes

    pieces = source.chunks()
    if isinstance(pieces, EvenSpans) and len(pieces) > MANY and not source.has_partial_reads():
        return _even_runs(pieces, source.n_rows, fits)
    if source.has_partial_reads():
        pieces = tuple(piece for chunk in pieces for piece in _split(chunk, target_rows, max_bytes, source.read_bytes))
    return tuple(joined_spans(pieces, fits, {shard.start for shard in source.shards()}))


def _even_runs(chunks: EvenSpans, n_rows: int, fits: Callable[[Span], bool]) -> EvenSpans:
    """As many chunks at a time as fit, by arithmetic: too many to look at each."""
    count = 1
    while fits(Span(0, (count + 1) * chunks.step)):
        count += 1
    return EvenSpans(n_rows, count * chunks.step)


def _split(chunk: Span, target_rows: int, max_bytes: int, cost: Callable[[Span], int]) -> Iterator[Span]:
    """Near-equal pieces of a chunk, as few as the limits allow."""
    count = max(1, -(-len(chunk) // target_rows))
    while count < len(chunk) and cost(Span(chunk.start, chunk.start + -(-len(chunk) // count))) > max_bytes:
        count = min(2 * count, len(chunk))
    for piece in even_spans(len(chunk), -(-len(chunk) // count)):
        yield Span(chunk.start + piece.start, chunk.start + piece.stop)


def joined_spans(pieces: Iterable[Span], fits: Callable[[Span], bool], borders: Collection[int] = ()) -> Iterator[Span]:
    """Greedy: a piece joins its neighbour before it as long as both together fit and no border is between them."""
    current: Span | None = None
    for piece in pieces:
        if current is not None and current.stop == piece.start and piece.start not in borders:
            longer = Span(current.start, piece.stop)
            if fits(longer):
                current = longer
                continue
        if current is not None:
            yield current
        current = piece
    if current is not None:
        yield current
