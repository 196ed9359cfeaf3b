"""The outputs of random binning, a group at a time: each group's sums, its steps, and where a run stands in between.

What an output ends with depends on no other, so groups are as large as memory allows and change nothing. Each number
stops by itself; all of several classes make as many steps as is best for a few random sums and differences of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import NONE_HELD, Split, different_rows
from streamrf.features.binning.index_cache import BinIndexer, BinIndexSource
from streamrf.features.binning.normal import add_values, scores
from streamrf.features.binning.numbering import Numbering
from streamrf.features.pipeline import Pipeline
from streamrf.features.targets import CLASSIFICATION
from streamrf.solvers.base import Run
from streamrf.solvers.bin_steps import (
    BinSteps,
    Score,
    StepsState,
    in_integers,
    right_hand_side,
    size_of,
    take_away,
)
from streamrf.solvers.judging import as_read, by_role, shares, weighed
from streamrf.solvers.passes import Kept, Passes
from streamrf.statistics.bins import BinSums, BinSumsState, RowIntegers
from streamrf.statistics.holdout import SampleState, under
from streamrf.statistics.scores import Calibration, Weights
from streamrf.support.errors import DataError
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads

CHOOSE, SEARCH, JOIN, BLIND = "choose", "search", "join", "blind"
MIXTURES = 3  # of classes, that choose the number of steps
STEPS_OF_FEW = 4  # that are made again with all rows
STEPS, FOUND, CENTRE, DIAGONAL = "steps.", "found", "centre", "diagonal"
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


@dataclass
class Opened:
    """What the first pass brought: which bins have rows, how many rows are to fit, and those that were held out."""

    numbering: Numbering
    fitted: int
    holdout: Block | None

    @property
    def rows(self) -> int:
        return self.fitted + (0 if self.holdout is None else len(self.holdout))

    def by_role(self, split: Split) -> tuple[Block | None, Block | None]:
        """Those that choose, and those that judge."""
        return by_role(split, SampleState([] if self.holdout is None else [self.holdout]))

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold."""
        sample = SampleState([] if self.holdout is None else [self.holdout])
        return {
            "occupied": self.numbering.words, "fitted": np.array([self.fitted], np.int64), **sample.arrays()
        }  # fmt: skip

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray]) -> Opened:
        return cls(Numbering(arrays["occupied"]), int(arrays["fitted"][0]), SampleState.load(arrays).table())


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
    done: int = 0  # outputs of this stage
    weight: float = 1.0  # mean weight of the rows of this stage
    chosen: int | None = None  # steps that all classes make
    steps: dict[str, list[int]] = field(default_factory=dict)  # by output: steps of the search, and the best one
    digests: dict[str, str] = field(default_factory=dict)  # of the sums over all rows, by output

    def digest(self, numbering: Numbering) -> str:
        """SHA-256 of all exact sums: equal digests mean equal bits."""
        sha = hashlib.sha256(numbering.words.tobytes())
        for name in sorted(self.digests):
            sha.update(f"{name}:{self.digests[name]};".encode())
        return sha.hexdigest()


def mixing_signs(classes: int, seed: int) -> np.ndarray:
    """(mixtures, classes) of -1 and 1. A mixture of equal signs is the same for every row, and would say that no step
    is worth making: of these, one class is turned round."""
    signs = np.random.default_rng(seed).choice([-1, 1], (MIXTURES, classes))
    for number in np.flatnonzero(np.abs(signs.sum(axis=1)) == classes):
        signs[number, number % classes] *= -1
    return signs


