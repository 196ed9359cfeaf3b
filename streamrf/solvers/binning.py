"""The route of random binning: one pass of counts and targets, then conjugate gradients, one pass a step.

Rows that are held out stop the steps. Then they join: a few steps more, from the best solution so far, with all rows.
Every pass is an exact sum, and what happens between two passes is done in a fixed order, so that weights have the same
bits whatever the engine, the order of the rows, or where a run was stopped and resumed.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.features.binning.index_cache import BinIndexSource, end_run, indexer_of_run
from streamrf.features.binning.map import BinningMap
from streamrf.features.binning.normal import OccupiedBuckets, scores
from streamrf.features.targets import REGRESSION
from streamrf.solvers.base import Fitted, Route, Run
from streamrf.solvers.conjugate_gradients import CGState, ConjugateGradients, jacobi
from streamrf.solvers.judging import as_read, judge
from streamrf.solvers.ridge import Weights
from streamrf.statistics.bins import Bins, BinsProduct, BinsState
from streamrf.statistics.calibration import Calibration
from streamrf.statistics.fitting import Fitting, FittingState
from streamrf.statistics.sample import SampleState
from streamrf.support.errors import DataError
from streamrf.support.threads import Threads

STEPS = 30  # at most: held-out rows stop them after 4 to 16
BLIND_STEPS = 8  # where no row is held out
JOIN_STEPS = 2  # with all rows, after the best step: see docs/decisions/random-binning.md
SEARCH, JOIN = "search", "join"
CG, BEST = "cg.", "best"


class BinningRoute(Route):
    """Counts and Z'y, then steps of conjugate gradients on the occupied slots."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        assert isinstance(self.prepared.map, BinningMap)
        self.map: BinningMap = self.prepared.map
        cache = run.plan.cache
        place, limit = (cache.place, cache.limit) if cache else ("nowhere", 0)
        key = secrets.token_hex(8)
        self.indexer = indexer_of_run(self.prepared.scaling, self.map, key, self.prepared.recipe.nan, place, limit)
        self.bin_indices = BinIndexSource(run.source, self.indexer)
        self.spare: list[np.ndarray] = []

    @property
    def ridge(self) -> float:
        """Of the weights of bins; the recipe's is for features whose squares sum to one."""
        ridge = self.prepared.recipe.ridge
        assert ridge is not None  # settled by the pilot or the defaults
        return ridge * self.map.grids

    def fit(self) -> Fitted:
        try:
            return self._fit()
        finally:
            self.passes.engine.everywhere(partial(end_run, self.indexer.key))

    def _fit(self) -> Fitted:
        kept = self.passes.kept if self.passes.kept and self.passes.kept.document else None
        with self.run.timed("pass"):
            opening = _opening_of(kept.arrays, self._bins) if kept else self._first_pass()
        if opening.rows < 2:
            raise DataError(f"{opening.rows} usable rows: at least two are needed to fit a model")
        with self.run.timed("solve"):
            return self._solve(opening, kept)

    @property
    def _bins(self) -> Bins:
        return Bins(self.indexer, self.prepared.coding)

    def _first_pass(self) -> Opened:
        statistic: Any = self._bins
        share, seed = self.run.plan.holdout, self.prepared.recipe.seed
        state: FittingState = self.passes.sum(Fitting(statistic, share, seed, self.run.shard_starts))
        sums: Any = state.gram
        return Opened(sums, state.holdout.table())

    def _solve(self, opening: Opened, kept: Any) -> Fitted:
        """The hold-out rows choose a step, and then they are in."""
        if opening.holdout is None or opening.sums.rows < 2:
            return self._blind(opening, kept)
        stage = kept.document["stage"] if kept else SEARCH
        if stage == SEARCH:
            found = self._search(opening, kept)
        else:
            found = Found(kept.arrays[BEST], kept.document["steps"], kept.document["step"])
        weights = self._weights(opening.sums, found.best)
        calibration, metrics = judge(self.prepared, [(weights, opening.holdout)], self.threads)
        self.reporter.note(f"step {found.step} of {found.steps} is the best on the rows held out, which now join")
        weights, joined = self._join(opening, found, kept if stage == JOIN else None)
        return self._fitted(weights, joined, calibration, metrics, found.steps + JOIN_STEPS, found.step)

    def _search(self, opening: Opened, kept: Any) -> Found:
        solver = Steps(self, opening.sums, SEARCH, opening.arrays(), share=self.run.plan.holdout)
        cg = solver.begin(kept)
        unseen = Unseen(self, opening)
        best = cg.run(STEPS, score=lambda V: unseen.error(solver.occupied, V))
        return Found(solver.occupied.expand(best, np.float64), cg.state.iteration, cg.state.best_iteration)

    def _join(self, opening: Opened, found: Found, kept: Any) -> tuple[Weights, BinsState]:
        """Steps with all rows, from the best solution without those that were held out."""
        rows = as_read(self.prepared.coding, opening.holdout)  # type: ignore[arg-type]
        everything = opening.sums.copy()
        self._bins.update(everything, rows, self.threads)
        arrays = {**opening.arrays(), BEST: found.best}
        solver = Steps(self, everything, JOIN, arrays, steps=found.steps, step=found.step)
        cg = solver.begin(kept, start=found.best)
        best = cg.run(JOIN_STEPS)
        return self._weights(everything, solver.occupied.expand(best, np.float64)), everything

    def _blind(self, opening: Opened, kept: Any) -> Fitted:
        """So many steps, with nothing to judge them by."""
        sums = opening.sums
        if opening.holdout is not None:
            self._bins.update(sums, as_read(self.prepared.coding, opening.holdout), self.threads)
        solver = Steps(self, sums, SEARCH, Opened(sums, None).arrays())
        best = solver.begin(kept).run(BLIND_STEPS)
        weights = self._weights(sums, solver.occupied.expand(best, np.float64))
        return self._fitted(weights, sums, None, None, BLIND_STEPS, BLIND_STEPS)

    def _weights(self, sums: BinsState, table: np.ndarray) -> Weights:
        ridge = self.prepared.recipe.ridge
        assert ridge is not None
        coefficients = table.reshape(len(table), -1).astype(np.float32).T
        return Weights(coefficients, self.centre(sums), ridge)

    def centre(self, sums: BinsState) -> np.ndarray:
        """The mean target of each output, which the bins are to tell deviations from."""
        coding = self.prepared.coding
        return sums.targets / sums.rows * coding.step + coding.offset

    def _fitted(
        self, weights: Weights, sums: BinsState, calibration: Calibration | None, metrics: Any, steps: int, best: int
    ) -> Fitted:
        facts = {
            **self.prepared.story.get("binning", {}), "grids": self.map.grids, "slots": self.map.buckets,
            "steps": steps, "best_step": best, "cache": self.indexer.cache.place, **_fullness(sums),
        }  # fmt: skip
        story = {"holdout": metrics, "binning": facts}
        return Fitted(weights, sums.rows, sums.digest(), calibration, None, story)


