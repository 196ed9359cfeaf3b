"""What runs on a worker: sums of rows and of earlier sums, and predictions written where they belong.

Every task is a pure function that never changes its arguments. So a task that runs again, late or twice gives the same
result, and a result counts once because the driver uses it once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypedDict

import numpy as np
from distributed import Reschedule, get_worker
from distributed.protocol import pickle
from distributed.utils import sync

from streamrf.data.elsewhere import open_same
from streamrf.data.partitions import Collection, Key, at_hand
from streamrf.data.source import Block, Source, Span
from streamrf.data.writers import Columns, PartSpec, open_part, write_blocks
from streamrf.engines.base import STATES, Next, Pass
from streamrf.engines.local import LocalEngine, read_pieces
from streamrf.support import memory
from streamrf.support.threads import Threads

ColumnsOf = Callable[[Block, Threads], Columns]  # what is written for a block
ROOM = 2  # sums on a worker that is to begin another: as many tasks may add to these, each with a result
PATIENCE = 100  # times in a row that a task waits for room

_turn = threading.Lock()  # one task at a time: it uses all threads of its worker, and buffers of the statistic
_limit_heaps_once = lru_cache(maxsize=1)(memory.limit_heaps)  # every task starts new threads


class Sums(TypedDict):
    """The result of a task that sums: the arrays of a state, and how many rows were dropped."""

    arrays: dict[str, np.ndarray]
    dropped: int


class TaskCancelled(Exception):
    """Raised on a worker when nobody waits for its task any longer."""


@dataclass(frozen=True)
class RowsToRead:
    spans: tuple[Span, ...]
    keys: tuple[Key, ...] = ()  # of partitions that the task is handed


@dataclass(frozen=True)
class Shared:
    """What all tasks of a pass need. The scheduler keeps it, and each worker asks for it once."""

    collections: Sequence[Collection]  # first: what is unpickled after them may read them
    value: Any  # the statistic, or what makes the columns of an output
    source: str  # identity of the source, as JSON
    nan: str = "error"
    output: PartSpec | None = None
    topic: str = ""  # of reports
    every: float = 0.5  # seconds between two of a task


_shared: dict[str, Shared] = {}  # by run
_waits: Counter[str] = Counter()  # by run: times in a row that a task was sent back for want of room


def sum_rows(run: str, rows: RowsToRead, partitions: list[Any], previous: list[Sums]) -> Sums:
    """The sum over some spans and over ``previous`` sums, in new memory."""
    with _working(run, rows, partitions, room=STATES - 1 if previous else ROOM) as (shared, source, threads, report):

        def watch(job: Pass[Any], pending: int) -> Next:
            report(job.done.count)
            return Next.CONTINUE

        job = Pass.start(shared.value, source, nan=shared.nan)
        LocalEngine(threads).sum_spans(job, rows.spans, watch)
        for part in previous:
            job.state = job.state.__iadd__(shared.value.load(part["arrays"]))
        return {"arrays": job.state.arrays(), "dropped": job.dropped + sum(part["dropped"] for part in previous)}


def write_rows(run: str, rows: RowsToRead, partitions: list[Any], _: list[Sums]) -> None:
    """Columns made of some spans, written to their place in an output."""
    with _working(run, rows, partitions) as (shared, source, threads, report):
        assert shared.output
        blocks = (piece for _, piece in read_pieces(source, rows.spans, shared.nan))
        with open_part(shared.output, rows.spans) as part:
            write_blocks(shared.value, blocks, part, threads, report)


def forget(run: str) -> None:
    """A pass is over."""
    if _shared.pop(run, Shared((), None, "")).collections:  # a source keeps the partition that it read last
        open_same.cache_clear()


@contextmanager
def _working(
    run: str, rows: RowsToRead, partitions: list[Any], room: int | None = None
) -> Iterator[tuple[Shared, Source, Threads, _Report]]:
    """While inside, a task has its worker to itself. The driver hears when it starts and ends, and how far it is."""
    with _turn, at_hand(dict(zip(rows.keys, partitions, strict=True))):
        if room is not None:
            _make_room(run, room)
        _limit_heaps_once()
        shared = _shared_by(run)
        report, source = _Report(run, shared), open_same(shared.source, get_worker().address)
        known = Counter(source.unknown_levels)
        with Threads(get_worker().state.nthreads) as threads:
            yield shared, source, threads, report
        report.end(sum(map(len, rows.spans)), Counter(source.unknown_levels) - known)


class _Report:
    """Tells the driver how many rows of a task are done, and stops one that nobody waits for."""

    def __init__(self, run: str, shared: Shared) -> None:
        self._worker, self._run, self._shared = get_worker(), run, shared
        self._key, self._start = self._worker.get_current_task(), time.monotonic()
        self._say(0)

    def __call__(self, rows: int) -> None:
        task = self._worker.state.tasks.get(self._key)
        if task is None or task.state == "cancelled":
            raise TaskCancelled
        if time.monotonic() >= self._next:
            self._say(rows)

    def end(self, rows: int, unknown: Counter[str]) -> None:
        self._say(rows, seconds=time.monotonic() - self._start, unknown=dict(unknown))

    def _say(self, rows: int, **more: Any) -> None:
        self._next = time.monotonic() + self._shared.every
        news = {"run": self._run, "task": self._key[1], "home": self._worker.address, "rows": rows, **more}
        self._worker.log_event(self._shared.topic, news)


def _make_room(run: str, room: int) -> None:
    """Keep to the states that the plan counts: additions that wait, and sums that are being freed, come first.

    A worker with one thread can add only once this task has left it. If nothing is freed, it starts all the same.
    """
    states = sum(key[0].endswith(run) for key in list(get_worker().data) if isinstance(key, tuple))
    if states > room and _waits[run] < PATIENCE:
        _waits[run] += 1
        time.sleep(0.02)
        raise Reschedule
    _waits.pop(run, None)


def _shared_by(run: str) -> Shared:
    if run not in _shared:
        worker = get_worker()
        sent = sync(worker.loop, worker.scheduler.get_metadata, keys=[run], default=None)
        if sent is None:  # the pass is over
            raise TaskCancelled
        _shared[run] = pickle.loads(sent)
    return _shared[run]