class Groups:
    """All outputs, stage after stage. It is the system that the steps of one group solve, a pass for each product."""

    def __init__(self, solver: BinningRun, opened: Opened, kept: Kept | None) -> None:
        self.solver, self.opened, self.map = solver, opened, solver.indexer.map
        self.source = BinIndexSource(solver.run.source, solver.indexer)
        self.spare: list[np.ndarray] = []
        self.steps: BinSteps | None = None
        self.place, self.verdict, resumed = Place(), Verdict(), None
        outputs, bins = solver.pipeline.coding.outputs, self.map.n_features
        self.signs = mixing_signs(outputs, solver.run.recipe.seed)
        if kept:
            document, arrays = kept.document, kept.arrays
            self.place, self.verdict = Place(**document["place"]), Verdict.from_parts(document["verdict"], arrays)
            self.found, self.centre, self.diagonal = (np.array(arrays[name]) for name in (FOUND, CENTRE, DIAGONAL))
            saved = under(arrays, STEPS)
            resumed = StepsState.load(saved) if saved else None
        else:
            self.found, self.centre = np.zeros((outputs, bins), np.float32), np.zeros(outputs)
            self.diagonal = np.zeros(0, np.float32)
        self._resumed = resumed

    @property
    def mixes(self) -> bool:
        """Whether mixtures of classes choose the number of steps."""
        return self.solver.pipeline.coding.task == CLASSIFICATION and len(self.found) >= MIXTURES

    def run(self, stage: str, most: int, steps: int, score: Score | None = None) -> None:
        """All outputs that are left of a stage, so many at once."""
        limits = self.limits(stage, steps)
        place, outputs = self.place, MIXTURES if stage == CHOOSE else len(self.found)
        if place.stage != stage:
            place.stage, place.done = stage, 0
            if stage == JOIN:
                self._add_held_out()
        while place.done < outputs:
            self.steps = self._resume() or self._begin(np.arange(place.done, min(place.done + most, outputs)))
            self.steps.run(limits, score)
            place.done, self.steps = int(self._group[-1]) + 1, None

    def limits(self, stage: str, steps: int) -> np.ndarray:
        """(outputs,): how many steps each may make."""
        return np.where(self._again, self._best, steps) if stage == JOIN else np.full(len(self.found), steps)

    @property
    def _best(self) -> np.ndarray:
        """(outputs,): the step that the rows which choose liked best."""
        place, outputs = self.place, range(len(self.found))
        return np.array([place.chosen or place.steps.get(str(number), (0, STEPS_OF_FEW + 1))[1] for number in outputs])

    @property
    def _again(self) -> np.ndarray:
        """(outputs,): which make all their steps again once all rows are in. Few steps are what holds such a solution
        back: more of them would fit noise, and calibration, shares and figures are of as many."""
        return self._best <= STEPS_OF_FEW

    def _tell(self, output: int, steps: int, best: int) -> None:
        place = self.place
        if place.stage == JOIN or (place.stage == SEARCH and place.chosen is not None):
            return
        place.steps[str(output)] = [steps, best]
        if place.stage == CHOOSE:
            place.chosen = max(place.chosen or 0, best)
            if output + 1 < MIXTURES:
                return
        what = f"output {output + 1}: " if len(self.found) > 1 and place.stage != CHOOSE else ""
        self.solver.reporter.detail(f"{what}step {best} of {steps} is the best on the rows held out")

    # -- one group

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

    def _resume(self) -> BinSteps | None:
        """Where an earlier run was stopped."""
        if self._resumed is None:
            return None
        state, self._resumed = self._resumed, None
        self._group = np.array(self.solver.passes.kept.document["group"]) if self.solver.passes.kept else state.outputs
        return BinSteps(self, state, self.found, self.solver.threads, self._tell)

    def _begin(self, outputs: np.ndarray) -> BinSteps:
        """From sums of weights and targets: at zero, or at what the search found."""
        rows, self._group = self.solver.rows, outputs
        weigh, joins = not len(self.diagonal), self.place.stage == JOIN
        solution = self.found[outputs] if joins else np.zeros((len(outputs), self.map.n_features), np.float32)
        solution[joins & self._again[outputs]] = 0.0
        table, units = in_integers(solution, self.starts) if joins else (None, np.ones(0))
        signs = self.signs if self.place.stage == CHOOSE else None
        statistic = BinSums(self.solver.indexer, rows, self._split, weigh, outputs, table, signs, self.spare)
        state = self._sum(statistic)
        if weigh:
            self._weigh(state)
        targets = slice(int(weigh), int(weigh) + len(outputs))
        self._digest(state, outputs, targets)
        residual = self._right_hand_sides(state, outputs, targets)
        sizes = np.array([size_of(each, self.diagonal, self.ridge) for each in residual])
        for g, unit in enumerate(units):
            take_away(residual[g], state.totals[targets.stop + g], self.factor * unit, self.ridge, solution[g])
        begun = StepsState.at(outputs, residual, solution, table)
        steps = BinSteps(self, begun, self.found, self.solver.threads, self._tell)
        steps.begin(sizes)
        return steps

    def _weigh(self, state: BinSumsState) -> None:
        """The diagonal of Z'WZ."""
        unit = self.solver.rows.unit
        if state.whole[0] <= 0:
            raise DataError("no row to fit has a positive weight: check `sample_weight`")
        self.place.weight = float(state.whole[0]) * unit / self._counted(apart=self._apart)
        self.diagonal = np.multiply(state.totals[0], np.float32(unit), dtype=np.float32)

    def _add_held_out(self) -> None:
        """The weights of the rows that now join, to those of the others."""
        solver, held = self.solver, self.opened.holdout
        assert held is not None
        rows = as_read(solver.pipeline.coding, held)
        _, weights = solver.rows(rows)
        values = np.ones((1, len(rows)), np.int64) if weights is None else weights[None]
        totals, indices = np.zeros((1, self.map.n_features), np.int64), solver.indexer.indices(rows.X, solver.threads)
        add_values(indices, values, totals, solver.threads, layout=self.map.layout)
        whole = self.place.weight * self._counted(apart=True) + float(values.sum()) * solver.rows.unit
        self.place.weight = whole / self._counted(apart=False)
        self.diagonal += np.multiply(totals[0], np.float32(solver.rows.unit), dtype=np.float32)

    @property
    def ridge(self) -> float:
        """Of the weights of bins; the recipe's is for features whose squares sum to one, and rows of weight one."""
        return self.solver.first_ridge * self.map.grids * self.place.weight

    @property
    def factor(self) -> float:
        return self.solver.rows.unit * 2.0**self.solver.rows.score_shift

    def _right_hand_sides(self, state: BinSumsState, outputs: np.ndarray, targets: slice) -> np.ndarray:
        """Z'W(y - centre), and the centres: the mean target of each output, which bins are to tell deviations from."""
        coding, rows = self.solver.pipeline.coding, self.solver.rows
        factor = rows.unit * 2.0**rows.target_shift
        out = np.empty((len(outputs), self.map.n_features), np.float32)
        weight = self.place.weight * self._counted(apart=self._apart)
        for g, output in enumerate(outputs):
            mean = float(state.whole[targets][g]) * factor / weight
            self.centre[output] = mean * coding.step[output] + coding.offset[output]
            right_hand_side(state.totals[targets][g], factor, self.diagonal, mean, coding.step[output], out[g])
        return out

    def _digest(self, state: BinSumsState, outputs: np.ndarray, targets: slice) -> None:
        """Of the sums over all rows."""
        if not self._apart:
            for output, totals in zip(outputs, state.totals[targets], strict=True):
                self.place.digests[str(output)] = hashlib.sha256(totals.data).hexdigest()
            self.place.digests.setdefault("weights", hashlib.sha256(self.diagonal.data).hexdigest())

    # -- the system that steps solve

    @property
    def starts(self) -> np.ndarray:
        return self.map.starts

    def products(self, directions: np.ndarray) -> np.ndarray:
        statistic = BinSums(
            self.solver.indexer, self.solver.rows, self._split, table=directions, spare=self.spare
        )  # fmt: skip
        totals = self._sum(statistic).totals
        self.spare.append(totals)
        return totals

    def _sum(self, statistic: BinSums) -> BinSumsState:
        self._keep()
        return self.solver.passes.sum(statistic, self._title(), source=self.source)

    def _keep(self) -> None:
        verdict, arrays = self.verdict.to_parts()
        arrays |= {**self.opened.arrays(), FOUND: self.found, CENTRE: self.centre, DIAGONAL: self.diagonal}
        if self.steps is not None:
            arrays |= {STEPS + name: array for name, array in self.steps.state.arrays().items()}
        document = {"place": vars(self.place), "verdict": verdict, "group": self._group.tolist()}
        self.solver.passes.keep(document, arrays)

    def _title(self) -> str:
        number = 0 if self.steps is None else self.steps.state.iteration + 1
        title = f"joining step {number}" if self.place.stage == JOIN else f"step {number}"
        if self.place.stage == CHOOSE:
            return f"{title} of mixed classes"
        if len(self._group) == len(self.found):
            return title
        return f"outputs {self._group[0] + 1} to {self._group[-1] + 1} of {len(self.found)}, {title}"


class Unseen:
    """The rows that choose, by their bins: the unexplained share of their variance, of each output by itself or of
    mixtures of classes together."""

    def __init__(self, solver: BinningRun, groups: Groups, rows: Block) -> None:
        self.threads, self.groups = solver.threads, groups
        self.targets = rows.targets @ groups.signs.T if groups.mixes else rows.targets
        self.indices = solver.indexer.indices(rows.X, solver.threads)
        self.shares = shares(weighed(solver.pipeline.coding, rows, solver.run.weighting))

    def errors(self, solutions: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        groups = self.groups
        deviations = (self.targets[:, outputs] - groups.centre[outputs]).T
        predicted = scores(self.indices, solutions, self.threads, layout=groups.map.layout)
        errors, variance = (predicted - deviations) ** 2 @ self.shares, deviations**2 @ self.shares
        if groups.mixes:
            errors, variance = np.full_like(errors, errors.sum()), np.full_like(variance, variance.sum())
        found = errors / np.maximum(variance, np.finfo(np.float64).tiny)
        groups.solver.reporter.detail(f"hold-out squared error {found.mean():.5f} of the variance")
        return found
