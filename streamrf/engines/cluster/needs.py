"""What each worker of a cluster will hold at its worst. Arithmetic on sizes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streamrf.support.errors import BudgetError
from streamrf.support.units import format_bytes

# One sum a worker works on and the one it started from; at a checkpoint, while two more meet, both and their sum.
STATES = 4
PAUSED_AT = 0.8  # of its memory limit: there Dask gives a worker no more work
SLACK = 1.08


@dataclass(frozen=True)
class WorkerNeeds:
    """Memory of one worker, beside what the smallest of them has."""

    workers: int
    states: int
    state_bytes: int
    projected: int
    limit: int | None

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
                " start fewer on a machine, or lower --D"
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def worker_needs(reserved: int, parts: dict[str, int], limits: Sequence[int | None]) -> WorkerNeeds:
    """From a plan's parts, and the memory limits of the workers."""
    state = parts["statistics"] + parts["hold-out rows"]
    projected = reserved + int(SLACK * (STATES * state + parts["block"] + parts["reading"]))
    known = [limit for limit in limits if limit]
    return WorkerNeeds(len(limits), STATES, state, projected, min(known, default=None))
