"""The bookkeeping of a pass on many workers, against a made-up cluster: workers die, pause, leave and come back."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from cluster_tools import Counts
from distributed import KilledWorker
from hypothesis import given
from hypothesis import strategies as st

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Span, joined_spans
from streamrf.engines.base import STATES, Next, Pass, unwatched
from streamrf.engines.cluster import passes
from streamrf.engines.cluster.groups import Groups, rows_of, units_of
from streamrf.engines.cluster.passes import Limits, Summing
from streamrf.engines.cluster.tasks import ROOM, RowsToRead, TaskCancelled
from streamrf.engines.cluster.workers import Task, WorkerInfo
from streamrf.statistics.rowset import RowSet
from streamrf.support.errors import BudgetError, ClusterError, DataError

ROWS = 300


class MadeUpTask(Task):
    def __init__(self, number: int, task: tuple[Any, ...]) -> None:
        super().__init__(number, self)
        self.task, self.gone, self.error, self.seconds = task, False, None, 1.0

    @property
    def is_lost(self) -> bool:
        return self.gone or any(part.is_lost for part in self.inputs)

    def failure(self) -> Any:
        return self.error


class MadeUpFetch(Future[Any]):
    """A sum on its way to the driver, for some steps; what was lost meanwhile never comes."""

    def __init__(self, task: MadeUpTask, steps: int) -> None:
        super().__init__()
        self.task, self.steps = task, steps


class MadeUpWorkers:
    """Workers with queues, as Dask has them: each step may take or bring a worker, start tasks and end some."""

    def __init__(self, rng: np.random.Generator, workers: int, trouble: float) -> None:
        self.rng, self.trouble = rng, trouble
        self.open: list[MadeUpTask] = []
        self.queue: dict[int, str] = {}  # the worker that each open task was given to
        self.store: dict[int, tuple[str, Any]] = {}  # results by future, and who holds them
        self.futures: dict[int, MadeUpTask] = {}
        self.fetches: list[MadeUpFetch] = []
        self.numbers = itertools.count()
        self.alive: dict[str, WorkerInfo] = {}
        self.memory_limit = None
        self.time = 0.0
        self.most_states = 0
        for _ in range(workers):
            self.join()

    def now(self) -> float:
        return self.time

    def join(self) -> None:
        address = f"w{next(self.numbers)}"
        self.alive[address] = WorkerInfo(address, 1, None, 0, False)

    def submit(self, function: Any, calls: list[Any], name: str = "", rank: int = 0) -> list[MadeUpTask]:
        return [self._open(function, *args) for args in calls]

    def fetch(self, future: MadeUpTask) -> MadeUpFetch:
        self.fetches.append(MadeUpFetch(future, int(self.rng.integers(1, 4))))
        return self.fetches[-1]

    def _open(self, *task: Any) -> MadeUpTask:
        future = MadeUpTask(next(self.numbers), task)
        self.open.append(future)
        self.futures[future.number] = future
        self._give(future)
        return future

    def _give(self, future: MadeUpTask) -> None:
        """To a worker that holds one of its inputs, else to the one with the shortest queue."""
        ready = [home for home, worker in self.alive.items() if not worker.paused] or ["nobody"]
        holders = [self.store[arg.number][0] for arg in inputs_of(future) if arg.number in self.store]
        shortest = sorted(self.rng.permutation(ready), key=list(self.queue.values()).count)
        future.home = None
        self.queue[future.number] = str(([home for home in holders if home in ready] or shortest)[0])

    def release(self, future: MadeUpTask) -> None:
        self.open = [other for other in self.open if other is not future]
        self.queue.pop(future.number, None)
        self.store.pop(future.number, None)

    def refresh(self) -> bool:
        if self.rng.random() < self.trouble:
            self.rng.choice([self.kill, self.leave, self.pause, self.join])()
        if not any(not worker.paused for worker in self.alive.values()):
            self.join()
        for future in self.open:
            if self.queue[future.number] not in self.alive:
                self._give(future)
        return True

    def anyone(self) -> str:
        return str(self.rng.choice(list(self.alive)))

    def kill(self) -> None:
        """Gone with all it held; what it was to do goes to others."""
        self._forget(self.anyone())

    def _forget(self, home: str) -> None:
        del self.alive[home]
        for number, (holder, _) in list(self.store.items()):
            if holder == home:
                self.futures[number].gone = True
                del self.store[number]

    def leave(self) -> None:
        """In good order: results go to another worker first."""
        home = self.anyone()
        if len(self.alive) > 1:
            heir = next(other for other in self.alive if other != home)
            self.store = {n: (heir if kept[0] == home else kept[0], kept[1]) for n, kept in self.store.items()}
            self._forget(home)

    def pause(self) -> None:
        home = self.anyone()
        self.alive[home] = WorkerInfo(home, 1, None, 0, not self.alive[home].paused)

    def finished(self, seconds: float) -> list[MadeUpTask]:
        """Some tasks that have started come to an end, then free workers start what is first in their queue."""
        self.time += 0.5
        ready = [future for future in self.open if future.home and self._can(future)]
        some = [ready[i] for i in self.rng.permutation(len(ready))[: self.rng.integers(1, 4)]]
        for future in some:
            self.open.remove(future)
            del self.queue[future.number]
            self._do(future)
        for fetch in self.fetches:
            self._bring(fetch)
        self._start()
        return some

    def _bring(self, fetch: MadeUpFetch) -> None:
        fetch.steps -= 1
        if fetch.steps <= 0 and fetch.task.number in self.store and not fetch.done():
            fetch.set_result(self.store[fetch.task.number][1])

    def _start(self) -> None:
        busy = {future.home for future in self.open if future.home}
        for future in sorted(self.open, key=lambda future: (not inputs_of(future), future.number)):
            home = self.queue[future.number]
            free = home not in busy and self._takes(home) and self._has_room(home, future)
            if future.home is None and free and self._can(future):
                future.home, future.started = home, self.time
                busy.add(home)
                self._count_states(home, 1 + len(inputs_of(future)))

    def _has_room(self, home: str, future: MadeUpTask) -> bool:
        """What a task looks at before it starts."""
        held = [number for number, (holder, _) in self.store.items() if holder == home]
        copies = {arg.number for arg in inputs_of(future)} - set(held)
        return len(held) + len(copies) <= (STATES - 1 if inputs_of(future) else ROOM)

    def _takes(self, home: str) -> bool:
        return home in self.alive and not self.alive[home].paused

    def _can(self, future: MadeUpTask) -> bool:
        """A task waits for its inputs, for ever if they are lost."""
        return all(arg.number in self.store for arg in inputs_of(future))

    def _count_states(self, home: str, more: int) -> None:
        """With those of a task that starts: its sum, and inputs that come from elsewhere."""
        held = [holder for holder, _ in self.store.values()].count(home)
        own = sum(self.store[arg.number][0] == home for f in self.open if f.home == home for arg in inputs_of(f))
        self.most_states = max(self.most_states, held + more - own)

    def _do(self, future: MadeUpTask) -> None:
        if self.rng.random() < self.trouble / 10:
            future.error = TaskCancelled()
        else:
            previous = [self.store[part.number][1] for part in inputs_of(future)]
            self.store[future.number] = str(future.home), made_up(future.task[1], previous)


def inputs_of(future: MadeUpTask) -> list[MadeUpTask]:
    return future.task[3]


def made_up(rows: RowsToRead, previous: list[Any]) -> dict[str, Any]:
    """What the real tasks compute, without data."""
    counts = sum((part["arrays"]["counts"] for part in previous), np.zeros(ROWS, np.int64))
    for start, stop in rows.spans:
        counts[start:stop] += 1
    return {"arrays": {"counts": counts}, "dropped": 0}


def make_summing(workers: Any, rng: np.random.Generator, done: RowSet | None = None) -> tuple[Pass[Any], Summing[Any]]:
    job = Pass.start(Counts(ROWS), ArraySource(np.zeros((ROWS, 1)), np.zeros(ROWS)))
    job.done = done or RowSet()
    left = job.done.complement(ROWS).spans()
    spans = [Span(i, min(i + 7, span.stop)) for span in left for i in range(span.start, span.stop, 7)]
    groups = Groups(units_of(spans), rng.permutation)
    return job, Summing(job, workers, groups, Limits(1.0, lambda span: len(span) < 20))


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_counted_once_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where sums meet in threes, as those of many workers do."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(passes, "FEW", int(rng.choice([0, 100])))
    workers = MadeUpWorkers(rng, workers=int(rng.integers(1, 7)), trouble=float(rng.choice([0.0, 0.05, 0.3])))
    job, summing = make_summing(workers, rng)
    collects = float(rng.choice([0.0, 0.1, 1.0]))

    pendings = []

    def watch(job: Pass[Any], pending: int) -> Next:
        pendings.append(pending)
        assert set(job.state.counts.tolist()) <= {0, 1}
        assert (np.flatnonzero(job.state.counts) == [row for row in range(ROWS) if row in job.done]).all()
        return Next.COLLECT if rng.random() < collects else Next.CONTINUE

    state = summing.run(watch)
    assert (state.counts == 1).all()
    assert job.done == RowSet([(0, ROWS)])
    assert pendings[-1] == 0


@pytest.mark.parametrize("seed", range(12))
def test_a_stop_brings_in_what_is_finished_and_a_second_run_does_the_rest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workers = MadeUpWorkers(rng, workers=3, trouble=0.1)
    job, summing = make_summing(workers, rng)
    steps = itertools.count()

    def stop_soon(job: Pass[Any], pending: int) -> Next:
        return Next.STOP if next(steps) > 6 else Next.CONTINUE

    summing.run(stop_soon)
    assert not summing.parts()
    first = job.state.counts.copy()
    assert first.sum() == job.done.count < ROWS
    again, rest = make_summing(MadeUpWorkers(rng, workers=2, trouble=0.1), rng, job.done.copy())
    assert (rest.run(unwatched).counts + first == 1).all()
    assert again.done == RowSet([(0, ROWS)])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("few", [0, 100])
def test_states_on_a_worker_are_bounded(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums it holds, those that a task there adds or makes, and copies of those that it fetches for that."""
    monkeypatch.setattr(passes, "FEW", few)
    rng = np.random.default_rng(seed)
    workers = MadeUpWorkers(rng, workers=5, trouble=0.0)
    job, summing = make_summing(workers, rng)
    summing.run(lambda job, pending: Next.COLLECT if rng.random() < 0.3 else Next.CONTINUE)
    assert (job.state.counts == 1).all()
    assert 3 <= workers.most_states <= STATES


