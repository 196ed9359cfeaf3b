"""What the pass of a cross-validation sums: one Gram state a fold; each fold is trained on ``total - fold``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.marks import add_marks, load_counts, no_marks, zero_marks
from streamrf.statistics.sample import SampleState, chosen_rows, hash_rows
from streamrf.support.threads import Threads

OTHER_STREAM = 0x46_4F_4C_44  # folds must not depend on which rows are kept


def fold_of(index: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """The fold of each row, 0 to ``folds - 1``, by a hash of its number alone."""
    return (hash_rows(index, seed ^ OTHER_STREAM) % np.uint64(folds)).astype(np.int64)


@dataclass
class FoldsState(State):
    """The sums of each fold, and a few rows kept as they are; these are in their folds too."""

    folds: list[GramState]
    kept: SampleState
    dropped: int = 0
    marks: np.ndarray = field(default_factory=no_marks)

    @property
    def rows(self) -> int:
        return sum(fold.rows for fold in self.folds)

    def total(self) -> GramState:
        """The sums of all rows, as if there were no folds."""
        result = self.folds[0].copy()
        for fold in self.folds[1:]:
            result += fold
        return result

    def __iadd__(self, other: FoldsState) -> Self:
        for mine, theirs in zip(self.folds, other.folds, strict=True):
            mine += theirs
        self.kept += other.kept
        self.dropped += other.dropped
        self.marks += other.marks
        return self

    def __isub__(self, other: FoldsState) -> Self:
        for mine, theirs in zip(self.folds, other.folds, strict=True):
            mine -= theirs
        self.kept -= other.kept
        self.dropped -= other.dropped
        self.marks -= other.marks
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        sums = {f"fold{i}.{name}": a for i, fold in enumerate(self.folds) for name, a in fold.arrays().items()}
        counts = {"dropped": np.array([self.dropped], np.int64), "marks": self.marks}
        return {**sums, **self.kept.arrays(), **counts}


@dataclass
class Folds(Statistic[FoldsState]):
    """Every row goes to one fold by the hash of its number; a ``share`` of the rows is kept besides, targets coded."""

    gram: Gram
    count: int
    share: float
    seed: int
    starts: tuple[int, ...] = ()  # where shards begin, each of which gets a mark

    def zero(self) -> FoldsState:
        return FoldsState([self.gram.zero() for _ in range(self.count)], SampleState(), 0, zero_marks(self.starts))

    def update(self, state: FoldsState, block: Block, threads: Threads) -> None:
        if not len(block):
            return
        values = self.gram.coding.values(block.y)  # type: ignore[arg-type]
        add_marks(state.marks, self.starts, block, values, threads)
        kept = chosen_rows(block.index, self.share, self.seed)
        state.kept.add(replace(block, y=values).take(kept))
        place = fold_of(block.index, self.count, self.seed)
        for number, fold in enumerate(state.folds):
            rows = np.flatnonzero(place == number)
            if len(rows):
                self.gram.update(fold, block.take(rows), threads)

    def load(self, arrays: dict[str, Any]) -> FoldsState:
        dropped, marks = load_counts(arrays, self.starts)
        folds = [self.gram.load(_of_fold(arrays, number)) for number in range(self.count)]
        return FoldsState(folds, SampleState.load(arrays), dropped, marks)

    def nbytes(self) -> int:
        return self.count * self.gram.nbytes()


def _of_fold(arrays: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    prefix = f"fold{number}."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
