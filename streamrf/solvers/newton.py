"""Smooth losses: quasi-Newton steps (L-BFGS) from a Gram preconditioner, one pass for each point that is looked at.

Scores are ``b + (z - mean z)'w``: centring keeps the intercept out of the way of the weights. What is minimised is the
mean loss plus lambda |w|^2; held-out rows say when it is good enough, and which lambda is best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from streamrf.solvers.base import Fitted, Run
from streamrf.solvers.conjugate_gradients import Preconditioner
from streamrf.solvers.iterative import IterativeSolver
from streamrf.solvers.judging import calibrate
from streamrf.solvers.lambda_path import LambdaTrial, next_ridge
from streamrf.statistics.holdout import under
from streamrf.statistics.losses import Huber, Logistic, Loss, Quantile, class_loss
from streamrf.statistics.scores import Calibration, Weights
from streamrf.support.errors import FileFormatError, NumericalError
from streamrf.support.quantiles import median, robust_deviation

Evaluate = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""A point (k, p) to the objective there and its gradient (k, p)."""

MEMORY = 10  # pairs of steps and changes of the gradient
SUFFICIENT = 1e-4  # of the promised descent
MAX_SHORTENINGS = 12


@dataclass
class LBFGSState:
    """Where the descent stands, and the step it would try next."""

    point: np.ndarray  # (k, p)
    value: float
    gradient: np.ndarray  # (k, p)
    direction: np.ndarray  # (k, p)
    length: float  # of the step along the direction
    steps: np.ndarray  # (m, k, p), the oldest first
    changes: np.ndarray  # (m, k, p)
    first_size: float = np.inf  # of the gradient at the start, in the preconditioner's norm
    iteration: int = 0
    evaluations: int = 0
    shortened: int = 0

    def arrays(self) -> dict[str, np.ndarray]:
        return {each.name: np.asarray(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray]) -> LBFGSState:
        names = [each.name for each in fields(cls)]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise FileFormatError(f"damaged state of L-BFGS: {', '.join(missing)} missing")
        values: dict[str, Any] = {name: np.array(arrays[name]) for name in names}
        scalars = ("value", "length", "first_size", "iteration", "evaluations", "shortened")
        return cls(**{name: value.item() if name in scalars else value for name, value in values.items()})


