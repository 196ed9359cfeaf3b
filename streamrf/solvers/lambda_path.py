"""Choosing lambda by rows that were not trained on.

Lambda walks downhill on some error: one lambda for each number that is predicted, one for all classes. Iterative
solvers choose the next from what those before came to.

Cross-validation and GCV get theirs from sums alone, without rows.

The squared error of any weights on any set of rows is a quadratic form in the sums of those rows,
``y'y - 2 w'Z'y + w'Z'Z w``, so the sums of a fold judge the weights that ``total - fold`` gives, exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from streamrf.features.pipeline import Pipeline
from streamrf.features.targets import TargetCoding
from streamrf.solvers.ridge import ROUNDING, NormalEquations, RidgeSolver
from streamrf.statistics.gram import GramState
from streamrf.statistics.scores import Weights
from streamrf.support.compiled import kernel
from streamrf.support.threads import Threads

RIDGE_LIMITS = (1e-16, 1e2)
HAIR = 1e-4  # a smaller share of the error is no reason to move on
RAISE_D = "raise `D`"  # what to do about too few features
MORE_TIME = "give it a larger `budget`"  # where that says how many features there are
FLAT = 0.01  # a smaller one is no reason not to look the other way too


class LambdaWalk(ABC):
    """Walks lambda downhill in steps of ten and then of its root, for all outputs together, and keeps the best for each
    of them. Subclasses say what the errors are."""

    patience: ClassVar[int] = 0  # steps up through errors that hardly differ, where a valley may lie behind them

    def __init__(self, outputs: int = 1) -> None:
        self.tried: dict[float, float] = {}  # the mean error at each lambda
        self.ridges, self.best = np.full(outputs, math.nan), np.full(outputs, math.inf)

    @abstractmethod
    def errors(self, ridge: float) -> np.ndarray:
        """(outputs,): the errors at this lambda."""

    @abstractmethod
    def keep(self, outputs: np.ndarray) -> None:
        """The lambda tried last is the best so far for these outputs (a mask): hold on to what belongs to it."""

    def choose(self, start: float, *, fixed: bool = False) -> np.ndarray:
        """(outputs,): the best lambda of each; one that is ``fixed`` is only judged."""
        self.consider(start)
        if not fixed:
            for factor in (10.0, 10.0**0.5):
                for here in np.unique(self.ridges).tolist():
                    outputs, before = self.ridges == here, self.best
                    down = self._walk(here, 1 / factor, outputs)
                    if self.patience and factor == 10.0:
                        down &= self.best < before * (1 - FLAT)
                    if (outputs & ~down).any():
                        self._walk(here, factor, outputs & ~down, self.patience if factor == 10.0 else 0)
        return self.ridges

    def at_an_end(self, cure: str = RAISE_D) -> list[str]:
        """What it means that the best lambda is the smallest or the largest there is, and what to do about too few
        features; nothing where it is not."""
        if self.ridges.min() / 10 < RIDGE_LIMITS[0]:
            smallest = f"Lambda {self.ridges.min():.3g} is the smallest there is"
            return [f"{smallest}: the model could bear more features, {cure}."]
        if self.ridges.max() * 10 > RIDGE_LIMITS[1]:
            return [
                f"Lambda {self.ridges.max():.3g} is the largest there is: the features explain next to nothing. Check"
                " the inputs, or leave `kernel` and `length_scale` to the pilot."
            ]
        return []

    def _walk(self, start: float, factor: float, outputs: np.ndarray, patience: int = 0) -> np.ndarray:
        """Follow one direction as long as any of these outputs gets better; which did at all."""
        ridge, better = start * factor, np.zeros(len(outputs), bool)
        while RIDGE_LIMITS[0] <= ridge <= RIDGE_LIMITS[1]:
            now = self.consider(ridge) & outputs
            patience = patience if now.any() else patience - 1
            if patience < 0 and not now.any():
                break
            ridge, better = ridge * factor, better | now
        return better

    def consider(self, ridge: float) -> np.ndarray:
        """(outputs,): for which of them this lambda is the best so far by more than a hair."""
        errors = self.errors(ridge)
        self.tried[ridge] = float(errors.mean())
        better = (errors < self.best * (1 - HAIR)) | np.isnan(self.ridges)
        self.ridges, self.best = np.where(better, ridge, self.ridges), np.where(better, errors, self.best)
        if better.any():
            self.keep(better)
        return better


def walked_outputs(coding: TargetCoding) -> int:
    """Numbers have a lambda each, as each has units of its own. Classes share one: their scores are compared."""
    return 1 if coding.classes else coding.outputs


def _by_output(errors: np.ndarray, outputs: int) -> np.ndarray:
    """Errors of all columns, as a walk wants them."""
    return errors if len(errors) == outputs else errors.mean(keepdims=True)


class HoldoutPath(LambdaWalk):
    """Lambda by the squared error on rows held out, from the features that are served; ``X`` is scaled, ``y`` coded,
    ``shares`` add up to one."""

    def __init__(
        self, solver: RidgeSolver, pipeline: Pipeline, X: np.ndarray, y: np.ndarray, shares: np.ndarray
    ) -> None:
        super().__init__(walked_outputs(pipeline.coding))
        self.solver, self.pipeline, self.X, self.y, self.shares = solver, pipeline, X, y, shares
        self.weights: Weights | None = None

    def errors(self, ridge: float) -> np.ndarray:
        self._last = self.solver.solve(ridge)
        scorer = self.pipeline.scorer(self._last.coefficients, self._last.intercept)
        errors = (scorer.scores(self.X, self.solver.threads) - self.y) ** 2
        return _by_output(self.shares @ errors, len(self.ridges))

    def keep(self, outputs: np.ndarray) -> None:
        self.weights = self._last if self.weights is None else self.weights.with_outputs(self._last, outputs)

    def table(self) -> list[dict[str, float]]:
        """What was tried, for the metadata."""
        return [{"lambda": ridge, "mean_squared_error": error} for ridge, error in sorted(self.tried.items())]


def squared_errors(
    equations: NormalEquations, weights: Weights, threads: Threads, *, unrounded: bool = False
) -> np.ndarray:
    """(outputs,): mean squared error of ``weights`` on the rows whose sums these are, trained on them or not.

    Features that are served ``unrounded`` spare new rows the noise of rounding: it is taken off.
    """
    scaled = np.zeros_like(weights.coefficients)
    amplitudes = equations.amplitudes[:, None]
    np.divide(weights.coefficients, amplitudes, out=scaled, where=amplitudes != 0)
    bias = equations.target_mean - weights.intercept - equations.mean @ weights.coefficients
    spread = equations.target_variance - 2 * (equations.cross * scaled).sum(axis=0)
    if unrounded:
        spread -= ROUNDING * (weights.coefficients**2).sum(axis=0)
    return np.maximum(spread + _quadratic(equations, weights.coefficients, threads), 0.0) + bias**2


def _quadratic(equations: NormalEquations, coefficients: np.ndarray, threads: Threads) -> np.ndarray:
    """(outputs,): w'Sw of the centred features, panel by panel, without another matrix."""
    layout, n = equations.layout, float(equations.rows)
    coefficients = np.ascontiguousarray(coefficients.T)

    def one(number: int) -> np.ndarray:
        panel = layout.panel(equations.totals, number)
        return _quadratic_of_panel(panel, layout.starts[number], n, equations.mean, coefficients)

    return np.sum(list(threads.map(one, range(-(-equations.size // layout.panel_width)))), axis=0)


@kernel
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


def generalised_errors(solver: RidgeSolver, ridge: float) -> tuple[Weights, np.ndarray]:
    """Weights and the GCV score of each output: the training error over ``(1 - degrees of freedom / rows)^2``,
    intercept included."""
    equations = solver.equations
    weights = solver.solve(ridge, dimension=True)
    assert weights.rank is not None
    left = 1.0 - (weights.rank + 1.0) / equations.rows
    errors = squared_errors(equations, weights, solver.threads)
    return weights, errors / left**2 if left > 0 else np.full(len(errors), math.inf)


class GcvPath(LambdaWalk):
    """Lambda by generalised cross-validation: no hold-out rows, no folds, only the sums."""

    def __init__(self, solver: RidgeSolver, outputs: int = 1) -> None:
        super().__init__(outputs)
        self.solver = solver
        self.weights: Weights | None = None

    def errors(self, ridge: float) -> np.ndarray:
        self._last, errors = generalised_errors(self.solver, ridge)
        return _by_output(errors, len(self.ridges))

    def keep(self, outputs: np.ndarray) -> None:
        self.weights = self._last if self.weights is None else self.weights.with_outputs(self._last, outputs)

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

    patience = 3

    def __init__(self, folds: list[GramState], pipeline: Pipeline, threads: Threads) -> None:
        super().__init__(walked_outputs(pipeline.coding))
        self.folds, self.pipeline, self.threads = folds, pipeline, threads
        self.total = total_of(folds)
        self.by_fold: dict[float, np.ndarray] = {}  # (folds, outputs) at each lambda
        self._filled = [fold for fold in self.folds if fold.rows]
        self._weights = [self._equations(fold).rows for fold in self._filled]
        self.solver = RidgeSolver(self._equations(self.total), threads)

    def _equations(self, state: GramState) -> NormalEquations:
        map, coding, unrounded = self.pipeline.map, self.pipeline.coding, self.pipeline.unrounded
        return NormalEquations.from_state(state, map, coding, fewest=1, unrounded=unrounded)

    def errors(self, ridge: float) -> np.ndarray:
        """The mean over all rows, by their weights, each judged by a solution that has not seen its fold."""
        self.by_fold[ridge] = np.array([self._fold_errors(fold, ridge) for fold in self._filled])
        return np.average(self.by_fold[ridge], axis=0, weights=self._weights)

    def keep(self, outputs: np.ndarray) -> None:
        """Nothing: weights are one more solve a fold."""

    def _fold_errors(self, fold: GramState, ridge: float) -> np.ndarray:
        weights = self.weights_without(fold, np.array([ridge]))
        errors = squared_errors(self._equations(fold), weights, self.threads, unrounded=self.pipeline.unrounded)
        return _by_output(errors, len(self.ridges))

    def weights_without(self, fold: GramState, ridges: np.ndarray) -> Weights:
        """Weights of ``total - fold``."""
        with self._taken_out(fold):
            self.solver.equations = self._equations(self.total)
            return self.solver.solve_each(ridges)

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
        gcv = GcvPath(self.solver, len(self.ridges))
        for ridge in np.unique(self.ridges).tolist():
            gcv.consider(ridge)
        chosen = np.mean([self.by_fold[ridge][:, i] for i, ridge in enumerate(self.ridges.tolist())], axis=0).tolist()
        return {
            "folds": len(self.folds), "rows": [fold.rows for fold in self.folds],
            "mean_squared_error": float(self.best.mean()), "spread": float(np.std(chosen, ddof=1)), "by_fold": chosen,
            "path": [{"lambda": ridge, "mean": self.tried[ridge], "by_fold": errors.mean(axis=1).tolist()}
                     for ridge, errors in sorted(self.by_fold.items())],
            "gcv": float(gcv.best.mean()) if np.isfinite(gcv.best).all() else None,
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


def wrong_classes(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Whether each row's class is missed, from (rows, outputs) scores and coded targets."""
    if scores.shape[1] == 1:
        return ((scores > 0) != (truth > 0))[:, 0]
    return scores.argmax(axis=1) != truth.argmax(axis=1)
