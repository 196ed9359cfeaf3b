"""The sums that Newton steps on the bins of random binning ask for: over the rows of each bin, what the rows pull and
how much their losses bend, or their curvatures times the scores by a direction. Each is an exact sum of integers.

A row's scores are sums in a fixed order, and what it adds is rounded to multiples of a power of two that is known
before the pass, so that it depends on nothing but the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import Split
from streamrf.features.binning.index_cache import BinIndexer
from streamrf.features.binning.normal import ROWS_A_BLOCK, add_values, scores
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.bins import SCORE_BITS, SUM_BITS, RowIntegers, load_whole
from streamrf.statistics.losses import Loss
from streamrf.support.exact_sum import SUM_LIMBS, add_columns, carry, to_float, zero_sums
from streamrf.support.threads import Threads

PULL_BITS = 30
SCORES_A_PIECE = 1 << 20  # of all outputs
ROWS_A_TASK = 8192


@dataclass
class BinPullsState(State):
    totals: np.ndarray  # (sums, n_features) int64: of the rows in each bin
    whole: np.ndarray  # (sums + 1,) int64: of all rows; the last is of their weights
    losses: np.ndarray  # (1, limbs): an exact sum

    def __iadd__(self, other: BinPullsState) -> Self:
        self.totals += other.totals
        self.whole += other.whole
        self.losses += other.losses
        carry(self.losses)
        return self

    def __isub__(self, other: BinPullsState) -> Self:
        self.totals -= other.totals
        self.whole -= other.whole
        self.losses -= other.losses
        carry(self.losses)
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {"pulls.totals": self.totals, "pulls.whole": self.whole, "pulls.losses": self.losses}


class PointScores:
    """Scores of rows by a point, float32, so that passes at the same point look them up once. Whoever has none makes
    them again: they never change a result."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int, int], np.ndarray] = {}

    def of(self, index: np.ndarray, make: Callable[[], np.ndarray]) -> np.ndarray:
        """(k, n): of a block of rows in their order, with these numbers."""
        key = int(index[0]), int(index[-1]), len(index)
        if key not in self._blocks:
            self._blocks[key] = make()
        return self._blocks[key]

    def clear(self) -> None:
        """The point has moved."""
        self._blocks.clear()


