"""Bin indices of rows, kept between passes in memory or in a temporary file, and a source of them in place of the data.

What is not in the cache is computed again by whoever asks: it never changes a result. The file has no name, so that
nothing is left of it when the process ends, however it ends.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import IO, Any, Protocol

import numpy as np

from streamrf.data.open import WRAPPERS, open_source
from streamrf.data.screening import screen
from streamrf.data.source import MANY, Block, EvenSpans, Source, Span, joined
from streamrf.data.split import NONE_HELD, Split
from streamrf.data.wrappers import SourceWrapper
from streamrf.features.binning.map import BinningMap
from streamrf.features.binning.numbering import Numbering
from streamrf.features.scaling import Scaling
from streamrf.support.errors import InputError, MismatchError, StorageError
from streamrf.support.threads import Threads

MEMORY, DISK, NOWHERE = "memory", "disk", "nowhere"
PLACES = (MEMORY, DISK, NOWHERE)
MOST_READ = 1 << 30  # bytes at a time
MOST_RUNS = 2  # runs whose bin indices a worker keeps at a time
NUMBERED = "-numbered"  # ends the key of a run whose bins are numbered


# -- the cache


@dataclass(frozen=True)
class Kept:
    """Bin indices (words, n) of the usable rows of a span, and ``rows`` with all else that passes ask for: numbers,
    coded targets and weights, and what decides their roles. ``gaps``: some rows of the span cannot be used."""

    span: Span
    indices: Callable[[], np.ndarray]
    rows: Block
    gaps: bool

    def part(self, span: Span) -> Block:
        """The bin indices of a span within this one; views, where they are in memory."""
        if self.gaps:
            inside = slice(*np.searchsorted(self.rows.index, [span.start, span.stop]))
        else:
            inside = slice(span.start - self.span.start, span.stop - self.span.start)
        return replace(self.rows.take(inside), X=self.indices()[:, inside].T)


class BinIndexCache:
    """Spans that do not overlap, each with its bin indices, up to so many bytes."""

    def __init__(self, place: str, limit: int) -> None:
        self.place, self.limit, self.bytes = place, limit if place != NOWHERE else 0, 0
        self._kept: list[Kept] = []  # in row order
        self._lock = Lock()
        self._file: IO[bytes] | None = None

    def put(self, span: Span, indices: np.ndarray, rows: Block) -> None:
        """Keep the bin indices (words, n) of the ``rows`` of a span, if there is room and none of them is here yet;
        their inputs are not looked at."""
        rows = replace(rows, X=np.empty((len(rows), 0), np.uint8), index=rows.index.astype(np.int64))
        size = sum(array.nbytes for array in (indices, rows.y, rows.index, rows.weights, rows.key) if array is not None)
        with self._lock:
            at = self._after(span.start)
            free = (at == 0 or self._kept[at - 1].span.stop <= span.start) and (
                at == len(self._kept) or span.stop <= self._kept[at].span.start
            )
            if free and self.bytes + size <= self.limit and (fetch := self._stored(indices)):
                self._kept.insert(at, Kept(span, fetch, rows, len(rows) < len(span)))
                self.bytes += size

    def translated(self, work: Callable[[np.ndarray], np.ndarray]) -> BinIndexCache:
        """A cache of other indices of the same rows; this one is emptied on the way."""
        made = BinIndexCache(self.place, self.limit)
        while self._kept:
            kept = self._kept.pop()
            made.put(kept.span, work(kept.indices()), kept.rows)
        self.clear()
        return made

    def parts(self, span: Span) -> Iterator[tuple[Span, Kept | None]]:
        """The span in parts that are kept and gaps that are not, in row order."""
        with self._lock:
            first = max(0, self._after(span.start) - 1)
            inside = [kept for kept in self._kept[first : self._after(span.stop)] if kept.span.stop > span.start]
        row = span.start
        for kept in inside:
            if kept.span.start >= span.stop:
                break
            if row < kept.span.start:
                yield Span(row, kept.span.start), None
            row = max(row, kept.span.start)
            yield Span(row, min(kept.span.stop, span.stop)), kept
            row = min(kept.span.stop, span.stop)
        if row < span.stop:
            yield Span(row, span.stop), None

    def clear(self) -> None:
        """Free everything."""
        with self._lock:
            self._kept, self.bytes = [], 0
            if self._file is not None:
                self._file.close()
                self._file = None

    def _after(self, row: int) -> int:
        return bisect_right(self._kept, row, key=lambda kept: kept.span.start)

    def _stored(self, indices: np.ndarray) -> Callable[[], np.ndarray] | None:
        if self.place == MEMORY:
            return lambda: indices
        try:
            return self._written(indices)
        except OSError:  # the disk is full: what is on it is used, the rest is computed each time
            self.limit = 0
            return None

    def _written(self, indices: np.ndarray) -> Callable[[], np.ndarray]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="streamrf-bins-")  # noqa: SIM115 (closed by clear)
        file, shape, dtype = self._file, indices.shape, indices.dtype
        offset = file.seek(0, os.SEEK_END)
        file.write(np.ascontiguousarray(indices).data)
        file.flush()

        def fetch() -> np.ndarray:
            out = np.empty(shape, dtype)
            _read_into(file.fileno(), offset, out.reshape(-1).view(np.uint8))
            return out

        return fetch


def _read_into(number: int, offset: int, buffer: np.ndarray) -> None:
    """One call reads 2 GB at most."""
    done = 0
    while done < len(buffer):
        count = os.preadv(number, [buffer[done : done + MOST_READ].data], offset + done)
        if not count:
            raise StorageError(f"the bin index cache ends {len(buffer) - done:,} bytes too early: train again")
        done += count


# -- from rows to bin indices


class RowCoder(Protocol):
    """Writes targets and weights of rows as the integers that passes sum."""

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray | None]: ...


class BinIndexer:
    """Scales and bins rows. In each process there is one for a run, known by the run's ``key``, with one cache."""

    def __init__(
        self, scaling: Scaling, map: BinningMap, key: str, nan: str = "error", place: str = NOWHERE, limit: int = 0,
        split: Split = NONE_HELD, coder: RowCoder | None = None, after: str | None = None,
    ) -> None:  # fmt: skip
        self.scaling, self.map, self.key, self.nan, self.split, self.coder = scaling, map, key, nan, split, coder
        self.cache = BinIndexCache(place, limit)
        self._parts = scaling, map, key, nan, place, limit, split, coder, after

    def indices(self, X: np.ndarray, threads: Threads | None = None) -> np.ndarray:
        """Bin indices of rows as they are stored, in 16-bit words (``map.layout.rows``, n)."""
        return self.map.words(self.scaling.transform(X, np.float32), threads=threads)

    def coded(self, block: Block) -> Block:
        """Rows with coded targets and weights, and what decides their roles."""
        y, weights = (None, None) if self.coder is None else self.coder(block)
        return replace(self.split.keyed(block), y=y, weights=weights)

    def indices_to_keep(self, block: Block, threads: Threads) -> np.ndarray:
        """Bin indices of a block; kept in memory, if its rows have no gaps: with gaps, it is not known which rows are
        missing. On disk they are kept once they are numbered."""
        indices = self.indices(block.X, threads)
        span = Span(int(block.index[0]), int(block.index[-1]) + 1)
        if len(span) == len(block) and (self.cache.place == MEMORY or self.map.numbering is not None):
            self.cache.put(span, indices, self.coded(block))
        return indices

    def numbered(self, numbering: Numbering) -> BinIndexer:
        """The indexer of the passes that follow once it is known which bins have rows; it takes over what this one
        keeps, in every process."""
        scaling, map, key, nan, place, limit, split, coder, _ = self._parts
        return indexer_of_run(
            scaling, replace(map, numbering=numbering), key + NUMBERED, nan, place, limit, split, coder, key
        )

    def __reduce__(self) -> tuple[object, ...]:
        """In another process it is the one that is there already, with what it keeps."""
        return indexer_of_run, self._parts


