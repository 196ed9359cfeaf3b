"""What the training pass sums: the Gram matrix of most rows, and the hold-out rows themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streamrf.errors import FileFormatError
from streamrf.sources.base import Block
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.sample import SampleState, chosen_rows
from streamrf.threads import Threads


@dataclass
class FittingState(State):
    gram: GramState
    holdout: SampleState
    dropped: int = 0

    @property
    def rows(self) -> int:
        return self.gram.rows + self.holdout.rows

    def __iadd__(self, other: FittingState) -> Self:
        self.gram += other.gram
        self.holdout += other.holdout
        self.dropped += other.dropped
        return self

    def __isub__(self, other: FittingState) -> Self:
        self.gram -= other.gram
        self.holdout -= other.holdout
        self.dropped -= other.dropped
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {**self.gram.arrays(), **self.holdout.arrays(), "dropped": np.array([self.dropped], np.int64)}


@dataclass
class Fitting(Statistic[FittingState]):
    """Rows chosen by their number are held out, with their targets in coded form, so that labels of any type fit."""

    gram: Gram
    share: float
    seed: int

    def zero(self) -> FittingState:
        return FittingState(self.gram.zero(), SampleState())

    def update(self, state: FittingState, block: Block, threads: Threads) -> None:
        held = chosen_rows(block.index, self.share, self.seed)
        if not held.any():
            self.gram.update(state.gram, block, threads)
            return
        part = block.take(held)
        state.holdout.add(Block(part.X, self.gram.coding.values(part.y), part.index))  # type: ignore[arg-type]
        self.gram.update(state.gram, block, threads, skip=held)

    def load(self, arrays: dict[str, Any]) -> FittingState:
        if "dropped" not in arrays:
            raise FileFormatError("these are not the statistics of a training pass")
        return FittingState(self.gram.load(arrays), SampleState.load(arrays), int(arrays["dropped"][0]))

    def nbytes(self) -> int:
        return self.gram.nbytes()
