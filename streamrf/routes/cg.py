"""The route of conjugate gradients: one pass a step, never D x D; lambda walks on from where the last one ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streamrf.routes.base import Fitted
from streamrf.routes.iterative import IterativeRoute, under
from streamrf.solvers.conjugate_gradients import CGState, ConjugateGradients
from streamrf.solvers.normal_system import NormalSystem
from streamrf.solvers.preconditioners import NystromFactor, SampleFactor

STEPS = 60  # at one lambda
TOLERANCE = 1e-4  # what may be left of the right-hand side
GAIN, PATIENCE = 0.002, 2
WALK = 10.0  # one step of lambda
CG, BEST = "cg/", "best"


@dataclass(frozen=True)
class Trial:
    """A lambda, and the squared error on the hold-out rows that it came to, as a share of their variance."""

    ridge: float
    score: float
    steps: int


def next_ridge(first: float, tried: list[Trial], fixed: bool) -> float | None:
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


def _improved(tried: list[Trial]) -> bool:
    return tried[-1].score < (1 - GAIN) * min(trial.score for trial in tried[:-1])


class CGRoute(IterativeRoute):
    """(S + lambda I) w = c by passes of products with S."""

    def fit(self) -> Fitted:
        state = self.open()
        with self.run.timed("solve"):
            factor = self.factor(state)
            self._restore()
            self._search(factor)
            weights = self.moments.weights(self._best, self._best_trial.ridge)
        story = {"solver": {"name": "cg", "preconditioner": self.recipe.preconditioner, "path": self._path()}}
        return self.finish(state, weights, story)

    def _restore(self) -> None:
        """Where the search stood, if this run goes on with another."""
        self._tried: list[Trial] = []
        self._best = np.zeros_like(self.moments.cross)
        self._resumed: CGState | None = None
        kept = self.kept("cg")
        if kept:
            document, arrays = kept
            self._tried = [Trial(**trial) for trial in document["tried"]]
            self._best, self._resumed = arrays[BEST], CGState.load(under(arrays, CG))

    def _search(self, factor: SampleFactor | NystromFactor) -> None:
        cg: ConjugateGradients | None = None
        fixed = self.run.asked.ridge is not None or self.holdout is None
        while (ridge := next_ridge(self.first_ridge, self._tried, fixed)) is not None:
            cg = self._begun(cg, ridge, factor)
            self._keep(cg.state)
            solution = cg.run(
                STEPS, tolerance=TOLERANCE, score=self._score if self.holdout is not None else None,
                gain=GAIN, patience=PATIENCE, after_step=self._keep,
            )  # fmt: skip
            score = cg.state.best_score if self.holdout is not None else 0.0
            if all(score < trial.score for trial in self._tried):
                self._best = solution.copy()
            self._tried.append(Trial(ridge, score, cg.state.iteration))
            judged = f", hold-out squared error {score:.4g}" if self.holdout is not None else ""
            self.reporter.note(f"lambda {ridge:.3g}: {cg.state.iteration} steps{judged}")

    def _begun(
        self, before: ConjugateGradients | None, ridge: float, factor: SampleFactor | NystromFactor
    ) -> ConjugateGradients:
        preconditioner, cross = factor.at(ridge), self.moments.cross
        if before is not None:
            return before.at_ridge(ridge, cross, preconditioner)
        system = NormalSystem(self.moments, lambda C, b: self.multiply(C, b, "conjugate gradients"))
        if self._resumed is not None:
            return ConjugateGradients(system, ridge, preconditioner, self._resumed)
        return ConjugateGradients.begin(system, cross, ridge, preconditioner)

    def _keep(self, state: CGState) -> None:
        arrays = {CG + name: array for name, array in state.arrays().items()}
        self.keep("cg", {"tried": [asdict(trial) for trial in self._tried]}, {**arrays, BEST: self._best})

    def _score(self, solution: np.ndarray) -> float:
        """Squared error on the hold-out rows, as a share of the variance of the targets."""
        assert self.holdout is not None
        assert self.holdout.y is not None
        error = self.holdout_scores(self.moments.weights(solution, 0.0)) - self.holdout.y
        variance = max(float(self.moments.target_variance.sum()), np.finfo(np.float64).tiny)
        return float(self.holdout_weights @ (error**2).sum(axis=1)) / variance

    @property
    def _best_trial(self) -> Trial:
        return min(self._tried, key=lambda trial: trial.score)

    def _path(self) -> list[dict[str, Any]]:
        return [asdict(trial) for trial in self._tried]
