"""A random sample of rows for the pilot: random rows of random chunks, the same for the same seed and chunking."""

from __future__ import annotations

import numpy as np

from streamrf.errors import DataError
from streamrf.sources.base import Block, Source, Span
from streamrf.sources.retries import persistently
from streamrf.sources.screening import screen
from streamrf.sources.spans import work_spans
from streamrf.units import format_count

CHUNKS = 48  # random places to read from: enough to see past an ordering of the rows
MAX_BYTES = 2**31  # and no more than this is read


def draw_sample(source: Source, rows: int, seed: int, nan: str) -> Block:
    """About ``rows`` rows in random order, screened."""
    rng = np.random.default_rng([seed, 0x5A4D])
    spans = list(work_spans(source, max(256, rows // 8), 64 * 2**20))
    chosen = _some(spans, source, rng)
    share = min(1.0, rows / sum(map(len, chosen)))
    parts = [_rows_of(source, span, share, rng, nan) for span in chosen]
    block = Block(
        np.concatenate([part.X for part in parts]),
        None if parts[0].y is None else np.concatenate([part.y for part in parts]),
        np.concatenate([part.index for part in parts]),
    )
    if not len(block):
        raise DataError(f"no usable rows in a sample of {format_count(sum(map(len, chosen)))}: every one has NaN")
    return block.take(rng.permutation(len(block)))


def _some(spans: list[Span], source: Source, rng: np.random.Generator) -> list[Span]:
    picked, cost = [], 0
    for i in rng.permutation(len(spans)):
        picked.append(spans[i])
        cost += source.read_bytes(spans[i])
        if len(picked) == CHUNKS or cost > MAX_BYTES:
            break
    return sorted(picked)


def _rows_of(source: Source, span: Span, share: float, rng: np.random.Generator, nan: str) -> Block:
    block, _ = screen(persistently(source.read, span), nan, source)
    count = min(len(block), int(rng.binomial(len(span), share)) if share < 1 else len(block))
    return block.take(np.sort(rng.choice(len(block), count, replace=False)))
