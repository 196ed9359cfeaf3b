"""A route leads from everything that is fixed to weights: which passes, which sums, which solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic
from typing import Any

from streamrf.data.source import Source
from streamrf.models.prepared import Prepared
from streamrf.recipe import Recipe
from streamrf.solvers.passes import Passes
from streamrf.solvers.plan import Plan
from streamrf.solvers.ridge import Weights
from streamrf.statistics.calibration import Calibration
from streamrf.statistics.gram import GramState
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads


@dataclass
class Run:
    """What every route works with."""

    asked: Recipe  # with its autos
    prepared: Prepared
    plan: Plan
    passes: Passes
    threads: Threads
    reporter: Reporter
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        return self.passes.source

    @property
    def shard_starts(self) -> tuple[int, ...]:
        """The row at which each shard begins."""
        return tuple(accumulate((member.n_rows for member in self.source.members()), initial=0))[:-1]

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = monotonic()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + monotonic() - start


@dataclass
class Fitted:
    """What a route arrives at; ``gram`` are the sums of all rows, where there are any worth keeping."""

    weights: Weights
    rows: int
    digest: str  # SHA-256 of the exact sums: equal digests mean equal bits
    calibration: Calibration | None = None
    gram: GramState | None = None
    story: dict[str, Any] = field(default_factory=dict)


class Route(ABC):
    """One way to fit."""

    def __init__(self, run: Run) -> None:
        self.run, self.prepared, self.passes = run, run.prepared, run.passes
        self.threads, self.reporter = run.threads, run.reporter

    @abstractmethod
    def fit(self) -> Fitted:
        """Pass over the rows and solve; with ``passes.kept``, go on from there."""
