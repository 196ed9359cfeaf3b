"""A simulated cluster: the code of a real pass gives tasks to workers that exist in a table, on a clock of its own."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Span
from streamrf.engines.base import Pass, unwatched
from streamrf.engines.cluster.engine import ADDING_RATE, GROUP_SECONDS, SHARES
from streamrf.engines.cluster.groups import Groups, units_of
from streamrf.engines.cluster.passes import Limits, Summing
from streamrf.engines.cluster.tasks import RowsToRead, Sums
from streamrf.engines.cluster.workers import Task, WorkerInfo, pause_for
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.gram_kernels import Layout
from streamrf.support.threads import Threads

NETWORKS = {"1 Gbit/s": 0.125e9, "10 Gbit/s": 1.25e9}
NETWORK = "10 Gbit/s"
SPAN_ROWS = 65_536
SPREAD = 0.1  # deviation of log speed among workers
STRAGGLERS, SLOWDOWN = 0.02, 3.0  # share of workers that are slower than that, and how many times


def state_bytes(D: int) -> int:
    return 8 * Layout(D + 6).length


@dataclass
class Costs:
    """Seconds of everything there is to do."""

    row: float  # map and product of a row
    add: float  # one state to another
    move: float  # a state, from worker to worker
    latency: float  # from giving a task to knowing that it is done, if it takes no time
    task: float  # of the driver and the scheduler, who do one thing at a time
    state: int  # bytes
    pauses: bool = False  # whether the driver sees to what is finished only now and then

    @classmethod
    def at(cls, constants: dict[str, Any], D: int, network: str = NETWORK) -> Costs:
        linear, quadratic = constants["row_model"]
        state, latency = state_bytes(D), constants["latency"]
        move = latency + state / min(constants["moving"], NETWORKS[network])
        row = linear * D + quadratic * D * D
        return cls(row, state / constants["adding"], move, latency, constants["task"], state, pauses=True)


class Nothing(State):
    """A sum that takes no memory: only its cost is of interest."""

    def __iadd__(self, other: State) -> Nothing:
        return self

    __isub__ = __iadd__

    def arrays(self) -> dict[str, np.ndarray]:
        return {}


class NoStatistic(Statistic[Nothing]):
    def zero(self) -> Nothing:
        return Nothing()

    def update(self, state: Nothing, block: Block, threads: Threads) -> None:
        """Never called."""

    def load(self, arrays: dict[str, np.ndarray]) -> Nothing:
        return Nothing()


class SimulatedTask(Task):
    """A task that needs ``seconds`` of a worker with a speed of one; ``moving`` more of another, which has not what it
    adds to."""

    def __init__(self, number: int, seconds: float, rank: int = 0, moving: float = 0.0) -> None:
        super().__init__(number, self)  # type: ignore[arg-type]
        self.status = "finished"  # as a future of Dask that nobody loses
        self.seconds, self.rank, self.moving = seconds, rank, moving

    def failure(self) -> None:
        return None


class SimulatedFetch(Future[Sums]):
    """A sum on its way to the driver."""


class SimulatedWorkers:
    """Workers whose tasks take as long as the costs say, on a clock that jumps to the next event.

    As with Dask, a worker has one task and the next one in its queue, and one that is free takes what waits.
    """

    def __init__(self, costs: Costs, speeds: np.ndarray) -> None:
        self.costs = costs
        self.speeds = {f"w{i}": float(speed) for i, speed in enumerate(speeds)}
        self.alive = {home: WorkerInfo(home, 1, None, 0, False) for home in self.speeds}
        self.memory_limit: int | None = None
        self.clock = self.summed_at = 0.0
        self.rows = self.merges = 0
        self._idle = dict.fromkeys(self.speeds)  # in the order in which they became free
        self._sums: deque[SimulatedTask] = deque()
        self._adds: dict[str, deque[SimulatedTask]] = {home: deque() for home in self.speeds}
        self._queues: dict[int, deque[SimulatedTask]] = {}  # that tasks wait in, by number
        self._running: dict[int, str] = {}
        self._events: list[tuple[float, int, SimulatedTask | SimulatedFetch]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return self.clock

    def refresh(self) -> bool:
        """Everybody is always there: one look is enough."""
        return self.clock == 0

    def submit(self, function: Any, calls: list[tuple[Any, ...]], name: str = "", rank: int = 0) -> list[SimulatedTask]:
        self.clock += self.costs.task * len(calls)
        found = [self._submitted(rows, inputs, rank) for rows, _, inputs in calls]
        self._start()
        return found

    def _submitted(self, rows: RowsToRead, inputs: list[SimulatedTask], rank: int) -> SimulatedTask:
        self.merges += rank > 1
        seconds = sum(map(len, rows.spans)) * self.costs.row + (len(inputs) - (rank > 1)) * self.costs.add
        queue = self._sums
        if inputs:  # as Dask does, where all sums are as large
            home = min((part.home for part in inputs), key=self._load)
            seconds += sum(self.costs.move for part in inputs if part.home != home)
            queue = self._adds[home]
        task = SimulatedTask(next(self._numbers), seconds, rank, len(inputs) * self.costs.move)
        queue.appendleft(task) if rank > 1 else queue.append(task)
        self._queues[task.number] = queue
        return task

    def _load(self, home: str) -> int:
        return len(self._adds[home]) + (home not in self._idle)

    def _start(self) -> None:
        """Free workers take what adds to a sum of theirs, else the next group, else one that another is to do."""
        others = (queue for queue in self._adds.values() if queue and queue[-1].rank == 1)
        for home in list(self._idle):
            task = None
            if queue := self._adds[home] or self._sums:
                task = queue.popleft()
            elif queue := next(others, None):  # work stealing
                task = queue.pop()
                task.seconds += task.moving
            if task:
                del self._idle[home]
                self._run(home, task)

    def _run(self, home: str, future: SimulatedTask) -> None:
        del self._queues[future.number]
        future.home, future.started = home, self.clock
        future.seconds = self.costs.latency + future.seconds / self.speeds[home]
        self._running[future.number] = home
        self._ends(future.seconds, future.number, future)

    def _ends(self, seconds: float, number: int, event: SimulatedTask | SimulatedFetch) -> None:
        heapq.heappush(self._events, (self.clock + seconds, number, event))

    def fetch(self, future: SimulatedTask) -> SimulatedFetch:
        fetch = SimulatedFetch()
        self._ends(self.costs.move, next(self._numbers), fetch)
        return fetch

    def finished(self, seconds: float) -> list[SimulatedTask]:
        """What has come to an end, or, unless there is no time to wait, the next thing that does and all that follows
        in the pause of the real loop.

        While workers are free it may be wanted to do something else: then a second is all that passes.
        """
        tasks: list[SimulatedTask] = []
        if seconds and self._idle and self._events and self._events[0][0] > self.clock + 1:
            self.clock += 1
            return []
        if seconds and self._events:
            pause = pause_for(len(self.alive)) if self.costs.pauses else 0.0
            self.clock = max(self.clock, self._events[0][0]) + pause
        while self._events and self._events[0][0] <= self.clock:
            end, number, task = heapq.heappop(self._events)
            if isinstance(task, SimulatedFetch):
                task.set_result({"arrays": {}, "dropped": 0})
                continue
            if number not in self._running:
                continue  # it was given up
            tasks.append(task)
            self._idle[self._running.pop(number)] = None
            if task.groups:
                self.rows, self.summed_at = self.rows + task.rows, end
        self._start()
        return tasks

    def release(self, future: SimulatedTask) -> None:
        """A task that is given up leaves its worker; a result is not kept anyway."""
        if future.number in self._running:
            self._idle[self._running.pop(future.number)] = None
        elif future.number in self._queues:
            self._queues.pop(future.number).remove(future)


def simulate(costs: Costs, rows: int, speeds: np.ndarray) -> dict[str, float]:
    """Seconds of a pass, of its end when only merges are left, and of a pass without any overhead."""
    workers = SimulatedWorkers(costs, speeds)
    unit = max(1, min(SPAN_ROWS, rows // (SHARES * len(speeds))))
    spans = [Span(start, min(start + unit, rows)) for start in range(0, rows, unit)]
    job = Pass.start(NoStatistic(), ArraySource(np.broadcast_to(np.float32(0), (rows, 1))))
    seconds = max(GROUP_SECONDS, 50 * costs.state / ADDING_RATE)
    limits = Limits(seconds, lambda span: len(span) <= SPAN_ROWS)
    Summing(job, workers, Groups(units_of(spans)), limits).run(unwatched)  # type: ignore[arg-type]
    assert workers.rows == rows == job.done.count
    ideal = rows * costs.row / sum(workers.speeds.values())
    return {"seconds": workers.clock, "merging": workers.clock - workers.summed_at, "ideal": ideal}


def speeds_of(workers: int, seed: int = 0) -> np.ndarray:
    """Unequal speeds with a mean of one: all vary a little, a few are stragglers."""
    rng = np.random.default_rng(seed)
    speeds = np.exp(rng.normal(0, SPREAD, workers))
    speeds[rng.random(workers) < STRAGGLERS] /= SLOWDOWN
    return speeds * workers / speeds.sum()


def even_shares(costs: Costs, rows: int, speeds: np.ndarray) -> float:
    """Seconds of a pass where every worker gets the same rows and the slowest is waited for."""
    return rows / len(speeds) * costs.row / float(speeds.min())


def merging_seconds(costs: Costs, workers: int) -> float:
    """Of a tree over equal workers that all finish at once, and of fetching its root."""
    levels = math.ceil(math.log2(workers))
    return levels * (costs.latency + costs.move + costs.add) + costs.latency + costs.move


def least_rows(costs: Costs, workers: int) -> float:
    """Rows for each worker below which merging takes longer than summing."""
    return merging_seconds(costs, workers) / costs.row


def dominated(constants: dict[str, Any], rows: int, workers: int, network: str = NETWORK) -> int | None:
    """The D from which on summing so many rows on each worker takes longer than merging; None if no D is enough."""
    sizes = map(int, np.round(np.logspace(1, 5, 400)))
    return next((D for D in sizes if least_rows(Costs.at(constants, D, network), workers) <= rows), None)
