"""The local engine: one process, readers that stay ahead, and all threads on one block at a time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from streamrf.data.locations import persistently
from streamrf.data.screening import screen
from streamrf.data.source import Block, Source, Span, work_spans
from streamrf.engines.base import Engine, Next, Order, Pass, Watcher, unwatched
from streamrf.statistics.base import S
from streamrf.statistics.rowset import RowSet
from streamrf.support import memory
from streamrf.support.threads import Threads

AHEAD = 1  # blocks that wait while another is summed: with the one being read, three are alive
ONLY_ONCE = 0.25  # share of the machine's memory that a table may have and stay in the page cache
PIECE = 8192  # rows between two calls of the watcher, unless a statistic wants more at a time

Read = tuple[Block, int, Span]  # a screened block, how many of its rows were dropped, and where it was read


class LocalEngine(Engine):
    """Reads in the background, sums in the foreground; ``order`` permutes the spans, to show it does not matter."""

    def __init__(self, threads: Threads, order: Order | None = None) -> None:
        self.threads = threads
        self._order = order

    def run(self, job: Pass[S], watch: Watcher[S] = unwatched) -> S:
        return self.sum_spans(job, self._spans(job), watch)

    def sum_spans(self, job: Pass[S], spans: Sequence[Span], watch: Watcher[S] = unwatched) -> S:
        """Sum these rows of a pass; none of them may be done already."""
        most = job.statistic.piece_rows
        for rows, piece in read_pieces(job.source, spans, job.nan, most, is_only=job.is_only):
            self._add(job, rows, piece)
            if watch(job, 0) is Next.STOP:
                break
        return job.state

    def _add(self, job: Pass[S], rows: Span, piece: Block) -> None:
        try:
            job.statistic.update(job.state, piece, self.threads)
        except Exception:
            job.reset()
            raise
        job.done.add(rows)
        job.dropped += len(rows) - len(piece)  # with its own rows: a run that stops here counts no others

    def _spans(self, job: Pass[S]) -> list[Span]:
        spans = remaining_spans(job)
        return spans if self._order is None else [spans[i] for i in self._order(len(spans))]


def remaining_spans(job: Pass[S]) -> list[Span]:
    """What is left to read, in units of work."""
    spans = work_spans(job.source, job.span_rows, job.span_bytes)
    if not job.done.count:
        return list(spans)
    return [left for span in spans for left in RowSet([span]).difference(job.done).spans()]


def pieces(block: Block, span: Span, most: int = PIECE) -> Iterator[tuple[Span, Block]]:
    """The block in pieces of at most so many rows; the spans cover dropped rows too, so that row sets have no gaps."""
    if len(span) <= most:
        yield span, block
        return
    for start in range(span.start, span.stop, most):
        stop = min(start + most, span.stop)
        inside = (
            (block.index >= start) & (block.index < stop)
            if len(block) < len(span)
            else slice(start - span.start, stop - span.start)
        )
        yield Span(start, stop), block.take(inside)


def read_pieces(
    source: Source, spans: Sequence[Span], nan: str, most: int = PIECE, *, is_only: bool = False
) -> Iterator[tuple[Span, Block]]:
    """The rows of the spans in order, piece by piece."""
    for block, _, span in read_ahead(source, spans, nan, is_only=is_only):
        yield from pieces(block, span, most)


class Pace:
    """How many reads at once keep up with the summing, from what the last ones took."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._reading = self._summing = 0.0  # seconds of a block

    @property
    def readers(self) -> int:
        wanted = math.ceil(self._reading / self._summing) if self._summing > 0 else 1
        return min(self.most, max(1, wanted))

    def took(self, reading: float, summing: float) -> None:
        """New figures count for half of what is known then."""
        first = self._summing == 0
        self._reading = reading if first else (self._reading + reading) / 2
        self._summing = summing if first else (self._summing + summing) / 2


def read_ahead(source: Source, spans: Sequence[Span], nan: str, *, is_only: bool = False) -> Iterator[Read]:
    """Blocks of the spans in order, read and screened by threads of their own; their errors are raised here.

    Files larger than memory, or, where this is the only pass, than a part of it, do not stay in the page cache.
    """
    size, pace = source.block_bytes(Span(0, source.n_rows)), Pace(source.readers)
    drops = size > (ONLY_ONCE if is_only else 1) * memory.installed()

    def read(span: Span) -> tuple[Read, float]:
        start = time.perf_counter()
        block, dropped = screen(persistently(source.read, span), nan, source)
        if drops:
            source.drop_pages(span)
        return (block, dropped, span), time.perf_counter() - start

    if len(spans) == 1:  # nothing to stay ahead of
        yield read(spans[0])[0]
        return
    pool, left = ThreadPoolExecutor(source.readers, thread_name_prefix="streamrf-reader"), iter(spans)
    begun: deque[Future[tuple[Read, float]]] = deque()
    try:
        while True:
            wanted = max(0, pace.readers + AHEAD - len(begun))
            begun.extend(pool.submit(read, span) for span in islice(left, wanted))
            if not begun:
                return
            item, seconds = begun.popleft().result()
            start = time.perf_counter()
            yield item
            del item  # else it lives while the next is waited for
            pace.took(seconds, time.perf_counter() - start)
    finally:
        pool.shutdown(cancel_futures=True)
