"""The sums of random binning, each an exact sum of integers: which bins have rows, then sums of weights, targets and
scores over the rows of each bin, a few outputs at a time.

Where rows have weights, these are integers too: multiples of a power of two, 24 bits of the heaviest. Products with
them are rounded, row by row, to what a 64-bit sum over all rows has room for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import Split
from streamrf.features.binning.index_cache import BinIndexer
from streamrf.features.binning.normal import ROWS_A_BLOCK, add_counts, add_values, scores
from streamrf.features.targets import REGRESSION, TargetCoding
from streamrf.statistics.base import CountedState, State, Statistic
from streamrf.statistics.targets import Weighting, row_weights
from streamrf.support.errors import FileFormatError
from streamrf.support.threads import Threads

WEIGHT_BITS = 24
SCORE_BITS, TARGET_BITS = 31, 30  # of a row's score by integers, and of its target in whole steps
SUM_BITS = 62


@dataclass
class BinsState(CountedState):
    """Rows in each bucket, those held out too; ``rows`` are the others."""

    counts: np.ndarray  # (P, buckets), int32 or int64
    rows: int = 0

    def __iadd__(self, other: BinsState) -> Self:
        self.counts += other.counts
        self.rows += other.rows
        return self

    def __isub__(self, other: BinsState) -> Self:
        self.counts -= other.counts
        self.rows -= other.rows
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {"bins.counts": self.counts, "bins.rows": np.array([self.rows], np.int64)}


@dataclass
class Bins(Statistic[BinsState]):
    """The first pass; bin indices are kept on the way, for the passes that follow."""

    indexer: BinIndexer
    coding: TargetCoding
    most_rows: int  # that will ever be in one state

    @property
    def piece_rows(self) -> int:
        return ROWS_A_BLOCK

    @property
    def _dtype(self) -> np.dtype:
        return count_dtype(self.most_rows)

    def zero(self) -> BinsState:
        return BinsState(np.zeros((self.indexer.map.grids, self.indexer.map.buckets), self._dtype))

    def nbytes(self) -> int:
        return self._dtype.itemsize * self.indexer.map.grids * self.indexer.map.buckets

    def update(self, state: BinsState, block: Block, threads: Threads, skip: np.ndarray | None = None) -> None:
        """Add a block's rows; those that ``skip`` marks only occupy their buckets."""
        if not len(block):
            return
        indices = self.indexer.indices_to_keep(block, threads)
        add_counts(indices, state.counts, threads, layout=self.indexer.map.layout)
        state.rows += len(block) - (0 if skip is None else int(skip.sum()))

    def load(self, arrays: dict[str, np.ndarray]) -> BinsState:
        shape = (self.indexer.map.grids, self.indexer.map.buckets)
        counts = load_whole(arrays, "bins.counts", shape, self._dtype)
        return BinsState(counts, int(load_whole(arrays, "bins.rows", (1,), np.dtype(np.int64))[0]))


def count_dtype(rows: int) -> np.dtype:
    """What holds the number of so many rows."""
    return np.dtype(np.int32 if rows < 2**31 else np.int64)


@dataclass(frozen=True)
class RowIntegers:
    """Targets and weights of rows as integers, and how large sums of them may become."""

    coding: TargetCoding
    weighting: Weighting
    most_rows: int

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray | None]:
        """Codes of classes (n,) or targets in whole steps (n, k), and weights in units, None where rows count alike."""
        return self._targets(block.targets), self._weights(block)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        if self.coding.task != REGRESSION:
            return self.coding.codes(y).astype(np.int32)
        return np.rint((self.coding.values(y) - self.coding.offset) / self.coding.step).astype(np.int64)

    def _weights(self, block: Block) -> np.ndarray | None:
        weights = row_weights(block, self.coding, self.weighting.class_weights)
        if self.weighting.plain or weights is None:
            return None
        return np.rint(weights / self.unit).astype(np.int64)

    def numbers(self, coded: np.ndarray) -> np.ndarray:
        """Coded targets as the numbers (n, k) that are learned."""
        if self.coding.task == REGRESSION:
            return coded * self.coding.step + self.coding.offset
        if self.coding.outputs == 1:
            return 2.0 * coded[:, None] - 1.0
        return (coded[:, None] == np.arange(self.coding.outputs)).astype(np.float64)

    @cached_property
    def unit(self) -> float:
        """What one of a weight's integers stands for."""
        if self.weighting.plain:
            return 1.0
        return 2.0 ** (math.ceil(math.log2(self.weighting.heaviest)) - WEIGHT_BITS)

    def of_outputs(self, coded: np.ndarray, outputs: np.ndarray, signs: np.ndarray | None = None) -> np.ndarray:
        """Targets (g, n) of some outputs in whole steps; or of sums of all classes with these signs (g, classes)."""
        if signs is not None:
            return signs[:, coded]
        if self.coding.task == REGRESSION:
            return np.ascontiguousarray(coded[:, outputs].T)
        if self.coding.outputs == 1:
            return 2 * coded[None].astype(np.int64) - 1
        return (coded == outputs[:, None]).astype(np.int64)

    @property
    def target_shift(self) -> int:
        """Bits that weighted targets are shortened by."""
        return self._shift(TARGET_BITS if self.coding.task == REGRESSION else 1)

    @property
    def score_shift(self) -> int:
        """Bits that weighted scores are shortened by."""
        return self._shift(SCORE_BITS)

    def _shift(self, bits: int) -> int:
        if self.weighting.plain:
            return 0
        return max(0, bits + WEIGHT_BITS + math.ceil(math.log2(max(self.most_rows, 2))) - SUM_BITS)


