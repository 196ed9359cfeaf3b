"""The progress error: now and then in a pass, the hold-out error of the sums so far, for a hundredth of the time."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from streamrf.data.source import Block
from streamrf.engines.base import Pass
from streamrf.features.base import Scorer
from streamrf.features.pipeline import Pipeline
from streamrf.solvers.judging import wrong_classes
from streamrf.solvers.ridge import NormalEquations, RidgeSolver
from streamrf.statistics.base import CountedState, S
from streamrf.statistics.gram import GramState
from streamrf.statistics.holdout import HoldoutState
from streamrf.statistics.sample import SampleState
from streamrf.support.errors import NumericalError
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE

MOST_FEATURES = 1500  # beyond, one estimate takes long, and a matrix that the plan has no room for during the pass
ROWS, FEWEST_ROWS = 1000, 50  # hold-out rows that are used
SHARE = 0.01  # of the pass, for estimates
FIRST = 3.0  # seconds before the first estimate
FLOPS = 5e9  # of one thread, to guess how long the first estimate takes


class ProgressError:
    """Called between blocks; makes an estimate when enough time has passed to afford it."""

    def __init__(
        self, pipeline: Pipeline, ridge: float | None, reporter: Reporter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pipeline, self.ridge, self.reporter, self.clock = pipeline, ridge, reporter, clock
        self.due = clock() + max(FIRST, self._guess() / SHARE) if self.possible else float("inf")

    @property
    def possible(self) -> bool:
        size = getattr(self.pipeline.map, "n_features", MOST_FEATURES + 1)
        return self.reporter.wants_progress_error and size <= MOST_FEATURES and bool(self.ridge)

    def _guess(self) -> float:
        D = self.pipeline.map.n_features
        return (D**3 / 3 + ROWS * D * (self.pipeline.map.n_inputs + 1)) / FLOPS

    def __call__(self, job: Pass[S]) -> None:
        start = self.clock()
        if start < self.due:
            return
        error = self.error(job.state) if isinstance(job.state, HoldoutState) else None
        if error is not None:
            what = "error" if self.pipeline.coding.classes else "RMSE"
            self.reporter.progress_error(error, what)
        now = self.clock()
        self.due = now + max((now - start) / SHARE, 1.0)

    def error(self, state: HoldoutState[CountedState]) -> float | None:
        """Share of wrong classes, or root mean squared error; None where there are too few rows to say."""
        if not isinstance(state.sums, GramState):  # counts of random binning: no system to solve on the way
            return None
        rows = first_rows(state.holdout, ROWS)
        if rows is None or len(rows) < FEWEST_ROWS or state.sums.rows < 2:
            return None
        pipeline, ridge = self.pipeline, self.ridge
        try:
            equations = NormalEquations.from_state(state.sums, pipeline.map, pipeline.coding)
            weights = RidgeSolver(equations, ALONE).solve(ridge or 0.0)
        except NumericalError:
            return None
        X = pipeline.scaled(rows.X)
        scores = Scorer(pipeline.map, weights.coefficients, weights.intercept).scores(X, ALONE)
        if pipeline.coding.classes:
            return float(wrong_classes(scores, rows.targets).mean())
        return float(np.sqrt(((scores - rows.y) ** 2).mean()))


def first_rows(sample: SampleState, count: int) -> Block | None:
    """The rows that were kept first, the same each time once there are enough; the state is left as it is."""
    blocks: list[Block] = []
    for block in sample.blocks:
        if sum(map(len, blocks)) >= count:
            break
        blocks.append(block)
    if not blocks:
        return None
    X, y, index = (np.concatenate([getattr(b, name) for b in blocks])[:count] for name in ("X", "y", "index"))
    return Block(X, y, index)
