"""The outputs of random binning, a group at a time: each group's sums, its steps, and where a run stands in between.

What an output ends with depends on no other, so groups are as large as memory allows and change nothing. Each number
stops by itself; all of several classes make as many steps as is best for a few random sums and differences of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from streamrf.data.source import Block
from streamrf.features.binning.normal import add_values, scores
from streamrf.features.targets import CLASSIFICATION
from streamrf.solvers.bin_stages import CHOOSE, JOIN, SEARCH, STEPS_OF_FEW, BinningRun, Opened, Place, Stages
from streamrf.solvers.bin_steps import (
    BinSteps,
    Products,
    Score,
    StepsState,
    in_integers,
    right_hand_side,
    size_of,
    take_away,
)
from streamrf.solvers.judging import as_read, shares, weighed
from streamrf.solvers.passes import Kept
from streamrf.statistics.bins import BinSums, BinSumsState

MIXTURES = 3  # of classes, that choose the number of steps
DIAGONAL = "diagonal"


@dataclass
class GroupPlace(Place):
    chosen: int | None = None  # steps that all classes make
    steps: dict[str, list[int]] = field(default_factory=dict)  # by output: steps of the search, and the best one


def mixing_signs(classes: int, seed: int) -> np.ndarray:
    """(mixtures, classes) of -1 and 1. A mixture of equal signs is the same for every row, and would say that no step
    is worth making: of these, one class is turned round."""
    signs = np.random.default_rng(seed).choice([-1, 1], (MIXTURES, classes))
    for number in np.flatnonzero(np.abs(signs.sum(axis=1)) == classes):
        signs[number, number % classes] *= -1
    return signs


class Groups(Stages[GroupPlace]):
    """All outputs, stage after stage. It is the system that the steps of one group solve, a pass for each product."""

    place_of = GroupPlace

    def __init__(self, solver: BinningRun, opened: Opened, kept: Kept | None) -> None:
        super().__init__(solver, opened, kept)
        self.signs = mixing_signs(len(self.found), solver.run.recipe.seed)
        self.weights_of_bins = np.array(kept.arrays[DIAGONAL]) if kept else np.zeros(0, np.float32)

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
            self.steps = self._resume(self.found) or self._begin(np.arange(place.done, min(place.done + most, outputs)))
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

    def facts(self, more: int) -> dict[str, int]:
        """Steps that were made, ``more`` of them with all rows, and the one that rows held out liked best."""
        place = self.place
        steps, best = np.array(list(place.steps.values())).reshape(-1, 2).max(axis=0).tolist()
        return {"steps": steps + (more if place.stage == JOIN else 0), "best_step": best}

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

    def _begin(self, outputs: np.ndarray) -> BinSteps:
        """From sums of weights and targets: at zero, or at what the search found."""
        rows, self._group = self.solver.rows, outputs
        weigh, joins = not len(self.weights_of_bins), self.place.stage == JOIN
        solution = self.found[outputs] if joins else np.zeros((len(outputs), self.map.n_features), np.float32)
        solution[joins & self._again[outputs]] = 0.0
        table, units = in_integers(solution, self.starts) if joins else (None, np.ones(0))
        signs = self.signs if self.place.stage == CHOOSE else None
        statistic = BinSums(self.solver.indexer, rows, self._split, weigh, outputs, table, signs, self.spare)
        state = self._sum(statistic)
        if weigh:
            self._weigh_bins(state)
        targets = slice(int(weigh), int(weigh) + len(outputs))
        self._digest(state, outputs, targets)
        residual = self._right_hand_sides(state, outputs, targets)
        sizes = np.array([size_of(each, self.weights_of_bins, self.ridge) for each in residual])
        for g, unit in enumerate(units):
            take_away(residual[g], state.totals[targets.stop + g], self.factor * unit, self.ridge, solution[g])
        begun = StepsState.at(outputs, residual, solution, table)
        steps = self._steps(begun, self.found)
        steps.begin(sizes)
        return steps

    def _weigh_bins(self, state: BinSumsState) -> None:
        """The diagonal of Z'WZ."""
        unit = self.solver.rows.unit
        self._weigh(float(state.whole[0]) * unit)
        self.weights_of_bins = np.multiply(state.totals[0], np.float32(unit), dtype=np.float32)

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
        self.weights_of_bins += np.multiply(totals[0], np.float32(solver.rows.unit), dtype=np.float32)

    @property
    def factor(self) -> float:
        """What one of the integers of scores with weights stands for."""
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
            right_hand_side(state.totals[targets][g], factor, self.weights_of_bins, mean, coding.step[output], out[g])
        return out

    def _digest(self, state: BinSumsState, outputs: np.ndarray, targets: slice) -> None:
        """Of the sums over all rows."""
        if not self._apart:
            for output, totals in zip(outputs, state.totals[targets], strict=True):
                self.place.digests[str(output)] = hashlib.sha256(totals.data).hexdigest()
            self.place.digests.setdefault("weights", hashlib.sha256(self.weights_of_bins.data).hexdigest())

    # -- the system that steps solve

    def diagonal(self, output: int) -> np.ndarray:
        return self.weights_of_bins

    def products(self, directions: np.ndarray, outputs: np.ndarray) -> Products:
        statistic = BinSums(
            self.solver.indexer, self.solver.rows, self._split, table=directions, spare=self.spare
        )  # fmt: skip
        totals = self._sum(statistic).totals
        self.spare.append(totals)
        return Products(totals, np.full(len(outputs), self.factor), np.zeros(len(outputs)))  # centres stay

    def _arrays(self) -> dict[str, np.ndarray]:
        return {DIAGONAL: self.weights_of_bins}

    def _stage_title(self) -> str:
        number = 0 if self.steps is None else self.steps.state.iteration + 1
        title = f"joining step {number}" if self.place.stage == JOIN else f"step {number}"
        return f"{title} of mixed classes" if self.place.stage == CHOOSE else title


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
