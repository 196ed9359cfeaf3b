"""Conjugate gradients: one pass a step, no sum over all rows of D x D; lambda walks on where it ended. The rows that
were held out join for the last steps, once they have chosen and judged."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from streamrf.solvers.base import Fitted
from streamrf.solvers.conjugate_gradients import CGState, ConjugateGradients, NormalSystem
from streamrf.solvers.iterative import Factor, IterativeSolver
from streamrf.solvers.lambda_path import FIRST, LambdaTrial, next_block, walked_outputs
from streamrf.statistics.holdout import under
from streamrf.statistics.scores import Weights

STEPS = 80  # for one block of lambdas
TOLERANCE = 1e-4  # what may be left of the right-hand side
GAIN, PATIENCE = 0.0005, 4  # steps that do not lower the error on hold-out rows by this share in so many end it
JOINED_STEPS = 2  # with all rows, from the solution without those held out
STATE, BEST = "cg/", "best"
SEARCH, JOIN = "cg", "cg with all rows"  # stages of a checkpoint


class CG(IterativeSolver):
    """(S + lambda I) w = c by passes of products with S. Several lambdas share the passes, as several outputs do."""

    name = "cg"
    title = "conjugate gradients"
    preference = 1
    usual_passes = 25
    lambdas = len(FIRST)
    vectors = 12 * lambdas

    def fit(self) -> Fitted:
        state = self.open()
        with self.run.timed("solve"):
            self._restore()
            factor = self.factor(state)
            self._search(factor)
            weights = self.moments.weights(self._best, 0.0).at_ridges(self._ridges)
        path = [asdict(trial) for trial in self._tried]
        fitted = self.finish(state, weights, {"preconditioner": self.recipe.preconditioner, "path": path})
        if not state.holdout.rows:
            return fitted
        with self.run.timed("solve"):
            self.join(state)
            return replace(fitted, weights=self._with_all_rows(factor))

    def _with_all_rows(self, factor: Factor) -> Weights:
        """A few more steps, of the sums of all rows."""
        ridges = np.broadcast_to(self._ridges, len(self.moments.cross))
        preconditioner, system = factor.at(float(np.median(ridges))), self._system("conjugate gradients, all rows")
        if self._resumed is not None:
            cg = ConjugateGradients(system, ridges, preconditioner, self._resumed)
        else:
            self._keep_stage(JOIN)
            cg = ConjugateGradients.begin(system, self.moments.cross, ridges, preconditioner, self._best)
        self._keep_stage(JOIN, cg.state)
        solution = cg.run(JOINED_STEPS, after_step=lambda state: self._keep_stage(JOIN, state))
        return self.moments.weights(solution, 0.0).at_ridges(self._ridges)

    def _restore(self) -> None:
        """Where the search stood, if this run resumes another."""
        self._tried: list[LambdaTrial] = []
        self._scores: list[list[float]] = []  # of each walked output, at each lambda that was tried
        self._best = np.zeros_like(self.moments.cross)
        self._resumed: CGState | None = None
        kept = self.kept(SEARCH) or self.kept(JOIN)
        if kept:
            document, arrays = kept
            self._tried = [LambdaTrial(**trial) for trial in document["tried"]]
            self._scores = document.get("scores", [[trial.score] * self._walked for trial in self._tried])
            self._best, state = arrays[BEST], under(arrays, STATE)
            self._resumed = CGState.load(state) if state else None

    def _search(self, factor: Factor) -> None:
        if self.kept(JOIN):
            return
        cg: ConjugateGradients | None = None
        fixed = self.ridge_given or self.holdout is None
        while (ridges := self._next(fixed)) is not None:
            cg = self._begun(cg, ridges, factor)
            self._keep(cg.state)
            judge = (
                (lambda solution: float(self._errors(solution).min(axis=0).mean()))
                if self.holdout is not None
                else None
            )
            solution = cg.run(
                STEPS, tolerance=TOLERANCE, score=judge, gain=GAIN, patience=PATIENCE, after_step=self._keep
            )
            self._note(ridges, solution, cg.state.iteration)

    @property
    def _walked(self) -> int:
        return walked_outputs(self.pipeline.coding)

    def _next(self, fixed: bool) -> list[float] | None:
        """What any of the outputs wants to try next."""
        if not self._tried:
            return next_block(self.first_ridge, [], fixed)
        known = [trial.ridge for trial in self._tried]
        for scores in zip(*self._scores[: len(FIRST)], strict=True):
            tried = [LambdaTrial(*each, 0) for each in zip(known, scores, strict=False)]
            wanted = next_block(self.first_ridge, tried, fixed)
            if wanted is not None and wanted[0] not in known:
                return wanted
        return None

    def _note(self, ridges: list[float], solutions: np.ndarray, steps: int) -> None:
        """Judge the solution of each lambda, and remember the best for each output."""
        scores = self._errors(solutions) if self.holdout is not None else np.zeros((len(ridges), self._walked))
        for ridge, solution, score in zip(ridges, self._blocks(solutions), scores, strict=True):
            better = [all(new < old[i] for old in self._scores) for i, new in enumerate(score.tolist())]
            self._best = np.where(np.array(better)[:, None], solution, self._best)
            self._tried.append(LambdaTrial(ridge, float(score.mean()), steps))
            self._scores.append(score.tolist())
            judged = f", hold-out squared error {score.mean():.4g}" if self.holdout is not None else ""
            self.reporter.detail(f"lambda {ridge:.3g}: {steps} steps{judged}")

    def _begun(self, before: ConjugateGradients | None, ridges: list[float], factor: Factor) -> ConjugateGradients:
        """One preconditioner for all of them, made for the middle one."""
        cross = np.tile(self.moments.cross, (len(ridges), 1))
        shifts, preconditioner = np.repeat(ridges, len(self.moments.cross)), factor.at(ridges[len(ridges) // 2])
        system = self._system("conjugate gradients")
        if self._resumed is not None:
            resumed, self._resumed = self._resumed, None
            return ConjugateGradients(system, shifts, preconditioner, resumed)
        if before is None:
            return ConjugateGradients.begin(system, cross, shifts, preconditioner)
        nearest = 0 if ridges[0] > self.first_ridge else len(before.state.solution) // len(self.moments.cross) - 1
        return self._rows_of(before, nearest, len(ridges)).at_ridge(shifts, cross, preconditioner)

    def _system(self, title: str) -> NormalSystem:
        return NormalSystem(self.moments, lambda C, b: self.multiply(C, b, title))

    def _rows_of(self, cg: ConjugateGradients, block: int, times: int) -> ConjugateGradients:
        """The solutions of one lambda, several times over."""
        k, state = len(self.moments.cross), cg.state
        rows = np.tile(np.arange(block * k, (block + 1) * k), times)
        begun = CGState(
            state.solution[rows], state.residual[rows], state.direction[rows], state.rho[rows], state.target[rows]
        )
        return ConjugateGradients(cg.system, cg.ridge[rows, 0], cg.preconditioner, begun)

    def _keep(self, state: CGState) -> None:
        self._keep_stage(SEARCH, state)

    def _keep_stage(self, stage: str, state: CGState | None = None) -> None:
        arrays = {STATE + name: array for name, array in state.arrays().items()} if state else {}
        document = {"tried": [asdict(trial) for trial in self._tried], "scores": self._scores}
        self.keep(stage, document, {**arrays, BEST: self._best})

    def _blocks(self, solution: np.ndarray) -> np.ndarray:
        """(lambdas, outputs, D)."""
        return solution.reshape(-1, *self.moments.cross.shape)

    def _errors(self, solution: np.ndarray) -> np.ndarray:
        """(lambdas, walked outputs): squared errors on the rows that choose, as shares of the targets' variances."""
        assert self.holdout is not None
        several = [self.moments.weights(part, 0.0) for part in self._blocks(solution)]
        together = Weights(
            np.concatenate([one.coefficients for one in several], axis=1),
            np.concatenate([one.intercept for one in several]), 0.0,
        )  # fmt: skip
        scores = self.judging_scores(together).reshape(len(self.holdout), len(several), -1)
        errors = np.tensordot(self.holdout_weights, (scores - self.holdout.targets[:, None, :]) ** 2, axes=1)
        variance = self.moments.target_variance
        if self._walked == 1:
            errors, variance = errors.sum(axis=1, keepdims=True), variance.sum(keepdims=True)
        return errors / np.maximum(variance, np.finfo(float).tiny)

    @property
    def _ridges(self) -> np.ndarray:
        """The best lambda for each walked output."""
        return np.array([trial.ridge for trial in self._tried])[np.argmin(self._scores, axis=0)]
