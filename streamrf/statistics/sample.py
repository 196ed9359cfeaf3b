"""Rows kept as they are, chosen by their number alone, so that any order and any chunking keeps the same ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.statistics.base import State
from streamrf.support.errors import MismatchError

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
