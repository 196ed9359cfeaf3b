"""The linear system of random binning: conjugate gradients over occupied bins, each product a pass over the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrf.data.source import Block
from streamrf.features.binning.normal import OccupiedBuckets, scores
from streamrf.features.targets import REGRESSION
from streamrf.solvers.conjugate_gradients import CGState, ConjugateGradients, jacobi
from streamrf.solvers.passes import Kept
from streamrf.statistics.bins import Bins, BinsProduct, BinsState
from streamrf.statistics.holdout import under
from streamrf.statistics.sample import SampleState

if TYPE_CHECKING:
    from streamrf.solvers.binning import Binning

SEARCH, JOIN = "search", "join"
CG, BEST = "cg.", "best"


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

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray], bins: Bins) -> Opened:
        return cls(bins.load(arrays), SampleState.load(arrays).table())


@dataclass
class Found:
    """What the search ended with."""

    best: np.ndarray  # (k, P, buckets)
    steps: int
    step: int  # at which the best was


class Steps:
    """One system of normal equations, whose products are passes over the data. Before each, its place is kept."""

    def __init__(
        self, solver: Binning, sums: BinsState, stage: str, arrays: dict[str, np.ndarray],
        *, share: float = 0.0, **facts: Any,
    ) -> None:  # fmt: skip
        self.solver, self.sums, self.share = solver, sums, share
        self.document, self.arrays = {"stage": stage, **facts}, arrays
        self.occupied = OccupiedBuckets.of(sums.counts)
        self.table = np.zeros(sums.totals.shape, np.int32)
        self.cg: ConjugateGradients | None = None

    def begin(self, kept: Kept | None, start: np.ndarray | None = None) -> ConjugateGradients:
        """At zero or at ``start``, or where an earlier run was stopped."""
        ridge, diagonal = self.solver.ridge, self.occupied.compress(self.sums.counts[None])[0]
        preconditioner = jacobi(diagonal, ridge)
        saved = under(kept.arrays, CG) if kept else {}
        if saved:
            self.cg = ConjugateGradients(self, ridge, preconditioner, CGState.load(saved))
        else:
            first = None if start is None else self.occupied.compress(start)
            self.cg = ConjugateGradients.begin(self, self._right_hand_side(diagonal), ridge, preconditioner, first)
        return self.cg

    def _right_hand_side(self, diagonal: np.ndarray) -> np.ndarray:
        """Z'(y - centre)."""
        coding = self.solver.pipeline.coding
        shift = (self.solver.centre(self.sums) - coding.offset) / coding.step
        return (self.occupied.compress(self.sums.totals) - diagonal * shift[:, None]) * coding.step[:, None]

    def product(self, V: np.ndarray) -> np.ndarray:
        """(Z'Z) V, for V as ``rounded`` gives it: one pass."""
        self._keep()
        solver = self.solver
        _, scale = self.occupied.integers(V, self.table)
        seed = solver.recipe.seed
        statistic = BinsProduct(solver.indexer, self.table, self.share, seed, solver.spare)
        state = solver.passes.sum(statistic, self._title(), source=solver.bin_indices)
        image = self.occupied.compress(state.totals) / scale
        solver.spare.append(state.totals)
        return image

    def rounded(self, V: np.ndarray) -> np.ndarray:
        return self.occupied.rounded(V)

    def _keep(self) -> None:
        state = {} if self.cg is None else {CG + name: array for name, array in self.cg.state.arrays().items()}
        self.solver.passes.keep(self.document, {**self.arrays, **state})

    def _title(self) -> str:
        number = 0 if self.cg is None else self.cg.state.iteration + 1
        return f"step {number}" if self.document["stage"] == SEARCH else f"joining step {number}"


class Unseen:
    """The rows that were held out, by their bins: the unexplained share of their variance."""

    def __init__(self, solver: Binning, opening: Opened) -> None:
        assert opening.holdout is not None
        self.threads, self.reporter = solver.threads, solver.reporter
        self.indices = solver.indexer.indices(opening.holdout.X, solver.threads)
        self.deviations = opening.holdout.targets - solver.centre(opening.sums)
        squares = (self.deviations**2).sum(axis=0)
        weigh = solver.pipeline.coding.task == REGRESSION  # outputs in units of their own count alike
        self.weights = 1.0 / np.where(squares > 0, squares, 1.0) if weigh else np.ones(len(squares))
        self.total = max(float((squares * self.weights).sum()), np.finfo(np.float64).tiny)

    def error(self, occupied: OccupiedBuckets, V: np.ndarray) -> float:
        predicted = scores(self.indices, occupied.expand(V, np.float32), self.threads).T
        error = float((((predicted - self.deviations) ** 2).sum(axis=0) * self.weights).sum() / self.total)
        self.reporter.note(f"hold-out squared error {error:.5f} of the variance")
        return error