_lock = Lock()
_known: OrderedDict[str, BinIndexer] = OrderedDict()


def indexer_of_run(
    scaling: Scaling, map: BinningMap, key: str, nan: str = "error", place: str = NOWHERE, limit: int = 0,
    split: Split = NONE_HELD, coder: RowCoder | None = None, after: str | None = None,
) -> BinIndexer:  # fmt: skip
    """The one of a run in this process, made if need be: from what the one of the pass ``after`` keeps, whose bins it
    numbers."""
    with _lock:
        if key not in _known:
            made = BinIndexer(scaling, map, key, nan, place, limit, split, coder, after)
            before = _known.pop(after, None) if after else None
            if before is not None and map.numbering is not None:
                made.cache = before.cache.translated(lambda words: map.renumbered(words, before.map))
            _known[key] = made
        _known.move_to_end(key)
        while len(_known) > MOST_RUNS:  # whoever still uses it keeps it; nobody else does
            _known.popitem(last=False)
        return _known[key]


def known_indexer(key: str) -> BinIndexer:
    """The one of a run that is known here: it comes with every statistic that asks for bin indices."""
    with _lock:
        if key not in _known:
            raise MismatchError("these bin indices belong to a run that this process does not know, or no longer")
        return _known[key]


def end_run(key: str) -> None:
    """Forget the indexers of a run that is over, and free their caches."""
    with _lock:
        for each in (key, key + NUMBERED):
            if each in _known:
                _known.pop(each).cache.clear()