@pytest.mark.parametrize("paused", [1, 2, 3])
def test_what_paused_workers_were_given_and_hold_goes_to_the_others(paused: int) -> None:
    """They stay paused for ever: what they were to do is done, and what they have is added, elsewhere."""
    rng = np.random.default_rng(paused)
    workers = MadeUpWorkers(rng, workers=paused, trouble=0.0)
    first = list(workers.alive)
    _, summing = make_summing(workers, rng)
    steps = itertools.count()

    def watch(job: Pass[Any], pending: int) -> Next:
        step = next(steps)
        assert step < 2000, "nothing moves"
        if step == 10:
            workers.alive |= {home: WorkerInfo(home, 1, None, 0, True) for home in first}
            workers.join()
        return Next.CONTINUE

    assert (summing.run(watch).counts == 1).all()


def test_an_error_on_a_worker_ends_the_run_as_it_is() -> None:
    workers = MadeUpWorkers(np.random.default_rng(0), workers=2, trouble=0.0)
    _, summing = make_summing(workers, np.random.default_rng(0))

    def fail(future: Any) -> None:
        future.error = DataError("a NaN")

    workers._do = fail  # type: ignore[method-assign]
    with pytest.raises(DataError, match="a NaN"):
        summing.run(unwatched)


@pytest.mark.parametrize("seed", range(40))
def test_rows_that_cannot_be_read_end_the_run_with_all_else_brought_in(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workers = MadeUpWorkers(rng, workers=int(rng.integers(1, 5)), trouble=float(rng.choice([0.0, 0.1])))
    job, summing = make_summing(workers, rng)
    do, bad, steps = workers._do, int(rng.integers(ROWS)), itertools.count()

    def read(future: Any) -> None:
        rows = future.task[1].spans
        if any(start <= bad < stop for start, stop in rows):
            future.error = DataError("a NaN")
        else:
            do(future)

    def watch(job: Pass[Any], pending: int) -> Next:
        assert next(steps) < 3000, "nothing moves"
        return Next.COLLECT if rng.random() < 0.2 else Next.CONTINUE

    workers._do = read  # type: ignore[method-assign]
    with pytest.raises(DataError, match="a NaN"):
        summing.run(watch)
    assert bad not in job.done
    assert (np.flatnonzero(job.state.counts) == [row for row in range(ROWS) if row in job.done]).all()
    assert not summing.parts()


def test_rows_over_which_workers_keep_dying_are_named() -> None:
    workers = MadeUpWorkers(np.random.default_rng(0), workers=1, trouble=0.0)
    _, summing = make_summing(workers, np.random.default_rng(0))

    def fail(future: Any) -> None:
        future.error = KilledWorker("a task", None, 3)

    workers._do = fail  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match=r"workers were lost.*over rows .*more memory.*lower `D`"):
        summing.run(unwatched)


