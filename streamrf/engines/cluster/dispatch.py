"""Cuts rows into groups, gives them to workers, one task a worker at a time, and to others what a lost worker had."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from distributed import KilledWorker

from streamrf.data.source import Span
from streamrf.data.writers import TableWriter
from streamrf.engines.base import Order
from streamrf.engines.cluster.tasks import ColumnsOf, RowsToRead, write_rows
from streamrf.engines.cluster.workers import TaskCancelled, TaskFuture, WorkerInfo, Workers, explain
from streamrf.statistics.rowset import RowSet
from streamrf.support.errors import (
    BudgetError,
    ClusterError,
    DataError,
    StorageError,
    StreamRFError,
)
from streamrf.support.units import format_bytes, format_seconds

Unit = tuple[Span, ...]  # spans that must stay together


@dataclass
class Group:
    """Spans that one worker sums or writes in one go, and how many workers were lost over it."""

    spans: tuple[Span, ...]
    losses: int = 0

    @cached_property
    def rows(self) -> int:
        return _rows(self.spans)


class Groups:
    """What is still to be done, and how many ``rows`` that is. A group that comes back goes out again as it was."""

    def __init__(self, units: Sequence[Unit], order: Order | None = None) -> None:
        self._units: deque[Unit] = deque(units if order is None else [units[i] for i in order(len(units))])
        self._again: deque[Group] = deque()
        self.rows = sum(map(_rows, units))

    def __bool__(self) -> bool:
        return bool(self._units or self._again)

    def take(self, rows: float) -> Group:
        """The next group: units until there are about ``rows`` rows, at least one unit."""
        group = self._again.popleft() if self._again else Group(self._joined(rows))
        self.rows -= group.rows
        return group

    def _joined(self, rows: float) -> tuple[Span, ...]:
        spans = list(self._units.popleft())
        count = _rows(spans)
        while self._units and count + _rows(self._units[0]) <= rows:
            unit = self._units.popleft()
            spans += unit
            count += _rows(unit)
        return tuple(spans)

    def put_back(self, group: Group) -> None:
        self._again.append(group)
        self.rows += group.rows


def _rows(spans: Sequence[Span]) -> int:
    return sum(map(len, spans))


def row_set(groups: Iterable[Group]) -> RowSet:
    """The rows of these groups; a row that is in two of them is refused."""
    return RowSet(span for group in groups for span in group.spans)


class Pace:
    """How fast each worker is, and from that how many rows to give it next.

    A group takes about ``seconds``, but never more than half of a worker's fair share of what is left: so the groups
    shrink towards the end, and workers of different speed finish together. They do not shrink below what keeps the
    driver free for all the others, if a fair share has that much.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._rates: dict[str, float] = {}

    def note(self, worker: str, rows: int, seconds: float) -> None:
        """What a finished group says about its worker; the newest counts half."""
        rate = rows / max(seconds, 1e-6)
        self._rates[worker] = (self._rates.get(worker, rate) + rate) / 2

    def total(self, workers: Iterable[str]) -> float:
        """Rows a second of all these workers; one that is not known yet is taken for a typical one."""
        typical = sum(self._rates.values()) / len(self._rates) if self._rates else 0.0
        return sum(self._rates.get(worker, typical) for worker in workers)

    def rows(self, worker: str, total: float, rows_left: int, least: float = 0.0) -> float:
        """Rows for the next group of this worker; 0, which means one unit, for one that is not known yet."""
        rate = self._rates.get(worker, 0.0)
        if not rate:
            return 0.0
        share = rows_left * rate / total
        return min(rate * self.seconds, max(share / 2, min(share, rate * least)))