# -- a source of bin indices


class BinIndexSource(SourceWrapper):
    """The rows of a source with their bin indices, in words, in place of inputs, and their targets and weights as coded
    integers. Rows that cannot be used are left out already. A block's X is the transposed of an array (words, n), which
    is what the sums want."""

    def __init__(self, source: Source, indexer: BinIndexer) -> None:
        super().__init__(source)
        self.indexer, self.n_features, self.n_outputs, self.has_weights = indexer, indexer.map.layout.rows, 0, False
        self.x_dtype, self.y_dtype, self.feature_names = np.dtype(np.uint16), None, None

    def chunks(self) -> Sequence[Span]:
        """Those of the rows; one that is kept whole, in the parts it is kept in, which are read without a copy."""
        chunks = self.source.chunks()
        if isinstance(chunks, EvenSpans) and len(chunks) > MANY:
            return chunks
        return [part for chunk in chunks for part in self._as_kept(chunk)]

    def _as_kept(self, chunk: Span) -> list[Span]:
        parts = list(self.indexer.cache.parts(chunk))
        return [span for span, _ in parts] if all(kept for _, kept in parts) else [chunk]

    def read(self, span: Span) -> Block:
        parts = [self._part(part, kept) for part, kept in self.indexer.cache.parts(span)]
        if len(parts) == 1:
            return parts[0]
        indices = np.concatenate([part.X.T for part in parts], axis=-1)
        return replace(joined([replace(part, X=part.X[:, :0]) for part in parts]), X=indices.T)

    def _part(self, span: Span, kept: Kept | None) -> Block:
        if kept is not None:
            return kept.part(span)
        block, _ = screen(self.source.read(span), self.indexer.nan, self.source)
        indices, rows = self.indexer.indices(block.X), self.indexer.coded(block)
        self.indexer.cache.put(span, indices, rows)
        return replace(rows, X=indices.T)

    def read_targets(self, span: Span) -> np.ndarray:
        raise InputError("bin indices have no targets")

    def spec(self) -> dict[str, Any]:
        return {"data": {"bin_indices": self.indexer.key, "of": self.source.spec()}}

    def describe(self) -> str:
        return f"bin indices of {self.source.describe()}"


def _reopen(spec: Mapping[str, Any]) -> BinIndexSource:
    """The source that ``spec()["data"]`` described, in a process that has met a statistic of the same run."""
    return BinIndexSource(open_source(**spec["of"]), known_indexer(spec["bin_indices"]))


WRAPPERS["bin_indices"] = _reopen