@pytest.mark.parametrize(
    ("paused", "error", "words"), [(True, BudgetError, "paused"), (False, ClusterError, "no worker")]
)
def test_without_workers_it_gives_up_in_the_end(paused: bool, error: type, words: str) -> None:
    workers = MadeUpWorkers(np.random.default_rng(0), workers=0, trouble=0.0)
    workers.refresh = lambda: True  # type: ignore[method-assign]
    if paused:
        workers.alive = {"w": WorkerInfo("w", 1, 10**9, 0, True)}
    _, summing = make_summing(workers, np.random.default_rng(0))
    summing.limits = replace(summing.limits, patience=0.0)
    with pytest.raises(error, match=words):
        summing.run(unwatched)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.lists(st.tuples(st.floats(0, 200), st.booleans()), max_size=20),
)
def test_groups_hold_every_row_once(lengths: list[int], takes: list[tuple[float, bool]]) -> None:
    edges = [0, *itertools.accumulate(lengths)]
    groups = Groups(units_of(itertools.starmap(Span, itertools.pairwise(edges))))
    taken = []
    for size, comes_back in [*takes, *[(10.0, False)] * 40]:
        if not groups:
            break
        group = groups.take(size)
        if comes_back:
            groups.put_back([group])
        else:
            taken.append(group)
    assert all(rows_of(group) <= max(*lengths, 200) for group in taken)
    assert RowSet(chain.from_iterable(taken)) == RowSet([(0, edges[-1])])
    assert groups.rows == 0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 60))
