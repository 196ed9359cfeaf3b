"""The local engine: one process, a reader that stays ahead, and all threads on one block at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

from streamrf.data.locations import persistently
from streamrf.data.screening import screen
from streamrf.data.source import Block, Source, Span, work_spans
from streamrf.engines.base import Engine, Next, Order, Pass, Watcher, unwatched
from streamrf.statistics.base import S
from streamrf.statistics.rowset import RowSet
from streamrf.support.threads import Threads

AHEAD = 1  # blocks read and screened while another is summed: with the one being read, three are alive
PIECE = 8192  # rows between two calls of the watcher, unless a statistic wants more at a time

Read = tuple[Block, int, Span]  # a screened block, how many of its rows were dropped, and where it was read


class LocalEngine(Engine):
    """Reads in the background, sums in the foreground; ``order`` permutes the spans, to show it does not matter."""

    def __init__(self, threads: Threads, order: Order | None = None) -> None:
        self.threads = threads
        self._order = order

    def run(self, job: Pass[S], watch: Watcher[S] = unwatched) -> S:
        for block, _, span in read_ahead(job.source, self._spans(job), job.nan):
            for rows, piece in pieces(block, span, job.statistic.piece_rows):
                self._add(job, rows, piece)
                if watch(job, 0) is Next.STOP:
                    return job.state
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


def read_ahead(source: Source, spans: Sequence[Span], nan: str) -> Iterator[Read]:
    """Blocks of the spans in order, read and screened by a thread of its own; its errors are raised here."""
    ready: queue.Queue[Read | BaseException | None] = queue.Queue(AHEAD)
    stop = threading.Event()

    def put(item: Read | BaseException | None) -> bool:
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
