"""The local engine: one process, a reader that stays ahead, and all threads on one block at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from streamrf.data.locations import persistently
from streamrf.data.screening import screen
from streamrf.data.source import Block, Source, Span, work_spans
from streamrf.engines.base import Engine, Pass, S, Watcher, unwatched
from streamrf.statistics.rowset import RowSet
from streamrf.support.threads import Threads

AHEAD = 1  # blocks that wait, read and screened, while one is summed: with the one being read, three are alive
PIECE = 8192  # rows between two looks at the clock and at Ctrl-C, unless a statistic wants more at a time


class LocalEngine(Engine):
    """Reads in the background, sums in the foreground; ``order`` permutes the spans, to show it does not matter."""

    def __init__(self, threads: Threads, order: Any = None) -> None:
        self.threads = threads
        self._order = order

    def run(self, job: Pass[S], watch: Watcher = unwatched) -> S:
        for block, _, span in read_ahead(job.source, self._spans(job), job.nan):
            for rows, piece in pieces(block, span, job.statistic.piece_rows):
                job.whole = False
                job.statistic.update(job.state, piece, self.threads)
                job.done.add(rows)
                job.whole = True
                job.dropped += len(rows) - len(piece)  # with the rows it is of: a run that stops here counts no other
                watch(job)
        return job.state

    def _spans(self, job: Pass[Any]) -> list[Span]:
        spans = remaining_spans(job)
        return spans if self._order is None else [spans[i] for i in self._order(len(spans))]


def remaining_spans(job: Pass[Any]) -> list[Span]:
    """What is left to read, in units of work."""
    spans = work_spans(job.source, job.span_rows, job.span_bytes)
    if not job.done.count:
        return list(spans)
    return [left for span in spans for left in _minus(span, job.done)]


def _minus(span: Span, done: RowSet) -> Iterator[Span]:
    return iter(RowSet([span]).difference(done).spans())


def pieces(block: Block, span: Span, most: int = PIECE) -> Iterator[tuple[Span, Block]]:
    """The block in pieces of at most so many rows; the spans cover dropped rows too, so that the ledger has no gaps."""
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


def read_ahead(source: Source, spans: Sequence[Span], nan: str) -> Iterator[tuple[Block, int, Span]]:
    """Blocks of the spans in order, read and screened by a thread of its own; its errors are raised here."""
    ready: queue.Queue[Any] = queue.Queue(AHEAD)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for span in spans:
                block, dropped = screen(persistently(source.read, span), nan, source)
                if not put((block, dropped, span)):
                    return
            put(None)
        except BaseException as error:  # handed to the thread that waits for the block
            put(error)

    reader = threading.Thread(target=read, name="streamrf-reader", daemon=True)
    reader.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        reader.join()
