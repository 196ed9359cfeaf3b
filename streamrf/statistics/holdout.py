"""What a first pass sums: a statistic of most rows, and the hold-out rows themselves, whatever the statistic is. Beside
them a mark of each shard: a sum of hashes of its rows, so that what is forgotten must be what was added.

Rows are held out, and put into folds, by a hash of their number alone: any order and any chunking has the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numba import njit

from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.statistics.base import CountedState, State, Statistic
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.exact_sum import as_floats
from streamrf.support.threads import Threads

AT_ONCE = 1 << 20  # numbers that are looked at


def hash_rows(index: np.ndarray, seed: int) -> np.ndarray:
    """A 64-bit hash of each row's number: the same whatever the order, the chunks or the machine."""
    with np.errstate(over="ignore"):
        h = index.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the splitmix64 finaliser
            h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return h ^ (h >> np.uint64(31))


def chosen_rows(index: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Mask of the rows that belong to a random ``share``: a hash of the row's number against a threshold."""
    if share <= 0 or share >= 1:
        return np.full(len(index), share >= 1)
    return hash_rows(index, seed) < np.uint64(share * (2**64 - 1))


def numbers_chosen(rows: int, share: float, seed: int) -> np.ndarray:
    """The numbers, in order, of those of so many rows that belong to a random ``share``."""
    parts = (np.arange(first, min(first + AT_ONCE, rows)) for first in range(0, rows, AT_ONCE))
    return np.concatenate([np.zeros(0, np.int64), *(part[chosen_rows(part, share, seed)] for part in parts)])


@dataclass
class SampleState(State):
    """Blocks of kept rows; put in row order only when they are asked for."""

    blocks: list[Block] = field(default_factory=list)

    def add(self, block: Block) -> None:
        if len(block):
            y, weights = (None if array is None else array.copy() for array in (block.y, block.weights))
            self.blocks.append(Block(block.X.copy(), y, block.index.copy(), weights))

    @property
    def rows(self) -> int:
        return sum(map(len, self.blocks))

    def table(self) -> Block | None:
        """All kept rows in row order, or None where there is none."""
        if not self.blocks:
            return None
        if len(self.blocks) > 1 or (np.diff(self.blocks[0].index) < 0).any():
            joined = Block(
                _joined([b.X for b in self.blocks]), _joined([b.y for b in self.blocks]),
                _joined([b.index for b in self.blocks]), _joined([b.weights for b in self.blocks]),
            )  # fmt: skip
            self.blocks = [joined.take(np.argsort(joined.index, kind="stable"))]
        return self.blocks[0]

    def __iadd__(self, other: SampleState) -> Self:
        self.blocks = self.blocks + other.blocks
        return self

    def __isub__(self, other: SampleState) -> Self:
        mine, theirs = self.table(), other.table()
        if theirs is not None:
            if mine is None or not np.isin(theirs.index, mine.index).all():
                raise MismatchError("the sample to take away holds rows that were never in")
            left = mine.take(~np.isin(mine.index, theirs.index))
            self.blocks = [left] if len(left) else []
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        table = self.table()
        if table is None:
            return {}
        arrays = {"sample.X": table.X, "sample.index": table.index}
        if table.y is not None:
            arrays["sample.y"] = table.y
        if table.weights is not None:
            arrays["sample.weights"] = table.weights
        return arrays

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray]) -> SampleState:
        if "sample.X" not in arrays:
            return cls()
        y, weights = arrays.get("sample.y"), arrays.get("sample.weights")
        return cls([Block(arrays["sample.X"], y, arrays["sample.index"], weights)])


def _joined(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)


PIECE = 1024  # rows hashed by a thread at a time


def no_marks() -> np.ndarray:
    return zero_marks(())


def zero_marks(starts: tuple[int, ...]) -> np.ndarray:
    return np.zeros(len(starts), np.uint64)


def load_counts(arrays: dict[str, np.ndarray], starts: tuple[int, ...]) -> tuple[int, np.ndarray]:
    """Rows dropped, and marks, of a state that was stored."""
    dropped, marks = arrays.get("dropped"), arrays.get("marks")
    if dropped is None or dropped.shape != (1,) or dropped.dtype.kind != "i":
        raise FileFormatError("these are not the statistics of a training pass")
    if marks is None or marks.shape != (len(starts),) or marks.dtype != np.uint64:
        raise FileFormatError(f"these are not the statistics of a pass over {len(starts)} shards")
    return int(dropped[0]), marks


def add_marks(marks: np.ndarray, starts: tuple[int, ...], block: Block, targets: np.ndarray, threads: Threads) -> None:
    """Add the rows of a block to the marks of the shards that begin at ``starts``; ``targets`` are coded, (n, k)."""
    if not len(marks):
        return
    X, targets = as_floats(block.X), np.ascontiguousarray(targets, np.float64)
    hashes, factors = np.empty(len(block), np.uint64), _factors(X.shape[1] + targets.shape[1])

    def piece(first: int) -> None:
        rows = slice(first, first + PIECE)
        _hash_rows(X[rows], targets[rows], factors, hashes[rows])

    threads.each(piece, range(0, len(block), PIECE))
    shards = np.searchsorted(np.asarray(starts), block.index, side="right") - 1
    np.add.at(marks, shards, hashes)


@cache
def _factors(count: int) -> np.ndarray:
    """(2, count) odd numbers, for the lower and the upper half of the bits of each column's value."""
    return (hash_rows(np.arange(2 * count), seed=0) >> np.uint64(32)).astype(np.uint32).reshape(2, count) | np.uint32(1)


@njit(cache=True, nogil=True)
def _hash_rows(X: np.ndarray, Y: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    """Two products of 32 bits for each value, which run in SIMD, and one finaliser of splitmix64 for each row."""
    d = X.shape[1]
    for i in range(X.shape[0]):
        h = np.uint64(0)
        for j in range(d):
            h += _product(X[i, j], factors[0, j], factors[1, j])
        for k in range(Y.shape[1]):
            h += _product(Y[i, k], factors[0, d + k], factors[1, d + k])
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = h ^ (h >> np.uint64(31))


@njit(cache=True, nogil=True)
def _product(value: float, lower: np.uint32, upper: np.uint32) -> np.uint64:
    """Of the value as a float64, so that equal numbers of any type are equal."""
    bits = np.uint64(np.float64(value).view(np.int64))
    return (bits & np.uint64(0xFFFFFFFF)) * np.uint64(lower) + (bits >> np.uint64(32)) * np.uint64(upper)


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
    def piece_rows(self) -> int:
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
