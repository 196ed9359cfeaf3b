"""Sums of features times what each row pulls: Z'c, where a row's pull c comes from its own scores, target and weight.

A gradient of any loss, a product with Z'Z, a right-hand side: all are this one sum. A row's features are made, scored,
pulled and dropped while they are in cache. Scores are summed in a fixed order and pulls are rounded to multiples of a
power of two that is known before the pass, so a row adds integers that depend on nothing but the row: with integer
features the sums are exact, and the same in any order. With float features they are sums in float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import NONE_HELD, Split
from streamrf.features.base import BATCH, BATCH_BYTES, FeatureMap, Scorer
from streamrf.features.precision import LIMITS
from streamrf.features.scaling import Scaling
from streamrf.features.targets import TargetCoding
from streamrf.statistics.base import CountedState, Statistic
from streamrf.statistics.gradient_kernels import PULL_BITS, KeptFeatures, add_pulls, add_whole_pulls
from streamrf.statistics.targets import row_weights
from streamrf.support.errors import FileFormatError
from streamrf.support.exact_sum import SUM_LIMBS, add_columns, carry, to_float, zero_sums
from streamrf.support.threads import ALONE, Threads

PIECE_ROWS, KEPT_ROWS = 8192, 65_536  # at a time: more where features are kept, so that handing out takes no time
KEPT_BYTES = 1 << 22  # of features at a time, where they need not be made
WORTH_A_THREAD = 1 << 22  # features that are kept


class Pull(ABC):
    """What rows pull, given their scores: the columns of c, and the columns of losses that are summed beside it."""

    outputs: int
    losses: int = 0

    @abstractmethod
    def bounds(self, reach: np.ndarray) -> np.ndarray:
        """(outputs,): no pull of a row of weight 1 is larger, for scores that are nowhere larger than ``reach``."""

    @abstractmethod
    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pulls (n, outputs) and losses (n, self.losses) of rows, each from its own row alone."""


@dataclass
class GradientState(CountedState):
    """Z'c of every output, the sums of c itself and of the losses, and how many rows (of what weight) are in them."""

    totals: np.ndarray  # (outputs, D), in units of the statistic's steps
    pulls: np.ndarray  # (outputs,), in the same units
    losses: np.ndarray  # (losses + 1, limbs): exact sums; the last is of the weights
    rows: int = 0

    def __iadd__(self, other: GradientState) -> Self:
        self.totals += other.totals
        self.pulls += other.pulls
        self.losses += other.losses
        self.rows += other.rows
        carry(self.losses)
        return self

    def __isub__(self, other: GradientState) -> Self:
        self.totals -= other.totals
        self.pulls -= other.pulls
        self.losses -= other.losses
        self.rows -= other.rows
        carry(self.losses)
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "gradient.totals": self.totals, "gradient.pulls": self.pulls, "gradient.losses": self.losses,
            "gradient.rows": np.array([self.rows], np.int64),
        }  # fmt: skip


