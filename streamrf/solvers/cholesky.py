"""One pass of exact Gram sums, then a Cholesky factorisation for every lambda that is tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from streamrf.data.source import Block
from streamrf.features.targets import DIGITS
from streamrf.solvers import rates as speed
from streamrf.solvers.base import Fitted, Solver
from streamrf.solvers.lambda_path import (
    FoldPath,
    HoldoutPath,
    LambdaWalk,
    Unseen,
    as_read,
    judge,
    shares,
    total_of,
    weighed,
)
from streamrf.solvers.passes import weighting_of
from streamrf.solvers.plan import PASS, SOLVE, Part, Plan, Sizes, holdout_parts, reading_parts
from streamrf.solvers.ridge import NormalEquations, RidgeSolver
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.gram_kernels import PRODUCT_ROWS, Layout, worst_work_bytes
from streamrf.statistics.holdout import Folds, FoldsState, Holdout, HoldoutState, fold_of
from streamrf.statistics.scores import Calibration, Weights
from streamrf.statistics.targets import Weighting
from streamrf.support.errors import DataError
from streamrf.support.settings import AUTO

LOWER_D = "lower `D`"
LAMBDAS = 6  # that are tried, most often
CROSSING = 3000  # features below which nothing is much faster


@dataclass
class Verdict:
    """What the rows that were not trained on decided, and the sums of all rows."""

    ridge: float
    calibration: Calibration | None
    gram: GramState
    metadata: dict[str, Any]


class Cholesky(Solver):
    """Z'Z and Z'y of all rows; hold-out rows or folds choose lambda and then join, for free."""

    name = "cholesky"
    weighs = False
    preference = 0

    @classmethod
    def plan(cls, sizes: Sizes) -> Plan:
        D, layout, folds = sizes.recipe.D, gram_layout(sizes), sizes.recipe.cv
        state = 8 * layout.length
        parts = {
            "statistics": Part(state * (folds or 1), (PASS, SOLVE), LOWER_D),
            "total": Part(state if folds else 0, (SOLVE,), LOWER_D),
            "matrix": Part(RidgeSolver.matrix_bytes(D), (SOLVE,), LOWER_D),
            "block": Part(block_bytes(sizes, layout), (PASS, SOLVE), LOWER_D),
        }
        reading, span_rows, span_bytes = reading_parts(
            sizes, sizes.budget - sizes.reserved - parts["statistics"].bytes, (PASS,)
        )
        why = f"the {D} x {D} system fits in memory, and one pass of exact sums solves it for every lambda"
        parts |= {**reading, **holdout_parts(sizes)}
        return Plan(sizes, cls.name, why, parts, 1 + sizes.scaling_passes, span_rows, span_bytes)

    @classmethod
    def estimate(cls, plan: Plan) -> Mapping[str, float]:
        sizes, recipe = plan.sizes, plan.sizes.recipe
        rates = speed.rates_of_this_machine(recipe.bits, sizes.threads)
        n, D = sizes.rows, recipe.D
        compute = n * D / rates.features(sizes.source.n_features) + n * float(gram_layout(sizes).size) ** 2 / rates.gram
        lambdas = 1 if recipe.ridge is not None else LAMBDAS
        solves = 1 + lambdas if not recipe.cv else recipe.cv * (lambdas + 1) + 2
        return {
            "pass": max(compute, n * sizes.row_bytes / rates.read) * plan.passes,
            "solve": solves * (D**3 / 3.0 / rates.factor + D * D * 8 / 5e9),
        }

    @classmethod
    def is_worth_comparing(cls, sizes: Sizes) -> bool:
        return sizes.recipe.D >= CROSSING

    def fit(self) -> Fitted:
        folds = self.run.asked.cv
        verdict = self._by_folds(folds) if folds else self._by_holdout()
        with self.run.timed("solve"):
            weights = self._solve(verdict)
        gram = verdict.gram if self._weighting.plain else None  # sums of weighted rows cannot be added to later
        return Fitted(weights, verdict.gram.rows, verdict.gram.digest(), verdict.calibration, gram, verdict.metadata)

    def sums(self) -> HoldoutState[GramState]:
        """One pass."""
        with self.run.timed("pass"):
            return self.passes.sum(
                Holdout(self._gram(), self.run.plan.holdout, self.recipe.seed, self.run.shard_starts)
            )

    def _gram(self) -> Gram:
        pipeline, weights = self.pipeline, self._weighting.class_weights
        return Gram.on_this_machine(pipeline.scaling, pipeline.map, pipeline.coding, self.threads.count, weights)

    @cached_property
    def _weighting(self) -> Weighting:
        return weighting_of(self.passes)

    def _by_holdout(self) -> Verdict:
        """Rows that were held out choose; then they are in."""
        state = self.sums()
        check_rows(state.rows)
        verdict = Verdict(self.first_ridge, None, state.sums, {"holdout": None})
        with self.run.timed("solve"):
            holdout = state.holdout.table()
            if holdout is not None and state.sums.rows >= 2:
                unseen = self._weighed(holdout)
                path = self._path(state.sums, unseen)
                verdict.ridge = self._walk(path)
                verdict.metadata["lambda_path"] = path.table()
                verdict.calibration, verdict.metadata["holdout"] = self._judged([(path.weights, holdout)])
            if holdout is not None:  # bits equal to never having been held out
                self._gram().update(state.sums, as_read(self.pipeline.coding, holdout), self.threads)
        return verdict

    def _by_folds(self, folds: int) -> Verdict:
        statistic = Folds(self._gram(), folds, self.recipe.seed)
        share, seed, starts = self.run.plan.holdout, self.recipe.seed, self.run.shard_starts
        with self.run.timed("pass"):
            state: HoldoutState[FoldsState[GramState]] = self.passes.sum(
                Holdout(statistic, share, seed, starts, apart=False)
            )
        check_rows(state.rows)
        with self.run.timed("solve"):
            path = FoldPath(state.sums.folds, self.pipeline.map, self.pipeline.coding, self.threads)
            ridge = self._walk(path)
            parts = self._out_of_fold(path, state)
            calibration, metrics = self._judged(parts) if parts else (None, None)
            metadata = {"holdout": metrics, "cross_validation": path.summary()}
            del path  # and with it a matrix and a state
            return Verdict(ridge, calibration, total_of(state.sums.folds), metadata)

    def _judged(self, parts: list[Unseen]) -> tuple[Calibration | None, dict[str, Any]]:
        return judge(self.pipeline, parts, self.threads, self._weighting, self.recipe.threshold)

    def _out_of_fold(self, path: FoldPath, state: HoldoutState[FoldsState[GramState]]) -> list[Unseen]:
        """The rows kept of each fold, with weights that have not seen it."""
        kept = state.holdout.table()
        if kept is None:
            return []
        folds = state.sums.folds
        place = fold_of(kept.index, len(folds), self.recipe.seed)
        present = [number for number in range(len(folds)) if (place == number).any()]
        return [(path.weights_without(folds[i], path.ridge), kept.take(place == i)) for i in present]

    def _weighed(self, rows: Block) -> Block:
        return weighed(self.pipeline.coding, rows, self._weighting)

    def _walk(self, path: LambdaWalk) -> float:
        """The best lambda of a path; one that was asked for is only judged."""
        ridge = path.choose(self.first_ridge, fixed=self.ridge_given)
        self.reporter.note(f"lambda {ridge:.3g} ({len(path.tried)} tried){path.at_an_end()}")
        return ridge

    def _path(self, gram: GramState, holdout: Block) -> HoldoutPath:
        X = self.pipeline.scaled(holdout.X)
        return HoldoutPath(self._solver(gram), self.pipeline.map, X, holdout.targets, shares(holdout))

    def _solver(self, gram: GramState) -> RidgeSolver:
        equations = NormalEquations.from_state(gram, self.pipeline.map, self.pipeline.coding)
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


def check_rows(rows: int) -> None:
    if rows < 2:
        raise DataError(f"{rows} usable rows: at least two are needed to fit a model")


def gram_layout(sizes: Sizes) -> Layout:
    digits = 1 if sizes.classes else max(count for _, count in DIGITS.values())
    return Layout(sizes.recipe.D + 1 + sizes.outputs * digits)


def block_bytes(sizes: Sizes, layout: Layout) -> int:
    """Features of one block of rows, its scaled inputs, and what the product needs."""
    bits = sizes.recipe.bits
    widest = 8 if bits in (AUTO, "float64") else 4 if bits == "float32" else 2
    row = widest * (layout.size + 64) + 8 * sizes.source.n_features
    return PRODUCT_ROWS * row + worst_work_bytes(bits, layout, sizes.threads)