@dataclass
class Opened:
    """What the first pass brought: sums of the rows to fit, and those that were held out."""

    sums: BinsState
    holdout: Block | None

    @property
    def rows(self) -> int:
        return self.sums.rows + (0 if self.holdout is None else len(self.holdout))

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold."""
        sample = SampleState([] if self.holdout is None else [self.holdout])
        return {**self.sums.arrays(), **sample.arrays()}


def _opening_of(arrays: dict[str, np.ndarray], bins: Bins) -> Opened:
    return Opened(bins.load(arrays), SampleState.load(arrays).table())


@dataclass
class Found:
    """What the search ended with."""

    best: np.ndarray  # (k, P, slots)
    steps: int
    step: int  # at which the best was


class Steps:
    """One system of normal equations, whose products are passes over the data. Before each, its place is kept."""

    def __init__(
        self, route: BinningRoute, sums: BinsState, stage: str, arrays: dict[str, np.ndarray],
        *, share: float = 0.0, **facts: Any,
    ) -> None:  # fmt: skip
        self.route, self.sums, self.share = route, sums, share
        self.document, self.arrays = {"stage": stage, **facts}, arrays
        self.occupied = OccupiedBuckets.of(sums.counts)
        self.table = np.zeros(sums.totals.shape, np.int32)
        self.cg: ConjugateGradients | None = None

    def begin(self, kept: Any, start: np.ndarray | None = None) -> ConjugateGradients:
        """At zero or at ``start``, or where an earlier run was stopped."""
        ridge, diagonal = self.route.ridge, self.occupied.compress(self.sums.counts[None])[0]
        preconditioner = jacobi(diagonal, ridge)
        arrays = kept.arrays if kept else {}
        saved = {name.removeprefix(CG): array for name, array in arrays.items() if name.startswith(CG)}
        if saved:
            self.cg = ConjugateGradients(self, ridge, preconditioner, CGState.load(saved))
        else:
            first = None if start is None else self.occupied.compress(start)
            self.cg = ConjugateGradients.begin(self, self._right_hand_side(diagonal), ridge, preconditioner, first)
        return self.cg

    def _right_hand_side(self, diagonal: np.ndarray) -> np.ndarray:
        """Z'(y - centre)."""
        coding = self.route.prepared.coding
        shift = (self.route.centre(self.sums) - coding.offset) / coding.step
        return (self.occupied.compress(self.sums.totals) - diagonal * shift[:, None]) * coding.step[:, None]

    def product(self, V: np.ndarray) -> np.ndarray:
        """(Z'Z) V, for V as ``rounded`` gives it: one pass."""
        self._keep()
        route = self.route
        _, scale = self.occupied.integers(V, self.table)
        seed = route.prepared.recipe.seed
        statistic = BinsProduct(route.indexer, self.table, self.share, seed, route.spare)
        state = route.passes.sum(statistic, self._title(), source=route.bin_indices)
        image = self.occupied.compress(state.totals) / scale
        route.spare.append(state.totals)
        return image

    def rounded(self, V: np.ndarray) -> np.ndarray:
        return self.occupied.rounded(V)

    def _keep(self) -> None:
        state = {} if self.cg is None else {CG + name: array for name, array in self.cg.state.arrays().items()}
        self.route.passes.keep(self.document, {**self.arrays, **state})

    def _title(self) -> str:
        number = 0 if self.cg is None else self.cg.state.iteration + 1
        return f"step {number}" if self.document["stage"] == SEARCH else f"joining step {number}"


