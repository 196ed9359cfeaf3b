"""Targets are thin: fetched in long runs and kept for a moment, they cost a fraction of one small read per block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

import numpy as np

from streamrf.data.source import Span

AHEAD_BYTES = 2 << 20
KEPT_RUNS = 2  # one for each of two readers, a little apart


class ReadAhead:
    """Reads whole chunks of one array through ``fetch`` and answers spans from the last few runs it read.

    A read that goes on from a run fetches about AHEAD_BYTES; any other fetches only the chunks it touches, so reading
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
        goes_on = span.start == 0 or any(run.start <= span.start <= run.stop for run, _ in self._runs)
        run = self._run_of(span, goes_on)
        self._runs.append((run, self._fetch(run)))
        return self._runs[-1]

    def _run_of(self, span: Span, ahead: bool) -> Span:
        """The span widened to whole chunks, and on to a long run where that pays."""
        start = span.start // self._chunk_rows * self._chunk_rows
        wanted = max(span.stop, start + AHEAD_BYTES // self._row_bytes) if ahead else span.stop
        stop = -(-wanted // self._chunk_rows) * self._chunk_rows
        return Span(start, min(stop, self._n_rows))
