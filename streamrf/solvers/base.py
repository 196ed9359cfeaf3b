"""A solver leads from a pipeline to weights: which passes, which sums, what memory and time, and the fit itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from time import monotonic
from typing import Any, ClassVar

from streamrf.data.source import Block, Source
from streamrf.data.split import NONE_HELD, Split
from streamrf.features.pipeline import Pipeline
from streamrf.solvers.passes import Passes
from streamrf.solvers.plan import Plan, Sizes
from streamrf.solvers.settings import FOURIER, KNOWN, SolverSettings
from streamrf.statistics.gram import GramState
from streamrf.statistics.scores import Calibration, Weights
from streamrf.statistics.targets import Weighting
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads


@dataclass
class Run:
    """What every solver works with."""

    asked: SolverSettings  # with its autos
    recipe: SolverSettings  # settled
    pipeline: Pipeline
    plan: Plan
    passes: Passes
    threads: Threads
    reporter: Reporter
    seconds: dict[str, float] = field(default_factory=dict)
    split: Split = NONE_HELD  # which rows choose and which judge
    weighting: Weighting = field(default_factory=Weighting)
    stacked: bool = False  # whether weights that have not seen the rows held out are wanted too

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
        if stage == "solve":
            self.reporter.working("solving", None)
        yield
        if stage == "solve":
            self.reporter.working("solving", 1.0)
        self.seconds[stage] = self.seconds.get(stage, 0.0) + monotonic() - start


@dataclass
class Fitted:
    """What a solver arrives at; ``gram`` are the sums of all rows, where there are any worth keeping."""

    weights: Weights
    rows: int
    digest: str  # SHA-256 of the exact sums: equal digests mean equal bits
    calibration: Calibration | None = None
    gram: GramState | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    judges: Block | None = None  # the rows that the metrics are of
    choosing: Block | None = None  # the rows that chose
    unseen: Weights | None = None  # weights that have seen neither
    pipeline: Pipeline | None = None  # what predictions go through, where that is not what was summed


class Solver(ABC):
    """One way to fit. A subclass with a ``name`` is one that recipes can ask for."""

    name: ClassVar[str]
    losses: ClassVar[tuple[str, ...]] = ("squared",)
    maps: ClassVar[str] = FOURIER  # or the kind of the map that it is for
    weighs: ClassVar[bool] = True  # whether rows with weights have exact sums; few of them are summed in float64
    wide: ClassVar[bool] = True  # whether features of 20 bits have exact sums
    preference: ClassVar[int] = 10  # of those that could do it, ``auto`` considers the lowest first
    title: ClassVar[str] = ""  # for people, where the name is short
    leaves_sums: ClassVar[bool] = False  # that ``update`` and ``forget`` go on with

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            KNOWN.append(cls)
            KNOWN.sort(key=lambda solver: getattr(solver, "preference", Solver.preference))

    def __init__(self, run: Run) -> None:
        self.run, self.pipeline, self.recipe, self.passes = run, run.pipeline, run.recipe, run.passes
        self.threads, self.reporter = run.threads, run.reporter

    @classmethod
    @abstractmethod
    def plan(cls, sizes: Sizes) -> Plan:
        """The passes, and the memory that they and the solution take, from sizes alone; nothing is read."""

    @classmethod
    @abstractmethod
    def estimate(cls, plan: Plan) -> Mapping[str, float]:
        """Seconds of the stages pass and solve, from rates measured on this machine."""

    @classmethod
    def is_worth_comparing(cls, sizes: Sizes) -> bool:
        """Whether ``auto``, which prefers this solver, should estimate the time of the others; rates are measured."""
        return True

    @abstractmethod
    def fit(self) -> Fitted:
        """Pass over the rows and solve; with ``passes.kept``, resume from there."""

    @property
    def first_ridge(self) -> float:
        """The lambda to begin with."""
        ridge = self.recipe.ridge
        assert ridge is not None  # settled by the pilot or the defaults
        return ridge

    @property
    def ridge_given(self) -> bool:
        return self.run.asked.ridge is not None
