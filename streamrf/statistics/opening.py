"""The first pass of an iterative route: means and right-hand side, hold-out rows, and a sample to precondition by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.gradient import Gradient, GradientState
from streamrf.statistics.marks import add_marks, load_counts, no_marks, zero_marks
from streamrf.statistics.sample import SampleState, chosen_rows
from streamrf.support.threads import Threads

HOLDOUT, SAMPLE = "holdout/", "rows/"


@dataclass
class OpeningState(State):
    gradient: GradientState
    holdout: SampleState
    sample: SampleState
    dropped: int = 0
    marks: np.ndarray = field(default_factory=no_marks)

    @property
    def rows(self) -> int:
        return self.gradient.rows + self.holdout.rows

    def __iadd__(self, other: OpeningState) -> Self:
        self.gradient += other.gradient
        self.holdout += other.holdout
        self.sample += other.sample
        self.dropped += other.dropped
        self.marks += other.marks
        return self

    def __isub__(self, other: OpeningState) -> Self:
        self.gradient -= other.gradient
        self.holdout -= other.holdout
        self.sample -= other.sample
        self.dropped -= other.dropped
        self.marks -= other.marks
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        kept = {HOLDOUT + name: array for name, array in self.holdout.arrays().items()}
        kept |= {SAMPLE + name: array for name, array in self.sample.arrays().items()}
        counts = {"dropped": np.array([self.dropped], np.int64), "marks": self.marks}
        return {**self.gradient.arrays(), **kept, **counts}


@dataclass
class Opening(Statistic[OpeningState]):
    """Rows that the gradient leaves out are held out; of the others a ``sample_share`` is kept as well as summed."""

    gradient: Gradient
    sample_share: float
    starts: tuple[int, ...] = ()  # where shards begin, each of which gets a mark

    def zero(self) -> OpeningState:
        return OpeningState(self.gradient.zero(), SampleState(), SampleState(), 0, zero_marks(self.starts))

    def update(self, state: OpeningState, block: Block, threads: Threads) -> None:
        if not len(block):
            return
        gradient = self.gradient
        values = gradient.coding.values(block.y)  # type: ignore[arg-type]
        add_marks(state.marks, self.starts, block, values, threads)
        coded = Block(block.X, values, block.index, block.weights)
        held = chosen_rows(block.index, gradient.share, gradient.seed)
        state.holdout.add(coded.take(held))
        state.sample.add(coded.take(chosen_rows(block.index, self.sample_share, gradient.seed + 1) & ~held))
        gradient.update(state.gradient, block, threads)

    def load(self, arrays: dict[str, Any]) -> OpeningState:
        dropped, marks = load_counts(arrays, self.starts)
        holdout, sample = (SampleState.load(_under(arrays, prefix)) for prefix in (HOLDOUT, SAMPLE))
        return OpeningState(self.gradient.load(arrays), holdout, sample, dropped, marks)

    def nbytes(self) -> int:
        return self.gradient.nbytes()


def _under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
