"""What a first pass sums: a statistic of most rows, and the hold-out rows themselves, whatever the statistic is.

Rows are held out, and put into folds, by a hash of their number alone: any order and any chunking has the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.statistics.base import CountedState, State, Statistic
from streamrf.statistics.sample import SampleState, add_marks, chosen_rows, hash_rows, load_counts, no_marks, zero_marks
from streamrf.support.threads import Threads

SAMPLE = "rows/"
OLD_HOLDOUT = "holdout/"  # of checkpoints that the first versions wrote
OTHER_STREAM = 0x46_4F_4C_44  # folds must not depend on which rows are held out


S = TypeVar("S", bound=CountedState)


class RowStatistic(Protocol[S]):
    """A statistic of inputs and coded targets that can leave rows out."""

    @property
    def coding(self) -> TargetCoding: ...
    @property
    def piece_rows(self) -> int: ...
    def zero(self) -> S: ...
    def update(self, state: S, block: Block, threads: Threads, skip: np.ndarray | None = None) -> None: ...
    def load(self, arrays: dict[str, np.ndarray]) -> S: ...
    def nbytes(self) -> int: ...


@dataclass
class HoldoutState(State, Generic[S]):
    """Sums of the rows to fit, rows held out, and a sample of the others, which is summed as well."""

    sums: S
    holdout: SampleState
    sample: SampleState = field(default_factory=SampleState)
    dropped: int = 0
    marks: np.ndarray = field(default_factory=no_marks)
    apart: bool = True  # whether rows held out are left out of the sums

    @property
    def rows(self) -> int:
        return self.sums.rows + (self.holdout.rows if self.apart else 0)

    def __iadd__(self, other: HoldoutState[S]) -> Self:
        self.sums = self.sums.__iadd__(other.sums)
        self.holdout += other.holdout
        self.sample += other.sample
        self.dropped += other.dropped
        self.marks += other.marks
        return self

    def __isub__(self, other: HoldoutState[S]) -> Self:
        self.sums = self.sums.__isub__(other.sums)
        self.holdout -= other.holdout
        self.sample -= other.sample
        self.dropped -= other.dropped
        self.marks -= other.marks
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        sample = {SAMPLE + name: array for name, array in self.sample.arrays().items()}
        counts = {"dropped": np.array([self.dropped], np.int64), "marks": self.marks}
        return {**self.sums.arrays(), **self.holdout.arrays(), **sample, **counts}


@dataclass
class Holdout(Statistic[HoldoutState[S]]):
    """A ``share`` of the rows is held out, with targets in coded form, so that labels of any type fit; the rest is
    summed. With ``apart=False`` the rows held out are summed too, as cross-validation needs it."""

    statistic: RowStatistic[S]
    share: float
    seed: int
    starts: tuple[int, ...] = ()  # where shards begin, each of which gets a mark
    sample_share: float = 0.0  # of the rows that are summed, to be kept as well
    apart: bool = True

    @property
    def piece_rows(self) -> int:  # type: ignore[override]
        return self.statistic.piece_rows

    def zero(self) -> HoldoutState[S]:
        return HoldoutState(self.statistic.zero(), SampleState(), marks=zero_marks(self.starts), apart=self.apart)

    def update(self, state: HoldoutState[S], block: Block, threads: Threads) -> None:
        if not len(block):
            return
        values = self.statistic.coding.values(block.targets)
        add_marks(state.marks, self.starts, block, values, threads)
        coded, held = replace(block, y=values), chosen_rows(block.index, self.share, self.seed)
        state.holdout.add(coded.take(held))
        if self.sample_share > 0:
            state.sample.add(coded.take(chosen_rows(block.index, self.sample_share, self.seed + 1) & ~held))
        self.statistic.update(state.sums, block, threads, skip=held if self.apart and held.any() else None)

    def load(self, arrays: dict[str, np.ndarray]) -> HoldoutState[S]:
        dropped, marks = load_counts(arrays, self.starts)
        holdout = SampleState.load(arrays if "sample.X" in arrays else under(arrays, OLD_HOLDOUT))
        sample = SampleState.load(under(arrays, SAMPLE))
        return HoldoutState(self.statistic.load(arrays), holdout, sample, dropped, marks, self.apart)

    def nbytes(self) -> int:
        return self.statistic.nbytes()


def fold_of(index: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """The fold of each row, 0 to ``folds - 1``, by a hash of its number alone."""
    return (hash_rows(index, seed ^ OTHER_STREAM) % np.uint64(folds)).astype(np.int64)


@dataclass
class FoldsState(CountedState, Generic[S]):
    """The sums of each fold."""

    folds: list[S]

    @property
    def rows(self) -> int:  # type: ignore[override]
        return sum(fold.rows for fold in self.folds)

    def __iadd__(self, other: FoldsState[S]) -> Self:
        for number, theirs in enumerate(other.folds):
            self.folds[number] = self.folds[number].__iadd__(theirs)
        return self

    def __isub__(self, other: FoldsState[S]) -> Self:
        for number, theirs in enumerate(other.folds):
            self.folds[number] = self.folds[number].__isub__(theirs)
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {f"fold{i}.{name}": array for i, fold in enumerate(self.folds) for name, array in fold.arrays().items()}


@dataclass
class Folds(Statistic[FoldsState[S]]):
    """Every row goes to one fold by the hash of its number; each fold is trained on ``total - fold``."""

    statistic: RowStatistic[S]
    count: int
    seed: int

    @property
    def coding(self) -> TargetCoding:
        return self.statistic.coding

    def zero(self) -> FoldsState[S]:
        return FoldsState([self.statistic.zero() for _ in range(self.count)])

    def update(self, state: FoldsState[S], block: Block, threads: Threads, skip: np.ndarray | None = None) -> None:
        place = fold_of(block.index, self.count, self.seed)
        if skip is not None:
            place[skip] = -1
        for number, fold in enumerate(state.folds):
            rows = np.flatnonzero(place == number)
            if len(rows):
                self.statistic.update(fold, block.take(rows), threads)

    def load(self, arrays: dict[str, np.ndarray]) -> FoldsState[S]:
        return FoldsState([self.statistic.load(under(arrays, f"fold{number}.")) for number in range(self.count)])

    def nbytes(self) -> int:
        return self.count * self.statistic.nbytes()


def under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