@dataclass
class Gradient(Statistic[GradientState]):
    """How rows pull at the features: scored with ``coefficients`` (D, scores), those that ``split`` holds out apart."""

    scaling: Scaling
    map: FeatureMap
    coding: TargetCoding
    pull: Pull
    coefficients: np.ndarray  # (D, scores), for raw features; no scores at all where the pull needs none
    intercept: np.ndarray  # (scores,)
    most_rows: int  # that will ever be in one state: how many bits their sums need
    split: Split = NONE_HELD
    heaviest: float = 1.0  # the largest weight of a row
    class_weights: np.ndarray | None = None  # (classes,)
    features: KeptFeatures | None = None  # of earlier passes
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent without what is packed for this CPU, and without the features that are kept here."""
        return Gradient, (
            self.scaling, self.map, self.coding, self.pull, self.coefficients, self.intercept, self.most_rows,
            self.split, self.heaviest, self.class_weights,
        )  # fmt: skip

    @property
    def _dtype(self) -> np.dtype:
        return self.map.precision.totals

    @property
    def piece_rows(self) -> int:
        return PIECE_ROWS if self.features is None else KEPT_ROWS

    @cached_property
    def reach(self) -> np.ndarray:
        """No score can be larger, by Cauchy and Schwarz: features are bounded, so z'w is by norms."""
        longest = self.map.precision.scale * math.sqrt(self.map.n_features)
        slack = 1 + 1e-3  # scores are summed in float32
        return slack * (longest * np.linalg.norm(self.coefficients, axis=0) + np.abs(self.intercept))

    @cached_property
    def steps(self) -> np.ndarray:
        """(outputs,) powers of two that pulls are multiples of; ones where features are floats."""
        if not self.map.precision.exact:
            return np.ones(self.pull.outputs)
        limit = LIMITS[int(self.map.precision.name)]
        bits = min(PULL_BITS, 62 - math.ceil(math.log2(limit)) - math.ceil(math.log2(max(self.most_rows, 2))))
        bounds = np.maximum(self.heaviest * self.pull.bounds(self.reach), np.finfo(np.float64).tiny * 2**60)
        return np.exp2(np.ceil(np.log2(bounds)) - bits)

    def zero(self) -> GradientState:
        m = self.pull.outputs
        return GradientState(
            np.zeros((m, self.map.n_features), self._dtype), np.zeros(m, self._dtype), zero_sums(self.pull.losses + 1)
        )

    def nbytes(self) -> int:
        m = self.pull.outputs
        return 8 * (m * (self.map.n_features + 1) + (self.pull.losses + 1) * SUM_LIMBS + 1)

    def load(self, arrays: dict[str, np.ndarray]) -> GradientState:
        zero = self.zero()
        for name, wanted in zero.arrays().items():
            found = arrays.get(name)
            if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
                what = "nothing" if found is None else f"{found.dtype} of shape {found.shape}"
                raise FileFormatError(
                    f"{name} of a gradient is {wanted.dtype} of shape {wanted.shape}, and {what} was found"
                )
        return GradientState(
            arrays["gradient.totals"],
            arrays["gradient.pulls"],
            arrays["gradient.losses"],
            int(arrays["gradient.rows"][0]),
        )

    def update(self, state: GradientState, block: Block, threads: Threads, skip: np.ndarray | None = None) -> None:
        """Add a block's rows. What ``skip`` marks in a first pass is what its own share leaves out in all of them."""
        if not len(block):
            return
        hands = self._hands(len(block), threads)
        step = -(-len(block) // (hands * BATCH)) * BATCH

        def rows(first: int) -> GradientState:
            return self._sum(self._without_held_out(block.take(slice(first, first + step))))

        each = map if hands == 1 else threads.map
        for part in each(rows, range(0, len(block), step)):
            state += part

    def _without_held_out(self, block: Block) -> Block:
        return block.take(~self.split.held(block)) if self.split.holds else block

    def _hands(self, rows: int, threads: Threads) -> int:
        """Threads that so many rows are worth: to hand out a mini-batch of kept features takes longer than summing."""
        if self.features is None:
            return threads.count
        return min(threads.count, 1 + rows * self.map.n_features // WORTH_A_THREAD)

    def _sum(self, block: Block) -> GradientState:
        """The state of these rows, on one thread."""
        state, scorer = self.zero(), self._scorer
        if not len(block):
            return state
        targets, weights = self.coding.values(block.targets), row_weights(block, self.coding, self.class_weights)
        room = scorer.batch_features()
        sums = np.zeros((self.pull.outputs, room.shape[1]), self._dtype)
        losses = np.empty((len(block), self.pull.losses + 1))
        losses[:, -1] = 1.0 if weights is None else weights
        kept = None if self.features is None else self.features.side_by_side(block.index)
        for first in range(0, len(block), scorer.batch):
            part = slice(first, min(first + scorer.batch, len(block)))
            Z = self._features(block.X[part], block.index[part], room) if kept is None else kept[part]
            scores = scorer.score_features(Z, part.stop - part.start)
            pulls, losses[part, :-1] = self.pull.of_rows(scores, targets[part])
            if weights is not None:
                pulls, losses[part, :-1] = pulls * weights[part, None], losses[part, :-1] * weights[part, None]
            if self.map.precision.exact:
                pulls = np.rint(pulls / self.steps).astype(np.int64)
                add_whole_pulls(Z, pulls, sums)
            else:
                add_pulls(Z, np.ascontiguousarray(pulls.T, np.float64), sums)
            state.pulls += pulls.sum(axis=0)
        state.totals += sums[:, : self.map.n_features]
        add_columns(state.losses, losses)
        state.rows = len(block)
        return state

    def _features(self, X: np.ndarray, index: np.ndarray, room: np.ndarray) -> np.ndarray:
        """Of a batch: kept from an earlier pass, or made now, in ``room``."""

        def make(out: np.ndarray) -> None:
            self.map.compute(self.scaling.transform(X, self.map.precision.inputs), out, ALONE)

        if self.features is not None:
            return self.features.of(index, room, make)
        make(room)
        return room

    @property
    def _scorer(self) -> Scorer:
        if "scorer" not in self._kept:
            room = KEPT_BYTES if self.features is not None else BATCH_BYTES
            self._kept["scorer"] = Scorer(self.map, self.coefficients, self.intercept, room)
        return self._kept["scorer"]

    def sums(self, state: GradientState) -> tuple[np.ndarray, np.ndarray]:
        """Z'c (outputs, D) of raw features, and the sums of c (outputs,), as numbers."""
        return state.totals * self.steps[:, None], state.pulls * self.steps

    def loss_sums(self, state: GradientState) -> tuple[np.ndarray, float]:
        """The sums of each column of losses, and of the weights."""
        return np.array([to_float(row) for row in state.losses[:-1]]), self.weight(state)

    def weight(self, state: GradientState) -> float:
        """Of all rows."""
        return to_float(state.losses[-1])
