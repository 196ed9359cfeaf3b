"""What all ways to solve random binning share: the stages of a run, what the first pass brought, what the rows held out
say, which rows count in a stage, and where a run stands between two passes.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import NONE_HELD, Split, different_rows
from streamrf.features.binning.index_cache import BinIndexer, BinIndexSource
from streamrf.features.binning.numbering import Numbering
from streamrf.features.pipeline import Pipeline
from streamrf.solvers.base import Run
from streamrf.solvers.bin_steps import BinSteps, Products, StepsState
from streamrf.solvers.judging import by_role
from streamrf.solvers.passes import Kept, Passes
from streamrf.statistics.base import S, Statistic
from streamrf.statistics.bins import RowIntegers
from streamrf.statistics.holdout import SAMPLE, SampleState, under
from streamrf.statistics.scores import Calibration, Weights
from streamrf.support.errors import DataError
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads

CHOOSE, SEARCH, JOIN, BLIND = "choose", "search", "join", "blind"
STEPS_OF_FEW = 4  # that are made again with all rows
NO_WEIGHT = "no row to fit has a positive weight: check `sample_weight`"
STEPS, FOUND, CENTRE = "steps.", "found", "centre"
SLOPE, SHIFT = "calibration.slope", "calibration.shift"
UNSEEN, UNSEEN_CENTRE = "unseen.coefficients", "unseen.intercept"


class BinningRun(Protocol):
    """What is solved, and with what."""

    run: Run
    pipeline: Pipeline  # whose bins are numbered
    indexer: BinIndexer
    rows: RowIntegers
    passes: Passes
    threads: Threads
    reporter: Reporter

    @property
    def first_ridge(self) -> float: ...
    @property
    def ridge_given(self) -> bool: ...


@dataclass
class Opened:
    """What the first pass brought: which bins have rows, how many rows are to fit, and those that were held out."""

    numbering: Numbering
    fitted: int
    holdout: Block | None
    sample: Block | None = None  # of the rows to fit, where it was asked for

    @property
    def rows(self) -> int:
        return self.fitted + (0 if self.holdout is None else len(self.holdout))

    def by_role(self, split: Split) -> tuple[Block | None, Block | None]:
        """Those that choose, and those that judge."""
        return by_role(split, SampleState([] if self.holdout is None else [self.holdout]))

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold."""
        holdout, sample = (SampleState([] if rows is None else [rows]) for rows in (self.holdout, self.sample))
        apart = {SAMPLE + name: array for name, array in sample.arrays().items()}
        counts = {"occupied": self.numbering.words, "fitted": np.array([self.fitted], np.int64)}
        return {**counts, **holdout.arrays(), **apart}

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray]) -> Opened:
        holdout, sample = (SampleState.load(each).table() for each in (arrays, under(arrays, SAMPLE)))
        return cls(Numbering(arrays["occupied"]), int(arrays["fitted"][0]), holdout, sample)


@dataclass
class Verdict:
    """What the rows held out say of weights that have not seen them."""

    calibration: Calibration | None = None
    metrics: dict[str, Any] | None = None
    unseen: Weights | None = None  # the weights themselves, where they are wanted

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        document: dict[str, Any] = {"metrics": self.metrics}
        arrays: dict[str, np.ndarray] = {}
        if self.calibration is not None:
            document |= {"threshold": self.calibration.threshold, "bend": self.calibration.bend}
            arrays |= {SLOPE: self.calibration.slope, SHIFT: self.calibration.shift}
        if self.unseen is not None:
            document["ridge"] = self.unseen.ridge
            arrays |= {UNSEEN: self.unseen.coefficients, UNSEEN_CENTRE: self.unseen.intercept}
        return document, arrays

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Verdict:
        found = cls(metrics=document["metrics"])
        if "threshold" in document:
            found.calibration = Calibration(arrays[SLOPE], arrays[SHIFT], document["threshold"], document["bend"])
        if "ridge" in document:
            found.unseen = Weights(arrays[UNSEEN], arrays[UNSEEN_CENTRE], document["ridge"])
        return found


@dataclass
class Place:
    """Small facts of where a run stands."""

    stage: str = SEARCH
    done: int = 0  # outputs of this stage, or of this round of it
    weight: float = 1.0  # mean weight of the rows of this stage
    digests: dict[str, str] = field(default_factory=dict)  # of the sums over all rows, by output

    def digest(self, numbering: Numbering) -> str:
        """SHA-256 of all exact sums: equal digests mean equal bits."""
        sha = hashlib.sha256(numbering.words.tobytes())
        for name in sorted(self.digests):
            sha.update(f"{name}:{self.digests[name]};".encode())
        return sha.hexdigest()


P = TypeVar("P", bound=Place)


