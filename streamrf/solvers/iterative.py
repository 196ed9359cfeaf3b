"""What iterative routes share: a first pass, a sample that preconditions, hold-out rows that judge."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from streamrf.data.screening import RowCache
from streamrf.data.source import Block, Source
from streamrf.features.scores import Scorer, scored_width
from streamrf.solvers.base import Fitted, Route, Run
from streamrf.solvers.judging import judge, shares, weighed
from streamrf.solvers.normal_system import CentredMoments, NormalSystem
from streamrf.solvers.preconditioners import NystromFactor, SampleFactor, SampleRows, random_directions
from streamrf.solvers.primal_factor import PrimalFactor, SampleGram
from streamrf.solvers.ridge import Weights
from streamrf.solvers.sizes import drawn_rows, is_primal, is_sketched, sample_rows
from streamrf.statistics.calibration import Calibration
from streamrf.statistics.gradient import Gradient, Pull
from streamrf.statistics.kept_features import KeptFeatures
from streamrf.statistics.opening import Opening, OpeningState
from streamrf.statistics.pulls import ScorePull, TargetPull
from streamrf.statistics.sample import numbers_chosen
from streamrf.statistics.weighting import Weighting
from streamrf.support.errors import DataError
from streamrf.support.threads import ALONE

OPENING, SKETCH = "opening/", "sketch/"
SAMPLE = "sample rows"
Factor = SampleFactor | PrimalFactor | NystromFactor
SKETCH_NOISE = 1e-7  # of a pass: scores are summed in float32


class IterativeRoute(Route):
    """Passes of gradients; ``keep`` remembers what a resumed run must know besides the pass it was in."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._fixed: dict[str, np.ndarray] = {}  # arrays of stages that are over
        self._summed = -1  # rows that every pass sums, once the first has counted them
        self.calibration: Calibration | None = None  # where scores need none, or nothing is held out

    @property
    def recipe(self) -> Any:
        return self.prepared.recipe

    @cached_property
    def weighting(self) -> Weighting:
        return Weighting.of(self.run.source, self.prepared.coding, self.recipe.class_weight)

    @property
    def first_ridge(self) -> float:
        ridge = self.recipe.ridge
        assert ridge is not None  # settled by the pilot or the defaults
        return ridge

    def gradient(self, pull: Pull, coefficients: np.ndarray, intercept: np.ndarray) -> Gradient:
        """How rows pull, those that are held out apart."""
        prepared, weighting = self.prepared, self.weighting
        return Gradient(
            prepared.scaling, prepared.map, prepared.coding, pull, coefficients, intercept, self.run.source.n_rows,
            self.run.plan.holdout, self.recipe.seed, weighting.heaviest, weighting.class_weights, self._features,
        )  # fmt: skip

    @cached_property
    def _features(self) -> KeptFeatures | None:
        if not self.run.plan.keeps_features:
            return None
        map = self.prepared.map
        rows, share = self.run.source.n_rows, self.run.plan.holdout
        apart = numbers_chosen(rows, share, self.recipe.seed)
        return KeptFeatures(rows, scored_width(map), map.precision.features, apart)

    @cached_property
    def rows(self) -> Source:
        """What passes read: the data, or what is left to know of it once all features are kept."""
        source, kept = self.run.source, self._features
        return source if kept is None else RowCache(source, self.recipe.nan, lambda: kept.summed == self._summed)

    def keep(self, stage: str, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.passes.keep({"stage": stage, SAMPLE: self._sample_rows, **document}, {**self._fixed, **arrays})

    def kept(self, stage: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """What was kept in this stage, where a run goes on in it."""
        kept = self.passes.kept
        return (kept.document, kept.arrays) if kept and kept.document.get("stage") == stage else None

    def open(self) -> OpeningState:
        """The first pass, or what it came to."""
        pull = TargetPull(self.prepared.coding)
        gradient = self.gradient(pull, np.zeros((self.prepared.map.n_features, 0)), np.zeros(0))
        share = min(1.0, drawn_rows(self.recipe, self._sample_rows) / max(self.run.source.n_rows, 1))
        statistic = Opening(gradient, share, self.run.shard_starts)
        kept = self.passes.kept
        if kept and kept.document.get("stage", "opening") != "opening":
            state = statistic.load(under(kept.arrays, OPENING))
        else:
            self.keep("opening", {}, {})
            with self.run.timed("pass"):
                state = self.passes.sum(statistic, "first pass", self.rows)
        if state.gradient.rows < 2:
            raise DataError(f"{state.rows} usable rows: at least two are needed to fit a model")
        self._summed = state.gradient.rows
        self._fixed |= {OPENING + name: array for name, array in state.arrays().items()}
        self.moments = CentredMoments.from_state(state.gradient, gradient, self.prepared.map, self.prepared.coding)
        self.holdout, self.sample = state.holdout.table(), state.sample.table()
        return state

    @cached_property
    def _sample_rows(self) -> int:
        """As planned, or as the run that goes on was begun; how many are drawn differs a little."""
        kept = self.passes.kept
        if kept and SAMPLE in kept.document:
            return int(kept.document[SAMPLE])
        return sample_rows(self.recipe, self.run.source.n_rows, self.run.plan.budget - self.run.plan.reserved)

    def factor(self, state: OpeningState) -> Factor:
        """What roughly inverts S: of a sample, or from a sketch of all rows."""
        if is_sketched(self.recipe):
            return self._sketched()
        sample = self.sample
        if sample is None:  # no row was drawn, of very few
            raise DataError(f"{state.rows} rows are too few for --solver {self.recipe.solver}: use --solver cholesky")
        X = self.prepared.scaled(sample.X)
        weights = self.weighed(sample).weights
        map, mean = self.prepared.map, self.moments.mean
        if is_primal(map.n_features, len(X)):
            return PrimalFactor(SampleGram.of(map, X, self.threads, weights), mean, map.amplitudes, self.threads)
        return SampleFactor(SampleRows.of(map, X, mean, self.threads, weights), self.threads)

    def _sketched(self) -> NystromFactor:
        """One pass of products with random directions."""
        D = self.prepared.map.n_features
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
        return statistic.sums(self.passes.sum(statistic, title, self.rows))

    def scores_of(self, rows: Block, weights: Weights) -> np.ndarray:
        """From features that are kept, where any are."""
        scorer, kept = self._scorer(weights), self._features
        if kept is None:
            return scorer.scores(self.prepared.scaled(rows.X), self.threads)

        def features(part: slice, room: np.ndarray) -> np.ndarray:
            def make(out: np.ndarray) -> None:
                self.prepared.map.compute(self.prepared.scaled(rows.X[part]), out, ALONE)

            return kept.of(rows.index[part], room, make)

        return scorer.scores_from(features, len(rows), self.threads)

    def holdout_scores(self, weights: Weights) -> np.ndarray:
        assert self.holdout is not None
        if self._features is None:
            return self._scorer(weights).scores(self._holdout_X, self.threads)
        return self.scores_of(self.holdout, weights)

    def _scorer(self, weights: Weights) -> Scorer:
        return Scorer(self.prepared.map, weights.coefficients, weights.intercept)

    @cached_property
    def _holdout_X(self) -> np.ndarray:
        assert self.holdout is not None
        return self.prepared.scaled(self.holdout.X)

    @cached_property
    def holdout_weights(self) -> np.ndarray:
        """What the hold-out rows count for, one in all."""
        assert self.holdout is not None
        return shares(self.weighed(self.holdout))

    def weighed(self, rows: Block) -> Block:
        return weighed(self.prepared.coding, rows, self.weighting)

    def finish(self, state: OpeningState, weights: Weights, story: dict[str, Any]) -> Fitted:
        """Judged on the rows that were never summed."""
        calibration, metrics = self.judged(weights) if self.holdout is not None else (self.calibration, None)
        story = {"holdout": metrics, **story}
        return Fitted(weights, state.rows, state.gradient.digest(), calibration, None, story)

    def judged(self, weights: Weights) -> tuple[Calibration | None, dict[str, Any]]:
        assert self.holdout is not None
        return judge(self.prepared, [(weights, self.weighed(self.holdout))], self.threads)


def under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
