"""What trials are judged by: the loss that the model will be judged by, row by row, on rows that they have not seen.

Numbers by squares, by Huber's loss or by that of a quantile; classes by the log loss of scores that are calibrated in a
hurry, one class against the rest. All are shares of the loss without any inputs, on the same rows, so that 1 is the
error of the mean (the median, the frequencies of the classes). Rows count for their weights.

Targets are clipped at limits that hold all but a few outliers: one of these among the rows that judge would hide what
tells trials apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import scipy

from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.recipe import Recipe
from streamrf.solvers.lambda_path import wrong_classes
from streamrf.support.quantiles import median, quantiles, robust_deviation
from streamrf.training.pilot.choice import Trial

FAR_SQUARED, MOST_CLIPPED = 30.0, 0.005  # in deviations; and the share of rows that the squared loss may clip
FAR_ROBUST, FAR_RESIDUAL = 10.0, 3.0
NEWTON_STEPS, SHORTENINGS = 8, 6
ROBUST = ("huber", "quantile")
SET_THEM = "set `scaling`, `kernel` and `length_scale` yourself, or train on more rows"  # where rows are too few
MORE_ROWS = "more rows would tell"


@dataclass(frozen=True)
class Verdict:
    """The best of several scores (of a path of lambdas), and its losses by rows."""

    best: int
    error: float
    losses: np.ndarray  # (n,), whose mean by weight is the error
    path: np.ndarray  # of each score: squared errors, or those of the loss
    misses: float | None = None  # share of wrong classes


class Judge(Protocol):
    """Holds the rows that trials are fitted to, in order; a trial is judged by some of them."""

    @property
    def rows(self) -> Block:
        """With targets as trials are fitted to them."""
        ...

    @property
    def coding(self) -> TargetCoding: ...

    def verdict(self, scores: np.ndarray, judges: slice) -> Verdict:
        """Of scores (n, paths, outputs) of the rows ``judges``."""
        ...


def judge_of(sample: Block, coding: TargetCoding, recipe: Recipe) -> Judge:
    """As the loss of the recipe asks for."""
    return ClassJudge(sample, coding) if coding.classes else NumberJudge.of(sample, coding, recipe)


def shares_of(rows: Block) -> np.ndarray:
    """What each row counts for, one in all."""
    return np.full(len(rows), 1.0 / len(rows)) if rows.weights is None else rows.weights / rows.weights.sum()


@dataclass(frozen=True)
class NumberJudge:
    """Truth is clipped; ``unit`` is each output's variance, threshold or deviation."""

    rows: Block
    coding: TargetCoding
    truth: np.ndarray  # (n, k)
    loss: str
    level: float  # the quantile
    unit: np.ndarray  # (k,)
    flat: np.ndarray  # (k,) the prediction without inputs

    @classmethod
    def of(cls, sample: Block, coding: TargetCoding, recipe: Recipe) -> NumberJudge:
        Y, weights, loss = coding.values(sample.targets), sample.weights, recipe.loss
        truth, coding = _clipped(Y, weights, coding, loss, recipe.quantile)
        rows = sample if truth is Y else replace(sample, y=truth)
        if loss not in ROBUST:
            mean = shares_of(sample) @ truth if weights is not None else truth.mean(axis=0)
            variance = truth.var(axis=0) if weights is None else shares_of(sample) @ (truth - mean) ** 2
            return cls(rows, coding, truth, "squared", 0.5, np.where(variance > 0, variance, 1.0), mean)
        level = recipe.quantile if loss == "quantile" else 0.5
        flat = np.array([quantiles(column, [level], weights)[0] for column in truth.T])
        return cls(rows, coding, truth, loss, level, recipe.huber_epsilon * robust_deviation(truth, weights), flat)

    @property
    def robust(self) -> bool:
        return self.loss in ROBUST

    def cleaned(self, predicted: np.ndarray) -> NumberJudge:
        """Trials are fitted to targets clipped about predictions (n, k) from now on."""
        residuals = self.truth - predicted
        reach = FAR_RESIDUAL * robust_deviation(residuals, self.rows.weights)
        targets = predicted + np.clip(residuals, -reach, reach)
        coding = TargetCoding.regression(targets.min(axis=0), targets.max(axis=0))
        return replace(self, rows=replace(self.rows, y=targets), coding=coding)

    def verdict(self, scores: np.ndarray, judges: slice) -> Verdict:
        truth, rows = self.truth[judges], self.rows.take(judges)
        if self.loss == "squared" and rows.weights is None:
            errors = (((scores - truth[:, None]) ** 2).mean(axis=0) / self.unit).mean(axis=1)
            best = int(np.argmin(errors))
            losses = ((scores[:, best] - truth) ** 2 / self.unit).mean(axis=1)
            return Verdict(best, float(errors[best]), losses, errors)
        shares = shares_of(rows)
        losses = np.stack([self._losses(scores[:, i], truth, rows) for i in range(scores.shape[1])], axis=1)
        errors = shares @ losses
        best = int(np.argmin(errors))
        return Verdict(best, float(errors[best]), losses[:, best], errors)

    def _losses(self, scores: np.ndarray, truth: np.ndarray, rows: Block) -> np.ndarray:
        """(n,): the mean over outputs, each as a share of what it is without inputs."""
        if self.loss == "squared":
            return ((scores - truth) ** 2 / self.unit).mean(axis=1)
        residuals = truth - scores
        if self.loss == "quantile":  # trials are fits of the mean: what lies above and below is moved into place
            residuals = residuals - np.array([quantiles(r, [self.level], rows.weights)[0] for r in residuals.T])
        flat = np.maximum(shares_of(rows) @ self._of_residuals(truth - self.flat), np.finfo(np.float64).tiny)
        return (self._of_residuals(residuals) / flat).mean(axis=1)

    def _of_residuals(self, residuals: np.ndarray) -> np.ndarray:
        if self.loss == "huber":
            near = np.clip(residuals, -self.unit, self.unit)
            return near * (residuals - near / 2)
        return np.maximum(self.level * residuals, (self.level - 1) * residuals)


