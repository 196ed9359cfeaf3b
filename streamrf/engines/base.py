"""The one verb of an engine: sum a Statistic over the rows of a Source.

After every block the engine calls a watcher and does what it returns: continue, collect or stop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Generic

from streamrf.data.source import Source
from streamrf.statistics.base import S, Statistic
from streamrf.statistics.rowset import RowSet
from streamrf.support import memory
from streamrf.support.errors import BudgetError
from streamrf.support.progress import Reporter
from streamrf.support.units import format_bytes

Order = Callable[[int], Iterable[int]]  # a permutation of so many units of work

SPAN_ROWS, SPAN_BYTES = 65_536, 256 * 2**20  # read at a time, where chunks are smaller

# The states alive on a worker at its worst, at a checkpoint: two that it adds and their sum, one of them fetched from
# elsewhere, and two newer ones that are added next.
STATES = 5
PAUSED_AT = 0.8  # share of its memory limit at which Dask gives a worker no more work
SLACK = 1.08


@dataclass
class Pass(Generic[S]):
    """One pass over a source. Between two blocks ``state`` is the sum of exactly the rows in ``done``."""

    statistic: Statistic[S]
    source: Source
    state: S
    done: RowSet = field(default_factory=RowSet)
    dropped: int = 0
    nan: str = "error"
    span_rows: int = SPAN_ROWS
    span_bytes: int = SPAN_BYTES
    is_only: bool = False  # whether no other pass will read these rows

    @classmethod
    def start(
        cls, statistic: Statistic[S], source: Source, *, nan: str = "error", span_rows: int = SPAN_ROWS,
        span_bytes: int = SPAN_BYTES,
    ) -> Pass[S]:  # fmt: skip
        return cls(statistic, source, statistic.zero(), nan=nan, span_rows=span_rows, span_bytes=span_bytes)

    def reset(self) -> None:
        """Start again. After a failed update ``state`` may hold part of a block, so it is the sum of no known rows."""
        self.state, self.done, self.dropped = self.statistic.zero(), RowSet(), 0

    @property
    def rows_left(self) -> int:
        return self.source.n_rows - self.done.count


class Next(Enum):
    """What a watcher wants the engine to do next."""

    CONTINUE = "continue"
    COLLECT = "collect"  # bring in soon what other processes have summed, and continue
    STOP = "stop"  # begin nothing new, bring in what is summed, and return


# Called between blocks with the pass and the rows that other processes have summed but ``state`` does not hold yet.
# It may save and show; it may also raise, which ends the pass at once.
Watcher = Callable[[Pass[S], int], Next]


def unwatched(job: Pass[S], pending: int) -> Next:
    """A watcher that does nothing."""
    return Next.CONTINUE


def showing(reporter: Reporter) -> Watcher[S]:
    """A watcher that only reports how many rows are summed."""

    def watch(job: Pass[S], pending: int) -> Next:
        reporter.advanced(job.done.count + pending, None)
        return Next.CONTINUE

    return watch


class Engine(ABC):
    """Where the summing happens."""

    def needs(self, parts: dict[str, int]) -> WorkerNeeds | None:
        """Memory that other processes need for a pass with these parts; None where there are no others."""
        return None

    def kept(self, data: Any) -> Any:
        """Data that is read several times, as this engine reads it best."""
        return data

    def everywhere(self, work: Callable[[], object]) -> None:
        """Call this once in every process that sums."""
        work()

    @abstractmethod
    def run(self, job: Pass[S], watch: Watcher[S] = unwatched) -> S:
        """Sum the rows of ``job`` that are not done yet. All of them are done at the end, unless a watcher said stop.

        Rows that cannot be read raise an error, after everything that was summed so far is in ``job.state``.
        """


@dataclass(frozen=True)
class WorkerNeeds:
    """Memory of each worker of a cluster, from sizes alone, and the limit of the smallest."""

    workers: int
    states: int
    state_bytes: int
    projected: int
    limit: int | None

    @classmethod
    def of(cls, parts: dict[str, int], limits: Sequence[int | None]) -> WorkerNeeds:
        """From a plan's parts, and the memory limits of the workers. What this process holds says nothing of them."""
        reserved = memory.LIBRARIES + memory.COMPILED
        state = max(parts["statistics"] + parts["hold-out rows"], parts.get("totals", 0))  # of any pass
        projected = reserved + int(SLACK * (STATES * state + parts["block"] + parts["reading"]))
        known = [limit for limit in limits if limit]
        return cls(len(limits), STATES, state, projected, min(known, default=None))

    def describe(self) -> str:
        limit = "no limit is known" if self.limit is None else f"the smallest has {format_bytes(self.limit)}"
        return (
            f"on each of {self.workers} workers: projected memory {format_bytes(self.projected)} with up to"
            f" {self.states} states of {format_bytes(self.state_bytes)} alive at once; {limit}"
        )

    def check(self) -> None:
        """Refuse now what Dask would stop later."""
        if self.limit is not None and self.projected > PAUSED_AT * self.limit:
            raise BudgetError(
                f"each worker is projected to need {format_bytes(self.projected)} ({self.states} states of"
                f" {format_bytes(self.state_bytes)} and what reading takes), but the smallest has a limit of"
                f" {format_bytes(self.limit)}, of which {PAUSED_AT:.0%} can be used: give the workers more memory,"
                " start fewer on a machine, or lower `D`"
            )

    def to_json(self) -> dict[str, int | None]:
        return asdict(self)