class Unseen:
    """The rows that were held out, by their slots: what is not explained of them, as a share of their deviations."""

    def __init__(self, route: BinningRoute, opening: Opened) -> None:
        assert opening.holdout is not None
        self.threads: Threads = route.threads
        self.reporter = route.reporter
        self.indices = route.indexer.indices(opening.holdout.X, route.threads)
        self.deviations = opening.holdout.y - route.centre(opening.sums)
        squares = (self.deviations**2).sum(axis=0)
        weigh = route.prepared.coding.task == REGRESSION  # outputs in units of their own count alike
        self.weights = 1.0 / np.where(squares > 0, squares, 1.0) if weigh else np.ones(len(squares))
        self.total = max(float((squares * self.weights).sum()), np.finfo(np.float64).tiny)

    def error(self, occupied: OccupiedBuckets, V: np.ndarray) -> float:
        predicted = scores(self.indices, occupied.expand(V, np.float32), self.threads).T
        error = float((((predicted - self.deviations) ** 2).sum(axis=0) * self.weights).sum() / self.total)
        self.reporter.note(f"hold-out squared error {error:.5f} of the variance")
        return error


def _fullness(sums: BinsState) -> dict[str, Any]:
    """Slots that have rows, and from their number how many bins there must be, had each gone to a random slot."""
    grids, slots = sums.counts.shape
    occupied = np.count_nonzero(sums.counts, axis=1)
    bins = np.log1p(-np.minimum(occupied, slots - 0.5) / slots) / np.log1p(-1.0 / slots)
    return {
        "occupied": float(occupied.sum() / (grids * slots)),
        "empty": float(1 - occupied.sum() / (grids * slots)),
        "bins": float(bins.mean()),
        "colliding": float(max(0.0, 1 - occupied.sum() / bins.sum())),
    }
