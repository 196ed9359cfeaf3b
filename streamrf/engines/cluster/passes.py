"""A pass on many workers: groups of rows are submitted as tasks, their sums meet in pairs, and one sum comes back.

Dask places every task. We keep some more submitted than there are workers, so that none waits for us and an adaptive
cluster sees the backlog. As soon as a worker holds two sums, a task adds them. When sums are called for (at the end of
the pass, a checkpoint, a stop), those of different workers are added in pairs until one is left, which is fetched. What
is finished after the call belongs to the next epoch, so nobody waits for a checkpoint.

Only this module knows which rows are in which partial sum. When one is lost, its groups are done again; when one is
fetched, it is added once, and its rows are checked against those that are in already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

from distributed import KilledWorker

from streamrf.data.source import Span
from streamrf.data.writers import TableWriter
from streamrf.engines.base import Next, Pass, Watcher
from streamrf.engines.cluster.groups import Group, Groups, Pace, joined, row_set
from streamrf.engines.cluster.tasks import RowsToRead, Sums, TaskCancelled, add_sums, sum_rows, write_rows
from streamrf.engines.cluster.workers import TaskFuture, Workers, explain
from streamrf.statistics.base import S
from streamrf.support.errors import BudgetError, ClusterError, DataError, StorageError, StreamRFError
from streamrf.support.units import format_bytes, format_seconds

TICK = 0.1  # seconds that one step waits for a task to finish
PATIENCE = 300.0  # seconds without any worker before we give up
LEAST_SECONDS = 0.003  # of a group, for each worker there is: submitting a task keeps us busy for half of that
BACKLOG = 4  # tasks beyond two for each worker and one for each thread, where so much is left to do
STUCK = 5.0  # seconds that tasks wait although workers are free: they are in the queue of a paused or slow worker
SLOW = 5.0  # seconds that a task may keep free workers waiting for it
MAX_FETCHES = 3  # times that one result is asked for
MOST_SUMS = 1000  # that Dask remembers the making of, before they are fetched unasked


@dataclass(frozen=True)
class Limits:
    """How much a worker is given at a time, and how long to wait for workers."""

    seconds: float  # of a group
    fits: Callable[[Span], bool]  # whether a worker may read this span in one piece
    patience: float = PATIENCE


@dataclass(eq=False)
class Task:
    """What was submitted: a group of rows, or the addition of two partial sums. Once finished it is a partial sum."""

    future: TaskFuture
    groups: list[Group]
    epoch: int = 0
    inputs: tuple[Task, ...] = ()

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def is_lost(self) -> bool:
        return self.future.is_lost or any(part.future.is_lost for part in self.inputs)


class Dispatcher(ABC):
    """The loop around all tasks."""

    def __init__(self, workers: Workers, groups: Groups, rows: RowsToRead, limits: Limits) -> None:
        self.workers, self.groups, self.limits, self.pace = workers, groups, limits, Pace(limits.seconds)
        self.running: dict[int, Task] = {}  # by number
        self.stopping = False  # nothing new starts: a watcher wants it so, or rows cannot be read
        self.failure: Exception | None = None
        self._rows = rows
        self._ready = 0  # workers that take tasks
        self._last_worker = workers.now()
        self._waiting: set[int] = set()  # tasks that have not started
        self._waiting_since, self._stuck = workers.now(), STUCK

    @abstractmethod
    def submit(self, rows: RowsToRead) -> TaskFuture:
        """Have some worker do these rows."""

    @abstractmethod
    def accept(self, task: Task) -> None:
        """A task ended well."""

    def advance(self) -> None:
        """One step. Rows that cannot be read end the run, but only once the other workers have nothing under way."""
        try:
            self.workers.refresh()
            self._check_workers()
            self.step()
            self._reissue()
            self._fill()
            self._finish_all()
        except (DataError, StorageError) as error:
            self.failure, self.stopping = self.failure or error, True
        except StreamRFError as error:  # nobody is left to wait for
            if self.failure is None:
                raise
            raise self.failure from error

    def step(self) -> None:  # noqa: B027 (not every dispatcher needs it)
        """What else is to be done in each step."""

    def sums(self) -> list[Task]:
        return [task for task in self.running.values() if not task.inputs]

    def rows_in_progress(self) -> int:
        return sum(min(task.future.rows, task.rows) for task in self.sums())

    def _fill(self) -> None:
        """Submit groups: two for each worker, and more where that leaves enough to balance the end with."""
        sums = self.sums()
        queued = sum(task.rows for task in sums if task.future.home is None)
        left = self.groups.rows + sum(task.rows for task in sums)
        count, threads = len(sums), sum(worker.threads for worker in self.workers.alive.values())
        deepest = 2 * self._ready + threads + BACKLOG
        while self.groups and not self.stopping:
            enough = count >= max(2, 2 * self._ready)
            if enough and (count >= deepest or not self.pace.rate or queued > self.groups.rows / 2):
                return
            group = self.groups.take(self.pace.rows(self._ready, left, LEAST_SECONDS * self._ready))
            spans = tuple((span.start, span.stop) for span in joined(group.spans, self.limits.fits))
            self.start(Task(self.submit(replace(self._rows, spans=spans)), [group]))
            count, queued = count + 1, queued + group.rows

    def start(self, task: Task) -> None:
        self.running[task.future.number] = task

    def put_back(self, task: Task) -> None:
        """Forget a task or partial sum: its groups are to be done again, its inputs are as they were."""
        self.running.pop(task.future.number, None)
        self.workers.release(task.future)
        for group in () if task.inputs else task.groups:
            self.groups.put_back(group)
        for part in task.inputs:
            self.put_back(part) if part.is_lost else self.accept(part)

    def _finish_all(self) -> None:
        """See to every one of them, also after one that failed: a run that continues after that must not miss any."""
        failures = []
        for future in self.workers.finished(TICK):
            try:
                self.finish(future)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def finish(self, future: TaskFuture) -> None:
        task = self.running.get(future.number)
        if task is None:
            return
        failure = future.failure()
        if failure or future.is_lost:
            self.put_back(task)
            if failure and not isinstance(failure, TaskCancelled):
                raise self._lost(task) if isinstance(failure, KilledWorker) else explain(failure, future.home)
            return
        del self.running[future.number]
        if not task.inputs and future.home:
            self.pace.note(future.home, task.rows, future.seconds)
        self.accept(task)

    def _lost(self, task: Task) -> ClusterError:
        first, last = task.groups[0].spans[0].start, task.groups[-1].spans[-1].stop - 1
        return ClusterError(
            f"several workers were lost, one after the other, over rows {first:,} to {last:,}:"
            f" most likely each ran out of memory ({self._memory_limit()}); give the workers more memory, use fewer"
            " workers on a machine, or lower `D`"
        )

    def _memory_limit(self) -> str:
        limit = self.workers.memory_limit
        return f"the limit of a worker is {format_bytes(limit)}" if limit else "they have no limit of their own"

    def _reissue(self) -> None:
        """While workers are free, nothing should wait, and nothing be left to a worker that is much too slow.

        Dask does not start what is in the queue of a worker whose memory is almost full, and moves nothing between
        workers with many threads, each of which it thinks does one task.
        """
        now, tasks = self.workers.now(), list(self.running.values())
        waiting = {task.future.number for task in tasks if task.future.home is None}
        free = self._ready - (len(tasks) - len(waiting))
        if waiting != self._waiting or free <= 0:
            self._waiting, self._waiting_since = waiting, now
        elif waiting and now - self._waiting_since >= self._stuck:
            self._stuck *= 2
            for number in waiting:
                self.put_back(self.running[number])
        if free > 0 and self.pace.rate and not self.groups and all(task.future.home for task in self.sums()):
            for task in self.sums():
                self._split_if_late(task, now - task.future.started, free)

    def _split_if_late(self, task: Task, elapsed: float, free: int) -> None:
        """At the end of a pass: have free workers do what a slow one would keep them all waiting for."""
        left = self.pace.seconds_left(str(task.future.home), task.rows, elapsed)
        again = 2 * task.rows / self.pace.rate / (free + 1)
        if left > max(SLOW, again) * 2 ** task.groups[0].given_up:
            task.groups[0].given_up += 1
            self.put_back(task)

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

    def __init__(self, job: Pass[S], workers: Workers, groups: Groups, rows: RowsToRead, limits: Limits) -> None:
        super().__init__(workers, groups, rows, limits)
        self.job = job
        self.epoch = 0
        self.held: dict[str | None, Task] = {}  # the sum of this epoch that each worker holds
        self.called: list[Task] = []  # sums that are on their way here
        self.fetching: tuple[Task, TaskFuture] | None = None
        self._failed_fetches = 0

    def run(self, watch: Watcher[S]) -> S:
        while self.under_way() or (self.groups and not self.stopping):
            self.advance()
            self._obey(watch(self.job, self._pending()))
        if self.failure:
            raise self.failure
        return self.job.state

    def under_way(self) -> bool:
        return bool(self.running or self.held or self.called or self.fetching)

    def _obey(self, answer: Next) -> None:
        made = len(self.running) + sum(len(part.groups) for part in self.held.values())
        if answer is Next.STOP:
            self.stopping = True
        elif answer is Next.COLLECT or made > MOST_SUMS + 10 * self._ready:
            self._call()

    def _call(self) -> None:
        """Call for all sums that are there, unless the last call is still being answered."""
        if self.stopping or self.called or self.fetching or self._called_tasks():
            return
        self.epoch += 1
        self._take_held()
        for task in self.sums():
            task.epoch = self.epoch

    def _take_held(self) -> None:
        self.called += self.held.values()
        self.held = {}

    def _called_tasks(self) -> bool:
        return any(task.epoch < self.epoch for task in self.running.values())

    def submit(self, rows: RowsToRead) -> TaskFuture:
        return self.workers.submit(sum_rows, rows)

    def start(self, task: Task) -> None:
        task.epoch = max((part.epoch for part in task.inputs), default=self.epoch)
        super().start(task)

    def accept(self, task: Task) -> None:
        """A sum is there: it meets the one that its worker holds, if there is one."""
        for part in task.inputs:
            self.workers.release(part.future)
        task.inputs = ()
        if task.epoch < self.epoch:
            self.called.append(task)
        elif task.future.home in self.held:
            self._add(self.held.pop(task.future.home), task)
        else:
            self.held[task.future.home] = task

    def _add(self, first: Task, second: Task) -> None:
        future = self.workers.submit(add_sums, first.future.future, second.future.future, first=True)
        self.start(Task(future, first.groups + second.groups, inputs=(first, second)))

    def step(self) -> None:
        """Also where rows cannot be read, what is summed already is brought here first: it can be kept then."""
        self._handle_losses()
        for task in self.sums() if self.stopping else ():
            self.put_back(task)
        if last := self.stopping or not self.groups:
            self._take_held()
        self.called.sort(key=lambda part: str(part.future.home))
        while len(self.called) > 1:
            self._add(self.called.pop(), self.called.pop())
        if self.called and not self.fetching and not (self.running if last else self._called_tasks()):
            part = self.called.pop()
            self.fetching = part, self.workers.fetch(part.future)

    def _handle_losses(self) -> None:
        """Sums that went with their worker: their groups are done again. Dask would make them again as they were, one
        after the other, and an addition may wait without end for a worker that is frozen."""
        for task in [task for task in self.running.values() if task.is_lost]:
            self.put_back(task)
        lost = [part for part in (*self.held.values(), *self.called) if part.is_lost]
        self.held = {home: part for home, part in self.held.items() if part not in lost}
        self.called = [part for part in self.called if part not in lost]
        if self.fetching and self.fetching[0].is_lost:
            lost.append(self.fetching[0])
            self.workers.release(self.fetching[1])
            self.fetching = None
        for part in lost:
            self.put_back(part)
        for home in [home for home in self.held if home and home not in self.workers.alive]:
            part = self.held.pop(home)  # its worker retired, and another holds it now
            part.future.home = None
            self.accept(part)

    def finish(self, future: TaskFuture) -> None:
        if not self.fetching or self.fetching[1] is not future:
            super().finish(future)
            return
        part, self.fetching = self.fetching[0], None
        failure = future.failure()
        if failure is None:
            self._arrive(part, future.value)
        elif self._failed_fetches < MAX_FETCHES:  # the worker may be going: then it is seen as lost, else asked again
            self._failed_fetches += 1
            self.called.append(part)
        else:
            raise failure

    def _arrive(self, part: Task, sums: Sums) -> None:
        """The one place where sums enter the pass."""
        self.job.done.add_all(row_set(part.groups))
        self.job.state = self.job.state.__iadd__(self.job.statistic.load(sums["arrays"]))
        self.job.dropped += sums["dropped"]
        self._failed_fetches = 0
        self.workers.release(part.future)

    def _pending(self) -> int:
        """Rows that workers have summed and that are not here yet."""
        added = (task for task in self.running.values() if task.inputs)
        fetched = self.fetching[:1] if self.fetching else ()
        return self.rows_in_progress() + sum(
            part.rows for part in (*added, *self.held.values(), *self.called, *fetched)
        )


class Writing(Dispatcher):
    """An output written by many workers: each writes the rows of its groups, straight to where they belong."""

    def __init__(self, parts: TableWriter, workers: Workers, groups: Groups, rows: RowsToRead, limits: Limits) -> None:
        super().__init__(workers, groups, rows, limits)
        self.parts, self.done = parts, 0

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
            if task.future.home is None:
                self.put_back(task)

    def submit(self, rows: RowsToRead) -> TaskFuture:
        return self.workers.submit(write_rows, self.parts.spec(), rows)

    def accept(self, task: Task) -> None:
        self.parts.wrote(task.groups[0].spans)
        self.done += task.rows
        self.workers.release(task.future)