def test_units_for_an_output_never_share_a_chunk(lengths: list[int], step: int) -> None:
    edges = [0, *itertools.accumulate(lengths)]
    units = units_of(itertools.starmap(Span, itertools.pairwise(edges)), step)
    assert [span.start // step for unit in units for span in unit] == sorted(
        number for number, unit in enumerate(units) for _ in unit
    )
    assert RowSet(span for unit in units for span in unit) == RowSet([(0, edges[-1])])
    assert all((unit[-1].stop - 1) // step == unit[0].start // step for unit in units)


def sizes(workers: int, seconds: float, rows: int, lefts: list[int]) -> list[float]:
    """Rows of the next group where so many are left, after groups that took so long together."""
    cluster = MadeUpWorkers(np.random.default_rng(0), workers, trouble=0.0)
    _, summing = make_summing(cluster, np.random.default_rng(0))
    summing.limits = replace(summing.limits, seconds=10.0)
    summing._check_workers()
    summing._rows_timed, summing._seconds_timed = rows, seconds
    return [summing._group_rows(left) for left in lefts]


def test_groups_shrink_towards_the_end_and_follow_the_typical_speed() -> None:
    assert sizes(2, 0.0, 0, [10**6]) == [0]  # not known yet: one unit
    assert sizes(2, 2.0, 4000, [10**9, 8000]) == [20_000, 1000]


def test_groups_do_not_shrink_so_far_that_the_driver_is_always_busy() -> None:
    least = 500 * passes.LEAST_SECONDS * 100  # rows that a worker does meanwhile
    assert sizes(500, 1.0, 100, [10**6, 400_000, 150_000]) == pytest.approx([500, 200, least])
    (few,) = sizes(500, 1.0, 100, [20_000])  # a worker's share of these is 40
    assert few / 100 == pytest.approx(20_000 / few * passes.LEAST_SECONDS)  # seconds of a worker, and of the driver


@pytest.mark.parametrize("fixed", [False, True])
def test_groups_of_an_output_go_out_again_as_they_were(fixed: bool) -> None:
    """Two workers that write a part must write the same rows."""
    groups = Groups(units_of(Span(i, i + 10) for i in range(0, 100, 10)), fixed=fixed)
    first = groups.take(50)
    groups.put_back([first])
    assert (groups.take(20) == first) is fixed


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50)), min_size=1, max_size=30), st.integers(1, 200))
def test_joined_spans_hold_the_same_rows_and_fit(gaps: list[tuple[int, int]], most: int) -> None:
    spans, end = [], 0
    for gap, length in gaps:
        spans.append(Span(end + gap, end + gap + length))
        end += gap + length
    found = list(joined_spans(spans, lambda span: len(span) <= most))
    assert [row for span in found for row in range(*span)] == [row for span in spans for row in range(*span)]
    assert all(len(span) <= max(most, max(map(len, spans))) for span in found)
    assert all(a.stop < b.start or b.stop - a.start > most for a, b in itertools.pairwise(found))