def units_of(spans: Iterable[Span], step: int | None = None) -> list[Unit]:
    """Each span by itself; with ``step``, spans cut at its multiples and those between two multiples together."""
    if step is None:
        return [(span,) for span in spans]
    units: dict[int, list[Span]] = {}
    for span in spans:
        cuts = [span.start, *range((span.start // step + 1) * step, span.stop, step), span.stop]
        for piece in map(Span, cuts, cuts[1:]):
            units.setdefault(piece.start // step, []).append(piece)
    return [tuple(unit) for unit in units.values()]


def joined(spans: Iterable[Span], fits: Callable[[Span], bool]) -> list[Span]:
    """Neighbours as one span, as long as that fits: small units make for balance, long reads for speed."""
    result: list[Span] = []
    for span in spans:
        longer = Span(result[-1].start, span.stop) if result and result[-1].stop == span.start else span
        if longer is not span and fits(longer):
            result[-1] = longer
        else:
            result.append(span)
    return result


TICK = 0.1  # seconds that one step waits for a task to finish
MAX_LOSSES = 3  # workers that may be lost over the same rows
PATIENCE = 300.0  # seconds without any worker before we give up
LEAST_SECONDS = 0.003  # of a group, for each worker there is: submitting a task keeps us busy for half of that
STUCK = 10.0  # seconds without progress of a task on a paused worker: most likely it never started


@dataclass(frozen=True)
class Limits:
    """How much a worker is given at a time, and how long to wait for workers."""

    seconds: float  # of a group
    fits: Callable[[Span], bool]  # whether a worker may read this span in one piece
    patience: float = PATIENCE


@dataclass(eq=False)
class PartialSum:
    """A sum on a worker, and the groups of rows in it."""

    future: TaskFuture
    home: str
    groups: list[Group]
    rows: int
    epoch: int  # what starts after a call for all sums belongs to the next epoch


@dataclass(eq=False)
class Task:
    """What a worker is doing: a group of rows, on top of partial sums that it holds or fetches."""

    future: TaskFuture
    epoch: int = 0
    group: Group | None = None
    inputs: list[PartialSum] = field(default_factory=list)

    @property
    def home(self) -> str:
        return self.future.home

    @property
    def rows(self) -> int:
        """Rows that it adds to those of its inputs."""
        return self.group.rows if self.group else 0

    def result(self) -> PartialSum:
        own = [self.group] if self.group else []
        groups = own + [group for part in self.inputs for group in part.groups]
        return PartialSum(self.future, self.home, groups, sum(group.rows for group in groups), self.epoch)


class Dispatcher(ABC):
    """The loop around all tasks. A free worker gets a task; what a lost worker was doing is done again."""

    def __init__(self, workers: Workers, groups: Groups, rows: RowsToRead, limits: Limits) -> None:
        self.workers, self.groups, self.limits, self.pace = workers, groups, limits, Pace(limits.seconds)
        self.running: dict[str, Task] = {}  # by worker
        self.paused: list[str] = []  # workers that take nothing new
        self.stopping = False  # nothing new starts: a watcher wants it so, or rows cannot be read
        self.failure: Exception | None = None
        self._rows = rows
        self._rate, self._rows_left = 0.0, 0  # rows a second of all workers, and rows that are not done
        self._last_worker = workers.now()
        self._stalled: dict[int, tuple[int, float]] = {}  # of tasks on paused workers: rows done, and since when

    def advance(self) -> None:
        """One step. Rows that cannot be read end the run, but only once the other workers have nothing under way."""
        try:
            self._step()
        except (DataError, StorageError) as error:
            self.failure, self.stopping = self.failure or error, True
        except StreamRFError as error:  # nobody is left to wait for
            if self.failure is None:
                raise
            raise self.failure from error

    def _step(self) -> None:
        """See which workers there are, give a task to each free one, and take what is finished."""
        self.workers.refresh()
        self._check_workers()
        for task in [t for t in self.running.values() if t.home not in self.workers.alive or t.future.is_lost]:
            self._lose(task)
        self.paused = [worker.address for worker in self.workers.alive.values() if worker.paused]
        self._reclaim_from_paused()
        self.handle_losses()
        ready = [worker for worker in self.workers.alive.values() if not worker.paused]
        self._rate = self.pace.total(worker.address for worker in ready)
        self._rows_left = self.groups.rows + sum(task.rows for task in self.running.values())
        for worker in ready:
            if worker.address not in self.running and (given := self.next_task(worker)):
                self.running[worker.address] = given
        self._finish_all(self.workers.finished(TICK))

    @abstractmethod
    def next_task(self, worker: WorkerInfo) -> Task | None:
        """What a free worker does next, submitted already."""

    @abstractmethod
    def accept(self, task: Task) -> None:
        """A task ended well."""

    def handle_losses(self) -> None:  # noqa: B027 (not every dispatcher needs it)
        """Something may have been lost with a worker."""

    def return_inputs(self, inputs: Iterable[PartialSum]) -> None:  # noqa: B027 (not every dispatcher needs it)
        """A task came to nothing; its inputs are free again."""

    def finish_other(self, future: TaskFuture) -> None:  # noqa: B027 (not every dispatcher needs it)
        """Something ended that is not a running task."""

    def take_group(self, worker: WorkerInfo) -> tuple[Group, RowsToRead]:
        """The next group for this worker, and what it must read."""
        least = LEAST_SECONDS * len(self.workers.alive)
        group = self.groups.take(self.pace.rows(worker.address, self._rate, self._rows_left, least))
        spans = tuple((span.start, span.stop) for span in joined(group.spans, self.limits.fits))
        return group, replace(self._rows, spans=spans)

    def rows_in_progress(self) -> int:
        return sum(self.workers.progress.get(task.future.number, 0) for task in self.running.values())

    def cancel(self, task: Task) -> None:
        """Forget a task: its group is to be done again, its inputs are as they were."""
        self._remove(task)
        self.workers.release(task.future)
        self.return_inputs(task.inputs)
        if task.group is not None:
            self.groups.put_back(task.group)

    def _finish_all(self, futures: Iterable[TaskFuture]) -> None:
        """See to every one of them, also after one that failed: a run that continues after that must not miss any."""
        failures = []
        for future in futures:
            try:
                self._finish(future)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _finish(self, future: TaskFuture) -> None:
        task = self.running.get(future.home)
        if task is None or task.future is not future:
            self.finish_other(future)
            return
        failure = future.failure()
        if isinstance(failure, TaskCancelled):
            self.cancel(task)
        elif future.is_lost or isinstance(failure, KilledWorker):
            self._lose(task)
        elif failure is not None:
            self.cancel(task)
            raise explain(failure, task.home)
        else:
            self._remove(task)
            if task.group is not None:
                self.pace.note(task.home, task.group.rows, future.seconds)
            self.accept(task)

    def _remove(self, task: Task) -> None:
        del self.running[task.home]
        self.workers.progress.pop(task.future.number, None)

    def _lose(self, task: Task) -> None:
        """A worker was lost over a task: others do its rows, unless that has happened too often."""
        self.cancel(task)
        if task.group is None:
            return
        task.group.losses += 1
        if task.group.losses >= MAX_LOSSES:
            first, last = task.group.spans[0].start, task.group.spans[-1].stop - 1
            raise ClusterError(
                f"{task.group.losses} workers were lost, one after the other, over rows {first:,} to {last:,}:"
                f" most likely each ran out of memory ({self._memory_limit()}); give the workers more memory, use fewer"
                " workers on a machine, or lower `D`"
            )

    def _memory_limit(self) -> str:
        limit = self.workers.memory_limit
        return f"the limit of a worker is {format_bytes(limit)}" if limit else "they have no limit of their own"

    def _reclaim_from_paused(self) -> None:
        """Dask does not start the tasks of a worker whose memory is almost full: others do them."""
        last_known, self._stalled = self._stalled, {}
        for task in [self.running[home] for home in self.paused if home in self.running]:
            number = task.future.number
            rows = self.workers.progress.get(number, 0)
            known, since = last_known.get(number, (None, 0.0))
            self._stalled[number] = (rows, since if rows == known else self.workers.now())
            if self.workers.now() - self._stalled[number][1] >= STUCK:
                self.cancel(task)

    def _check_workers(self) -> None:
        """Without a worker that takes tasks nothing moves: wait for one, but not for ever."""
        if self.running or any(not worker.paused for worker in self.workers.alive.values()):
            self._last_worker = self.workers.now()
        if self.workers.now() - self._last_worker < self.limits.patience:
            return
        waited = format_seconds(self.limits.patience)
        if self.workers.alive:
            raise BudgetError(
                f"every worker has been paused by Dask for {waited} because its memory is almost full"
                f" ({self._memory_limit()}): give the workers more memory, or lower `D`"
            )
        raise ClusterError(
            f"the cluster has had no worker for {waited}: start some (dask worker ADDRESS), then run the same command"
            " again to resume from the last checkpoint"
        )


class Writing(Dispatcher):
    """An output written by many workers: each writes the rows of its groups, straight to where they belong."""

    def __init__(
        self, columns: ColumnsOf, parts: TableWriter, workers: Workers, groups: Groups, rows: RowsToRead, limits: Limits
    ) -> None:
        super().__init__(workers, groups, rows, limits)
        self.parts, self.columns = parts, workers.share(columns)
        self.done = 0

    def run(self, watch: Callable[[int], None]) -> None:
        """A part that a worker writes after a failed run has removed its output would stay: wait for the last one."""
        while self.running or (self.groups and not self.stopping):
            self.advance()
            watch(self.done + self.rows_in_progress())
        if self.failure:
            raise self.failure

    def next_task(self, worker: WorkerInfo) -> Task | None:
        if not self.groups or self.stopping:
            return None
        group, rows = self.take_group(worker)
        sink = self.parts.spec()
        future = self.workers.submit(worker.address, write_rows, self.columns, sink, rows, reports=True)
        return Task(future, group=group)

    def accept(self, task: Task) -> None:
        assert task.group is not None
        self.parts.wrote(task.group.spans)
        self.done += task.group.rows