class LBFGS:
    """One objective and its state."""

    def __init__(self, evaluate: Evaluate, preconditioner: Preconditioner, state: LBFGSState) -> None:
        self.evaluate, self.preconditioner, self.state = evaluate, preconditioner, state

    @classmethod
    def at(cls, evaluate: Evaluate, preconditioner: Preconditioner, start: np.ndarray) -> LBFGS:
        """Standing nowhere yet: the first step looks at the start itself."""
        none = np.zeros((0, *start.shape))
        state = LBFGSState(start.copy(), np.inf, np.zeros_like(start), np.zeros_like(start), 0.0, none, none.copy())
        return cls(evaluate, preconditioner, state)

    def step(self) -> bool:
        """Look at one point; whether it was good enough to move there."""
        state = self.state
        trial = state.point + state.length * state.direction
        value, gradient = self.evaluate(trial)
        state.evaluations += 1
        if not np.isfinite(value):
            raise NumericalError(f"the solver diverged at step {state.iteration + 1}: use a larger `ridge`")
        if state.evaluations > 1:
            slope = float((state.gradient * state.direction).sum())
            if value > state.value + SUFFICIENT * state.length * slope:
                self._shorten(value, slope)
                return False
            self._learn(trial - state.point, gradient - state.gradient)
        state.point, state.value, state.gradient = trial, value, gradient
        state.iteration, state.shortened = state.iteration + (state.evaluations > 1), 0
        self._aim()
        return True

    def _shorten(self, value: float, slope: float) -> None:
        """The minimum of the parabola through what is known, within bounds."""
        state = self.state
        bend = value - state.value - state.length * slope
        best = -slope * state.length**2 / (2 * bend) if bend > 0 else 0.0
        state.length = float(np.clip(best, 0.1 * state.length, 0.5 * state.length))
        state.shortened += 1

    def _learn(self, step: np.ndarray, change: np.ndarray) -> None:
        state = self.state
        if (step * change).sum() > 1e-12 * np.sqrt((step**2).sum() * (change**2).sum()):
            state.steps = np.concatenate([state.steps, step[None]])[-MEMORY:]
            state.changes = np.concatenate([state.changes, change[None]])[-MEMORY:]

    def _aim(self) -> None:
        """The two loops of L-BFGS, round the preconditioner."""
        state, rest = self.state, self.state.gradient.copy()
        pairs = list(zip(state.steps, state.changes, strict=True))
        shares = []
        for step, change in reversed(pairs):
            share = (step * rest).sum() / (step * change).sum()
            rest -= share * change
            shares.append(share)
        solved = self.preconditioner(rest)
        if pairs:
            step, change = pairs[-1]
            solved *= (step * change).sum() / (change * self.preconditioner(change)).sum()
        elif not np.isfinite(state.first_size):
            state.first_size = float(np.sqrt(max((rest * solved).sum(), 0.0)))
        for (step, change), share in zip(pairs, reversed(shares), strict=True):
            solved += (share - (change * solved).sum() / (step * change).sum()) * step
        state.direction, state.length = -solved, 1.0

    @property
    def size(self) -> float:
        """Of the gradient, as a share of what it was at the start."""
        state = self.state
        if not state.first_size:
            return 0.0
        descent = max(-float((state.gradient * state.direction).sum()), 0.0)
        return float(np.sqrt(descent) / state.first_size) if np.isfinite(state.first_size) else np.inf

    @property
    def stuck(self) -> bool:
        """Whether no step along the direction helps any more: rounding is all that is left."""
        return self.state.shortened >= MAX_SHORTENINGS


PASSES = 100  # at one lambda
TOLERANCE = 1e-4  # of the gradient's first size, where no rows are held out
GAIN, PATIENCE = 0.001, 3  # points that do not lower the loss on hold-out rows by this share in so many end it
CORNERS = (0.5, 0.1, 0.02)  # widths of the rounded corner of a quantile, in deviations of the residuals
LAMBDA_SHARE = {"logistic": 1 / 8, "squared-hinge": 1.0, "huber": 0.5, "quantile": 0.5}  # of the squared loss's lambda
SHARPER, SHARPENINGS = 0.7, 4  # residuals whose deviation fell below this share of the last call for another threshold
LBFGS_ARRAYS, BEST = "lbfgs/", "best"


