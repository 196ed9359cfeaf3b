"""A simulated cluster: the code of a real pass gives tasks to workers that exist in a table, on a clock of its own."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Span
from streamrf.engines.base import Pass, unwatched
from streamrf.engines.cluster.engine import ADDING_RATE, GROUP_SECONDS, SHARES
from streamrf.engines.cluster.groups import Groups, units_of
from streamrf.engines.cluster.passes import Limits, Summing
from streamrf.engines.cluster.tasks import RowsToRead, add_sums
from streamrf.engines.cluster.workers import WorkerInfo
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

    @classmethod
    def at(cls, constants: dict[str, Any], D: int, network: str = NETWORK) -> Costs:
        linear, quadratic = constants["row_model"]
        state, latency = state_bytes(D), constants["latency"]
        move = latency + state / min(constants["moving"], NETWORKS[network])
        row = linear * D + quadratic * D * D
        return cls(row, state / constants["adding"], move, latency, constants["task"], state)


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


class SimulatedFuture:
    def __init__(self, number: int, seconds: float) -> None:
        self.number, self.seconds, self.future = number, seconds, self
        self.home: str | None = None
        self.started, self.rows = 0.0, 0
        self.is_lost, self.value = False, {"arrays": {}, "dropped": 0}

    def failure(self) -> None:
        return None


class SimulatedWorkers:
    """Workers whose tasks take as long as the costs say, on a clock that jumps to the next event.

    As with Dask, a worker has one task and the next one in its queue, and one that is free takes what waits.
    """

    def __init__(self, costs: Costs, speeds: np.ndarray) -> None:
        self.costs = costs
        self.speeds = {f"w{i}": float(speed) for i, speed in enumerate(speeds)}
        self.alive = {home: WorkerInfo(home, 1, None, False) for home in self.speeds}
        self.memory_limit: int | None = None
        self.clock = self.summed_at = 0.0
        self.rows = self.merges = 0
        self._free = list(self.speeds)
        self._sums: deque[SimulatedFuture] = deque()
        self._adds: dict[str, deque[SimulatedFuture]] = {home: deque() for home in self.speeds}
        self._running: dict[int, str] = {}
        self._events: list[tuple[float, int, SimulatedFuture]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return self.clock

    def refresh(self) -> None:
        """Everybody is always there."""

    def submit(self, function: Any, *args: Any, first: bool = False) -> SimulatedFuture:
        self.clock += self.costs.task
        if function is add_sums:
            self.merges += 1
            home = args[0].home
            moved = sum(self.costs.move for part in args if part.home != home)
            future = SimulatedFuture(next(self._numbers), moved + self.costs.add)
            self._adds[home].append(future)
        else:
            rows = sum(stop - start for start, stop in args[0].spans)
            future = SimulatedFuture(next(self._numbers), rows * self.costs.row)
            future.rows = rows
            self._sums.append(future)
        self._start()
        return future

    def _start(self) -> None:
        """Free workers take an addition of theirs, else the next sum."""
        waiting = []
        for home in self._free:
            queue = self._adds[home] or self._sums
            if queue:
                self._run(home, queue.popleft())
            else:
                waiting.append(home)
        self._free = waiting

    def _run(self, home: str, future: SimulatedFuture) -> None:
        future.home, future.started = home, self.clock
        future.seconds = self.costs.latency + future.seconds / self.speeds[home]
        self._running[future.number] = home
        self._ends(future)

    def _ends(self, future: SimulatedFuture) -> None:
        heapq.heappush(self._events, (self.clock + future.seconds, future.number, future))

    def fetch(self, future: SimulatedFuture) -> SimulatedFuture:
        fetched = SimulatedFuture(next(self._numbers), self.costs.move)
        self._ends(fetched)
        return fetched

    def finished(self, seconds: float) -> list[SimulatedFuture]:
        """What has come to an end, or the next thing that does."""
        futures: list[SimulatedFuture] = []
        while self._events and (not futures or self._events[0][0] <= self.clock):
            end, number, future = heapq.heappop(self._events)
            if future.home and number not in self._running:
                continue  # it was given up
            self.clock = max(self.clock, end)
            futures.append(future)
            if future.home:
                self._free.append(self._running.pop(number))
            if future.rows:
                self.rows, self.summed_at = self.rows + future.rows, end
        self._start()
        return futures

    def release(self, future: SimulatedFuture) -> None:
        """A task that is given up leaves its worker; a result is not kept anyway."""
        if future.number in self._running:
            self._free.append(self._running.pop(future.number))
        elif future.home is None and future in self._sums:
            self._sums.remove(future)


def simulate(costs: Costs, rows: int, speeds: np.ndarray) -> dict[str, float]:
    """Seconds of a pass, of its end when only merges are left, and of a pass without any overhead."""
    workers = SimulatedWorkers(costs, speeds)
    unit = max(1, min(SPAN_ROWS, rows // (SHARES * len(speeds))))
    spans = [Span(start, min(start + unit, rows)) for start in range(0, rows, unit)]
    job = Pass.start(NoStatistic(), ArraySource(np.broadcast_to(np.float32(0), (rows, 1))))
    seconds = max(GROUP_SECONDS, 50 * costs.state / ADDING_RATE)
    limits, read = Limits(seconds, lambda span: len(span) <= SPAN_ROWS), RowsToRead("", "error")
    Summing(job, workers, Groups(units_of(spans)), read, limits).run(unwatched)  # type: ignore[arg-type]
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
