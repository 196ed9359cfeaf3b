"""The direct route: one pass of exact Gram sums, then a Cholesky factorisation for every lambda that is tried."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from streamrf.data.source import Block
from streamrf.solvers.base import Fitted, Route
from streamrf.solvers.judging import Unseen, as_read, judge, shares, weighed
from streamrf.solvers.lambda_path import FoldPath, HoldoutPath, LambdaWalk
from streamrf.solvers.ridge import NormalEquations, RidgeSolver, Weights
from streamrf.statistics.calibration import Calibration
from streamrf.statistics.fitting import Fitting, FittingState
from streamrf.statistics.folds import Folds, FoldsState, fold_of
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.weighting import Weighting
from streamrf.support.errors import DataError


@dataclass
class Verdict:
    """What the rows that were not trained on decided, and the sums of all rows."""

    ridge: float
    calibration: Calibration | None
    gram: GramState
    story: dict[str, Any]


class DirectRoute(Route):
    """Z'Z and Z'y of all rows; hold-out rows or folds choose lambda and then join, for free."""

    def fit(self) -> Fitted:
        with self.run.timed("pass"):
            state = self.sums()
        if state.rows < 2:
            raise DataError(f"{state.rows} usable rows: at least two are needed to fit a model")
        with self.run.timed("solve"):
            verdict = self._by_folds(state) if isinstance(state, FoldsState) else self._by_holdout(state)
            weights = self._solve(verdict)
        return Fitted(
            weights,
            verdict.gram.rows,
            verdict.gram.digest(),
            verdict.calibration,
            verdict.gram if self._weighting.plain else None,  # sums of weighted rows cannot be added to later
            verdict.story,
        )

    def sums(self) -> FittingState | FoldsState:
        """One pass."""
        statistic: Any = self._statistic()
        return self.passes.sum(statistic)

    def _statistic(self) -> Fitting | Folds:
        share, seed, folds = self.run.plan.holdout, self.prepared.recipe.seed, self.run.asked.cv
        starts = self.run.shard_starts
        return Folds(self._gram(), folds, share, seed, starts) if folds else Fitting(self._gram(), share, seed, starts)

    def _gram(self) -> Gram:
        prepared = self.prepared
        weights = self._weighting.class_weights
        return Gram.on_this_machine(prepared.scaling, prepared.map, prepared.coding, self.threads.count, weights)

    @cached_property
    def _weighting(self) -> Weighting:
        return Weighting.of(self.run.source, self.prepared.coding, self.prepared.recipe.class_weight)

    def _by_holdout(self, state: FittingState) -> Verdict:
        """Rows that were held out choose; then they are in."""
        verdict = Verdict(self._first_ridge, None, state.gram, {"holdout": None})
        holdout = state.holdout.table()
        if holdout is not None and state.gram.rows >= 2:
            unseen = self._weighed(holdout)
            path = self._path(state.gram, unseen)
            verdict.ridge = self._walk(path)
            verdict.story["lambda_path"] = path.table()
            verdict.calibration, verdict.story["holdout"] = judge(self.prepared, [(path.weights, unseen)], self.threads)
        if holdout is not None:  # bits equal to never having been held out
            self._gram().update(state.gram, as_read(self.prepared.coding, holdout), self.threads)
        return verdict

    def _by_folds(self, state: FoldsState) -> Verdict:
        path = FoldPath(state, self.prepared.map, self.prepared.coding, self.threads)
        ridge = self._walk(path)
        parts = self._out_of_fold(path, state)
        calibration, metrics = judge(self.prepared, parts, self.threads) if parts else (None, None)
        story = {"holdout": metrics, "cross_validation": path.story()}
        del path  # and with it a matrix and a state
        return Verdict(ridge, calibration, state.total(), story)

    def _out_of_fold(self, path: FoldPath, state: FoldsState) -> list[Unseen]:
        """The rows kept of each fold, with weights that have not seen it."""
        kept = state.kept.table()
        if kept is None:
            return []
        kept = self._weighed(kept)
        place = fold_of(kept.index, len(state.folds), self.prepared.recipe.seed)
        present = [number for number in range(len(state.folds)) if (place == number).any()]
        return [(path.weights_without(state.folds[i], path.ridge), kept.take(place == i)) for i in present]

    def _weighed(self, rows: Block) -> Block:
        return weighed(self.prepared.coding, rows, self._weighting)

    def _walk(self, path: LambdaWalk) -> float:
        """The best lambda of a path; one that was asked for is only judged."""
        ridge = path.choose(self._first_ridge, fixed=self.run.asked.ridge is not None)
        self.reporter.note(f"lambda {ridge:.3g} ({len(path.tried)} tried)")
        return ridge

    @property
    def _first_ridge(self) -> float:
        ridge = self.prepared.recipe.ridge
        assert ridge is not None  # settled by the pilot or the defaults
        return ridge

    def _path(self, gram: GramState, holdout: Block) -> HoldoutPath:
        X = self.prepared.scaled(holdout.X)
        return HoldoutPath(self._solver(gram), self.prepared.map, X, holdout.y, shares(holdout))  # type: ignore[arg-type]

    def _solver(self, gram: GramState) -> RidgeSolver:
        equations = NormalEquations.from_state(gram, self.prepared.map, self.prepared.coding)
        return RidgeSolver(equations, self.threads)

    def _solve(self, verdict: Verdict) -> Weights:
        """Weights from the sums of all rows."""
        solver = self._solver(verdict.gram)
        weights = solver.solve(verdict.ridge)
        if weights.jitter:  # rare, and worth another factorisation to say how singular it is
            weights = solver.solve(verdict.ridge, dimension=True)
            self.reporter.note(
                f"at lambda {weights.ridge:.3g} the system is singular to rounding (effective rank"
                f" {weights.rank:.0f} of {len(weights.coefficients)}): solved at {weights.ridge + weights.jitter:.3g}"
            )
        return weights