@dataclass
class BinPulls(Statistic[BinPullsState]):
    """Over the rows of a ``BinIndexSource`` with numbered bins, without those that are held out. Without directions:
    pulls and curvatures of ``outputs``, and the loss. With them: curvatures times scores by these alone."""

    indexer: BinIndexer
    rows: RowIntegers
    split: Split
    loss: Loss
    table: np.ndarray  # (k, n_features) float32: the point
    intercept: np.ndarray  # (k,)
    unit: np.ndarray  # (k,): scores and losses are of targets in these units
    outputs: np.ndarray  # (g,) int64
    directions: np.ndarray | None = None  # (g, n_features) int32, whose row sums fit 32 bits
    spare: list[np.ndarray] = field(default_factory=list, repr=False)  # totals of an earlier pass, to be used again
    kept: PointScores | None = None  # of passes at the same point

    def __reduce__(self) -> tuple[Any, ...]:
        return BinPulls, (
            self.indexer, self.rows, self.split, self.loss, self.table, self.intercept, self.unit, self.outputs,
            self.directions,
        )  # fmt: skip

    @property
    def piece_rows(self) -> int:
        return piece_rows(len(self.table))

    @property
    def _shape(self) -> tuple[int, int]:
        return (2 if self.directions is None else 1) * len(self.outputs), self.indexer.map.n_features

    @cached_property
    def reach(self) -> np.ndarray:
        """(k,): no score is larger."""
        starts = self.indexer.map.starts[:-1]
        most = [np.maximum.reduceat(np.abs(values), starts).sum(dtype=np.float64) for values in self.table]
        return np.array(most) + np.abs(self.intercept)

    @cached_property
    def steps(self) -> np.ndarray:
        """(sums,) powers of two: what one of the integers of each sum stands for."""
        bends, rows = self.loss.steepest[self.outputs], math.ceil(math.log2(max(self.rows.most_rows, 2)))
        if self.directions is not None:  # which are integers themselves
            return _power(bends * self.rows.weighting.heaviest, -max(0, SCORE_BITS + rows - SUM_BITS))
        bounds = np.concatenate([self.loss.bounds(self.reach)[self.outputs], bends]) * self.rows.weighting.heaviest
        return _power(bounds, min(PULL_BITS, SUM_BITS - rows))

    def zero(self) -> BinPullsState:
        totals = next((each for each in self.spare if each.shape == self._shape), None)
        self.spare.clear()
        if totals is None:
            totals = np.zeros(self._shape, np.int64)
        totals[:] = 0
        return BinPullsState(totals, np.zeros(self._shape[0] + 1, np.int64), zero_sums(1))

    def nbytes(self) -> int:
        return 8 * (self._shape[0] * (self._shape[1] + 1) + 1 + SUM_LIMBS)

    def load(self, arrays: dict[str, np.ndarray]) -> BinPullsState:
        kind = np.dtype(np.int64)
        return BinPullsState(
            load_whole(arrays, "pulls.totals", self._shape, kind),
            load_whole(arrays, "pulls.whole", (self._shape[0] + 1,), kind),
            load_whole(arrays, "pulls.losses", (1, SUM_LIMBS), kind),
        )

    def update(self, state: BinPullsState, block: Block, threads: Threads) -> None:
        if not len(block):
            return
        indices, layout = np.ascontiguousarray(block.X.T), self.indexer.map.layout
        whole = np.ones(len(block), np.int64) if block.weights is None else block.weights.copy()
        whole[self.split.held(block)] = 0

        def look_up() -> np.ndarray:
            return scores(indices, self.table, threads, layout=layout).astype(np.float32)

        found = look_up() if self.kept is None else self.kept.of(block.index, look_up)
        along = None
        if self.directions is not None:
            along = scores(indices, self.directions, threads, np.int32, layout=layout)
        values, losses = np.empty((self._shape[0], len(block)), np.int32), np.zeros((len(block), 1))

        def work(first: int) -> None:
            part = slice(first, min(first + ROWS_A_TASK, len(block)))
            weights = (whole[part] * self.rows.unit)[:, None]
            added = self._added(found[:, part], block.targets[part], weights, losses[part])
            if along is not None:
                added *= along[:, part].T
            values[:, part] = np.rint(added / self.steps).T

        threads.each(work, range(0, len(block), ROWS_A_TASK))
        add_values(indices, values, state.totals, threads, layout=layout)
        state.whole[:-1] += values.sum(axis=1, dtype=np.int64)
        state.whole[-1] += whole.sum()
        add_columns(state.losses, losses)

    def _added(self, found: np.ndarray, coded: np.ndarray, weights: np.ndarray, losses: np.ndarray) -> np.ndarray:
        """(n, sums) of rows with scores (k, n), and their losses (n, 1), with the weights of the rows."""
        points = np.ascontiguousarray(found.T, np.float64) + self.intercept
        targets = self.rows.numbers(coded) / self.unit
        bends = self.loss.curvatures(points, targets)[:, self.outputs] * weights
        if self.directions is not None:
            return bends
        pulls, losses[:] = self.loss.of_rows(points, targets)
        losses *= weights
        return np.concatenate([pulls[:, self.outputs] * weights, bends], axis=1)

    def loss_sum(self, state: BinPullsState) -> float:
        return to_float(state.losses[0])

    def weight(self, state: BinPullsState) -> float:
        """Of all rows."""
        return float(state.whole[-1]) * self.rows.unit


def piece_rows(outputs: int) -> int:
    """Rows that are summed at once."""
    return int(np.clip(SCORES_A_PIECE // outputs, ROWS_A_TASK, ROWS_A_BLOCK))


def _power(bounds: np.ndarray, bits: int) -> np.ndarray:
    """Powers of two, of which so many bits reach the bounds."""
    return np.exp2(np.ceil(np.log2(np.maximum(bounds, np.finfo(np.float64).tiny * 2**60))) - bits)
