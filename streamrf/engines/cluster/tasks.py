"""What runs on a worker: sums of rows, sums of sums, and predictions written where they belong.

Every task is a pure function that never changes its arguments. So a task that runs again, late or twice gives the same
result, and a result counts once because the dispatcher uses it once.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypedDict

import numpy as np
from distributed import Reschedule, Worker, WorkerPlugin, get_worker

from streamrf.data.open import open_source
from streamrf.data.source import Block, Source, Span
from streamrf.data.wrappers import TargetsOnly
from streamrf.data.writers import Columns, PartSpec, open_part, write_blocks
from streamrf.engines.base import STATES
from streamrf.engines.local import PIECE, pieces, read_ahead
from streamrf.statistics.base import S, Statistic
from streamrf.support import __version__, memory
from streamrf.support.errors import MismatchError, StorageError
from streamrf.support.threads import Threads

ColumnsOf = Callable[[Block, Threads], Columns]  # what is written for a block

# Every task starts new threads, which must not bring new heaps.
_limit_heaps_once = lru_cache(maxsize=1)(memory.limit_heaps)


class Sums(TypedDict):
    """The result of a task that sums: the arrays of a state, and how many rows were dropped."""

    arrays: dict[str, np.ndarray]
    dropped: int


class TaskCancelled(Exception):
    """Raised on a worker when nobody waits for its task any longer."""


class _Turns:
    """One task at a time: it uses all threads of its worker, and buffers of the statistic. Adding goes first, as it
    frees memory."""

    def __init__(self) -> None:
        self._change, self._busy, self._adding = threading.Condition(), False, 0

    @contextmanager
    def turn(self, adds: bool = False) -> Iterator[None]:
        with self._change:
            self._adding += adds
            self._change.wait_for(lambda: not self._busy and (adds or not self._adding))
            self._adding -= adds
            self._busy = True
        try:
            yield
        finally:
            with self._change:
                self._busy = False
                self._change.notify_all()


_turns = _Turns()
_shared: dict[tuple[str, str], Any] = {}  # by worker and run: what every task of a run needs
_arrival = threading.Condition()
_waits: Counter[str] = Counter()  # by run: times in a row that a task was sent back for want of room


class Shared(WorkerPlugin):
    """Brings a value to every worker of a run, once, also to those that join late."""

    def __init__(self, run: str, value: object) -> None:
        self.run, self.value = run, value

    def setup(self, worker: Worker) -> None:
        with _arrival:
            _shared[worker.id, self.run] = self.value
            _arrival.notify_all()

    def teardown(self, worker: Worker) -> None:
        _shared.pop((worker.id, self.run), None)


@dataclass(frozen=True)
class RowsToRead:
    """What a worker must know to read the same rows as we would; no row is among it."""

    source: str  # identity of the source, as JSON
    nan: str
    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, source: Source, nan: str, session: str) -> RowsToRead:
        """A worker opens a source once in each ``session``: a later one sees data that was stored again meanwhile."""
        identity = {"spec": source.spec(), "fingerprint": source.fingerprint(), "version": __version__}
        return cls(json.dumps({**identity, "session": session}, sort_keys=True), nan)


def sum_rows(report: Report, rows: RowsToRead) -> Sums:
    """The sum over some spans."""
    with _Progress(report).turn() as progress, _threads() as threads:
        statistic = progress.shared()
        state, dropped = statistic.zero(), 0
        for piece, missing in _read(rows, progress, statistic.piece_rows):
            statistic.update(state, piece, threads)
            dropped += missing
        return {"arrays": state.arrays(), "dropped": dropped}


def add_sums(report: Report, first: Sums, second: Sums) -> Sums:
    """The sum of two sums, in new memory."""
    with _Progress(report).turn(adds=True) as progress:
        statistic = progress.shared()
        state = _copied(statistic, first).__iadd__(statistic.load(second["arrays"]))
        return {"arrays": state.arrays(), "dropped": first["dropped"] + second["dropped"]}


def write_rows(report: Report, output: PartSpec, rows: RowsToRead) -> None:
    """Columns made of some spans, written to their place in an output."""
    with _Progress(report).turn() as progress, _threads() as threads:
        blocks = (piece for piece, _ in _read(rows, progress))
        with open_part(output, rows.spans) as part:
            write_blocks(progress.shared(), blocks, part, threads)


def _copied(statistic: Statistic[S], sums: Sums) -> S:
    """A state of our own that starts from these sums."""
    return statistic.load({name: np.array(array) for name, array in sums["arrays"].items()})


def _threads() -> Threads:
    """As many threads as this worker was given, in a process that is as sparing with memory as a local run."""
    _limit_heaps_once()
    return Threads(get_worker().state.nthreads)


def _read(rows: RowsToRead, progress: _Progress, most: int = PIECE) -> Iterator[tuple[Block, int]]:
    """The rows of the task, piece by piece, and how many were dropped before each."""
    for block, dropped, span in read_ahead(_open(rows.source), [Span(*span) for span in rows.spans], rows.nan):
        for part, piece in pieces(block, span, most):
            progress.check()
            yield piece, dropped
            progress.add(len(part))
            dropped = 0


@lru_cache(maxsize=4)
def _open(identity: str) -> Source:
    """The source of a run, opened once in each worker; it must be the very data the run was planned for."""
    here, wanted = get_worker().address, json.loads(identity)
    if wanted["version"] != __version__:
        raise MismatchError(
            f"worker {here} has streamrf {__version__} and the run was started by {wanted['version']}:"
            " install the same version on both sides"
        )
    try:
        source = _reopened(wanted["spec"])
    except StorageError as error:
        raise StorageError(f"on worker {here}, {error}: the data must be at the same place for every worker") from error
    if source.fingerprint() != wanted["fingerprint"]:
        raise MismatchError(
            f"worker {here} finds other data at that place (fingerprint {source.fingerprint()[:12]}, expected"
            f" {wanted['fingerprint'][:12]}): every worker must see the same files"
        )
    return source


def _reopened(spec: dict[str, Any]) -> Source:
    """The data, its targets alone, or the bin indices of its rows, which are made by what comes with the statistic."""
    data = spec["data"]
    if isinstance(data, dict) and "targets_of" in data:
        return TargetsOnly(open_source(**data["targets_of"]))
    if not (isinstance(data, dict) and "bin_indices" in data):
        return open_source(**spec)
    from streamrf.features.binning.index_cache import reopen

    return reopen(data)


@dataclass(frozen=True)
class Report:
    """Where and how often a task reports the rows it has done."""

    topic: str
    run: str
    task: int
    every: float  # seconds


class _Progress:
    """Reports when a task starts and ends, and now and then how far it is; stops it when nobody waits for it."""

    def __init__(self, to: Report) -> None:
        self._to, self._worker = to, get_worker()
        self._key = self._worker.get_current_task()
        self.rows = 0

    @contextmanager
    def turn(self, adds: bool = False) -> Iterator[_Progress]:
        with _turns.turn(adds):
            self.check()
            self._make_room(adds)
            start = self._next = time.monotonic()
            self.add(0)
            yield self
            self._say(time.monotonic() - start)

    def _make_room(self, adds: bool) -> None:
        """Keep to the states that the plan counts: additions that wait, and sums that are being freed, come first.

        A worker with one thread can add only once this task has left it. If nothing is freed, it starts all the same.
        """
        for _ in range(100):
            states = sum(key[0].endswith(self._to.run) for key in list(self._worker.data) if isinstance(key, tuple))
            if states <= (STATES - 1 if adds else 2):
                _waits.pop(self._to.run, None)
                return
            if not adds and _waits[self._to.run] < 100:
                _waits[self._to.run] += 1
                time.sleep(0.02)
                raise Reschedule
            time.sleep(0.01)

    def shared(self) -> Any:
        """What every task of the run needs; it may be on its way."""
        name = self._worker.id, self._to.run
        with _arrival:
            while not _arrival.wait_for(lambda: name in _shared, 1.0):
                self.check()
            return _shared[name]

    def check(self) -> None:
        task = self._worker.state.tasks.get(self._key)
        if task is None or task.state == "cancelled":
            raise TaskCancelled

    def add(self, rows: int) -> None:
        self.rows += rows
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._to.every
            self._say()

    def _say(self, seconds: float = 0.0) -> None:
        news = {"run": self._to.run, "task": self._to.task, "home": self._worker.address}
        self._worker.log_event(self._to.topic, {**news, "rows": self.rows, "seconds": seconds})
