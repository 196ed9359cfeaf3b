"""Rows that can be used, and a random sample of them. What is not a finite number, in features, float targets or
missing labels, is found before it poisons a sum. ``RowCache`` keeps what later passes need of such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from streamrf.data.locations import persistently
from streamrf.data.partitions import asked, reads_remotely, rows_there
from streamrf.data.source import Block, Source, Span, joined, touched, work_spans
from streamrf.data.split import NUMBER, Split
from streamrf.data.wrappers import SourceWrapper
from streamrf.support.errors import DataError, InputError
from streamrf.support.units import format_count

POLICIES = ("auto", "error", "drop")
# An IEEE float is infinite or NaN exactly where every exponent bit is set.
_PIECE = 1 << 16  # values checked between two chances to stop
_WEIGHT_BYTES = _KEY_BYTES = 8


def screen(block: Block, policy: str, where: Source) -> tuple[Block, int]:
    """The block without its bad rows, and how many those were. With policy "error" any bad row is a DataError, with
    "auto" one that has a target.

    ``where`` is the source the block came from: it gives the message its names.
    """
    if policy not in POLICIES:
        raise InputError(f"the policy for NaN must be one of {', '.join(POLICIES)}, not '{policy}'")
    if is_clean(block.X) and (block.y is None or is_clean(block.y)):
        return block, 0
    bad = missing_rows(block.X) if block.y is None else missing_rows(block.X) | missing_rows(block.y)
    wrong = bad if policy == "error" else np.zeros(len(block), bool) if policy == "drop" else missing_rows(block.X)
    if policy == "auto" and block.y is not None:
        wrong &= ~missing_rows(block.y)
    if wrong.any():
        raise _complaint(block, int(np.argmax(wrong)), where)
    return _without(block, bad)


def is_clean(values: np.ndarray) -> bool:
    """Whether every value is a finite number (or a label that is there); integers and plain strings always are."""
    if values.dtype.kind == "O":
        return not any(value is None for value in values.flat)
    if values.dtype.kind != "f":
        return True
    flat = np.ascontiguousarray(values).reshape(-1)
    return all(np.isfinite(flat[start : start + _PIECE]).all() for start in range(0, len(flat), _PIECE))


def missing_rows(values: np.ndarray) -> np.ndarray:
    """Mask of rows with a value that is not finite or a label that is not there."""
    table = values[:, None] if values.ndim == 1 else values
    if values.dtype.kind == "f":
        return ~np.isfinite(table).all(axis=1)
    if values.dtype.kind == "O":
        return np.array([any(value is None for value in row) for row in table], dtype=bool)
    return np.zeros(len(values), dtype=bool)


def _without(block: Block, bad: np.ndarray) -> tuple[Block, int]:
    kept = block.take(~bad)
    if kept.y is not None and kept.y.dtype.kind == "O":  # no label is missing any more
        kept.y = kept.y.astype("U")
    return kept, int(bad.sum())


def _complaint(block: Block, position: int, where: Source) -> DataError:
    row = int(block.index[position])
    chunk = next(touched(where.chunks(), [Span(row, row + 1)]))
    # Only columns that are coded as they are read can have their gaps filled in.
    filled = "fill gaps with `missing='median'`, " if where.first_array() is None else ""
    return DataError(
        f"{_first_fault(block, position, where)} in row {row} (chunk of rows {chunk.start}:{chunk.stop}) of"
        f" {where.location}: fix the data, {filled}or leave such rows out with `nan='drop'`"
    )


def _first_fault(block: Block, position: int, where: Source) -> str:
    features = block.X[position]
    if block.X.dtype.kind == "f" and not np.isfinite(features).all():
        column = int(np.argmin(np.isfinite(features)))
        name = f" '{where.feature_names[column]}'" if where.feature_names else ""
        return f"{features[column]} in column {column}{name} of X"
    assert block.y is not None
    target = np.atleast_1d(block.y[position])
    if block.y.dtype.kind == "O":
        return "a missing label in y"
    column = int(np.argmin(np.isfinite(target)))
    return f"{target[column]} in y" + (f" (output {column})" if len(target) > 1 else "")


class RowCache(SourceWrapper):
    """The usable rows of a source, kept without their inputs when they are read. Once inputs are ``needless``, rows
    come without any, and from the cache where their span was read before. Their roles are those of ``split``.
    """

    def __init__(self, source: Source, nan: str, split: Split, needless: Callable[[], bool]) -> None:
        super().__init__(source)
        self._nan, self._split, self._needless = nan, split, needless
        self._rows: dict[Span, Block] = {}

    def read(self, span: Span) -> Block:
        needless = self._needless()
        if not needless or span not in self._rows:
            block, _ = screen(self.source.read(span), self._nan, self.source)
            self._rows[span] = _without_inputs(self._split.keyed(block))
        return self._rows[span] if needless else block

    @staticmethod
    def nbytes(source: Source) -> int:
        """Of all rows in the cache, cut into spans in two ways: that of passes and that of shuffling."""
        rows = Span(0, source.n_rows)
        inputs = source.n_rows * source.n_features * source.x_dtype.itemsize
        return 2 * (source.block_bytes(rows) - inputs + source.n_rows * (_WEIGHT_BYTES + _KEY_BYTES))


def _without_inputs(block: Block) -> Block:
    return replace(block, X=np.empty((len(block), 0), block.X.dtype)).copy()


def held_numbers(source: Source, split: Split, span_rows: int, span_bytes: int) -> np.ndarray:
    """The numbers, in order, of all rows that are held out; read where their numbers alone do not tell."""

    def block(span: Span) -> Block:
        if split.key != NUMBER:
            return persistently(source.read, span)
        return Block(np.empty((len(span), 0)), None, np.arange(span.start, span.stop))

    blocks = map(block, work_spans(source, span_rows, span_bytes) if split.holds else ())
    return np.concatenate([np.zeros(0, np.int64), *(block.index[split.held(block)] for block in blocks)])


SPREAD_BYTES = 2**30  # of a table up to which single rows are drawn: it is read whole, once more
PLACES = 256  # runs of neighbours that are drawn of a larger table: so many chunks are read, at most twice as many


def draw_sample(source: Source, rows: int, seed: int, nan: str) -> Block:
    """About ``rows`` rows in random order, screened, with their weights. Rows that weigh nothing are not among them:
    where there are many such, more rows are drawn."""
    rng = np.random.default_rng([seed, 0x5A4D])
    block, drawn = _drawn(source, rows, rng, nan)
    if len(block) < rows / 2 and drawn < source.n_rows and source.has_weights:
        more = source.n_rows if not len(block) else min(source.n_rows, drawn * rows // len(block))
        block, drawn = _drawn(source, more, rng, nan)
    if not len(block):
        what = "NaN or no weight" if source.has_weights else "NaN"
        raise DataError(f"no usable rows in a sample of {format_count(drawn)}: every one has {what}")
    return block.take(rng.permutation(len(block)))


def _drawn(source: Source, rows: int, rng: np.random.Generator, nan: str) -> tuple[Block, int]:
    """Usable rows of those that were drawn, and how many were drawn."""
    small = source.block_bytes(Span(0, source.n_rows)) <= SPREAD_BYTES
    runs = random_runs(source.n_rows, rows, rng, rows if small else PLACES)
    parts = [_weighing(screen(part, nan, source)[0]) for part in _read(source, runs)]
    return joined(parts), sum(map(len, runs))


def _weighing(block: Block) -> Block:
    return block if block.weights is None or (block.weights > 0).all() else block.take(block.weights > 0)


def random_runs(n_rows: int, rows: int, rng: np.random.Generator, places: int = PLACES) -> list[Span]:
    """All rows where they are few; else one run in each of equal parts of the table, at a random place of it."""
    if n_rows <= rows:
        return [Span(0, n_rows)]
    places = min(places, rows)
    edges = np.linspace(0, n_rows, places + 1).astype(np.int64)
    length = rows // places
    starts = edges[:-1] + (rng.random(places) * (np.diff(edges) - length + 1)).astype(np.int64)
    return [Span(start, start + length) for start in starts.tolist()]


def _read(source: Source, runs: list[Span]) -> Iterator[Block]:
    """The rows of the runs in order, chunk by chunk; each chunk is read at most once, and of a dask collection on a
    cluster where it is."""
    calls = _calls(source, runs)
    if reads_remotely(source):
        yield from asked(rows_there, source, list(calls))
        return
    for span, positions in calls:
        yield persistently(source.read, span).take(positions)


def _calls(source: Source, runs: list[Span]) -> Iterator[tuple[Span, np.ndarray]]:
    """What to read, and which of these rows."""
    starts, stops = (np.array(ends, np.int64) for ends in zip(*runs, strict=True))
    for chunk in touched(source.chunks(), runs):
        first, last = np.searchsorted(stops, chunk.start, "right"), np.searchsorted(starts, chunk.stop, "left")
        inside = [_common(chunk, run) for run in runs[first:last]]
        if inside:
            span = Span(inside[0].start, inside[-1].stop) if source.has_partial_reads() else chunk
            # Positions and not slices: a view of a few rows would keep the whole chunk in memory.
            positions = np.concatenate([np.arange(run.start, run.stop) for run in inside])
            yield span, positions - span.start


def _common(chunk: Span, run: Span) -> Span:
    return Span(max(chunk.start, run.start), min(chunk.stop, run.stop))
