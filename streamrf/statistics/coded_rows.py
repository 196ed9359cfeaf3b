"""Rows as bytes: what trees are grown on. A random share of the rows to fit is kept, a byte for each input."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import chosen_rows
from streamrf.features.pipeline import Pipeline
from streamrf.features.targets import TargetCoding
from streamrf.features.trees.map import TreesMap
from streamrf.statistics.base import CountedState, Statistic
from streamrf.statistics.holdout import SampleState, under
from streamrf.support.errors import FileFormatError
from streamrf.support.threads import Threads

PIECE = 1 << 13  # rows that are coded at once
OTHER_STREAM = 2  # which rows are kept does not depend on which are held out
ROWS = "coded.rows"


@dataclass
class CodedState(CountedState):
    """All rows to fit are counted, some are kept."""

    kept: SampleState = field(default_factory=SampleState)
    rows: int = 0

    def __iadd__(self, other: CodedState) -> Self:
        self.kept += other.kept
        self.rows += other.rows
        return self

    def __isub__(self, other: CodedState) -> Self:
        self.kept -= other.kept
        self.rows -= other.rows
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        kept = {f"coded.{name}": array for name, array in self.kept.arrays().items()}
        return {**kept, ROWS: np.array([self.rows], np.int64)}


@dataclass
class CodedRows(Statistic[CodedState]):
    """Of rows in the ``share``: codes of the inputs, coded targets, number and weight."""

    pipeline: Pipeline
    share: float
    seed: int
    most_rows: int  # that will ever be in one state

    @property
    def coding(self) -> TargetCoding:
        return self.pipeline.coding

    @property
    def piece_rows(self) -> int:
        return PIECE

    def zero(self) -> CodedState:
        return CodedState()

    def nbytes(self) -> int:
        row = self.pipeline.map.n_inputs + 8 * self.coding.outputs + 24
        return int(min(self.share, 1.0) * self.most_rows * row)

    def update(self, state: CodedState, block: Block, threads: Threads, skip: np.ndarray | None = None) -> None:
        """Add a block's rows, but for those that ``skip`` marks."""
        fitted = np.ones(len(block), bool) if skip is None else ~skip
        state.rows += int(fitted.sum())
        rows = block.take(fitted & chosen_rows(block.index, self.share, self.seed + OTHER_STREAM))
        map = self.pipeline.map
        assert isinstance(map, TreesMap)
        if not len(rows):
            return
        codes = np.ascontiguousarray(map.codes(self.pipeline.scaled(rows.X)).T)
        state.kept.add(replace(rows, X=codes, y=self.coding.values(rows.targets), key=None))

    def load(self, arrays: dict[str, np.ndarray]) -> CodedState:
        rows, kept = arrays.get(ROWS), under(arrays, "coded.")
        if rows is None or rows.shape != (1,) or rows.dtype != np.int64 or (len(kept) > 1 and not self._fit(kept)):
            raise FileFormatError("these are not the rows that trees are grown on")
        return CodedState(SampleState.load(kept), int(rows[0]))

    def _fit(self, kept: dict[str, np.ndarray]) -> bool:
        """Whether stored arrays are those of some rows."""
        X, y, index, weights = (kept.get(f"sample.{name}") for name in ("X", "y", "index", "weights"))
        if X is None or y is None or index is None:
            return False
        count, types = len(X), (X.dtype, y.dtype, index.dtype)
        shapes = X.shape, y.shape, index.shape, (count,) if weights is None else weights.shape
        return types == (np.uint8, np.float64, np.int64) and shapes == (
            (count, self.pipeline.map.n_inputs), (count, self.coding.outputs), (count,), (count,),
        )  # fmt: skip