def test_an_addition_does_not_wait_for_a_sum_that_died_with_its_worker() -> None:
    """One death and no more trouble: whoever was adding that worker's sum would wait for it without end."""
    rng = np.random.default_rng(1)
    workers = MadeUpWorkers(rng, 12, 0.0)
    job, summing = make_summing(workers, rng)
    dead = None
    for _ in range(1500):
        homes = [part.home for task in summing.running.values() for part in task.inputs]
        if dead is None and len(set(homes)) > 1 and homes[0] in workers.alive:
            dead = homes[0]
            workers._forget(dead)
        if not (summing.groups or summing.parts()):
            break
        summing.advance()
    assert dead
    assert job.done.count == ROWS


def test_a_checkpoint_does_not_wait_for_the_last_group() -> None:
    """All groups are given out, and one of them takes as long as it likes: what is summed otherwise can be saved."""
    rng = np.random.default_rng(3)
    workers = MadeUpWorkers(rng, 2, 0.0)
    _, summing = make_summing(workers, rng)
    can, steps, saved = workers._can, itertools.count(), list[int]()

    def is_last(future: Any) -> bool:
        return any(span.stop == ROWS for span in future.task[1].spans)

    workers._can = lambda future: can(future) and (bool(saved) or not is_last(future))  # type: ignore[method-assign]

    def watch(job: Pass[Any], pending: int) -> Next:
        assert next(steps) < 1000, "nothing moves"
        if job.done.count and not saved:
            saved.append(job.done.count)
        return Next.CONTINUE if summing.groups else Next.COLLECT

    assert (summing.run(watch).counts == 1).all()
    assert 0 < saved[0] < ROWS


def test_a_group_on_a_much_slower_worker_is_done_by_another() -> None:
    """It would take it for ever; it is asked again only after longer and longer, so that slow rows get done as well."""
    rng = np.random.default_rng(2)
    workers = MadeUpWorkers(rng, 2, 0.0)
    _, summing = make_summing(workers, rng)
    slow, can = next(iter(workers.alive)), workers._can

    def is_stuck(future: Any) -> bool:
        return future.home == slow and bool(future.task[1].spans)

    workers._can = lambda future: can(future) and not is_stuck(future)  # type: ignore[method-assign]
    for step in itertools.count():
        assert step < 1000, "nothing moves"
        if not (summing.groups or summing.parts()):
            break
        summing.advance()
    assert summing.job.done.count == ROWS


def test_a_group_is_added_to_a_sum_in_the_same_task() -> None:
    """Additions by themselves are for sums of different workers: there are no more of them than there are sums left."""
    workers = MadeUpWorkers(np.random.default_rng(0), 3, 0.0)
    _, summing = make_summing(workers, np.random.default_rng(0))
    summing.run(unwatched)
    tasks = list(workers.futures.values())
    additions = [future for future in tasks if not future.task[1].spans]
    added = [future for future in tasks if future.task[1].spans and inputs_of(future)]
    assert len(tasks) > 30
    assert len(added) > 10
    assert len(additions) < 10


def test_a_stop_keeps_the_sums_that_groups_were_to_be_added_to() -> None:
    """The group is dropped, and what it was to be added to comes in."""
    workers = MadeUpWorkers(np.random.default_rng(0), 2, 0.0)
    job, summing = make_summing(workers, np.random.default_rng(0))
    inputs: list[Span] = []

    def stop_amid_an_addition(job: Pass[Any], pending: int) -> Next:
        for task in summing.running.values():
            if task.home and task.inputs and not inputs:
                inputs.extend(span for part in task.inputs for group in part.groups for span in group)
        return Next.STOP if inputs else Next.CONTINUE

    summing.run(stop_amid_an_addition)
    assert inputs
    assert all(row in job.done for span in inputs for row in range(*span))
    assert job.done.count < ROWS
