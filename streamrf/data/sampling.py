"""A random sample of rows for the pilot: short runs of rows at random places, the same whatever the chunks are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamrf.data.locations import persistently
from streamrf.data.screening import screen
from streamrf.data.source import Block, Source, Span
from streamrf.support.errors import DataError
from streamrf.support.units import format_count

PLACES = 64  # runs of rows: enough to see past an ordering of the table, few enough to read


def draw_sample(source: Source, rows: int, seed: int, nan: str) -> Block:
    """About ``rows`` rows in random order, screened."""
    rng = np.random.default_rng([seed, 0x5A4D])
    runs = random_runs(source.n_rows, rows, rng)
    parts = [screen(part, nan, source)[0] for part in _read(source, runs)]
    block = Block(
        np.concatenate([part.X for part in parts]),
        None if parts[0].y is None else np.concatenate([part.y for part in parts]),
        np.concatenate([part.index for part in parts]),
    )
    if not len(block):
        raise DataError(f"no usable rows in a sample of {format_count(sum(map(len, runs)))}: every one has NaN")
    return block.take(rng.permutation(len(block)))


def random_runs(n_rows: int, rows: int, rng: np.random.Generator) -> list[Span]:
    """All rows where they are few; else one run in each of equal parts of the table, at a random place of it."""
    if n_rows <= rows:
        return [Span(0, n_rows)]
    places = min(PLACES, rows)
    edges = np.linspace(0, n_rows, places + 1).astype(np.int64)
    length = rows // places
    starts = edges[:-1] + (rng.random(places) * (np.diff(edges) - length + 1)).astype(np.int64)
    return [Span(int(start), int(start) + length) for start in starts]


def _read(source: Source, runs: list[Span]) -> Iterator[Block]:
    """The rows of the runs in order; each chunk is read at most once."""
    first = 0
    for chunk in source.chunks():
        while first < len(runs) and runs[first].stop <= chunk.start:
            first += 1
        inside = [_common(chunk, run) for run in runs[first:] if run.start < chunk.stop]
        if inside:
            span = Span(inside[0].start, inside[-1].stop) if source.has_partial_reads() else chunk
            block = persistently(source.read, span)
            # Positions and not slices: a view of a few rows would keep the whole chunk in memory.
            yield from (block.take(np.arange(run.start - span.start, run.stop - span.start)) for run in inside)


def _common(chunk: Span, run: Span) -> Span:
    return Span(max(chunk.start, run.start), min(chunk.stop, run.stop))