@dataclass
class BinSumsState(State):
    totals: np.ndarray  # (sums, n_features) int64: of the rows in each bin
    whole: np.ndarray  # (sums,) int64: of all rows

    def __iadd__(self, other: BinSumsState) -> Self:
        self.totals += other.totals
        self.whole += other.whole
        return self

    def __isub__(self, other: BinSumsState) -> Self:
        self.totals -= other.totals
        self.whole -= other.whole
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {"product.totals": self.totals, "product.whole": self.whole}


@dataclass
class BinSums(Statistic[BinSumsState]):
    """Sums over the rows of each bin, of a ``BinIndexSource`` with numbered bins, without rows that are held out: the
    weights, if asked for; the targets of ``outputs``; and the scores by ``table``, whose row sums fit 32 bits."""

    indexer: BinIndexer
    rows: RowIntegers
    split: Split
    weigh: bool = False
    outputs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    table: np.ndarray | None = None  # (g, n_features) int32
    signs: np.ndarray | None = None  # (g, classes) int64: the outputs are such sums of classes
    spare: list[np.ndarray] = field(default_factory=list, repr=False)  # totals of an earlier pass, to be used again

    @property
    def piece_rows(self) -> int:
        return ROWS_A_BLOCK

    @property
    def _shape(self) -> tuple[int, int]:
        sums = self.weigh + len(self.outputs) + (0 if self.table is None else len(self.table))
        return sums, self.indexer.map.n_features

    def zero(self) -> BinSumsState:
        sums = np.zeros(self._shape[0], np.int64)
        while self.spare:
            totals = self.spare.pop()
            if totals.shape == self._shape:
                totals[:] = 0
                return BinSumsState(totals, sums)
        return BinSumsState(np.zeros(self._shape, np.int64), sums)

    def nbytes(self) -> int:
        return 8 * self._shape[0] * (self._shape[1] + 1)

    def update(self, state: BinSumsState, block: Block, threads: Threads) -> None:
        if not len(block):
            return
        indices, layout = np.ascontiguousarray(block.X.T), self.indexer.map.layout
        for first, values in self._values(indices, block, threads):
            values[:, self.split.held(block)] = 0
            part = slice(first, first + len(values))
            add_values(indices, values, state.totals[part], threads, layout=layout)
            state.whole[part] += values.sum(axis=1)

    def _values(self, indices: np.ndarray, block: Block, threads: Threads) -> Any:
        """What each row adds, a kind at a time, and to which of the sums."""
        weights, first = block.weights, 0
        if self.weigh:
            yield first, np.ones((1, len(block)), np.int64) if weights is None else weights[None].copy()
            first += 1
        if len(self.outputs):
            targets = self.rows.of_outputs(block.targets, self.outputs, self.signs)
            yield first, targets if weights is None else _shortened(targets * weights, self.rows.target_shift)
            first += len(self.outputs)
        if self.table is not None:
            found = scores(indices, self.table, threads, np.int32, layout=self.indexer.map.layout)
            yield first, found if weights is None else _shortened(found * weights, self.rows.score_shift)

    def load(self, arrays: dict[str, np.ndarray]) -> BinSumsState:
        kind = np.dtype(np.int64)
        totals = load_whole(arrays, "product.totals", self._shape, kind)
        return BinSumsState(totals, load_whole(arrays, "product.whole", self._shape[:1], kind))

    def __reduce__(self) -> tuple[Any, ...]:
        return BinSums, (self.indexer, self.rows, self.split, self.weigh, self.outputs, self.table, self.signs)


def _shortened(values: np.ndarray, bits: int) -> np.ndarray:
    """Integers without their last bits, rounded."""
    return values if bits == 0 else (values + (1 << (bits - 1))) >> bits


def load_whole(arrays: dict[str, np.ndarray], name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    found = arrays.get(name)
    if found is None or found.shape != shape or found.dtype != dtype:
        what = None if found is None else f"{found.dtype} {found.shape}"
        raise FileFormatError(f"these are not the sums of this run: {name} of shape {shape} is wanted, {what} found")
    return found
