"""What the training pass sums: the Gram matrix of most rows, and the hold-out rows themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.marks import add_marks, load_counts, no_marks, zero_marks
from streamrf.statistics.sample import SampleState, chosen_rows
from streamrf.support.threads import Threads


@dataclass
class FittingState(State):
    gram: GramState
    holdout: SampleState
    dropped: int = 0
    marks: np.ndarray = field(default_factory=no_marks)

    @property
    def rows(self) -> int:
        return self.gram.rows + self.holdout.rows

    def __iadd__(self, other: FittingState) -> Self:
        self.gram += other.gram
        self.holdout += other.holdout
        self.dropped += other.dropped
        self.marks += other.marks
        return self

    def __isub__(self, other: FittingState) -> Self:
        self.gram -= other.gram
        self.holdout -= other.holdout
        self.dropped -= other.dropped
        self.marks -= other.marks
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        counts = {"dropped": np.array([self.dropped], np.int64), "marks": self.marks}
        return {**self.gram.arrays(), **self.holdout.arrays(), **counts}


@dataclass
class Fitting(Statistic[FittingState]):
    """Rows chosen by their number are held out, with their targets in coded form, so that labels of any type fit."""

    gram: Gram
    share: float
    seed: int
    starts: tuple[int, ...] = ()  # where shards begin, each of which gets a mark

    @property
    def piece_rows(self) -> int:  # type: ignore[override]
        return self.gram.piece_rows

    def zero(self) -> FittingState:
        return FittingState(self.gram.zero(), SampleState(), 0, zero_marks(self.starts))

    def update(self, state: FittingState, block: Block, threads: Threads) -> None:
        if not len(block):
            return
        values = self.gram.coding.values(block.y)  # type: ignore[arg-type]
        add_marks(state.marks, self.starts, block, values, threads)
        held = chosen_rows(block.index, self.share, self.seed)
        if not held.any():
            self.gram.update(state.gram, block, threads)
            return
        state.holdout.add(replace(block, y=values).take(held))
        self.gram.update(state.gram, block, threads, skip=held)

    def load(self, arrays: dict[str, Any]) -> FittingState:
        dropped, marks = load_counts(arrays, self.starts)
        return FittingState(self.gram.load(arrays), SampleState.load(arrays), dropped, marks)

    def nbytes(self) -> int:
        return self.gram.nbytes()
