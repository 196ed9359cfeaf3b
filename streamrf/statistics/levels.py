"""Sums of the target by level, for categories that are coded by it: one exact pass, in any order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from streamrf.data.columns.levels import FOLDS, MAX_OUTPUTS, LevelTable, fold_of
from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.statistics.base import State, Statistic
from streamrf.support.errors import FileFormatError
from streamrf.support.threads import Threads

ROWS = 65_536  # at a time
FEWEST = 5  # rows of a level, on average, before it can be said to determine anything
HALF = 17  # bits of the lower part of a target, so that squares of both parts can be summed


@dataclass
class LevelState(State):
    """By fold and place: rows and sums of whole numbers. Of all rows: sums of squares, in parts with room."""

    sums: np.ndarray  # (folds, places, 1 + outputs) int64
    squares: np.ndarray  # (outputs, 3) int64: upper * upper, upper * lower, lower * lower

    def __iadd__(self, other: LevelState) -> Self:
        self.sums += other.sums
        self.squares += other.squares
        return self

    def __isub__(self, other: LevelState) -> Self:
        self.sums -= other.sums
        self.squares -= other.squares
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {"levels.sums": self.sums, "levels.squares": self.squares}


@dataclass
class LevelSums(Statistic[LevelState]):
    """How rows enter the sums. Column ``inputs[i]`` of X holds a place among ``places[i]`` levels; the sums of all
    columns stand one after the other."""

    coding: TargetCoding
    inputs: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def piece_rows(self) -> int:
        return ROWS

    @property
    def _shape(self) -> tuple[int, int, int]:
        return FOLDS, sum(self.places), 1 + len(target_sums(self.coding)[0])

    def zero(self) -> LevelState:
        shape = self._shape
        return LevelState(np.zeros(shape, np.int64), np.zeros((shape[2] - 1, 3), np.int64))

    def update(self, state: LevelState, block: Block, threads: Threads) -> None:
        for first in range(0, len(block), ROWS):
            self._add(state, block.take(slice(first, first + ROWS)))

    def _add(self, state: LevelState, block: Block) -> None:
        whole, folds = whole_targets(self.coding, block.targets), fold_of(block.index)
        upper, lower = whole >> HALF, whole & ((1 << HALF) - 1)
        state.squares += np.stack([(a * b).sum(axis=0) for a, b in ((upper, upper), (upper, lower), (lower, lower))], 1)
        start = 0
        for column, places in zip(self.inputs, self.places, strict=True):
            cells, part = folds * places + block.X[:, column].astype(np.int64), state.sums[:, start : start + places]
            part[..., 0] += np.bincount(cells, minlength=FOLDS * places).reshape(FOLDS, places)
            for k in range(whole.shape[1]):  # float64 holds these sums of a few rows exactly
                found = np.bincount(cells, whole[:, k].astype(np.float64), FOLDS * places)
                part[..., k + 1] += found.astype(np.int64).reshape(FOLDS, places)
            start += places

    def load(self, arrays: dict[str, np.ndarray]) -> LevelState:
        sums, squares = arrays.get("levels.sums"), arrays.get("levels.squares")
        if sums is None or squares is None or any(array.dtype != np.int64 for array in (sums, squares)):
            raise FileFormatError("these are not sums of levels")
        if sums.shape != self._shape or squares.shape != (self._shape[2] - 1, 3):
            raise FileFormatError(f"these are not sums of {sum(self.places):,} levels")
        return LevelState(sums, squares)

    def nbytes(self) -> int:
        folds, places, width = self._shape
        return 8 * (folds * places * width + 3 * (width - 1))

    def unexplained(self, state: LevelState) -> list[float]:
        """For each category, the share of the target's variance that is left once the level is known."""
        squares = [(a << 2 * HALF) + (b << HALF + 1) + c for a, b, c in state.squares.tolist()]
        found = []
        for end, count in zip(np.cumsum(self.places), self.places, strict=True):
            levels = state.sums[:, end - count : end].sum(axis=0)
            known = levels[levels[:, 0] > 0].astype(np.float64)
            rows, left = known[:, 0].sum(), 0.0
            for k, square in enumerate(squares, start=1):
                total = square - float(known[:, k].sum()) ** 2 / max(rows, 1.0)
                within = square - math.fsum(known[:, k] ** 2 / known[:, 0])
                left = max(left, within / total if total > 0 else 1.0)
            found.append(left if rows >= FEWEST * len(known) else 1.0)
        return found

    def tables(self, state: LevelState) -> list[LevelTable]:
        """What was learned of each category."""
        names, offset, step = target_sums(self.coding)
        squares = [(a << 2 * HALF) + (b << HALF + 1) + c for a, b, c in state.squares.tolist()]
        ends = np.cumsum(self.places)
        parts = [state.sums[:, end - count : end] for end, count in zip(ends, self.places, strict=True)]
        return [LevelTable.of(names, offset, step, part, squares) for part in parts]


def target_sums(coding: TargetCoding) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """What is summed of the target, by name, and the scale of each: numbers, a share for each class, or for many
    classes ten mixtures of them."""
    if not coding.classes:
        outputs = min(coding.outputs, MAX_OUTPUTS)
        names = ("mean",) if outputs == 1 else tuple(f"mean {k}" for k in range(outputs))
        return names, coding.offset[: len(names)], coding.step[: len(names)]
    classes = coding.classes[1:] if len(coding.classes) == 2 else coding.classes
    few = len(classes) <= MAX_OUTPUTS
    names = tuple(f"share of {label}" for label in classes) if few else tuple(f"mix {k}" for k in range(MAX_OUTPUTS))
    return names, np.zeros(len(names)), np.ones(len(names))


def whole_targets(coding: TargetCoding, y: np.ndarray) -> np.ndarray:
    """(n, sums) int64: the whole numbers that are summed."""
    count = len(target_sums(coding)[0])
    if not coding.classes:
        scaled = (coding.values(y) - coding.offset) / coding.step
        return np.rint(scaled[:, :count]).astype(np.int64)
    codes = coding.codes(y)
    if len(coding.classes) == 2:
        return codes.astype(np.int64)[:, None]
    if len(coding.classes) <= MAX_OUTPUTS:
        return (codes[:, None] == np.arange(count)).astype(np.int64)
    return _signs(len(coding.classes))[codes]


def _signs(classes: int) -> np.ndarray:
    """(classes, MAX_OUTPUTS) of -1 and 1, at random and always the same: distances between levels survive it."""
    numbers = np.arange(classes * MAX_OUTPUTS, dtype=np.uint64).reshape(classes, MAX_OUTPUTS)
    with np.errstate(over="ignore"):
        h = (numbers + np.uint64(0x632BE59BD9B4E019)) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.where((h >> np.uint64(63)).astype(bool), 1, -1).astype(np.int64)
