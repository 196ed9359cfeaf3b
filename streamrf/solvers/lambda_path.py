"""Choosing lambda by rows that were not trained on, and judging weights by them: calibration and metrics.

Lambda walks downhill on some error. Iterative solvers choose the next from what those before came to.

Cross-validation and GCV get theirs from sums alone, without rows.

The squared error of any weights on any set of rows is a quadratic form in the sums of those rows,
``y'y - 2 w'Z'y + w'Z'Z w``, so the sums of a fold judge the weights that ``total - fold`` gives, exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit

from streamrf.data.source import Block
from streamrf.features.base import FeatureMap, Scorer
from streamrf.features.pipeline import Pipeline
from streamrf.features.targets import TargetCoding
from streamrf.solvers.ridge import NormalEquations, RidgeSolver
from streamrf.statistics.gram import GramState
from streamrf.statistics.metrics import Unit
from streamrf.statistics.scores import Calibration, Predictor, Scores, Weights
from streamrf.statistics.targets import Weighting, row_weights
from streamrf.support.errors import InputError
from streamrf.support.threads import Threads

RIDGE_LIMITS = (1e-13, 1e2)
HAIR = 1e-4  # a smaller share of the error is no reason to move on


class LambdaWalk(ABC):
    """Walks lambda downhill in steps of ten and then of its root. Subclasses say what the error is."""

    def __init__(self) -> None:
        self.tried: dict[float, float] = {}
        self.ridge, self.best = math.nan, math.inf

    @abstractmethod
    def error(self, ridge: float) -> float:
        """The error at this lambda."""

    @abstractmethod
    def keep(self) -> None:
        """The lambda tried last is the best so far: hold on to what belongs to it."""

    def choose(self, start: float, *, fixed: bool = False) -> float:
        """The best lambda; one that is ``fixed`` is only judged."""
        self.consider(start)
        if not fixed:
            for factor in (10.0, 10.0**0.5):
                here = self.ridge
                self._walk(here, 1 / factor) or self._walk(here, factor)
        return self.ridge

    def at_an_end(self) -> str:
        """What it means that the best lambda is the smallest or the largest there is; nothing where it is not."""
        if self.ridge / 10 < RIDGE_LIMITS[0]:
            return ": the smallest there is, so the model could bear more features (raise `D`)"
        if self.ridge * 10 > RIDGE_LIMITS[1]:
            return ": the largest there is, so the features explain next to nothing"
        return ""

    def _walk(self, start: float, factor: float) -> bool:
        """Follow one direction as long as it gets better; whether it did at all."""
        ridge, better = start * factor, False
        while RIDGE_LIMITS[0] <= ridge <= RIDGE_LIMITS[1] and self.consider(ridge):
            ridge, better = ridge * factor, True
        return better

    def consider(self, ridge: float) -> bool:
        """Whether this lambda is the best so far by more than a hair."""
        self.tried[ridge] = error = self.error(ridge)
        if not (error < self.best * (1 - HAIR) or math.isnan(self.ridge)):
            return False
        self.ridge, self.best = ridge, error
        self.keep()
        return True


class HoldoutPath(LambdaWalk):
    """Lambda by the squared error on rows held out; ``X`` is scaled, ``y`` coded, ``shares`` add up to one."""

    def __init__(
        self, solver: RidgeSolver, map: FeatureMap, X: np.ndarray, y: np.ndarray, shares: np.ndarray
    ) -> None:  # fmt: skip
        super().__init__()
        self.solver, self.map, self.X, self.y, self.shares = solver, map, X, y, shares
        self.weights: Weights

    def error(self, ridge: float) -> float:
        self._last = self.solver.solve(ridge)
        scorer = Scorer(self.map, self._last.coefficients, self._last.intercept)
        errors = ((scorer.scores(self.X, self.solver.threads) - self.y) ** 2).mean(axis=1)
        return float((self.shares * errors).sum())

    def keep(self) -> None:
        self.weights = self._last

    def table(self) -> list[dict[str, float]]:
        """What was tried, for the metadata."""
        return [{"lambda": ridge, "mean_squared_error": error} for ridge, error in sorted(self.tried.items())]


def squared_errors(equations: NormalEquations, weights: Weights, threads: Threads) -> np.ndarray:
    """(outputs,): mean squared error of ``weights`` on the rows whose sums these are, trained on them or not."""
    scaled = np.zeros_like(weights.coefficients)
    amplitudes = equations.amplitudes[:, None]
    np.divide(weights.coefficients, amplitudes, out=scaled, where=amplitudes != 0)
    bias = equations.target_mean - weights.intercept - equations.mean @ weights.coefficients
    spread = equations.target_variance - 2 * (equations.cross * scaled).sum(axis=0)
    return np.maximum(spread + _quadratic(equations, weights.coefficients, threads), 0.0) + bias**2


def _quadratic(equations: NormalEquations, coefficients: np.ndarray, threads: Threads) -> np.ndarray:
    """(outputs,): w'Sw of the centred features, panel by panel, without another matrix."""
    layout, n = equations.layout, float(equations.rows)
    coefficients = np.ascontiguousarray(coefficients.T)

    def one(number: int) -> np.ndarray:
        panel = layout.panel(equations.totals, number)
        return _quadratic_of_panel(panel, layout.starts[number], n, equations.mean, coefficients)

    return np.sum(list(threads.map(one, range(-(-equations.size // layout.panel_width)))), axis=0)


@njit(cache=True, nogil=True)
def _quadratic_of_panel(panel: Any, j0: int, n: float, mean: Any, coefficients: Any) -> Any:
    outputs, D = coefficients.shape
    total = np.zeros(outputs)
    for j in range(j0, min(D, j0 + panel.shape[0])):
        column = np.empty(D - j)
        for i in range(j, D):
            column[i - j] = (float(panel[j - j0, i - j0]) / n - mean[i] * mean[j]) * (1.0 if i == j else 2.0)
        for k in range(outputs):
            inner = 0.0
            for i in range(j, D):
                inner += column[i - j] * coefficients[k, i]
            total[k] += inner * coefficients[k, j]
    return total


def generalised_error(solver: RidgeSolver, ridge: float) -> tuple[Weights, float]:
    """Weights and the GCV score: the training error over ``(1 - degrees of freedom / rows)^2``, intercept included."""
    equations = solver.equations
    weights = solver.solve(ridge, dimension=True)
    assert weights.rank is not None
    left = 1.0 - (weights.rank + 1.0) / equations.rows
    mean = float(squared_errors(equations, weights, solver.threads).mean())
    return weights, mean / left**2 if left > 0 else math.inf


class GcvPath(LambdaWalk):
    """Lambda by generalised cross-validation: no hold-out rows, no folds, only the sums."""

    def __init__(self, solver: RidgeSolver) -> None:
        super().__init__()
        self.solver = solver
        self.weights: Weights

    def error(self, ridge: float) -> float:
        self._last, error = generalised_error(self.solver, ridge)
        return error

    def keep(self) -> None:
        self.weights = self._last

    def table(self) -> list[dict[str, float | None]]:
        """What was tried, for the metadata."""
        return [{"lambda": r, "gcv": e if math.isfinite(e) else None} for r, e in sorted(self.tried.items())]


def total_of(folds: list[GramState]) -> GramState:
    """The sums of all rows, as if there were no folds."""
    total = folds[0].copy()
    for fold in folds[1:]:
        total += fold
    return total


class FoldPath(LambdaWalk):
    """Lambda by K-fold cross-validation from the sums of the folds."""

    def __init__(self, folds: list[GramState], map: FeatureMap, coding: TargetCoding, threads: Threads) -> None:
        super().__init__()
        self.folds, self.map, self.coding, self.threads = folds, map, coding, threads
        self.total = total_of(folds)
        self.errors: dict[float, list[float]] = {}
        smallest = min(fold.rows for fold in self.folds)
        if smallest < 2:
            raise InputError(f"`cv={len(self.folds)}`: a fold has {smallest} rows only, give fewer folds or more rows")
        self._weights = [self._equations(fold).rows for fold in self.folds]
        self.solver = RidgeSolver(self._equations(self.total), threads)

    def _equations(self, state: GramState) -> NormalEquations:
        return NormalEquations.from_state(state, self.map, self.coding)

    def error(self, ridge: float) -> float:
        """The mean over all rows, by their weights, each judged by a solution that has not seen its fold."""
        self.errors[ridge] = [self._fold_error(fold, ridge) for fold in self.folds]
        return float(np.average(self.errors[ridge], weights=self._weights))

    def keep(self) -> None:
        """Nothing: weights are one more solve a fold."""

    def _fold_error(self, fold: GramState, ridge: float) -> float:
        return float(squared_errors(self._equations(fold), self.weights_without(fold, ridge), self.threads).mean())

    def weights_without(self, fold: GramState, ridge: float) -> Weights:
        """Weights of ``total - fold``."""
        with self._taken_out(fold):
            self.solver.equations = self._equations(self.total)
            return self.solver.solve(ridge)

    @contextmanager
    def _taken_out(self, fold: GramState) -> Iterator[None]:
        self.total -= fold
        try:
            yield
        finally:
            self.total += fold

    def summary(self) -> dict[str, Any]:
        """Errors by lambda and fold, for the metadata: mean, spread (one deviation over folds), and GCV."""
        self.solver.equations = self._equations(self.total)
        _, gcv = generalised_error(self.solver, self.ridge)
        chosen = self.errors[self.ridge]
        return {
            "folds": len(self.folds), "rows": [fold.rows for fold in self.folds],
            "mean_squared_error": self.tried[self.ridge], "spread": float(np.std(chosen, ddof=1)), "by_fold": chosen,
            "path": [{"lambda": ridge, "mean": self.tried[ridge], "by_fold": self.errors[ridge]}
                     for ridge in sorted(self.errors)],
            "gcv": gcv if math.isfinite(gcv) else None,
        }  # fmt: skip


GAIN = 0.002  # a smaller share of the error is not worth another lambda
WALK = 10.0  # one step of lambda


@dataclass(frozen=True)
class LambdaTrial:
    """A lambda, and the squared error on the hold-out rows that it came to, as a share of their variance."""

    ridge: float
    score: float
    steps: int


def next_ridge(first: float, tried: list[LambdaTrial], fixed: bool) -> float | None:
    """Down from the first while that helps; up, if it never did. None when neither does."""
    if not tried:
        return first
    if fixed or not np.isfinite(tried[-1].score):
        return None
    if len(tried) == 1:
        return first / WALK
    down = tried[1].score < tried[0].score
    if len(tried) == 2 and not down:
        return first * WALK
    if _improved(tried):
        return tried[-1].ridge / WALK if down else tried[-1].ridge * WALK
    return None


def _improved(tried: list[LambdaTrial]) -> bool:
    return tried[-1].score < (1 - GAIN) * min(trial.score for trial in tried[:-1])


FIRST, UP, DOWN = (0, -1, -2), (1, 2), (-3, -4)  # powers of ten that are tried together


def next_block(first: float, tried: list[LambdaTrial], fixed: bool) -> list[float] | None:
    """Several at once: the first and two below; then two above, or two further below, where the edge was best and
    another step of lambda promises something."""
    if fixed:
        return None if tried else [first]
    if len(tried) != len(FIRST):
        return None if tried else [first * WALK**power for power in FIRST]
    scores = [trial.score for trial in tried]
    best = int(np.argmin(scores))
    if best == 0:
        return [first * WALK**power for power in UP]
    if best == len(FIRST) - 1 and _promised(*scores) > GAIN * scores[-1]:
        return [first * WALK**power for power in DOWN]
    return None


def _promised(first: float, second: float, third: float) -> float:
    """What the next step would gain, if gains went on falling as those of the last two steps did."""
    before, last = first - second, second - third
    return last * min(1.0, last / before) if before > 0 else last


Unseen = tuple[Weights, Block]  # weights, and rows (with coded targets and weights of their own) not seen by them


def judge(
    pipeline: Pipeline, parts: list[Unseen], threads: Threads, weighting: Weighting | None = None,
    threshold: float | str | None = None, known: Calibration | None = None,
) -> tuple[Calibration | None, dict[str, Any]]:  # fmt: skip
    """Calibration on rows that the weights beside them have not seen, or one that is known; and the metrics there.

    Weights of classes take part in the calibration only: metrics are those that ``evaluate`` gives of such rows.
    """
    calibration = None
    if pipeline.coding.classes:
        calibration = calibrate(pipeline, parts, threads, weighting or Weighting(), threshold, known)
    return calibration, metrics(pipeline, parts, calibration, threads)


def metrics(
    pipeline: Pipeline, parts: list[Unseen], calibration: Calibration | None, threads: Threads
) -> dict[str, Any]:
    """The metrics of weights on rows that they have not seen."""
    weights = _joined([rows.weights for _, rows in parts])
    unit = Unit.of(float(weights.max())) if weights is not None and weights.max() > 0 else None
    scores = [Scores(Predictor(pipeline, weights, calibration), unit) for weights, _ in parts]
    state = scores[0].zero()
    for each, (_, rows) in zip(scores, parts, strict=True):
        each.update(state, as_read(pipeline.coding, rows), threads)
    return scores[0].metrics(state)


def calibrate(
    pipeline: Pipeline, parts: list[Unseen], threads: Threads, weighting: Weighting,
    threshold: float | str | None = None, known: Calibration | None = None,
) -> Calibration:  # fmt: skip
    """Rows count for their weights in the threshold, and for those of their classes too in the slopes."""
    scores = np.concatenate([Predictor(pipeline, weights, None).scores(rows.X, threads) for weights, rows in parts])
    codes = np.concatenate([class_codes(rows.targets) for _, rows in parts])
    weights = _joined([weighed(pipeline.coding, rows, weighting).weights for _, rows in parts])
    calibration = known or Calibration.fit(scores, codes, weights)
    return calibration.with_threshold(threshold, scores, codes, _joined([rows.weights for _, rows in parts]))


def _joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
    """All of them, or None where any is missing."""
    known = [each for each in parts if each is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def class_codes(values: np.ndarray) -> np.ndarray:
    """Class positions from the coded targets that hold-out rows keep."""
    return (values[:, 0] > 0).astype(np.int64) if values.shape[1] == 1 else values.argmax(axis=1)


def as_read(coding: TargetCoding, rows: Block) -> Block:
    """Hold-out rows with their targets as a source gives them."""
    return replace(rows, y=np.asarray(coding.classes)[class_codes(rows.targets)]) if coding.classes else rows


def weighed(coding: TargetCoding, rows: Block, weighting: Weighting) -> Block:
    """Hold-out rows with all that they count for: their own weights times those of their classes."""
    return replace(rows, weights=row_weights(as_read(coding, rows), coding, weighting.class_weights))


def shares(rows: Block) -> np.ndarray:
    """What each of these rows counts for, one in all."""
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    return weights / max(weights.sum(), np.finfo(np.float64).tiny)


def wrong_classes(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Whether each row's class is missed, from (rows, outputs) scores and coded targets."""
    if scores.shape[1] == 1:
        return ((scores > 0) != (truth > 0))[:, 0]
    return scores.argmax(axis=1) != truth.argmax(axis=1)
