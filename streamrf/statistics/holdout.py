"""What a first pass sums: a statistic of most rows, and the hold-out rows themselves, whatever the statistic is. Beside
them a mark of each shard: a sum of hashes of its rows, so that what is forgotten must be what was added.

A ``Split`` says which rows are held out, and in which fold each is: any order and any chunking has the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from streamrf.data.hashing import hash_values
from streamrf.data.source import Block
from streamrf.data.split import Split, chosen_rows, value_factors
from streamrf.features.targets import TargetCoding
from streamrf.statistics.base import CountedState, State, Statistic
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.exact_sum import as_floats
from streamrf.support.threads import Threads


@dataclass
class SampleState(State):
    """Blocks of kept rows; put in row order only when they are asked for."""

    blocks: list[Block] = field(default_factory=list)

    def add(self, block: Block) -> None:
        if len(block):
            self.blocks.append(block.copy())

    @property
    def rows(self) -> int:
        return sum(map(len, self.blocks))

    def table(self) -> Block | None:
        """All kept rows in row order, or None where there is none."""
        if not self.blocks:
            return None
        if len(self.blocks) > 1 or (np.diff(self.blocks[0].index) < 0).any():
            self.blocks = [in_row_order(self.blocks)]
        return self.blocks[0]

    def handed_out(self, part_of: Callable[[Block], np.ndarray], parts: tuple[int, ...]) -> list[SampleState]:
        """The rows of each part in a state of its own. This one is empty then, so that no row is in memory twice."""
        states = [SampleState() for _ in parts]
        while self.blocks:
            block = self.blocks.pop()
            place = part_of(block)
            for part, state in zip(parts, states, strict=True):
                if (place == part).any():
                    state.blocks.append(block.take(place == part))
        return states

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
        return {f"sample.{name}": array for name, array in vars(table).items() if array is not None}

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray]) -> SampleState:
        if "sample.X" not in arrays:
            return cls()
        y, weights, key = (arrays.get(f"sample.{name}") for name in ("y", "weights", "key"))
        return cls([Block(arrays["sample.X"], y, arrays["sample.index"], weights, key)])


def in_row_order(blocks: list[Block]) -> Block:
    """The rows of all blocks by their numbers. A block is released once it is copied: the list is empty then."""
    numbers = np.concatenate([block.index for block in blocks])
    places = np.empty(len(numbers), np.int64)
    places[np.argsort(numbers, kind="stable")] = np.arange(len(numbers))
    whole = Block(*(_space([getattr(block, name) for block in blocks], len(numbers)) for name in _PARTS))
    stop = len(numbers)
    while blocks:
        block = blocks.pop()
        rows = places[stop - len(block) : stop]
        stop -= len(block)
        for name in _PARTS:
            if (array := getattr(whole, name)) is not None:
                array[rows] = getattr(block, name)
    return whole


_PARTS = ("X", "y", "index", "weights", "key")


def _space(parts: list[Any], rows: int) -> Any:
    """For so many rows of arrays that are alike."""
    if parts[0] is None:
        return None
    return np.empty((rows, *parts[0].shape[1:]), np.result_type(*{part.dtype for part in parts}))


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
    hashes, factors = np.empty(len(block), np.uint64), value_factors(X.shape[1] + targets.shape[1])

    def piece(first: int) -> None:
        rows = slice(first, first + PIECE)
        hash_values(X[rows], targets[rows], factors, hashes[rows], False)

    threads.each(piece, range(0, len(block), PIECE))
    shards = np.searchsorted(np.asarray(starts), block.index, side="right") - 1
    np.add.at(marks, shards, hashes)


SAMPLE = "rows/"
OLD_HOLDOUT = "holdout/"  # of checkpoints that the first versions wrote


S = TypeVar("S", bound=CountedState)
T = TypeVar("T", bound=State)


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

    @property
    def rows(self) -> int:
        return self.sums.rows + self.holdout.rows

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
    """Rows that ``split`` holds out are kept, with targets in coded form, so that labels of any type fit; the rest is
    summed."""

    statistic: RowStatistic[S]
    split: Split
    starts: tuple[int, ...] = ()  # where shards begin, each of which gets a mark
    sample_share: float = 0.0  # of the rows that are summed, to be kept as well

    @property
    def piece_rows(self) -> int:
        return self.statistic.piece_rows

    def zero(self) -> HoldoutState[S]:
        return HoldoutState(self.statistic.zero(), SampleState(), marks=zero_marks(self.starts))

    def update(self, state: HoldoutState[S], block: Block, threads: Threads) -> None:
        if not len(block):
            return
        block = self.split.keyed(block)
        values = self.statistic.coding.values(block.targets)
        add_marks(state.marks, self.starts, block, values, threads)
        coded, held = replace(block, y=values), self.split.held(block)
        state.holdout.add(coded.take(held))
        if self.sample_share > 0:
            state.sample.add(coded.take(chosen_rows(block.index, self.sample_share, self.split.seed + 1) & ~held))
        self.statistic.update(state.sums, block, threads, skip=held if held.any() else None)

    def load(self, arrays: dict[str, np.ndarray]) -> HoldoutState[S]:
        dropped, marks = load_counts(arrays, self.starts)
        holdout = SampleState.load(arrays if "sample.X" in arrays else under(arrays, OLD_HOLDOUT))
        sample = SampleState.load(under(arrays, SAMPLE))
        return HoldoutState(self.statistic.load(arrays), holdout, sample, dropped, marks)

    def nbytes(self) -> int:
        return self.statistic.nbytes()


@dataclass
class HeldRows(Statistic[SampleState]):
    """The rows that ``split`` holds out, with targets in coded form."""

    coding: TargetCoding
    split: Split

    def zero(self) -> SampleState:
        return SampleState()

    def update(self, state: SampleState, block: Block, threads: Threads) -> None:
        block = self.split.keyed(block)
        state.add(replace(block, y=self.coding.values(block.targets)).take(self.split.held(block)))

    def load(self, arrays: dict[str, np.ndarray]) -> SampleState:
        return SampleState.load(arrays)


@dataclass
class FitRows(Statistic[T]):
    """A statistic of the rows to fit alone: what is learned before training must know nothing of the others."""

    statistic: Statistic[T]
    split: Split

    @property
    def piece_rows(self) -> int:
        return self.statistic.piece_rows

    def zero(self) -> T:
        return self.statistic.zero()

    def update(self, state: T, block: Block, threads: Threads) -> None:
        held = self.split.held(block)
        self.statistic.update(state, block.take(~held) if held.any() else block, threads)

    def load(self, arrays: dict[str, np.ndarray]) -> T:
        return self.statistic.load(arrays)

    def nbytes(self) -> int:
        return self.statistic.nbytes()


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
    """Every row goes to one fold by the hash of its key; each fold is trained on ``total - fold``."""

    statistic: RowStatistic[S]
    count: int
    split: Split  # whose folds these are

    @property
    def coding(self) -> TargetCoding:
        return self.statistic.coding

    def zero(self) -> FoldsState[S]:
        return FoldsState([self.statistic.zero() for _ in range(self.count)])

    def update(self, state: FoldsState[S], block: Block, threads: Threads, skip: np.ndarray | None = None) -> None:
        place = self.split.folds_of(block)
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