def _clipped(
    Y: np.ndarray, weights: np.ndarray | None, coding: TargetCoding, loss: str, level: float
) -> tuple[np.ndarray, TargetCoding]:
    """Targets within limits, and a coding for their range; both as they are where nothing is beyond."""
    centre = median(Y, weights)
    distance = np.abs(Y - centre)
    deviation = robust_deviation(Y, weights)
    usual = np.array([quantiles(column, [0.9], weights)[0] for column in distance.T])  # or most are equal
    if loss in ROBUST:
        reach = FAR_ROBUST * np.maximum(deviation, usual / 2)
        if loss == "quantile":  # which must lie within the limits, by far
            reach += np.array([abs(quantiles(column, [level], weights)[0]) for column in (Y - centre).T])
    else:
        most = np.array([quantiles(column, [1 - MOST_CLIPPED], weights)[0] for column in distance.T])
        reach = np.maximum(FAR_SQUARED * np.maximum(deviation, usual / 2), most)
    if not ((distance > reach) & (usual > 0)).any():
        return Y, coding
    reach = np.where(usual > 0, reach, np.inf)
    truth = np.clip(Y, centre - reach, centre + reach)
    return truth, TargetCoding.regression(truth.min(axis=0), truth.max(axis=0))


class ClassJudge:
    """Lambda is chosen by squares, as training does; then scores are calibrated, and judged by their log loss."""

    def __init__(self, sample: Block, coding: TargetCoding) -> None:
        self.rows, self.coding = sample, coding
        counted = np.bincount(coding.codes(sample.targets), shares_of(sample), minlength=len(coding.classes))
        self.priors = np.clip(counted[1:] if len(counted) == 2 else counted, 1e-12, 1 - 1e-12)

    def verdict(self, scores: np.ndarray, judges: slice) -> Verdict:
        rows = self.rows.take(judges)
        truth, shares = self.coding.values(rows.targets), shares_of(rows)
        squares = np.array([shares @ ((scores[:, i] - truth) ** 2).mean(axis=1) for i in range(scores.shape[1])])
        best = int(np.argmin(squares))
        losses = calibrated_losses(scores[:, best], truth > 0, shares, self.priors)
        flat = max(float(shares @ _log_losses(np.log(self.priors / (1 - self.priors)), truth > 0)), 1e-12)
        misses = float(shares @ wrong_classes(scores[:, best], truth))
        return Verdict(best, float(shares @ losses) / flat, losses / flat, squares, misses)


