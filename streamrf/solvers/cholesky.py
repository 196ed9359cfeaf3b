"""One pass of exact Gram sums, then a Cholesky factorisation for every lambda that is tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import ORDER, Split
from streamrf.features.precision import make_precision
from streamrf.features.settings import ANY, BLEND, LANDMARKS
from streamrf.features.targets import DIGITS, TargetCoding
from streamrf.solvers import rates as speed
from streamrf.solvers.base import Fitted, Solver
from streamrf.solvers.judging import Unseen, as_read, by_role, calibrate, judge, shares, weighed
from streamrf.solvers.lambda_path import MORE_TIME, RAISE_D, FoldPath, HoldoutPath, LambdaWalk
from streamrf.solvers.plan import (
    FEW_ROWS,
    HOLDOUT_ROWS,
    PASS,
    SOLVE,
    Part,
    Plan,
    Sizes,
    holdout_parts,
    reading_parts,
)
from streamrf.solvers.ridge import NormalEquations, RidgeSolver
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.gram_kernels import PRODUCT_ROWS, Layout, worst_work_bytes
from streamrf.statistics.holdout import Folds, FoldsState, Holdout, HoldoutState
from streamrf.statistics.scores import Calibration, Weights
from streamrf.support.errors import DataError, InputError
from streamrf.support.settings import AUTO

LOWER_D = "lower `D`"
FEW_FEATURES = 0.5  # of the rows
FINE_BITS = "20"
LAMBDAS = 6  # that are tried, most often
CROSSING = 3000  # features below which nothing is much faster
DIMENSION_D = 2000  # features up to which the effective dimension costs next to nothing
FOLDS, FOLDS_OF_FEW = 5, 10
FEW_FOLDED, FEWEST_FOLDED = 1000, 30  # rows below which there are more folds, or none
FOLDS_SHARE = 0.5  # of the memory: rows that are held out take less


@dataclass
class Verdict:
    """What the rows that were not trained on decided, and the sums of all rows."""

    ridges: np.ndarray  # of each output, or one for all
    calibration: Calibration | None
    gram: GramState
    metadata: dict[str, Any]
    judges: Block | None = None
    choosing: Block | None = None
    unseen: Weights | None = None  # weights that have seen neither


class Cholesky(Solver):
    """Z'Z and Z'y of all rows; hold-out rows or folds choose lambda and then join, for free."""

    name = "cholesky"
    weighs = False
    preference = 0
    title = "exact sums"
    leaves_sums = True

    @classmethod
    def plan(cls, sizes: Sizes) -> Plan:
        D, layout, folds = sizes.recipe.D, gram_layout(sizes), folds_for(sizes)
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
        folded = int(sizes.rows * _kept(sizes)) if folds and sizes.classes else 0  # which calibrate
        parts |= {**reading, **holdout_parts(sizes, folded=folded)}
        return Plan(sizes, cls.name, why, parts, 1 + sizes.scaling_passes, span_rows, span_bytes, folds=folds)

    @classmethod
    def estimate(cls, plan: Plan) -> Mapping[str, float]:
        sizes, recipe = plan.sizes, plan.sizes.recipe
        bits, n, D, d = likely_bits(sizes), sizes.rows, recipe.D, sizes.source.n_features
        rates = speed.rates_of_this_machine(bits, sizes.threads)
        values = speed.landmarks_a_second(bits, sizes.threads, d) if recipe.map == LANDMARKS else rates.features(d)
        compute = n * D / values + n * float(gram_layout(sizes).size) ** 2 / rates.gram
        lambdas = 1 if recipe.ridge is not None else LAMBDAS
        solves = 2 + lambdas if not plan.folds else plan.folds * (lambdas + 1) + 3
        return {
            "pass": max(compute, n * sizes.row_bytes / rates.read) * plan.passes,
            "solve": solves * (D**3 / 3.0 / rates.factor + D * D * 8 / 5e9),
        }

    @classmethod
    def is_worth_comparing(cls, sizes: Sizes) -> bool:
        return sizes.recipe.D >= CROSSING

    def fit(self) -> Fitted:
        verdict = self._by_folds(self.run.split.folds) if self.run.split.folds else self._by_holdout()
        with self.run.timed("solve"):
            weights = self._solve(verdict)
        if weights.ridges:
            verdict.metadata["lambda_by_output"] = list(weights.ridges)
        gram = verdict.gram if self.run.weighting.plain else None  # sums of weighted rows cannot be added to later
        rows, digest = verdict.gram.rows, verdict.gram.digest()
        if weights.rank is not None:
            verdict.metadata["effective_dimension"] = weights.rank
        return Fitted(
            weights, rows, digest, verdict.calibration, gram, verdict.metadata, verdict.judges, verdict.choosing,
            verdict.unseen,
        )  # fmt: skip

    def sums(self) -> HoldoutState[GramState]:
        """One pass."""
        with self.run.timed("pass"):
            return self.passes.sum(Holdout(self._gram, self.run.split, self.run.shard_starts))

    @cached_property
    def _gram(self) -> Gram:
        pipeline, weights = self.pipeline, self.run.weighting.class_weights
        floats = not self.run.weighting.plain and pipeline.map.precision.exact
        return Gram.on_this_machine(
            pipeline.scaling, pipeline.map, pipeline.coding, self.threads.count, weights, floats=floats,
            rows=self.run.plan.sizes.rows,
        )  # fmt: skip

    def _by_holdout(self) -> Verdict:
        """Some of the rows that were held out choose, and are in; the others judge, and then they are in too."""
        state = self.sums()
        check_rows(state.rows)
        verdict = Verdict(np.array([self.first_ridge]), None, state.sums, {"holdout": None})
        choosing, judges = by_role(self.run.split, state.holdout)
        with self.run.timed("solve"):
            if choosing is not None and state.sums.rows >= 2:
                path = self._path(state.sums, self._weighed(choosing))
                verdict.ridges = self._walk(path)
                verdict.metadata |= {"lambda_path": path.table(), "warnings": self._said_of(path)}
                assert path.weights is not None
                verdict.calibration = self._calibrated([(path.weights, choosing)])
                verdict.choosing, verdict.unseen = choosing, path.weights
                del path  # and with it a matrix
            if choosing is not None and choosing is not judges:
                self._join(verdict, choosing)
            if judges is not None:
                self._judge(verdict, judges)
                self._join(verdict, judges)
        return verdict

    def _by_folds(self, folds: int) -> Verdict:
        split = self.run.split.judges_only()
        statistic, kept = Folds(self._gram, folds, split), kept_share(self.pipeline.coding, split, self.run.plan.sizes)
        with self.run.timed("pass"):
            state: HoldoutState[FoldsState[GramState]] = self.passes.sum(
                Holdout(statistic, split, self.run.shard_starts, kept)
            )
        check_rows(state.sums.rows)
        if self.run.asked.cv:
            check_folds(state.sums.folds)
        with self.run.timed("solve"):
            return self._from_folds(statistic, state)

    def _from_folds(self, statistic: Folds[GramState], state: HoldoutState[FoldsState[GramState]]) -> Verdict:
        """Folds choose, and are judged. Then the judges go to their folds, and all rows choose in the same way."""
        folds, judges = state.sums.folds, state.holdout.table()
        path = self._fold_path(folds)
        calibration = self._calibrated(self._out_of_fold(path, state))
        verdict = Verdict(path.ridges, calibration, path.total, {"holdout": None})
        if judges is not None:
            self._judge(verdict, judges)
            del path  # and with it a matrix and a state
            statistic.update(state.sums, as_read(self.pipeline.coding, judges), self.threads)
            path = self._fold_path(folds)
        verdict.ridges = self._note(path)
        verdict.metadata |= {"cross_validation": path.summary(), "warnings": self._said_of(path)}
        verdict.gram = path.total
        return verdict

    def _fold_path(self, folds: list[GramState]) -> FoldPath:
        path = FoldPath(folds, self.pipeline, self.threads)
        path.choose(self.first_ridge, fixed=self.ridge_given)
        return path

    def _calibrated(self, parts: list[Unseen]) -> Calibration | None:
        return calibrate(self.pipeline, parts, self.threads, self.run.weighting, self.recipe.threshold)

    def _out_of_fold(self, path: FoldPath, state: HoldoutState[FoldsState[GramState]]) -> list[Unseen]:
        """The rows kept of each fold, with weights that have not seen it."""
        kept = state.sample.table()
        if kept is None:
            return []
        folds = state.sums.folds
        place = self.run.split.folds_of(kept)
        present = [number for number in range(len(folds)) if (place == number).any()]
        return [(path.weights_without(folds[i], path.ridges), kept.take(place == i)) for i in present]

    def _judge(self, verdict: Verdict, judges: Block) -> None:
        """By weights that have seen every other row; those of a member of a blend, whose own figure decides nothing,
        have not seen the rows that choose: that saves a factorisation."""
        if verdict.gram.rows >= 2:
            stacked = verdict.unseen if self.run.stacked else None
            weights = stacked or self._solver(verdict.gram).solve_each(verdict.ridges)
            verdict.metadata["holdout"] = judge(
                self.pipeline, weights, judges, verdict.calibration, self.run.split, self.threads
            )
            verdict.judges = judges

    def _join(self, verdict: Verdict, rows: Block) -> None:
        """With the bits that the rows would have given if they had never been held out."""
        self._gram.update(verdict.gram, as_read(self.pipeline.coding, rows), self.threads)

    def _weighed(self, rows: Block) -> Block:
        return weighed(self.pipeline.coding, rows, self.run.weighting)

    def _walk(self, path: LambdaWalk) -> np.ndarray:
        """The best lambda of a path; one that was asked for is only judged."""
        path.choose(self.first_ridge, fixed=self.ridge_given)
        return self._note(path)

    def _note(self, path: LambdaWalk) -> np.ndarray:
        named = ", ".join(f"{ridge:.3g}" for ridge in np.unique(path.ridges))
        self.reporter.detail(f"lambda {named} ({len(path.tried)} tried)")
        return path.ridges

    def _said_of(self, path: LambdaWalk) -> list[str]:
        """Where nobody chose the number of features, nothing is said of one that is most of the rows: there are hardly
        more to be had."""
        D, asked = self.pipeline.map.n_features, self.run.asked.map
        sized = self.run.stacked or asked in (ANY, BLEND)
        if self.ridge_given or (sized and FEW_FEATURES * self.run.plan.sizes.rows < D):
            return []
        return path.at_an_end(MORE_TIME if sized else RAISE_D)

    def _path(self, gram: GramState, holdout: Block) -> HoldoutPath:
        X = self.pipeline.scaled(holdout.X)
        return HoldoutPath(self._solver(gram), self.pipeline, X, holdout.targets, shares(holdout))

    def _solver(self, gram: GramState) -> RidgeSolver:
        map, coding, unrounded = self.pipeline.map, self.pipeline.coding, self.pipeline.unrounded
        equations = NormalEquations.from_state(gram, map, coding, unrounded=unrounded)
        return RidgeSolver(equations, self.threads)

    def _solve(self, verdict: Verdict) -> Weights:
        """Weights from the sums of all rows."""
        solver = self._solver(verdict.gram)
        weights = solver.solve_each(verdict.ridges, dimension=self.recipe.D <= DIMENSION_D)
        if weights.jitter:  # rare, and worth another factorisation to say how singular it is
            smallest = solver.solve(float(verdict.ridges.min()), dimension=True)
            self.reporter.note(
                f"at lambda {smallest.ridge:.3g} the system is singular to rounding (effective rank"
                f" {smallest.rank:.0f} of {self.recipe.D}): solved at {smallest.ridge + smallest.jitter:.3g}"
            )
            weights = replace(weights, rank=smallest.rank)
        return weights


def likely_bits(sizes: Sizes) -> str:
    """The precision that time is estimated with: landmarks of numbers, and of two classes, mostly want a lambda that
    bears no rounding."""
    recipe = sizes.recipe
    several = sizes.classes and sizes.outputs > 1
    fine = recipe.bits == AUTO and recipe.map in (LANDMARKS, BLEND, ANY) and not several
    return FINE_BITS if fine else recipe.bits


def check_rows(rows: int) -> None:
    if rows < 2:
        raise DataError(f"{rows} usable rows: at least two are needed to fit a model")


def check_folds(folds: list[GramState]) -> None:
    smallest = min(fold.rows for fold in folds)
    if smallest < 2:
        raise InputError(f"`cv={len(folds)}`: a fold has {smallest} rows only, give fewer folds or more rows")


def folds_for(sizes: Sizes) -> int:
    """How many folds choose lambda: as asked for, or some where rows are few and nothing else was; 0 for none.

    Frequencies and metrics that are learned from targets have seen the rows of every fold: rows apart choose then.
    """
    recipe, rows = sizes.recipe, sizes.counting_rows
    if sizes.folds is not None:
        return sizes.folds
    if recipe.cv:
        return recipe.cv
    asked = recipe.ridge is not None or recipe.holdout is not None or sizes.source.holdout_key == ORDER
    if asked or not FEWEST_FOLDED <= rows < FEW_ROWS or recipe.learns_from_targets:
        return 0
    folds = FOLDS_OF_FEW if rows < FEW_FOLDED else FOLDS
    needed = 8 * gram_layout(sizes).length * (folds + 1) + RidgeSolver.matrix_bytes(recipe.D)
    return folds if needed < FOLDS_SHARE * (sizes.budget - sizes.reserved) else 0


def kept_share(coding: TargetCoding, split: Split, sizes: Sizes) -> float:
    """Of the rows in folds, to calibrate classes by; numbers need none."""
    return _kept(sizes) if coding.classes and split.judge > 0 else 0.0


def _kept(sizes: Sizes) -> float:
    return min(1.0, HOLDOUT_ROWS / max(sizes.counting_rows, 1))


def gram_layout(sizes: Sizes) -> Layout:
    digits = 1 if sizes.classes else max(count for _, count in DIGITS.values())
    return Layout(sizes.recipe.D + 1 + sizes.outputs * digits)


def block_bytes(sizes: Sizes, layout: Layout) -> int:
    """Features of one block of rows, its scaled inputs, and what the product needs."""
    bits = "float64" if sizes.weighted else sizes.recipe.bits  # products of weighted rows are summed so
    widest = 8 if bits == AUTO else make_precision(bits).features.itemsize
    row = widest * (layout.size + 64) + 8 * sizes.source.n_features
    return PRODUCT_ROWS * row + worst_work_bytes(bits, layout, sizes.threads)
