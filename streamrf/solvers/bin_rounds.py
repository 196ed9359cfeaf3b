"""Newton's rounds on the weights of bins, for losses other than the squared one: a pass for what rows pull and how much
their losses bend, then a few steps of conjugate gradients on the parabolas that stand for the losses there.

All outputs move together, as the loss of a row may depend on all of its scores; within a round, each output's parabolas
are its own, so that groups of outputs share passes as memory allows and change nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from streamrf.data.source import Block
from streamrf.features.binning.normal import scores
from streamrf.solvers.bin_stages import (
    BLIND,
    JOIN,
    NO_WEIGHT,
    SEARCH,
    BinningRun,
    Opened,
    Place,
    Stages,
)
from streamrf.solvers.bin_steps import BinSteps, Products, StepsState, dot, downhill, size_of
from streamrf.solvers.judging import shares, weighed
from streamrf.solvers.lambda_path import LambdaTrial, next_ridge
from streamrf.solvers.newton import CORNERS, SHARPENINGS, SHARPER
from streamrf.solvers.passes import Kept
from streamrf.statistics.bin_pulls import BinPulls, BinPullsState, PointScores
from streamrf.statistics.losses import Huber, Logistic, Loss, Quantile, class_loss
from streamrf.statistics.scores import Weights
from streamrf.support.errors import DataError
from streamrf.support.quantiles import robust_deviation

MOST_STEPS = 4  # of conjugate gradients in a round; the first one has one, and each has one more than the last
ROUNDS = 100  # at most: rows held out stop them
BLIND_ROUNDS = 4  # where no row is held out
PATIENCE, GAIN = 1, 0.005  # rounds that do not lower the loss on unseen rows by this share in so many end it
FIRST_LAMBDA = 2.0  # of the squared loss's lambda
MOVED_BACK = 10  # times in a row: then rounding is all that is left
NOISE = 1e-7  # of the loss, that weights in single precision may add
POINT, STEP, BENDS, LEVELS = "point", "step", "bends", "levels"
LEAST_UNIT = 0.01  # of the targets' deviation: most of them may be equal


def steps_of(number: int) -> int:
    """Steps of one round."""
    return min(1 + number, MOST_STEPS)


@dataclass
class RoundPlace(Place):
    round: int = 0  # of this stage
    searched: int = 0  # rounds before this stage
    over: bool = False
    made: list[dict[str, Any]] = field(default_factory=list)  # rounds that led to the point
    best_round: int = 0  # of them
    best_score: float | None = None  # on the rows that choose
    stale: int = 0  # rounds that were no better, or since the loss became another
    value: float | None = None  # of the objective, at the last point that was good enough
    moved_back: int = 0  # times in a row
    first_ridge: float = 0.0  # of those that are tried with a loss
    ridge: float = 0.0
    best_ridge: float = 0.0
    best_here: float | None = None  # score at this lambda
    passes: int = 0  # at this lambda
    steps: int = 0  # of conjugate gradients, in all
    tried: list[dict[str, Any]] = field(default_factory=list)  # lambdas that the search is done with
    walked: bool = False  # whether lambda is settled
    corner: int = 0  # of a quantile
    deviations: list[list[float]] = field(default_factory=list)  # of residuals, of which losses were made
    deviation: int = 0  # the number of the one that counts now

    def note(self, steps: int) -> None:
        """A round was made."""
        self.made.append({"ridge": self.ridge, "corner": self.corner, "deviation": self.deviation, "steps": steps})

    def repeat(self) -> int:
        """What a round was made with, and how many steps it had."""
        made = self.made[self.round]
        if (self.ridge, self.corner, self.deviation) != (made["ridge"], made["corner"], made["deviation"]):
            self.ridge, self.corner, self.deviation, self.value = made["ridge"], made["corner"], made["deviation"], None
        return int(made["steps"])


class NewtonRun(BinningRun, Protocol):
    @property
    def keeps_scores(self) -> bool:
        """Whether there is room for the scores of all rows at a point."""


class Rounds(Stages[RoundPlace]):
    """Where the point stands, and the step that led there or leads on."""

    place_of = RoundPlace

    def __init__(self, solver: NewtonRun, opened: Opened, kept: Kept | None) -> None:
        super().__init__(solver, opened, kept)
        if kept:
            self.point, self.step, self.bends, levels = (np.array(kept.arrays[name]) for name in _NAMES)
        else:
            self.point, self.step = np.zeros_like(self.found), np.zeros_like(self.found)
            self.bends = np.zeros((0, self.found.shape[1]), np.float32)
            start, unit = self._first_point()
            none = np.zeros_like(start)
            levels = np.stack([start, none, none, start, unit])
            first = solver.first_ridge * (1.0 if solver.ridge_given else FIRST_LAMBDA)
            self.place.first_ridge = self.place.ridge = self.place.best_ridge = first
        self._levels = levels
        self.intercept, self.shift, self.bent, self.start, self.unit = levels
        self._kept = PointScores() if solver.keeps_scores else None
        self._unseen: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def _first_point(self) -> tuple[np.ndarray, np.ndarray]:
        """Intercepts (k,) where there is nothing else, and the units (k,) that targets are counted in: so many outputs,
        in whatever units, count alike, and so does lambda."""
        rows, coding = self.opened.sample, self.solver.pipeline.coding
        assert rows is not None
        rows = weighed(coding, rows, self.solver.run.weighting)
        rows = rows if rows.weights is None else rows.take(rows.weights > 0)
        if not len(rows):
            raise DataError(NO_WEIGHT)
        unit = np.ones(coding.outputs)
        if not coding.classes:
            unit = np.maximum(robust_deviation(rows.targets, rows.weights), LEAST_UNIT * rows.targets.std(axis=0))
            unit = np.where(unit > 0, unit, 1.0)
            self.place.deviations = [np.ones(coding.outputs).tolist()]
        return self.loss.flat(rows.targets / unit, rows.weights), unit

    @property
    def loss(self) -> Loss:
        """What is minimised now, of targets in their units."""
        coding, recipe, place = self.solver.pipeline.coding, self.solver.run.recipe, self.place
        if coding.classes:
            return class_loss(recipe.loss, coding.outputs)
        deviation = np.array(place.deviations[place.deviation])
        if recipe.loss == Huber.name:
            return Huber(recipe.huber_epsilon * deviation)
        return Quantile(recipe.quantile, CORNERS[place.corner] * deviation)

    def weights(self) -> Weights:
        return Weights((self.found * self.unit[:, None].astype(np.float32)).T, self.centre * self.unit, self.lambda_)

    # -- stages

    def run(self, stage: str, rounds: int, most: int, choosing: Block | None = None) -> None:
        """All rounds that are left of a stage, so many outputs at once."""
        place = self.place
        if place.stage != stage:
            place.searched, place.stage, place.done, place.round = place.round, stage, 0, 0
            place.over, place.value, place.moved_back = False, None, 0
            if stage == JOIN:  # from zero
                place.made = place.made[: place.best_round]
                self._go_to(np.zeros_like(self.point), self.start)
        self._judge_by(choosing)
        while place.round < rounds and not place.over:
            self._round(most)
        if stage == SEARCH:
            place.ridge = place.best_ridge
        while stage != SEARCH and not place.over:  # no rows that choose have seen the last point
            statistic = self._pulls(np.arange(1))
            place.over = not self._went_too_far(statistic.loss_sum(self._pass(statistic)))

    def _go_to(self, point: np.ndarray, intercept: np.ndarray) -> None:
        self.point[:], self.intercept[:] = point, intercept
        if self._kept is not None:
            self._kept.clear()

    def _judge_by(self, choosing: Block | None) -> None:
        """Rows by their bins, with their targets, and what they count for."""
        if choosing is not None:
            solver = self.solver
            counts = shares(weighed(solver.pipeline.coding, choosing, solver.run.weighting))
            indices = solver.indexer.indices(choosing.X, solver.threads)
            self._unseen = indices, choosing.targets / self.unit, counts

    def _round(self, most: int) -> None:
        place, outputs = self.place, len(self.found)
        number = place.repeat() if place.stage == JOIN else steps_of(len(place.made))
        while place.done < outputs:
            self.steps = self._resume(self.step) or self._begin(np.arange(place.done, min(place.done + most, outputs)))
            if self.steps is None:
                return
            self.steps.run(np.full(outputs, number))
            for output in self._group:  # the intercept follows
                if self.bent[output] > 0:
                    self.shift[output] -= dot(self.diagonal(int(output)), self.step[output]) / self.bent[output]
            place.done, self.steps = int(self._group[-1]) + 1, None
        if place.stage != JOIN:
            place.note(number)
        self._advance()

    def _advance(self) -> None:
        """All outputs know their steps."""
        place = self.place
        if self.loss.name == Logistic.name and len(self.found) > 1:  # what all classes share changes no probability
            self.step -= self.step.mean(axis=0)
            self.shift -= self.shift.mean()
        self._go_to(self.point + self.step, self.intercept + self.shift)
        place.round, place.done = place.round + 1, 0
        if place.stage == SEARCH:
            place.stale = 0 if self._judge() else place.stale + 1
            if place.stale >= PATIENCE:
                self._settle()
            return
        self._take()
        if place.stage == BLIND and place.corner + 1 < self._corners:
            place.corner, place.value = place.corner + 1, None

    def _take(self) -> None:
        self.found[:], self.centre[:] = self.point, self.intercept

    def _judge(self) -> bool:
        """Whether the point is clearly better than those before it at this lambda, on the rows that choose."""
        place, score = self.place, self._score(self.point, self.intercept)
        self.solver.reporter.detail(f"round {len(place.made)}: hold-out {self.loss.name} loss {score:.5f}")
        if _is_lower(score, place.best_score):
            place.best_score, place.best_round, place.best_ridge = score, len(place.made), place.ridge
            self._take()
        lower, place.best_here = _is_lower(score, place.best_here), min(score, place.best_here or np.inf)
        return lower

    def _unseen_scores(self, point: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        assert self._unseen is not None
        return scores(self._unseen[0], point, self.solver.threads, layout=self.map.layout).T + intercept

    def _score(self, point: np.ndarray, intercept: np.ndarray) -> float:
        assert self._unseen is not None
        _, targets, counts = self._unseen
        return float(counts @ self.loss.values(self._unseen_scores(point, intercept), targets))

    def _settle(self) -> None:
        """The search is over, unless there is another lambda to try, a quantile has sharper corners, or residuals
        became much smaller than the loss was made for."""
        place = self.place
        if not self._walked_on():
            if place.corner + 1 < self._corners:
                place.corner += 1
            elif not self._sharpened():
                place.over = True
                return
        self._go_to(self.found, self.centre)
        place.made = place.made[: place.best_round]
        place.best_score = self._score(self.point, self.intercept)
        place.value, place.moved_back, place.stale = None, 0, 0

    def _walked_on(self) -> bool:
        """Whether there is another lambda to try, from the best point so far; else the best one is taken."""
        place = self.place
        if place.walked:
            return False
        assert place.best_here is not None
        place.tried.append(asdict(LambdaTrial(place.ridge, place.best_here, place.passes)))
        ridge = next_ridge(place.first_ridge, [LambdaTrial(**each) for each in place.tried], self.solver.ridge_given)
        place.walked = ridge is None
        place.ridge, place.best_here, place.passes = place.best_ridge if ridge is None else ridge, None, 0
        return not place.walked

    @property
    def _corners(self) -> int:
        return len(CORNERS) if self.loss.name == Quantile.name else 1

    def _sharpened(self) -> bool:
        """Whether residuals are so much smaller that a threshold or a corner from those before is too wide."""
        place = self.place
        if not 0 < len(place.deviations) <= SHARPENINGS:
            return False
        assert self._unseen is not None
        _, targets, counts = self._unseen
        last = np.array(place.deviations[place.deviation])
        now = robust_deviation(targets - self._unseen_scores(self.found, self.centre), counts)
        now = np.maximum(now, LEAST_UNIT * last)
        if not (now < SHARPER * last).any():
            return False
        place.deviations.append(np.minimum(now, last).tolist())
        place.deviation += 1
        place.corner, place.first_ridge, place.tried, place.walked = 0, place.best_ridge, [], False
        return True

    # -- one round of some outputs

    def _begin(self, outputs: np.ndarray) -> BinSteps | None:
        """Parabolas at the point; None where the objective has risen there, and the point has moved back."""
        self._group, g = outputs, len(outputs)
        statistic = self._pulls(outputs)
        state = self._pass(statistic)
        self._weigh(statistic.weight(state))
        if outputs[0] == 0 and self._went_too_far(statistic.loss_sum(state)):
            return None
        self._digest(state, outputs)
        residual, self.bends = (np.empty((g, self.map.n_features), np.float32) for _ in range(2))
        for i, output in enumerate(outputs):
            pull, bend = statistic.steps[i], statistic.steps[g + i]
            np.multiply(state.totals[g + i], np.float32(bend), out=self.bends[i], dtype=np.float32, casting="same_kind")
            bent = self.bent[output] = float(state.whole[g + i]) * bend
            self.shift[output] = -float(state.whole[i]) * pull / bent if bent > 0 else 0.0
            downhill(
                state.totals[i], pull, self.bends[i], self.shift[output], self.ridge, self.point[output], residual[i]
            )
        begun = StepsState.at(outputs, residual, np.zeros_like(residual), None)
        steps = self._steps(begun, self.step)
        steps.begin(np.array([size_of(*each, self.ridge) for each in zip(residual, self.bends, strict=True)]))
        return steps

    def _pulls(self, outputs: np.ndarray, directions: np.ndarray | None = None) -> BinPulls:
        about = self.loss, self.point, self.intercept, self.unit, outputs, directions
        return BinPulls(self.solver.indexer, self.solver.rows, self._split, *about, self.spare, self._kept)

    def _pass(self, statistic: BinPulls) -> BinPullsState:
        state = self._sum(statistic)
        self.place.passes += 1
        return state

    def _went_too_far(self, losses: float) -> bool:
        """Whether the objective is larger than at the last point; then half of the way there is taken."""
        place = self.place
        value = losses + self.ridge / 2 * sum(dot(each, each) for each in self.point)
        if place.value is None or value <= place.value * (1 + NOISE):
            place.value, place.moved_back = value, 0
            return False
        if place.moved_back == MOVED_BACK:
            if place.stage == SEARCH:
                self._settle()
            else:
                place.over = True
            return True
        self.step *= np.float32(0.5)
        self.shift /= 2
        self._go_to(self.point - self.step, self.intercept - self.shift)
        place.moved_back += 1
        if place.stage == SEARCH:
            self._judge()
        else:
            self._take()
        return True

    def _digest(self, state: BinPullsState, outputs: np.ndarray) -> None:
        """Of the sums over all rows."""
        if not self._apart:
            for output, totals in zip(outputs, state.totals, strict=False):
                self.place.digests[str(output)] = hashlib.sha256(totals.data).hexdigest()

    def facts(self) -> dict[str, Any]:
        """What was done in all, and how many rounds led to the point that the rows held out liked best."""
        place = self.place
        return {"steps": place.steps, "rounds": place.searched + place.round, "best_round": place.best_round}

    def told(self) -> dict[str, Any]:
        """Of the loss and of each lambda, as Newton's steps on other features tell it."""
        loss, told = self.loss, {"loss": self.loss.name, "path": self.place.tried}
        return {**told, "threshold": (loss.threshold * self.unit).tolist()} if isinstance(loss, Huber) else told

    def _tell(self, output: int, steps: int, best: int) -> None:
        """Rounds are told of, not their steps."""

    # -- the system that steps solve

    @property
    def lambda_(self) -> float:
        return self.place.ridge

    @property
    def ridge(self) -> float:
        """The second derivative of lambda w'w."""
        return 2 * super().ridge

    def diagonal(self, output: int) -> np.ndarray:
        return self.bends[output - self._group[0]]

    def products(self, directions: np.ndarray, outputs: np.ndarray) -> Products:
        statistic = self._pulls(outputs, directions)
        state = self._pass(statistic)
        self.place.steps += 1
        self.spare.append(state.totals)
        whole = state.whole[:-1] * statistic.steps
        lifts = np.divide(whole, self.bent[outputs], out=np.zeros_like(whole), where=self.bent[outputs] > 0)
        return Products(state.totals, statistic.steps, lifts)

    def _arrays(self) -> dict[str, np.ndarray]:
        return dict(zip(_NAMES, (self.point, self.step, self.bends, self._levels), strict=True))

    def _stage_title(self) -> str:
        number = 0 if self.steps is None else self.steps.state.iteration + 1
        title = f"round {self.place.round + 1}, step {number}"
        return f"joining {title}" if self.place.stage == JOIN else title


def _is_lower(score: float, best: float | None) -> bool:
    return best is None or best - score > GAIN * abs(best)


_NAMES = POINT, STEP, BENDS, LEVELS
