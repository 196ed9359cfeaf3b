"""The one verb of an engine: sum a Statistic over the rows of a Source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from streamrf.data.source import Source
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.rowset import RowSet

S = TypeVar("S", bound=State)


@dataclass
class Pass(Generic[S]):
    """One pass over a source: what to sum, what has been summed so far, and which rows are in it."""

    statistic: Statistic[S]
    source: Source
    state: S
    done: RowSet = field(default_factory=RowSet)
    dropped: int = 0
    nan: str = "error"
    span_rows: int = 65_536  # rows read at a time, where chunks are smaller
    span_bytes: int = 256 * 2**20
    pending: int = 0  # rows summed elsewhere that are not in ``state`` yet
    arrived: bool = False  # whether such rows have just come in
    collect: bool = False  # a watcher asks for them to come in, soon
    stop: bool = False  # and for nothing new to be begun
    whole: bool = False  # whether ``state`` is that of the rows in ``done``, and not in the middle of a block

    @classmethod
    def start(cls, statistic: Statistic[S], source: Source, **settings: Any) -> Pass[S]:
        return cls(statistic, source, statistic.zero(), **settings)

    def ask(self, *, stop: bool) -> None:
        """A watcher needs the rows that are summed elsewhere: to save them, or to stop for good."""
        self.collect, self.stop = True, stop

    @property
    def rows_left(self) -> int:
        return self.source.n_rows - self.done.count


Watcher = Callable[[Pass[Any]], None]  # called after every block; may save, show, or raise to stop


def unwatched(_: Pass[Any]) -> None:
    """A watcher that looks away."""


class Engine(ABC):
    """Where the summing happens."""

    def needs(self, reserved: int, parts: dict[str, int]) -> Any:
        """What other processes will need for a pass of these parts; None where there are no others."""
        return None

    def everywhere(self, work: Callable[[], object]) -> None:
        """Call this once in every process that sums."""
        work()

    @abstractmethod
    def run(self, job: Pass[S], watch: Watcher = unwatched) -> S:
        """Sum all rows of ``job`` that are not done yet; the state, complete."""