class Newton(IterativeSolver):
    """Logistic, squared hinge, Huber and quantile losses."""

    name = "newton"
    losses = ("squared-hinge", "logistic", "huber", "quantile")
    preference = 2
    usual_passes, vectors = 40, 34

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        if self.recipe.loss == Logistic.name:
            self.calibration = plain_calibration(self.pipeline.coding.outputs)

    def fit(self) -> Fitted:
        state = self.open()
        with self.run.timed("solve"):
            self._factor = self.factor(state)
            self._restore()
            self._search()
        trial = min(self._tried, key=lambda trial: trial.score)
        facts = {"loss": self.recipe.loss, "path": [asdict(trial) for trial in self._tried]}
        if isinstance(self._loss, Huber):
            facts["threshold"] = self._loss.threshold.tolist()
        return self.finish(state, self._weights(self._best, trial.ridge), facts)

    def _restore(self) -> None:
        """Where the search stood, if this run resumes another."""
        self._tried: list[LambdaTrial] = []
        self._passes, self._corner = 0, 0
        self._first = self.first_ridge * (1.0 if self.ridge_given else LAMBDA_SHARE[self.recipe.loss])
        self._start = self._first_point()
        self._deviations = [] if self.pipeline.coding.classes else [self._deviation(self._start)]
        self._losses = self._stages()
        self._best = self._start
        self._recent: list[float] = []  # scores on the hold-out rows at this lambda
        self._since = 0  # how many of them are of corners before this one
        self._resumed: LBFGSState | None = None
        kept = self.kept("newton")
        if kept:
            document, arrays = kept
            self._tried = [LambdaTrial(**trial) for trial in document["tried"]]
            self._passes, self._corner = document["passes"], document["corner"]
            self._recent, self._since = document["recent"], document["since"]
            self._best, self._resumed = arrays[BEST], LBFGSState.load(under(arrays, LBFGS_ARRAYS))
            self._deviations = [np.array(each) for each in document.get("deviations", self._deviations)]
            self._first = document.get("first", self._first)
            self._losses = self._stages()

    def _keep(self, state: LBFGSState) -> None:
        arrays = {LBFGS_ARRAYS + name: array for name, array in state.arrays().items()}
        document = {
            "tried": [asdict(trial) for trial in self._tried], "passes": self._passes, "corner": self._corner,
            "recent": self._recent, "since": self._since, "deviations": [each.tolist() for each in self._deviations],
            "first": self._first,
        }  # fmt: skip
        self.keep("newton", document, {**arrays, BEST: self._best})

    def _first_point(self) -> np.ndarray:
        """(k, D + 1), the intercepts last: nothing for classes; for numbers one rough step of least squares, or the
        median alone where that is closer to most rows: a few outliers can throw least squares far off."""
        cross = self.moments.cross
        flat = np.zeros((len(cross), cross.shape[1] + 1))
        if self.pipeline.coding.classes:
            return flat
        rough = self._factor.at(max(self.first_ridge, 1e-6))(cross)
        squares = np.concatenate([rough, self.moments.target_mean[:, None]], axis=1)
        flat[:, -1] = median(self.judging_rows.targets, self.judging_rows.weights)
        closer = self._deviation(squares) < self._deviation(flat)
        return np.where(closer[:, None], squares, flat)

    def _stages(self) -> list[Loss]:
        """The losses to be minimised one after the other: a quantile's corner is sharpened step by step."""
        coding, recipe = self.pipeline.coding, self.recipe
        if coding.classes:
            return [class_loss(recipe.loss, coding.outputs)]
        deviation = self._deviations[-1]
        if recipe.loss == "huber":
            return [Huber(recipe.huber_epsilon * deviation)]
        return [Quantile(recipe.quantile, corner * deviation) for corner in CORNERS]

    def _deviation(self, point: np.ndarray) -> np.ndarray:
        """Of the residuals, by their medians, (k,)."""
        rows = self.judging_rows
        return robust_deviation(rows.targets - self.judging_scores(self._weights(point, 0.0)), rows.weights)

    def _sharpened(self) -> bool:
        """Whether residuals became so much smaller that a threshold from those before is too wide to be robust; then
        the losses are those of the residuals now, and the search starts again at the best lambda."""
        if not 0 < len(self._deviations) <= SHARPENINGS:
            return False
        deviation = self._deviation(self._best)
        if not (deviation < SHARPER * self._deviations[-1]).any():
            return False
        self._deviations.append(np.minimum(deviation, self._deviations[-1]))
        if self._tried:
            self._first, self._tried = min(self._tried, key=lambda trial: trial.score).ridge, []
        self._losses, self._corner, self._recent, self._since = self._stages(), 0, [], 0
        return True

    @property
    def _loss(self) -> Loss:
        return self._losses[self._corner]

    def _weights(self, point: np.ndarray, ridge: float) -> Weights:
        coefficients = (point[:, :-1] * self.moments.amplitudes).T
        return Weights(coefficients, point[:, -1] - self.moments.mean @ coefficients, ridge)

    def _search(self) -> None:
        fixed = self.ridge_given or self.holdout is None
        point = self._start
        while True:
            ridge = next_ridge(self._first, self._tried, fixed)
            if ridge is None:
                if self._sharpened():
                    continue
                return
            point = self._descend(point, ridge)
            if not self._tried and self._sharpened():
                continue
            score = min(self._recent) if self._recent else 0.0
            self._tried.append(LambdaTrial(ridge, score, self._passes))
            judged = f", hold-out loss {score:.5g}" if self._recent else ""
            self.reporter.detail(f"lambda {ridge:.3g}: {self._passes} passes{judged}")
            self._passes, self._corner, self._recent, self._since = 0, len(self._losses) - 1, [], 0

    def _descend(self, point: np.ndarray, ridge: float) -> np.ndarray:
        """From a point to the minimum at one lambda, through all corners that are left."""
        while True:
            lbfgs = self._begun(point, ridge)
            self._minimise(lbfgs)
            point = lbfgs.state.point
            if self._corner + 1 == len(self._losses):
                return point
            self._corner, self._since = self._corner + 1, len(self._recent)

    def _begun(self, point: np.ndarray, ridge: float) -> LBFGS:
        evaluate = lambda theta: self._evaluate(theta, ridge)  # noqa: E731
        preconditioner = self._preconditioner(ridge)
        if self._resumed is not None:
            lbfgs, self._resumed = LBFGS(evaluate, preconditioner, self._resumed), None
            return lbfgs
        return LBFGS.at(evaluate, preconditioner, point)

    def _minimise(self, lbfgs: LBFGS) -> None:
        self._keep(lbfgs.state)
        while lbfgs.size > TOLERANCE and not lbfgs.stuck and lbfgs.state.evaluations < PASSES and not self._stale():
            moved = lbfgs.step()
            self._passes += 1
            if moved and self.holdout is not None:
                self._judge(lbfgs.state.point)
            elif self.holdout is None:
                self._best = lbfgs.state.point
            self._keep(lbfgs.state)

    def _judge(self, point: np.ndarray) -> None:
        assert self.holdout is not None
        losses = self._loss.values(self.judging_scores(self._weights(point, 0.0)), self.holdout.targets)
        score = float(self.holdout_weights @ losses)
        if score < min([trial.score for trial in self._tried] + self._recent, default=np.inf):
            self._best = point.copy()
        self._recent.append(score)

    def _stale(self) -> bool:
        """Whether the last few points were no better than what was there before."""
        recent = self._recent[self._since :]
        if len(recent) <= PATIENCE:
            return False
        before, after = min(recent[:-PATIENCE]), min(recent[-PATIENCE:])
        return after > before - GAIN * abs(before)

    def _evaluate(self, point: np.ndarray, ridge: float) -> tuple[float, np.ndarray]:
        """The objective and its gradient: one pass."""
        weights, moments = self._weights(point, ridge), self.moments
        statistic = self.gradient(self._loss, weights.coefficients, weights.intercept)
        state = self.passes.sum(statistic, f"{self.recipe.loss} loss", self.rows)
        (losses, weight), (sums, pulls) = statistic.loss_sums(state), statistic.sums(state)
        slopes = (sums - pulls[:, None] * moments.mean) * moments.amplitudes / weight
        gradient = np.concatenate([slopes + 2 * ridge * point[:, :-1], pulls[:, None] / weight], axis=1)
        return float(losses[0] / weight + ridge * (point[:, :-1] ** 2).sum()), gradient

    def _preconditioner(self, ridge: float) -> Preconditioner:
        """The inverse of curvature * S + 2 lambda, and of the curvature alone for the intercepts."""
        curvature = self._loss.curvature
        rough = self._factor.at(2 * ridge / curvature)

        def apply(gradient: np.ndarray) -> np.ndarray:
            weights = rough(np.ascontiguousarray(gradient[:, :-1]))
            return np.concatenate([weights, gradient[:, -1:]], axis=1) / curvature

        return apply

    def calibrated(self, weights: Weights) -> Calibration | None:
        """Logistic scores are log-odds already: nothing is left to calibrate."""
        if not isinstance(self._loss, Logistic):
            return super().calibrated(weights)
        assert self.holdout is not None
        unseen = [(weights, self.holdout)]
        return calibrate(self.pipeline, unseen, self.threads, None, self.recipe.threshold, self.calibration)


def plain_calibration(outputs: int) -> Calibration:
    """Scores taken as they are."""
    return Calibration(np.eye(outputs), np.zeros(outputs))
