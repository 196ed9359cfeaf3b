"""A pass on many workers: groups of rows are submitted as tasks, their sums meet in pairs, and one sum comes back.

Dask places every task. We keep some more submitted than there are workers, so that none waits for us and an adaptive
cluster sees the backlog. As soon as a worker holds two sums, a task adds them. When sums are called for (at the end of
the pass, a checkpoint, a stop), those of different workers are added in pairs until one is left, which is fetched. What
is finished after the call waits for the next one, so nobody waits for a checkpoint.

Only this module knows which rows are in which partial sum. When one is lost, its rows are done again; when one is
fetched, it is added once, and its rows are checked against those that are in already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from math import inf, sqrt
from typing import Any, Generic

from distributed import Future, KilledWorker

from streamrf.data.partitions import Key
from streamrf.data.source import Source, Span, joined_spans
from streamrf.data.writers import TableWriter
from streamrf.engines.base import Next, Pass, Watcher
from streamrf.engines.cluster.groups import Group, Groups, rows_of
from streamrf.engines.cluster.tasks import RowsToRead, TaskCancelled, add_sums, sum_rows, write_rows
from streamrf.engines.cluster.workers import Task, Workers, explain
from streamrf.statistics.base import S
from streamrf.statistics.rowset import RowSet
from streamrf.support.errors import BudgetError, ClusterError, DataError, StorageError, StreamRFError
from streamrf.support.units import format_bytes, format_seconds

TICK = 0.1  # seconds that a step waits for a task to finish
BATCH = 50  # groups that one step submits at most: those that are finished tell how large the next should be
PATIENCE = 300.0  # seconds without any worker before we give up
LEAST_SECONDS = 0.0025  # of a group, for each worker there is: its two tasks keep us and Dask busy for about so long
BACKLOG = 4  # tasks beyond two for each worker and one for each thread, where so much is left to do
STUCK, LATE = 5.0, 1.0  # seconds that a task may wait, or be late, while workers are free; twice that the next time
CALLED = "called"  # stands for a worker: sums that are called for meet wherever they are
MAX_FETCHES = 3  # times in a row that a fetch may fail
MOST_SUMS = 1000  # that Dask remembers the making of, before they are fetched unasked


@dataclass(frozen=True)
class Limits:
    """How much a worker is given at a time, and how long to wait for workers."""

    seconds: float  # of a group
    fits: Callable[[Span], bool]  # whether a worker may read this span in one piece
    patience: float = PATIENCE
    rows: float = inf  # of a group, at most
    handed: Callable[[Iterable[Span]], dict[Key, Future]] = lambda spans: {}  # partitions, to a task that reads these
    stuck: float = STUCK


class Dispatcher(ABC):
    """The loop around all tasks."""

    def __init__(
        self, workers: Workers, groups: Groups, limits: Limits, does: Callable[..., object], *more: Any
    ) -> None:
        """``does`` is the task that rows are given to, with ``more``."""
        self.workers, self.groups, self.limits = workers, groups, limits
        self._does, self._more = does, more
        self.running: dict[int, Task] = {}  # by number
        self.stopping = False  # nothing new starts: a watcher wants it so, or rows cannot be read
        self.failure: Exception | None = None
        self._ready = 0  # workers that take tasks
        self._has_more = False  # to submit at once
        self._last_worker = self._free_since = workers.now()
        self._rows_timed, self._seconds_timed = 0, 0.0  # of all groups that are finished
        self._given_up: Counter[Group] = Counter()  # how often a task was, by its first rows

    @abstractmethod
    def accept(self, task: Task) -> None:
        """A task ended well."""

    @abstractmethod
    def step(self) -> None:
        """What else is to be done in each step."""

    def advance(self) -> None:
        """One step. Rows that cannot be read end the run, but only once the other workers have nothing under way."""
        try:
            if self.workers.refresh():
                self._check_workers()
                self._put_back_losses()
            self._finish_all()
            self.step()
            self._reissue()
            self._fill()
        except StreamRFError as error:  # nobody is left to wait for
            raise self.failure or error from error

    def sums(self) -> list[Task]:
        return [task for task in self.running.values() if not task.inputs]

    def rows_in_progress(self) -> int:
        return sum(min(task.progress, task.rows) for task in self.sums())

    def _fill(self) -> None:
        """Submit groups: two for each worker, and more where that leaves enough to balance the end with."""
        sums, calls, groups = self.sums(), list[tuple[Any, ...]](), list[Group]()
        left = self.groups.rows + sum(task.rows for task in sums)
        queued = sum(task.rows for task in sums if task.home is None)
        beyond = sum(worker.threads for worker in self.workers.alive.values()) + BACKLOG
        self._has_more = False
        while self.groups and not self.stopping and not self._has_more:
            deep = self.rate and queued <= self.groups.rows / 2
            if len(sums) + len(groups) >= max(2, 2 * self._ready) + (beyond if deep else 0):
                break
            groups.append(self.groups.take(min(self._group_rows(left), self.limits.rows)))
            spans = tuple(joined_spans(groups[-1], self.limits.fits))
            handed = self.limits.handed(spans)
            calls.append((RowsToRead(spans, tuple(handed)), list(handed.values()), *self._more))
            queued, self._has_more = queued + rows_of(groups[-1]), len(groups) == BATCH
        for task, group in zip(self.workers.submit(self._does, calls), groups, strict=True):
            self.start(task, (group,))

    @property
    def rate(self) -> float:
        """Rows a second of a typical worker; 0 where nothing is known yet."""
        return self._rows_timed / max(self._seconds_timed, 1e-6)

    def _group_rows(self, left: int) -> float:
        """Rows for the next group; 0, which means one unit, before any speed is known.

        Never more than a quarter of a worker's share of what is left, of which it has two groups already: so groups
        shrink towards the end, and all workers finish together. They do not shrink below what keeps the driver free for
        all others. Where less is left, n groups keep the driver busy for ``n * LEAST_SECONDS``, and a worker for an
        n-th of what is left: they end soonest where the two are equal.
        """
        share, rate = left / max(1, self._ready), self.rate
        least = min(rate * LEAST_SECONDS * self._ready, sqrt(left * rate * LEAST_SECONDS))
        return min(rate * self.limits.seconds, max(share / 4, least))

    def start(self, task: Task, groups: tuple[Group, ...], inputs: tuple[Task, ...] = (), called: bool = False) -> Task:
        task.groups, task.inputs, task.called, task.submitted = groups, inputs, called, self.workers.now()
        self.running[task.number] = task
        return task

    def put_back(self, task: Task) -> None:
        """Forget a task or partial sum, and what it is made of: its rows are to be done again."""
        self.running.pop(task.number, None)
        for each in (task, *task.inputs):
            self.workers.release(each)
        self.groups.put_back(task.groups)

    def parts(self) -> list[Task]:
        """Everything that holds rows."""
        return list(self.running.values())

    def _put_back_losses(self) -> None:
        """Sums that went with their worker. Dask would make them again as they were, one after the other, and an
        addition may wait without end for a worker that is frozen."""
        for task in self.parts():
            if task.is_lost:
                self.put_back(task)

    def give_up(self, task: Task) -> None:
        """Have another worker do it; the first that was asked stops, or its result is not used."""
        self._given_up[task.groups[0][:1]] += 1
        self.put_back(task)

    def add(self, pairs: list[tuple[Task, ...]]) -> None:
        """Have workers add sums to others."""
        calls = [tuple(part.future for part in pair) for pair in pairs]
        for task, pair in zip(self.workers.submit(add_sums, calls, first=True), pairs, strict=True):
            self.start(task, tuple(chain.from_iterable(part.groups for part in pair)), pair, pair[-1].called)
            task.unknown = sum((part.unknown for part in pair), Counter())

    def _finish_all(self) -> None:
        for task in self.workers.finished(TICK if self.running and not self._has_more else 0.0):
            try:
                if task.number in self.running:
                    self.finish(task)
            except (DataError, StorageError) as error:
                self.failure, self.stopping = self.failure or error, True

    def finish(self, task: Task) -> None:
        failure = task.failure()
        if isinstance(failure, TaskCancelled):
            self.give_up(task)
        elif failure or task.is_lost:
            self.put_back(task)
            if failure:
                raise self._lost(task) if isinstance(failure, KilledWorker) else explain(failure, task.home)
        else:
            del self.running[task.number]
            if not task.inputs:
                self._rows_timed, self._seconds_timed = self._rows_timed + task.rows, self._seconds_timed + task.seconds
            self.accept(task)

    def _lost(self, task: Task) -> ClusterError:
        spans = task.groups[0]
        return ClusterError(
            f"several workers were lost, one after the other, over rows {spans[0].start:,} to {spans[-1].stop - 1:,}:"
            f" most likely each ran out of memory ({self._memory_limit()}); give the workers more memory, use fewer"
            " workers on a machine, or lower `D`"
        )

    def _memory_limit(self) -> str:
        limit = self.workers.memory_limit
        return f"the limit of a worker is {format_bytes(limit)}" if limit else "they have no limit of their own"

    def _reissue(self) -> None:
        """While workers are free, nothing should wait for long, and nothing be left to a worker that is much too slow.

        Dask does not start what is in the queue of a worker whose memory is almost full, and moves nothing between
        workers with many threads, each of which it thinks does one task.
        """
        now, sums = self.workers.now(), self.sums()
        free = self._ready - sum(task.home is not None for task in sums)
        if free <= 0:
            self._free_since = now
        for task in sums if free > 0 else ():
            patience, late = self.limits.stuck, now - max(self._free_since, task.submitted)
            if task.home:
                typical = task.rows / self.rate if self.rate else inf
                patience, late = max(LATE, 2 * typical / (free + 1)), min(late, now - task.started - typical)
            if late > patience * 2 ** self._given_up[task.groups[0][:1]]:
                self.give_up(task)

    def _check_workers(self) -> None:
        """Without a worker that takes tasks nothing moves: wait for one, but not for ever."""
        self._ready = sum(not worker.paused for worker in self.workers.alive.values())
        if self._ready:
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


class Summing(Dispatcher, Generic[S]):
    """The dispatcher of a pass."""

    def __init__(self, job: Pass[S], workers: Workers, groups: Groups, limits: Limits) -> None:
        super().__init__(workers, groups, limits, sum_rows)
        self.job = job
        self.held: dict[str | None, Task] = {}  # the partial sum on each worker; CALLED: one that is due
        self._pairs: list[tuple[Task, ...]] = []  # to be added in this step
        self._alone: list[Task] = []  # no worker came to add these: each is fetched by itself
        self._collects, self._failed_fetches = False, 0

    def run(self, watch: Watcher[S]) -> S:
        while self.parts() or (self.groups and not self.stopping):
            self.advance()
            answer = watch(self.job, self._pending())
            self.stopping |= answer is Next.STOP
            self._collects = answer is Next.COLLECT
        if self.failure:
            raise self.failure
        return self.job.state

    def parts(self) -> list[Task]:
        return [*self.running.values(), *self.held.values(), *self._alone]

    def _call(self, tasks: Iterable[Task]) -> None:
        """Call for these and for all sums that are there. Neighbours are added first: they are near each other."""
        parts, self.held = sorted(self.held.values(), key=lambda part: str(part.home)), {}
        for task in (*tasks, *parts):
            task.called = True
        for part in parts:
            self.accept(part)

    def accept(self, task: Task) -> None:
        """A sum is there: it meets the one that its worker holds, or any other if both are called for."""
        for part in task.inputs:
            self.workers.release(part)
        task.inputs = ()
        place = CALLED if task.called else task.home
        if place in self.held:
            self._pairs.append((self.held.pop(place), task))
        else:
            self.held[place] = task

    def step(self) -> None:
        """Also where rows cannot be read, what is summed already is brought here first: it can be kept then."""
        for task in self.sums() if self.stopping else ():
            self.put_back(task)
        adds, made = [task for task in self.running.values() if task.inputs], sum(len(p.groups) for p in self.parts())
        self._give_up_additions(task for task in adds if len(task.inputs) == 2)
        if self.stopping or not self.groups:
            self._call(self.running.values())
        elif (self._collects or made > MOST_SUMS + 10 * self._ready) and not any(task.called for task in adds):
            self._call(adds)
        pairs, self._pairs = self._pairs, []
        self.add(pairs)
        if self._alone and not any(len(task.inputs) == 1 for task in self.running.values()):
            self._fetch(self._alone.pop())
        elif CALLED in self.held and not self._waits_for_more():
            self._fetch(self.held.pop(CALLED))

    def _waits_for_more(self) -> bool:
        """Whether more is added to what is called for. A checkpoint waits for additions, but for no group: not even at
        the end, when the last groups are called for as well."""
        return any(task.called and (task.inputs or not self._collects) for task in self.running.values())

    def _give_up_additions(self, adds: Iterable[Task]) -> None:
        """Dask queues an addition at a worker that has one of the two sums, whatever that worker is stuck in.

        It waits for a group there, but not for much longer than a group takes: a fetch needs no thread of a worker.
        """
        group = max((task.rows for task in self.sums()), default=0) / self.rate if self.rate else 0.0
        for task in adds:
            if self.workers.now() - task.submitted > self.limits.stuck + 2 * group:
                del self.running[task.number]
                self.workers.release(task)
                self._alone += task.inputs

    def _fetch(self, part: Task) -> None:
        part.called = True
        self.start(self.workers.fetch(part), part.groups, (part,), called=True)

    def put_back(self, task: Task) -> None:
        super().put_back(task)
        self._alone = [part for part in self._alone if part is not task]
        self.held = {place: part for place, part in self.held.items() if part is not task}

    def finish(self, task: Task) -> None:
        if len(task.inputs) != 1:
            task.home = task.home or (task.inputs[0].home if task.inputs else None)  # Dask adds where the sums are
            super().finish(task)
            return
        del self.running[task.number]
        self.workers.release(task)
        failure, (part,) = task.failure(), task.inputs
        self._failed_fetches = self._failed_fetches + 1 if failure else 0
        if failure is None:
            self._arrive(part, task)
        elif self._failed_fetches <= MAX_FETCHES:
            self.accept(part)  # its worker may be going: then the sum is seen as lost, else it is asked for again
        else:
            raise failure

    def _arrive(self, part: Task, fetched: Task) -> None:
        """The one place where sums enter the pass; a row that is in already, or twice in these, is refused."""
        self.job.done.add_all(RowSet(chain.from_iterable(part.groups)))
        self.job.state = self.job.state.__iadd__(self.job.statistic.load(fetched.value["arrays"]))
        self.job.dropped += fetched.value["dropped"]
        self.job.source.note_unknown_levels(part.unknown)
        self.workers.release(part)

    def _pending(self) -> int:
        """Rows that workers have summed and that are not here yet."""
        summed = (part.rows for part in self.parts() if part.inputs or part.number not in self.running)
        return self.rows_in_progress() + sum(summed)


class Writing(Dispatcher):
    """An output written by many workers: each writes the rows of its groups, straight to where they belong."""

    def __init__(self, source: Source, parts: TableWriter, workers: Workers, groups: Groups, limits: Limits) -> None:
        super().__init__(workers, groups, limits, write_rows, parts.spec())
        self.source, self.output, self.done = source, parts, 0

    def run(self, watch: Callable[[int], None]) -> None:
        """A part that a worker writes after a failed run has removed its output would stay: wait for those that have
        started."""
        while self.running or (self.groups and not self.stopping):
            self.advance()
            watch(self.done + self.rows_in_progress())
        if self.failure:
            raise self.failure

    def step(self) -> None:
        for task in self.sums() if self.stopping else ():
            if task.home is None:
                self.put_back(task)

    def accept(self, task: Task) -> None:
        self.output.wrote(list(task.groups[0]))
        self.source.note_unknown_levels(task.unknown)
        self.done += task.rows
        self.workers.release(task)
