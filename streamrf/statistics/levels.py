"""Sums of the target by level, for categories that are coded by it: one exact pass, in any order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from streamrf.data.columns.levels import FOLDS, MAX_OUTPUTS, LevelTable, beyond_line, fold_of, place_among
from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.targets import Weighting, row_weights
from streamrf.support.errors import FileFormatError
from streamrf.support.threads import Threads

ROWS = 65_536  # at a time
FEWEST = 5  # rows of a level, on average, before it can be said to determine anything
HALF = 17  # bits of the lower part of a target, so that squares of both parts can be summed
COARSER, WEIGHTED_HALF = 9, 10  # of a target times a weight
WEIGHT_BITS, WHOLE_BITS = 23, 43  # of the heaviest row at most, and of all rows together
PART = 12  # bits of a weight that are summed at once


@dataclass
class LevelState(State):
    """By fold and place: rows and sums of whole numbers. Of all rows: sums of squares, in parts with room."""

    sums: np.ndarray  # (folds, places, 1 + outputs) int64
    squares: np.ndarray  # (outputs, 3) int64: upper * upper, upper * lower, lower * lower
    rows: np.ndarray  # (1,) int64, where the rows in ``sums`` are weights

    def __iadd__(self, other: LevelState) -> Self:
        for mine, others in zip(self.arrays().values(), other.arrays().values(), strict=True):
            mine += others
        return self

    def __isub__(self, other: LevelState) -> Self:
        for mine, others in zip(self.arrays().values(), other.arrays().values(), strict=True):
            mine -= others
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {"levels.sums": self.sums, "levels.squares": self.squares, "levels.rows": self.rows}


@dataclass
class LevelSums(Statistic[LevelState]):
    """How rows enter the sums. Column ``inputs[i]`` of X holds a place among ``places[i]`` levels, or a number that may
    be among ``values[i]``; the sums of all columns stand one after the other."""

    coding: TargetCoding
    inputs: tuple[int, ...]
    places: tuple[int, ...]
    values: tuple[tuple[float, ...], ...] = ()  # of numbers; none for a category
    weighting: Weighting = field(default_factory=Weighting)
    most_rows: int = 1 << WHOLE_BITS - WEIGHT_BITS  # that will ever be in one state

    def __post_init__(self) -> None:
        self.values = self.values or ((),) * len(self.inputs)

    @property
    def piece_rows(self) -> int:
        return ROWS

    @property
    def _shape(self) -> tuple[int, int, int]:
        return FOLDS, sum(self.places), 1 + len(target_sums(self.coding)[0])

    def zero(self) -> LevelState:
        shape = self._shape
        return LevelState(*(np.zeros(of, np.int64) for of in (shape, (shape[2] - 1, 3), 1)))

    def update(self, state: LevelState, block: Block, threads: Threads) -> None:
        for first in range(0, len(block), ROWS):
            self._add(state, block.take(slice(first, first + ROWS)))

    def _add(self, state: LevelState, block: Block) -> None:
        whole, weights, folds = self._whole(block), self._weights(block), fold_of(block.index)
        upper, lower = whole >> self._half, whole & ((1 << self._half) - 1)
        pairs = ((upper, upper), (upper, lower), (lower, lower))
        state.squares += np.stack([(weights * a * b).sum(axis=0) for a, b in pairs], 1)
        state.rows += len(block)
        counted, start = np.concatenate([np.ones_like(weights), whole], axis=1), 0
        shifts = (0,) if self.weighting.plain else (0, PART)  # float64 holds the sums of a few rows exactly, in parts
        summed = [(weights >> shift & (1 << PART) - 1) * counted for shift in shifts]
        for column, places, values in zip(self.inputs, self.places, self.values, strict=True):
            x = block.X[:, column]
            levels = place_among(values, x) if values else x.astype(np.int64)
            cells, part = folds * places + levels, state.sums[:, start : start + places]
            for shift, some in zip(shifts, summed, strict=True):
                for k in range(some.shape[1]):
                    found = np.bincount(cells, some[:, k].astype(np.float64), FOLDS * places)
                    part[..., k] += found.astype(np.int64).reshape(FOLDS, places) << shift
            start += places

    @property
    def _half(self) -> int:
        return HALF if self.weighting.plain else WEIGHTED_HALF

    def _whole(self, block: Block) -> np.ndarray:
        whole = whole_targets(self.coding, block.targets)
        return whole if self.weighting.plain or self.coding.classes else (whole + (1 << COARSER - 1)) >> COARSER

    def _weights(self, block: Block) -> np.ndarray:
        """(n, 1) whole numbers: what rows count for, or one each. A row may be much lighter than the heaviest."""
        weights = row_weights(block, self.coding, self.weighting.class_weights)
        if weights is None:
            return np.ones((len(block), 1), np.int64)
        most = min(WEIGHT_BITS, WHOLE_BITS - (self.most_rows - 1).bit_length())
        return np.rint(weights * (2.0**most / self.weighting.heaviest)).astype(np.int64)[:, None]

    def load(self, arrays: dict[str, np.ndarray]) -> LevelState:
        zero = self.zero().arrays()
        found = [arrays.get(name, np.zeros(0)) for name in zero]
        if any(array.dtype != np.int64 for array in found):
            raise FileFormatError("these are not sums of levels")
        if [array.shape for array in found] != [array.shape for array in zero.values()]:
            raise FileFormatError(f"these are not sums of {sum(self.places):,} levels")
        return LevelState(*found)

    def nbytes(self) -> int:
        folds, places, width = self._shape
        return 8 * (folds * places * width + 3 * (width - 1) + 1)

    def unexplained(self, state: LevelState) -> list[float]:
        """For each category, the share of the target's variance that is left once the level is known."""
        found = []
        for sums in self._parts(state):
            levels = sums.sum(axis=0)
            known = levels[levels[:, 0] > 0].astype(np.float64)
            rows, left = known[:, 0].sum(), 0.0
            for k, square in enumerate(self._squares(state), start=1):
                total = square - float(known[:, k].sum()) ** 2 / max(rows, 1.0)
                within = square - math.fsum(known[:, k] ** 2 / known[:, 0])
                left = max(left, within / total if total > 0 else 1.0)
            found.append(left if state.rows[0] >= FEWEST * len(known) else 1.0)
        return found

    def beyond_lines(self, state: LevelState) -> list[float]:
        """Of each number, by how much the mean of each of its values says more of the target than a line; 0 for
        categories, and where there are several sums, each of which would be an input."""
        unit, squares = self._unit(state), self._squares(state)
        return [
            beyond_line(np.array(values), *_levels(sums, unit), squares[0] / unit) if values and len(squares) == 1
            else 0.0
            for values, sums in zip(self.values, self._parts(state), strict=True)
        ]  # fmt: skip

    def _parts(self, state: LevelState) -> list[np.ndarray]:
        ends = np.cumsum(self.places)
        return [state.sums[:, end - count : end] for end, count in zip(ends, self.places, strict=True)]

    def _squares(self, state: LevelState) -> list[int]:
        half = self._half
        return [(a << 2 * half) + (b << half + 1) + c for a, b, c in state.squares.tolist()]

    def _unit(self, state: LevelState) -> float:
        """What a row counts for on average."""
        return int(state.sums[:, : self.places[0], 0].sum()) / max(1, int(state.rows[0]))

    def tables(self, state: LevelState) -> list[LevelTable]:
        """What was learned of each category."""
        names, offset, step = target_sums(self.coding)
        if not self.weighting.plain and not self.coding.classes:
            step = step * 2.0**COARSER
        squares, unit = self._squares(state), self._unit(state) or 1.0
        return [LevelTable.of(names, offset, step, part, squares, unit) for part in self._parts(state)]


def _levels(sums: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows and sums of those that are listed."""
    listed = sums.sum(axis=0)[:-2] / unit
    return listed[:, 0], listed[:, 1]


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