def calibrated_losses(scores: np.ndarray, positive: np.ndarray, shares: np.ndarray, priors: np.ndarray) -> np.ndarray:
    """(n,): log losses of logistic curves of scores (n, k), one of two parameters for each class against the rest,
    summed over classes. A curve that is no better than the class's frequency is left flat."""
    centred = scores - shares @ scores
    spread = np.sqrt(shares @ centred**2)
    Z = centred / np.where(spread > 0, spread, 1.0)
    start = np.log(priors / (1 - priors))
    slope, shift = np.zeros(len(priors)), start.copy()
    stiff = 1.0 / len(scores)  # one row's worth of doubt about steep curves

    def objective(slope: np.ndarray, shift: np.ndarray) -> np.ndarray:
        return shares @ _each_log_loss(Z * slope + shift, positive) + stiff * slope**2 / 2

    now = objective(slope, shift)
    for _ in range(NEWTON_STEPS):
        p = scipy.special.expit(Z * slope + shift)
        rest, bend = p - positive, np.maximum(p * (1 - p), 1e-12)
        g1, g2 = shares @ (rest * Z) + stiff * slope, shares @ rest
        a, b, c = shares @ (bend * Z * Z) + stiff, shares @ (bend * Z), shares @ bend + 1e-9
        det = np.maximum(a * c - b * b, 1e-300)
        steps, length = ((c * g1 - b * g2) / det, (a * g2 - b * g1) / det), np.ones(len(priors))
        for _ in range(SHORTENINGS):  # the first steps of a rare class go too far
            worse = ~(objective(slope - length * steps[0], shift - length * steps[1]) <= now)
            if not worse.any():
                break
            length[worse] /= 4
        length[worse] = 0.0
        slope, shift = slope - length * steps[0], shift - length * steps[1]
        now = objective(slope, shift)
    curved, flat = (_each_log_loss(margins, positive) for margins in (Z * slope + shift, start))
    better = shares @ curved < shares @ flat
    return np.where(better, curved, flat).sum(axis=1)


def _each_log_loss(log_odds: np.ndarray, positive: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, np.where(positive, -log_odds, log_odds))


def _log_losses(log_odds: np.ndarray, positive: np.ndarray) -> np.ndarray:
    return _each_log_loss(log_odds, positive).sum(axis=1)


@dataclass(frozen=True)
class Certainty:
    """How much better the best trial is than others on the same rows, in standard errors of the difference."""

    best: Trial
    others: tuple[Trial, ...]
    gaps: tuple[float, ...]
    one: float  # the largest standard error of a difference

    @classmethod
    def of(
        cls, best: Trial, others: Sequence[Trial], losses: Mapping[Trial, np.ndarray], weights: np.ndarray | None
    ) -> Certainty:
        """From the losses of each by rows."""
        gaps = [standard_errors(losses[best], losses[other], weights) for other in others]
        return cls(best, tuple(others), tuple(gap for gap, _ in gaps), max(one for _, one in gaps))

    def sentence(self) -> str:
        """For people."""
        close = 1 + sum(gap < SURE for gap in self.gaps)
        best, (next_best, gap) = self.best, min(zip(self.others, self.gaps, strict=True), key=lambda each: each[1])
        if close > 1:
            apart = f"best by {gap:.1f} standard errors"
            return f"pilot: the rows that judge cannot tell the first {close} trials apart ({apart})"
        return f"pilot: {_pair(best)} is best, by {gap:.1f} standard errors before {_pair(next_best)}"

    def warning(self, cure: str = SET_THEM) -> str:
        """Nothing, unless rows are too few for differences that would matter."""
        if min(self.gaps) >= SURE or self.one <= MATTERS * self.best.error:
            return ""
        few = f"too few to tell the first {1 + len(self.others)} apart"
        return f"the rows that judge the pilot's trials are {few}: {cure}"

    def to_json(self) -> dict[str, Any]:
        return {
            "best": _pair(self.best), "others": [_pair(other) for other in self.others],
            "standard_errors": [float(min(gap, 1e9)) for gap in self.gaps], "standard_error": self.one,
        }  # fmt: skip


SURE, MATTERS = 2.0, 0.05  # standard errors; and a share of the error


def _pair(trial: Trial) -> str:
    return f"{trial.scaling} {trial.kernel} {trial.length_scale:.3g}"


def standard_errors(better: np.ndarray, worse: np.ndarray, weights: np.ndarray | None) -> tuple[float, float]:
    """The mean difference of two trials' losses on the same rows, in its standard errors; and one standard error."""
    shares = np.full(len(better), 1.0 / len(better)) if weights is None else weights / weights.sum()
    gaps = worse - better
    mean = float(shares @ gaps)
    error = float(np.sqrt(shares**2 @ (gaps - mean) ** 2))
    return (mean / error if error > 0 else 0.0 if mean == 0 else np.inf), error
