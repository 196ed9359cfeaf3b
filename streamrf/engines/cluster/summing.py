"""One pass summed by many workers: groups of rows become partial sums, which meet in a tree, and one sum comes back.

Each worker adds its next group on top of the sum it holds, so it holds one sum and works on another. When sums are
called for (at the end of the pass, a checkpoint, a stop), the workers add them in pairs until one is left, which is
fetched. What starts after the call belongs to the next epoch, so nobody waits for a checkpoint.

Only this module knows which rows are in which partial sum. When one is lost, its groups are done again; when one is
fetched, it is added once, and its rows are checked against those that are in already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic

from streamrf.engines.base import Next, Pass, Watcher
from streamrf.engines.cluster.dispatch import Dispatcher, Groups, Limits, PartialSum, Task, row_set
from streamrf.engines.cluster.tasks import RowsToRead, add_sums, sum_rows
from streamrf.engines.cluster.workers import Sums, TaskFuture, WorkerInfo, Workers
from streamrf.statistics.base import S

MAX_FETCHES = 3  # times that one result is asked for


class PartialSums:
    """Partial sums by the worker that holds them: with a thousand workers, none may cost a look at all the others."""

    def __init__(self) -> None:
        self._sums: dict[str, list[PartialSum]] = {}  # no empty lists

    def __iter__(self) -> Iterator[PartialSum]:
        return (part for parts in self._sums.values() for part in parts)

    def __bool__(self) -> bool:
        return bool(self._sums)

    def of(self, home: str) -> list[PartialSum]:
        return self._sums.get(home, [])

    def add(self, part: PartialSum) -> None:
        self._sums.setdefault(part.home, []).append(part)

    def remove(self, part: PartialSum) -> None:
        """Take one out; one that is not in is left alone."""
        rest = [other for other in self.of(part.home) if other is not part]
        if rest:
            self._sums[part.home] = rest
        else:
            self._sums.pop(part.home, None)


class Summing(Dispatcher, Generic[S]):
    """The dispatcher of a pass."""

    def __init__(self, job: Pass[S], workers: Workers, groups: Groups, rows: RowsToRead, limits: Limits) -> None:
        super().__init__(workers, groups, rows, limits)
        self.job = job
        self.statistic = workers.share(job.statistic)
        self.held = PartialSums()
        self.epoch = 0
        self.fetching: tuple[PartialSum, TaskFuture] | None = None
        self._failed_fetches = 0

    def run(self, watch: Watcher[S]) -> S:
        while self.under_way() or (self.groups and not self.stopping):
            self.advance()
            self._obey(watch(self.job, self._pending()))
        if self.failure:
            raise self.failure
        return self.job.state

    def under_way(self) -> bool:
        return bool(self.running or self.held or self.fetching)

    def advance(self) -> None:
        """Also where rows cannot be read, what is summed already is brought here first: it can be kept then."""
        super().advance()
        if self.stopping:
            for task in [task for task in self.running.values() if task.group]:
                self.cancel(task)
        self._fetch_the_last()

    def _obey(self, answer: Next) -> None:
        if answer is Next.STOP:
            self.stopping = True
        elif answer is Next.COLLECT and not self.stopping and not self._is_collecting():
            self.epoch += 1

    def next_task(self, worker: WorkerInfo) -> Task | None:
        pair = self._pair(worker.address)
        if pair:
            return self._merge(worker.address, *pair)
        return self._sum(worker) if self.groups and not self.stopping else None

    def _pair(self, home: str) -> tuple[PartialSum, PartialSum] | None:
        """A sum of this worker that is called for, and another: its own if it has two, else anyone's.

        A worker without a sum takes one of a paused worker, which cannot add anything itself.
        """
        own = self._called(self.held.of(home)) or [part for p in self.paused for part in self._called(self.held.of(p))]
        if not own:
            return None
        others = (part for part in self.held if part is not own[0] and self._is_called_for(part.epoch))
        second = own[1] if len(own) > 1 else next(others, None)
        return (own[0], second) if second else None

    def _called(self, parts: Iterable[PartialSum]) -> list[PartialSum]:
        return [part for part in parts if self._is_called_for(part.epoch)]

    def _is_called_for(self, epoch: int) -> bool:
        return epoch < self.epoch or self.stopping or not self.groups

    def _merge(self, home: str, first: PartialSum, second: PartialSum) -> Task:
        future = self.workers.submit(home, add_sums, self.statistic, first.future.future, second.future.future)
        return Task(future, max(first.epoch, second.epoch), None, self._take(first, second))

    def _sum(self, worker: WorkerInfo) -> Task:
        inputs = self._take(*[part for part in self.held.of(worker.address) if part.epoch == self.epoch][:1])
        group, rows = self.take_group(worker)
        earlier = inputs[0].future.future if inputs else None
        future = self.workers.submit(worker.address, sum_rows, self.statistic, earlier, rows, reports=True)
        return Task(future, self.epoch, group, inputs)

    def _take(self, *parts: PartialSum) -> list[PartialSum]:
        for part in parts:
            self.held.remove(part)
        return list(parts)

    def accept(self, task: Task) -> None:
        self.held.add(task.result())
        for part in task.inputs:
            self.workers.release(part.future)

    def return_inputs(self, inputs: Iterable[PartialSum]) -> None:
        for part in inputs:
            self.held.add(part)

    def handle_losses(self) -> None:
        """Sums whose worker is gone: found elsewhere if it retired in good order, else their groups are done again.

        A task that adds such a sum may wait for it for ever, and is cancelled.
        """
        for task in [task for task in self.running.values() if any(map(self._is_missing, task.inputs))]:
            self.cancel(task)
        missing = [part for part in self._all_held() if self._is_missing(part)]
        found = self.workers.locate(part.future for part in missing if not part.future.is_lost) if missing else {}
        for part in missing:
            home = found.get(part.future.number)
            if home is None:
                self._lose_sum(part)
            elif self.fetching and self.fetching[0] is part:
                part.home = home
            else:
                self.held.remove(part)
                part.home = home
                self.held.add(part)

    def _is_missing(self, part: PartialSum) -> bool:
        return part.home not in self.workers.alive or part.future.is_lost

    def _all_held(self) -> list[PartialSum]:
        return [*self.held, *([self.fetching[0]] if self.fetching else [])]

    def _lose_sum(self, part: PartialSum) -> None:
        if self.fetching and self.fetching[0] is part:
            self.workers.release(self.fetching[1])
            self.fetching = None
        self.held.remove(part)
        self.workers.release(part.future)
        for group in part.groups:
            self.groups.put_back(group)

    def _is_collecting(self) -> bool:
        epochs = [part.epoch for part in self._all_held()] + [task.epoch for task in self.running.values()]
        return any(epoch < self.epoch for epoch in epochs)

    def _fetch_the_last(self) -> None:
        """Once all that was called for is in one sum, bring it here."""
        called = self._called(self.held)
        under_way = any(self._is_called_for(task.epoch) for task in self.running.values())
        if len(called) == 1 and not under_way and not self.fetching:
            self.held.remove(called[0])
            self.fetching = called[0], self.workers.fetch(called[0].future)

    def finish_other(self, future: TaskFuture) -> None:
        if not self.fetching or self.fetching[1] is not future:
            return
        part, self.fetching = self.fetching[0], None
        failure = future.failure()
        if failure is None:
            self._arrive(part, future.value)
        elif self._failed_fetches < MAX_FETCHES:  # the worker may be going: then it is seen as lost, else asked again
            self._failed_fetches += 1
            self.held.add(part)
        else:
            raise failure

    def _arrive(self, part: PartialSum, sums: Sums) -> None:
        """The one place where sums enter the pass."""
        self.job.done.add_all(row_set(part.groups))
        self.job.state = self.job.state.__iadd__(self.job.statistic.load(sums["arrays"]))
        self.job.dropped += sums["dropped"]
        self._failed_fetches = 0
        self.workers.release(part.future)

    def _pending(self) -> int:
        """Rows that workers have summed and that are not here yet."""
        inputs = (part for task in self.running.values() for part in task.inputs)
        return sum(part.rows for part in (*self._all_held(), *inputs)) + self.rows_in_progress()