class Stages(ABC, Generic[P]):
    """All outputs, stage after stage: the system that the steps of one group solve, a pass for each product."""

    place_of: ClassVar[type[Any]]

    def __init__(self, solver: BinningRun, opened: Opened, kept: Kept | None) -> None:
        self.solver, self.opened, self.map = solver, opened, solver.indexer.map
        self.source = BinIndexSource(solver.run.source, solver.indexer)
        self.spare: list[np.ndarray] = []
        self.steps: BinSteps | None = None
        self.verdict, self._resumed = Verdict(), None
        self.place: P = self.place_of()
        outputs, bins = solver.pipeline.coding.outputs, self.map.n_features
        self._group = np.arange(outputs)
        if kept:
            document, arrays = kept.document, kept.arrays
            self.place = self.place_of(**document["place"])
            self.verdict = Verdict.from_parts(document["verdict"], arrays)
            self.found, self.centre = np.array(arrays[FOUND]), np.array(arrays[CENTRE])
            self._group = np.array(document["group"], np.int64)
            saved = under(arrays, STEPS)
            self._resumed = StepsState.load(saved) if saved else None
        else:
            self.found, self.centre = np.zeros((outputs, bins), np.float32), np.zeros(outputs)

    def _resume(self, into: np.ndarray) -> BinSteps | None:
        """Where an earlier run was stopped."""
        if self._resumed is None:
            return None
        state, self._resumed = self._resumed, None
        return self._steps(state, into)

    def _steps(self, state: StepsState, into: np.ndarray) -> BinSteps:
        """What outputs end with goes ``into`` their rows."""
        return BinSteps(self, state, into, self.solver.threads, self._tell)

    @abstractmethod
    def _tell(self, output: int, steps: int, best: int) -> None:
        """An output has stopped."""

    def weights(self) -> Weights:
        """What was found, in the units of the targets."""
        return Weights(self.found.T, self.centre.copy(), self.lambda_)

    # -- the rows of a stage

    @property
    def _split(self) -> Split:
        return self.solver.run.split if self._apart else NONE_HELD

    @property
    def _apart(self) -> bool:
        """Whether some rows are held out at this stage."""
        return self.place.stage in (CHOOSE, SEARCH)

    def _counted(self, *, apart: bool) -> int:
        """The rows that a mean weight is of. One of weight 0 is none and copies are one, so that a row of weight 2 is
        as good as two of them."""
        run, opened = self.solver.run, self.opened
        counted = run.split.counted
        if counted is None or (run.weighting.plain and counted >= opened.rows):  # some of which had NaN
            return opened.fitted if apart else opened.rows
        return max(1, counted - (self._held if apart else 0))

    @cached_property
    def _held(self) -> int:
        """Different rows that are held out and weigh something."""
        held = self.opened.holdout
        if held is None:
            return 0
        return different_rows(held if held.weights is None else held.take(held.weights > 0))

    def _weigh(self, whole: float) -> None:
        """The mean weight, from that of all rows of this stage."""
        if not whole > 0:
            raise DataError(NO_WEIGHT)
        self.place.weight = whole / self._counted(apart=self._apart)

    # -- the system that steps solve

    @property
    def lambda_(self) -> float:
        """What the ridge comes from."""
        return self.solver.first_ridge

    @property
    def ridge(self) -> float:
        """Of the weights of bins; the recipe's is for features whose squares sum to one, and rows of weight one."""
        return self.lambda_ * self.map.grids * self.place.weight

    @property
    def starts(self) -> np.ndarray:
        return self.map.starts

    @abstractmethod
    def diagonal(self, output: int) -> np.ndarray: ...

    @abstractmethod
    def products(self, directions: np.ndarray, outputs: np.ndarray) -> Products: ...

    # -- passes

    def _sum(self, statistic: Statistic[S]) -> S:
        self._keep()
        return self.solver.passes.sum(statistic, self._title(), source=self.source)

    def _keep(self) -> None:
        verdict, arrays = self.verdict.to_parts()
        arrays |= {**self.opened.arrays(), FOUND: self.found, CENTRE: self.centre, **self._arrays()}
        if self.steps is not None:
            arrays |= {STEPS + name: array for name, array in self.steps.state.arrays().items()}
        document = {"place": vars(self.place), "verdict": verdict, "group": self._group.tolist()}
        self.solver.passes.keep(document, arrays)

    @abstractmethod
    def _arrays(self) -> dict[str, np.ndarray]:
        """What else a checkpoint must hold."""

    @abstractmethod
    def _stage_title(self) -> str: ...

    def _title(self) -> str:
        title = self._stage_title()
        if len(self._group) == len(self.found) or self.place.stage == CHOOSE:
            return title
        return f"outputs {self._group[0] + 1} to {self._group[-1] + 1} of {len(self.found)}, {title}"
