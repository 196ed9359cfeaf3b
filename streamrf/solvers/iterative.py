"""What iterative solvers share: a first pass, a sample that preconditions, hold-out rows that judge; and their plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from streamrf.data.screening import RowCache, held_numbers
from streamrf.data.source import Block, Source
from streamrf.data.split import NONE_HELD
from streamrf.features.base import Scorer, batch_rows, scored_width
from streamrf.features.precision import make_precision
from streamrf.features.settings import LANDMARKS
from streamrf.solvers import rates as speed
from streamrf.solvers.base import Fitted, Run, Solver
from streamrf.solvers.conjugate_gradients import CentredMoments, NormalSystem
from streamrf.solvers.factors import (
    PrimalFactor,
    SampleGram,
    drawn_rows,
    is_primal,
    is_sketched,
    preconditioner_bytes,
    sample_rows,
)
from streamrf.solvers.judging import as_read, by_role, calibrate, judge, shares, weighed
from streamrf.solvers.plan import PASS, SLACK, SOLVE, Part, Plan, Sizes, holdout_parts, reading_parts
from streamrf.solvers.preconditioners import NystromFactor, SampleFactor, SampleRows, random_directions
from streamrf.solvers.settings import SolverSettings
from streamrf.statistics.gradient import KEPT_BYTES, Gradient, GradientState, Pull
from streamrf.statistics.gradient_kernels import KeptFeatures
from streamrf.statistics.holdout import Holdout, HoldoutState, SampleState, under
from streamrf.statistics.losses import ScorePull, TargetPull
from streamrf.statistics.scores import Calibration, Weights
from streamrf.support.errors import DataError
from streamrf.support.settings import AUTO

OPENING, SKETCH = "opening/", "sketch/"  # what checkpoints call the first pass and the products of a sketch
SAMPLE = "sample rows"
Factor = SampleFactor | PrimalFactor | NystromFactor
SKETCH_NOISE = 1e-7  # of a pass: scores are summed in float32
LOWER_D = "lower `D`"
SERVED = 4  # bytes of a feature that is not rounded, at least
PULLING, EACH = 0.15, 0.11  # scores and pulls, and those of each output, in units of the cosines of a pass


class IterativeSolver(Solver):
    """Passes of gradients; ``keep`` remembers what a resumed run must know besides the pass it was in."""

    wide = False
    usual_passes: ClassVar[int]  # hold-out rows end them
    vectors: ClassVar[int]  # arrays of outputs x D, float64, that are alive
    lambdas: ClassVar[int] = 1  # that share a pass

    @classmethod
    def plan(cls, sizes: Sizes) -> Plan:
        parts = cls._own_parts(sizes)
        fixed = sum(part.bytes for name, part in parts.items() if name != "rows that precondition")
        reading, span_rows, span_bytes = reading_parts(sizes, sizes.budget - sizes.reserved - fixed)
        parts |= {**reading, **holdout_parts(sizes)}
        passes = 1 + sizes.scaling_passes + (sizes.recipe.epochs or cls.usual_passes)
        plan = Plan(sizes, cls.name, cls._why(sizes), parts, passes, span_rows, span_bytes)
        kept = cls._kept_bytes(sizes, int(plan.room / SLACK)) if sizes.local else 0
        return plan.with_parts(parts={"features kept": Part(kept, (PASS, SOLVE), LOWER_D)})

    @classmethod
    def _own_parts(cls, sizes: Sizes) -> dict[str, Part]:
        recipe = replace(sizes.recipe, solver=cls.name)
        D, item, outputs = recipe.D, feature_bytes(recipe), sizes.outputs
        rows = sizes.sample or sample_rows(recipe, sizes.rows, sizes.budget - sizes.reserved)
        kept, widest = min(drawn_rows(recipe, rows), sizes.rows), max(outputs + 1, 3 * outputs)
        columns = max(widest, rows) if is_sketched(recipe) else widest
        block = sizes.threads * (2 * columns * 8 + batch_rows(item * (D + 64), KEPT_BYTES) * item) * (D + 64)
        drawn = 3 * kept * (max(sizes.row_bytes, 4 * sizes.source.n_features) + 8 * outputs + 16)
        return {
            "statistics": Part(max(columns * 8 * (D + 64), cls._end_bytes(sizes)), (PASS, SOLVE), LOWER_D),
            "block": Part(block, (PASS, SOLVE), LOWER_D),
            "vectors": Part(cls.vectors * outputs * 8 * D, (PASS, SOLVE), LOWER_D),
            "preconditioner": Part(preconditioner_bytes(recipe, rows), (SOLVE,), LOWER_D),
            "rows that precondition": Part(drawn, (PASS, SOLVE), LOWER_D),
        }

    @classmethod
    def _end_bytes(cls, sizes: Sizes) -> int:
        """Of what a pass ends with, where that is more than a gradient."""
        return 0

    @classmethod
    def _kept_bytes(cls, sizes: Sizes, room: int) -> int:
        """What the features of all rows take, if that fits into the room that is left; nothing where it does not."""
        needed = KeptFeatures.nbytes(sizes.rows, sizes.recipe.D, feature_bytes(sizes.recipe))
        choosing = int(sizes.rows * sizes.split.choose)
        needed += choosing * (sizes.recipe.D + 64) * max(feature_bytes(sizes.recipe), SERVED)
        needed += RowCache.nbytes(sizes.source)
        return needed if needed <= room else 0

    @classmethod
    def _why(cls, sizes: Sizes) -> str:
        if sizes.recipe.loss != "squared":
            return f"the {sizes.recipe.loss} loss is fitted by passes of gradients"
        if sizes.recipe.solver == cls.name:
            return "as asked for"
        return "rows have weights, with which only the sums of gradients are exact"

    @classmethod
    def estimate(cls, plan: Plan) -> Mapping[str, float]:
        """Time of the passes, and of the preconditioner; features that are kept are made once."""
        sizes, recipe = plan.sizes, replace(plan.sizes.recipe, solver=cls.name)
        rates = speed.rates_of_this_machine(recipe.bits, sizes.threads)
        n, D, d = sizes.rows, recipe.D, sizes.source.n_features
        landmarks = recipe.map == LANDMARKS
        values = speed.landmarks_a_second(recipe.bits, sizes.threads, d) if landmarks else rates.features(d)
        features, reading = n * D / values, n * sizes.row_bytes / rates.read
        together = sizes.outputs * (cls.lambdas if recipe.ridge is None else 1)
        pulling = n * D * (PULLING + EACH * together) / rates.cosines
        m = sample_rows(recipe, n, sizes.budget - sizes.reserved)
        if is_sketched(recipe):
            sketch = max(features + n * D * (PULLING + EACH * m) / rates.cosines, reading)
        else:  # a Gram matrix of features or of rows, and its factor
            few, many = sorted((m, D))
            sketch = float(few) * few * many / rates.gram + float(few) ** 3 / 3 / rates.factor
        step = pulling if plan.keeps_features else max(features + pulling, reading)
        return {"pass": max(features, reading), "solve": sketch + (recipe.epochs or cls.usual_passes) * step}

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._fixed: dict[str, np.ndarray] = {}  # arrays of stages that are over
        self._summed = -1  # rows that every pass sums, once the first has counted them
        self._joined: Block | None = None  # rows that were held out, and are in every sum from now on
        self.calibration: Calibration | None = None  # where scores need none, or nothing is held out

    def gradient(self, pull: Pull, coefficients: np.ndarray, intercept: np.ndarray) -> Gradient:
        """How rows pull, those that are held out apart."""
        pipeline, weighting = self.pipeline, self.run.weighting
        return Gradient(
            pipeline.scaling, pipeline.map, pipeline.coding, pull, coefficients, intercept, self.run.source.n_rows,
            self.run.split, weighting.heaviest, weighting.class_weights, self._features,
        )  # fmt: skip

    @cached_property
    def _features(self) -> KeptFeatures | None:
        if not self.run.plan.keeps_features:
            return None
        map, plan, source = self.pipeline.map, self.run.plan, self.run.source
        apart = held_numbers(source, self.run.split, plan.span_rows, plan.span_bytes)
        return KeptFeatures(source.n_rows, scored_width(map), map.precision.features, apart)

    @cached_property
    def rows(self) -> Source:
        """What passes read: the data, or what is left to know of it once all features are kept."""
        source, kept = self.run.source, self._features
        if kept is None:
            return source
        return RowCache(source, self.recipe.nan, self.run.split, lambda: kept.summed == self._summed)

    def keep(self, stage: str, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.passes.keep({"stage": stage, SAMPLE: self._sample_rows, **document}, {**self._fixed, **arrays})

    def kept(self, stage: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """What was kept in this stage, where a run goes on in it."""
        kept = self.passes.kept
        return (kept.document, kept.arrays) if kept and kept.document.get("stage") == stage else None

    def open(self) -> HoldoutState[GradientState]:
        """The first pass, or what it came to."""
        gradient = self._opening()
        share = min(1.0, drawn_rows(self.recipe, self._sample_rows) / max(self.run.source.n_rows, 1))
        statistic = Holdout(gradient, self.run.split, self.run.shard_starts, share)
        kept = self.passes.kept
        if kept and kept.document.get("stage", "opening") != "opening":
            state = statistic.load(under(kept.arrays, OPENING))
        else:
            self.keep("opening", {}, {})
            with self.run.timed("pass"):
                state = self.passes.sum(statistic, "first pass", self.rows)
        if state.sums.rows < 2:
            raise DataError(f"{state.rows} usable rows: at least two are needed to fit a model")
        self._summed = state.sums.rows
        self._fixed |= {OPENING + name: array for name, array in state.arrays().items()}
        self.moments = CentredMoments.from_state(state.sums, gradient, self.pipeline.map, self.pipeline.coding)
        self.holdout, self.judges = by_role(self.run.split, SampleState([*state.holdout.blocks]))
        self.sample = state.sample.table()
        return state

    @cached_property
    def _sample_rows(self) -> int:
        """As planned, or as the run that goes on was begun; how many are drawn differs a little."""
        kept = self.passes.kept
        if kept and SAMPLE in kept.document:
            return int(kept.document[SAMPLE])
        return sample_rows(self.recipe, self.run.source.n_rows, self.run.plan.budget - self.run.plan.reserved)

    def factor(self, state: HoldoutState[GradientState]) -> Factor:
        """What roughly inverts S: of a sample, or from a sketch of all rows."""
        if is_sketched(self.recipe):
            return self._sketched()
        sample = self.sample
        if sample is None:  # no row was drawn, of very few
            raise DataError(
                f"{state.rows} rows are too few for `solver={self.recipe.solver!r}`: use `solver='cholesky'`"
            )
        X = self.pipeline.scaled(sample.X)
        weights = self.weighed(sample).weights
        map, mean = self.pipeline.map, self.moments.mean
        if is_primal(map.n_features, len(X)):
            return PrimalFactor(SampleGram.of(map, X, self.threads, weights), mean, map.amplitudes, self.threads)
        return SampleFactor(SampleRows.of(map, X, mean, self.threads, weights), self.threads)

    def _sketched(self) -> NystromFactor:
        """One pass of products with random directions."""
        D = self.pipeline.map.n_features
        test = random_directions(self._sample_rows, D, self.recipe.seed)
        kept = self.passes.kept
        if kept and SKETCH + "values" in kept.arrays:
            sketch = kept.arrays[SKETCH + "values"]
        else:
            self.keep("sketch", {}, {})
            sketch = self.product(test, "sketch")
        self._fixed[SKETCH + "values"] = sketch
        return NystromFactor(sketch, test, SKETCH_NOISE)

    def product(self, V: np.ndarray, title: str) -> np.ndarray:
        """S V for directions (k, D): one pass."""
        return NormalSystem(self.moments, lambda C, b: self.multiply(C, b, title)).product(V)

    def multiply(self, coefficients: np.ndarray, intercept: np.ndarray, title: str) -> tuple[np.ndarray, np.ndarray]:
        statistic = self.gradient(ScorePull(coefficients.shape[1]), coefficients, intercept)
        state = self.passes.sum(statistic, title, self.rows)
        if self._joined is not None:
            self._add(statistic, state, self._joined)
        return statistic.sums(state)

    def join(self, state: HoldoutState[GradientState]) -> None:
        """Rows that were held out, which are in memory, are in every sum from now on."""
        held = state.holdout.table()
        assert held is not None
        self._joined = as_read(self.pipeline.coding, held)
        gradient = self._opening()
        sums = gradient.zero()
        sums += state.sums
        self._add(gradient, sums, self._joined)
        self.moments = CentredMoments.from_state(sums, gradient, self.pipeline.map, self.pipeline.coding)

    def _add(self, statistic: Gradient, state: GradientState, rows: Block) -> None:
        replace(statistic, split=NONE_HELD, features=None, _kept={}).update(state, rows, self.threads)

    def _opening(self) -> Gradient:
        """What the first pass sums."""
        pull = TargetPull(self.pipeline.coding)
        return self.gradient(pull, np.zeros((self.pipeline.map.n_features, 0)), np.zeros(0))

    def judging_scores(self, weights: Weights) -> np.ndarray:
        """Of the rows that choose, or of the sample where there are none, from the features that are served."""
        X, unrounded = self._judging_X, self.pipeline.unrounded
        scorer = Scorer(self.pipeline.map, weights.coefficients, weights.intercept, unrounded=unrounded)
        if self._features is None:
            return scorer.scores(X, self.threads)
        Z = self._judging_features
        return scorer.scores_from(lambda part, room: Z[part], len(X), self.threads)

    @cached_property
    def judging_rows(self) -> Block:
        rows = self.holdout if self.holdout is not None else self.sample
        assert rows is not None
        return rows

    @cached_property
    def _judging_X(self) -> np.ndarray:
        return self.pipeline.scaled(self.judging_rows.X)

    @cached_property
    def _judging_features(self) -> np.ndarray:
        """As they are served."""
        map, X = self.pipeline.map, self._judging_X
        dtype = map.precision.inputs if self.pipeline.unrounded else map.precision.features
        out = np.zeros((len(X), scored_width(map)), dtype)
        map.compute(X, out, self.threads)
        return out

    @cached_property
    def holdout_weights(self) -> np.ndarray:
        """What the hold-out rows count for, one in all."""
        assert self.holdout is not None
        return shares(self.weighed(self.holdout))

    def weighed(self, rows: Block) -> Block:
        return weighed(self.pipeline.coding, rows, self.run.weighting)

    def finish(self, state: HoldoutState[GradientState], weights: Weights, facts: dict[str, Any]) -> Fitted:
        """Calibrated on the rows that chose, judged on those that did not."""
        calibration = self.calibrated(weights) if self.holdout is not None else self.calibration
        metrics = None
        if self.judges is not None:
            metrics = judge(self.pipeline, weights, self.judges, calibration, self.run.split, self.threads)
        metadata: dict[str, Any] = {"lambda_by_output": list(weights.ridges)} if weights.ridges else {}
        metadata |= {"holdout": metrics, "solver": {"name": self.name, **facts}}
        return Fitted(weights, state.rows, state.sums.digest(), calibration, None, metadata, self.judges)

    def calibrated(self, weights: Weights) -> Calibration | None:
        assert self.holdout is not None
        return calibrate(
            self.pipeline, [(weights, self.holdout)], self.threads, self.run.weighting, self.recipe.threshold
        )


def feature_bytes(recipe: SolverSettings) -> int:
    """Of one feature, at most."""
    return 8 if recipe.bits == AUTO else make_precision(recipe.bits).features.itemsize
