"""A pass on many workers: groups of rows are submitted as tasks, each adds its rows to a sum that is there already, and
one sum comes back.

Dask places every task. We keep some more submitted than there are workers, so that none waits for us and an adaptive
cluster sees the backlog. The next group goes where a sum is, which it is added to. When sums are called for (at the end
of the pass, a checkpoint, a stop), they are added to each other until one is left, which is fetched. What begins after
the call makes sums of its own, so no worker waits for a checkpoint.

Only this module knows which rows are in which partial sum. When one is lost, its rows are done again; when one is
fetched, it is added once, and its rows are checked against those that are in already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, sqrt
from typing import Generic

from distributed import Future

from streamrf.data.partitions import Key
from streamrf.data.source import Source, Span, joined_spans
from streamrf.data.writers import TableWriter
from streamrf.engines.base import Next, Pass, Watcher
from streamrf.engines.cluster.groups import Group, Groups, rows_of
from streamrf.engines.cluster.tasks import ROOM, RowsToRead, Sums, TaskCancelled, sum_rows, write_rows
from streamrf.engines.cluster.workers import Fetch, Task, Workers, explain, limited
from streamrf.statistics.base import S
from streamrf.statistics.rowset import RowSet
from streamrf.support.errors import BudgetError, ClusterError, DataError, StorageError, StreamRFError
from streamrf.support.units import format_seconds

TICK = 0.1  # seconds that a step waits for a task to finish
BATCH = 50  # groups that one step submits at most: those that are finished tell how large the next should be
PATIENCE = 300.0  # seconds without any worker before we give up
LEAST_SECONDS = 0.002  # of a group, for each worker there is: it keeps us and Dask busy for about so long
BACKLOG = 4  # tasks beyond two for each worker and one for each thread, where so much is left to do
STUCK, LATE = 5.0, 0.5  # seconds that a task may wait, or be late, while workers are free; twice that the next time
FEW = 100  # workers, whose sums meet in pairs: those of more in threes, which are fewer tasks
MAX_FETCHES = 3  # times in a row that a fetch may fail
MOST_SUMS = 1000  # that Dask remembers the making of, before they are fetched unasked

Inputs = tuple[Task, ...]  # sums that a task adds to


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

    def __init__(self, workers: Workers, groups: Groups, limits: Limits, does: Callable[..., object]) -> None:
        """``does`` is the task that rows are given to."""
        self.workers, self.groups, self.limits, self._does = workers, groups, limits, does
        self.running: dict[int, Task] = {}  # by number
        self.held: dict[int, Task] = {}  # partial sums that no task adds to
        self.stopping = False  # nothing new starts: a watcher wants it so, or rows cannot be read
        self.failure: Exception | None = None
        self._ready = 0  # workers that take tasks
        self._has_more = True  # to submit at once
        self._last_worker = self._free_since = workers.now()
        self._rows_timed, self._seconds_timed = 0, 0.0  # of all groups that are finished
        self._given_up: Counter[Group] = Counter()  # how often a task was, by its first rows

    @abstractmethod
    def step(self) -> None:
        """See to what is finished."""

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
        """Tasks that have rows of their own."""
        return [task for task in self.running.values() if task.groups]

    def rows_in_progress(self) -> int:
        return sum(min(task.progress, task.rows) for task in self.sums())

    def _fill(self) -> None:
        """Submit groups: two for each worker, and more where that leaves enough to balance the end with."""
        sums, batch, inputs = self.sums(), list[tuple[Group, Inputs]](), self.next_inputs()
        left = self.groups.rows + sum(task.rows for task in sums)
        queued = sum(task.rows for task in sums if task.home is None)
        beyond = sum(worker.threads for worker in self.workers.alive.values()) + BACKLOG
        while self.groups and not self.stopping and len(batch) < BATCH:
            deep = self.rate and queued <= self.groups.rows / 2
            if len(sums) + len(batch) >= max(2, 2 * self._ready) + (beyond if deep else 0):
                break
            group = self.groups.take(min(self._group_rows(left), self.limits.rows))
            batch.append((group, next(inputs, ())))
            queued += rows_of(group)
        self._has_more = len(batch) == BATCH
        self.submit([each for each in batch if not each[1]])
        self.submit([each for each in batch if each[1]], "add-rows", rank=1)

    def next_inputs(self, beyond: int = 0) -> Iterator[Inputs]:
        """What the next groups are added to: all that a worker holds, where no other task waits to add to its sums.

        So every second group is bound to no worker, and whoever is free does it.
        """
        adding = {task.place for task in self.running.values() if task.inputs}
        for place, parts in by_place(part for part in self.held.values() if not part.called).items():
            if place not in adding and len(parts) > beyond:
                yield self.taken(parts[: ROOM + 1])

    def taken(self, parts: Iterable[Task]) -> Inputs:
        return tuple(self.held.pop(part.number) for part in parts)

    def submit(self, batch: Sequence[tuple[Group, Inputs]], name: str = "", rank: int = 0) -> None:
        """Have workers do rows and add them to sums; a higher rank goes first."""
        calls = []
        for group, inputs in batch:
            spans = tuple(joined_spans(group, self.limits.fits))
            handed = self.limits.handed(spans)
            calls.append((RowsToRead(spans, tuple(handed)), list(handed.values()), [part.future for part in inputs]))
        for task, (group, inputs) in zip(self.workers.submit(self._does, calls, name, rank), batch, strict=True):
            self.start(task, group, inputs)

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

    def start(self, task: Task, group: Group = (), inputs: Inputs = ()) -> None:
        task.groups, task.inputs, task.submitted = (group,) if group else (), inputs, self.workers.now()
        task.called = task.submitted if any(part.called for part in inputs) else 0.0
        self.running[task.number] = task

    def put_back(self, task: Task) -> None:
        """Forget a task or a partial sum: its rows are to be done again. What it was added to is there still."""
        self.running.pop(task.number, None)
        self.held.pop(task.number, None)
        for part in task.inputs:
            part.called = part.called or task.called
            self.held[part.number] = part
        self.workers.release(task)
        self.groups.put_back(task.groups)

    def _put_back_losses(self) -> None:
        """Sums that went with their worker. Dask would make them again as they were, one after the other, and a task
        that adds to them may wait without end for a worker that is frozen."""
        for task in list(self.running.values()):
            if task.is_lost:
                self.put_back(task)
            elif task.home not in self.workers.alive:
                task.home = None  # Dask gives it to another
        for part in list(self.held.values()):
            if part.is_lost:
                self.put_back(part)

    def give_up(self, task: Task) -> None:
        """Have another worker do it; the first that was asked stops, or its result is not used. What it was to be added
        to is brought in: the next group would be bound to the same worker."""
        for part in task.inputs:
            part.called = part.called or self.workers.now()
        self._given_up[task.groups[0][:1]] += 1
        self.put_back(task)

    def _finish_all(self) -> None:
        for task in self.workers.finished(0.0 if self._has_more else TICK):
            try:
                if task.number in self.running:
                    self.finish(task)
            except (DataError, StorageError) as error:
                self.failure, self.stopping = self.failure or error, True

    def finish(self, task: Task) -> None:
        failure = task.failure()
        if failure or task.is_lost:
            self.put_back(task)
            if failure and not isinstance(failure, TaskCancelled):
                raise explain(failure, task, self.workers.memory_limit)
            return
        del self.running[task.number]
        if task.groups:
            self._rows_timed, self._seconds_timed = self._rows_timed + task.rows, self._seconds_timed + task.seconds
        for part in task.inputs:
            self.workers.release(part)
        task.take_inputs()
        self.held[task.number] = task

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
                f" ({limited(self.workers.memory_limit)}): give the workers more memory, or lower `D`"
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
        self._collects = False
        self._fetched: tuple[Task, Fetch] | None = None  # the sum that is on its way here
        self._failed_fetches = 0

    def run(self, watch: Watcher[S]) -> S:
        while self.running or self.held or (self.groups and not self.stopping):
            self.advance()
            answer = watch(self.job, self.rows_in_progress() + sum(part.rows for part in self.parts()))
            self.stopping |= answer is Next.STOP
            self._collects = answer is Next.COLLECT
        if self.failure:
            raise self.failure
        return self.job.state

    def parts(self) -> list[Task]:
        """All partial sums."""
        return [*self.held.values(), *chain.from_iterable(task.inputs for task in self.running.values())]

    def step(self) -> None:
        """Also where rows cannot be read, what is summed already is brought here first: it can be kept then."""
        for task in self.sums() if self.stopping else ():
            self.put_back(task)
        if self.stopping or not self.groups:
            self._call(self.running.values())
        elif not any(task.called for task in (*self.running.values(), *self.held.values())):
            made = sum(len(part.groups) for part in self.parts())
            if self._collects or made > MOST_SUMS + 10 * self._ready:
                self._call(task for task in self.sums() if task.inputs)
        self._give_up_called()
        self._add()
        self._fetch()

    def _call(self, tasks: Iterable[Task]) -> None:
        """Call for these and for all sums that are there."""
        for task in (*tasks, *self.held.values()):
            task.called = task.called or self.workers.now()

    def _awaited(self) -> list[Task]:
        """What sums that are called for wait for. A checkpoint waits for no group that is not added to one: not even at
        the end, when the last groups are called for as well."""
        return [task for task in self.running.values() if task.called and (task.inputs or not self._collects)]

    def _give_up_called(self) -> None:
        """Dask queues a task at a worker that has what it adds to, whatever that worker is stuck in.

        A sum that is called for waits for a group there, but not for much longer than a group takes: to bring it here
        takes no thread of a worker.
        """
        group = max((task.rows for task in self.sums()), default=0) / self.rate if self.rate else 0.0
        for task in list(self.running.values()):
            waits = task.called and task.inputs and (self._collects or not task.groups)
            if waits and self.workers.now() - task.called > self.limits.stuck + 2 * group:
                for part in task.inputs:
                    part.is_alone = not task.groups
                self.put_back(task)

    def _add(self) -> None:
        """Sums that are called for meet in pairs, or in threes where many are left and no group wants the room.

        While groups go on, a worker adds its own first: it has room for one sum of another.
        """
        busy = {task.place for task in self._awaited() if self.groups and task.place}
        sums, rest = list(self.next_inputs(ROOM)), list[Task]()  # where groups would wait for room
        for place, parts in by_place(part for part in self.held.values() if part.called and not part.is_alone).items():
            if len(parts) > 1 and self.groups:
                sums.append(self.taken(parts[: ROOM + 1]))
            elif place not in busy:
                rest += parts
        rest.sort(key=lambda part: str(part.home))  # neighbours are near each other
        many = 2 if self.groups or self._ready <= FEW else ROOM + 1
        sums += (self.taken(rest[i : i + many]) for i in range(0, len(rest) - 1, many))
        self.submit([((), inputs) for inputs in sums], "add-sums", rank=2)

    def _fetch(self) -> None:
        """Bring in the last of the sums that are called for, or one that no worker came to add."""
        if self._fetched and not self._has_come(*self._fetched):
            return
        self._fetched = None
        parts = sorted((part for part in self.held.values() if part.called), key=lambda part: not part.is_alone)
        if parts and (parts[0].is_alone or (len(parts) == 1 and not self._awaited())):
            parts[0].is_alone = True
            self._fetched = parts[0], self.workers.fetch(parts[0])

    def _has_come(self, part: Task, fetch: Fetch) -> bool:
        """Whether a sum is no longer on its way: it is here, is lost with its worker, or is to be asked for again."""
        if part.number not in self.held:
            fetch.cancel()
            return True
        if not fetch.done():
            return False
        failure = fetch.exception()
        self._failed_fetches = self._failed_fetches + 1 if failure else 0
        if failure is None:
            self._arrive(self.held.pop(part.number), fetch.result())
        elif self._failed_fetches > MAX_FETCHES:
            raise failure
        return True

    def _arrive(self, part: Task, found: Sums) -> None:
        """The one place where sums enter the pass; a row that is in already, or twice in these, is refused."""
        self.job.done.add_all(RowSet(chain.from_iterable(part.groups)))
        self.job.state = self.job.state.__iadd__(self.job.statistic.load(found["arrays"]))
        self.job.dropped += found["dropped"]
        self.job.source.note_unknown_levels(part.unknown)
        self.workers.release(part)


class Writing(Dispatcher):
    """An output written by many workers: each writes the rows of its groups, straight to where they belong."""

    def __init__(self, source: Source, parts: TableWriter, workers: Workers, groups: Groups, limits: Limits) -> None:
        super().__init__(workers, groups, limits, write_rows)
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
        for task in self.taken(list(self.held.values())):
            self.output.wrote(list(task.groups[0]))
            self.source.note_unknown_levels(task.unknown)
            self.done += task.rows
            self.workers.release(task)
        for task in self.sums() if self.stopping else ():
            if task.home is None:
                self.put_back(task)


def by_place(parts: Iterable[Task]) -> dict[str | None, list[Task]]:
    found: dict[str | None, list[Task]] = {}
    for part in parts:
        found.setdefault(part.home, []).append(part)
    return found
