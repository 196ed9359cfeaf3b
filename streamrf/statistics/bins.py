"""The sums of random binning, each an exact sum of integers: counts and Z'y once, then Z'(Z v) for each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import Split
from streamrf.features.binning.index_cache import BinIndexer
from streamrf.features.binning.normal import ROWS_A_BLOCK, add_counts, add_values, scores
from streamrf.features.targets import REGRESSION, TargetCoding
from streamrf.statistics.base import CountedState, State, Statistic
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.threads import Threads


@dataclass
class BinsState(CountedState):
    """What the right-hand side, the preconditioner and the intercept are made of."""

    counts: np.ndarray  # (P, buckets) int64: rows in each bucket
    totals: np.ndarray  # (k, P, buckets) int64: their targets, in whole steps
    targets: np.ndarray  # (k,) int64: all targets, in whole steps
    rows: int = 0

    def __iadd__(self, other: BinsState) -> Self:
        for mine, theirs in zip(self._sums(), other._sums(), strict=True):
            mine += theirs
        self.rows += other.rows
        return self

    def __isub__(self, other: BinsState) -> Self:
        for mine, theirs in zip(self._sums(), other._sums(), strict=True):
            mine -= theirs
        self.rows -= other.rows
        return self

    def _sums(self) -> tuple[np.ndarray, ...]:
        return self.counts, self.totals, self.targets

    def copy(self) -> BinsState:
        return BinsState(self.counts.copy(), self.totals.copy(), self.targets.copy(), self.rows)

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "bins.counts": self.counts, "bins.totals": self.totals, "bins.targets": self.targets,
            "bins.rows": np.array([self.rows], np.int64),
        }  # fmt: skip


@dataclass
class Bins(Statistic[BinsState]):
    """The first pass; bin indices are kept on the way, for the passes that follow."""

    indexer: BinIndexer
    coding: TargetCoding

    @property
    def piece_rows(self) -> int:
        return ROWS_A_BLOCK

    def zero(self) -> BinsState:
        grids, buckets, outputs = self._shape
        counts, totals = np.zeros((grids, buckets), np.int64), np.zeros((outputs, grids, buckets), np.int64)
        return BinsState(counts, totals, np.zeros(outputs, np.int64))

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.indexer.map.grids, self.indexer.map.buckets, self.coding.outputs

    def nbytes(self) -> int:
        grids, buckets, outputs = self._shape
        return 8 * grids * buckets * (outputs + 1)

    def update(self, state: BinsState, block: Block, threads: Threads, skip: np.ndarray | None = None) -> None:
        """Add a block's rows, those that ``skip`` marks apart."""
        if block.weights is not None:
            raise InputError(
                "random binning counts rows, which cannot have weights: use Fourier features (`map='auto'`)"
            )
        if not len(block):
            return
        indices, steps = self.indexer.indices_to_keep(block, threads), whole_steps(self.coding, block.targets)
        add_counts(indices, state.counts, threads)
        if skip is not None:
            steps[:, skip] = 0
            held = np.ascontiguousarray(indices[:, skip])
            add_values(held, np.full((1, held.shape[1]), -1), state.counts[None], threads)
        add_values(indices, steps, state.totals, threads)
        state.targets += steps.sum(axis=1)
        state.rows += len(block) - (0 if skip is None else int(skip.sum()))

    def load(self, arrays: dict[str, np.ndarray]) -> BinsState:
        grids, buckets, outputs = self._shape
        shapes = {"counts": (grids, buckets), "totals": (outputs, grids, buckets), "targets": (outputs,), "rows": (1,)}
        counts, totals, targets, rows = (_whole(arrays, f"bins.{name}", shape) for name, shape in shapes.items())
        return BinsState(counts, totals, targets, int(rows[0]))


def whole_steps(coding: TargetCoding, y: np.ndarray) -> np.ndarray:
    """Targets (k, n) as whole numbers of their steps."""
    values = coding.values(y)
    if coding.task == REGRESSION:
        values = (values - coding.offset) / coding.step
    return np.ascontiguousarray(np.rint(values).T.astype(np.int64))


@dataclass
class ProductState(State):
    totals: np.ndarray  # (k, P, buckets) int64

    def __iadd__(self, other: ProductState) -> Self:
        self.totals += other.totals
        return self

    def __isub__(self, other: ProductState) -> Self:
        self.totals -= other.totals
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {"product.totals": self.totals}


@dataclass
class BinsProduct(Statistic[ProductState]):
    """Z'(Z table) over a ``BinIndexSource``, for an int32 table whose row sums fit 32 bits, without held-out rows."""

    indexer: BinIndexer
    table: np.ndarray  # (k, P, buckets) int32
    split: Split
    spare: list[np.ndarray] = field(default_factory=list, repr=False)  # totals of an earlier pass, to be used again

    @property
    def piece_rows(self) -> int:
        return ROWS_A_BLOCK

    def zero(self) -> ProductState:
        if not self.spare:
            return ProductState(np.zeros(self.table.shape, np.int64))
        totals = self.spare.pop()
        totals[:] = 0
        return ProductState(totals)

    def nbytes(self) -> int:
        return 8 * self.table.size

    def update(self, state: ProductState, block: Block, threads: Threads) -> None:
        indices = np.ascontiguousarray(block.X.T)
        values = scores(indices, self.table, threads, np.int32)
        values[:, self.split.held(block)] = 0
        add_values(indices, values, state.totals, threads)

    def load(self, arrays: dict[str, np.ndarray]) -> ProductState:
        return ProductState(_whole(arrays, "product.totals", self.table.shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return BinsProduct, (self.indexer, self.table, self.split)


def _whole(arrays: dict[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    found = arrays.get(name)
    if found is None or found.shape != shape or found.dtype != np.int64:
        what = None if found is None else f"{found.dtype} {found.shape}"
        raise FileFormatError(f"these are not the sums of this run: {name} of shape {shape} is wanted, {what} found")
    return found
