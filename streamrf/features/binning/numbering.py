"""Which slots of each grid hold rows, and a number for each of these: slots without rows cost one bit, and no weight.

A grid's numbers begin at 1. All of its empty slots have number 0, whose weight is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.errors import DataError, FileFormatError

WORD = 64  # slots that share a word of bits


@inner_kernel
def _ones(word: np.uint64) -> np.uint64:
    """How many bits of a word are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@kernel
def _number(words: np.ndarray, before: np.ndarray, slots: np.ndarray) -> None:
    """Numbers of the slots (P, n) of each grid: occupied ones before its word, and those before it in the word."""
    one = np.uint64(1)
    for p in range(slots.shape[0]):
        for r in range(slots.shape[1]):
            place = np.uint64(slots[p, r])
            word, bit = words[p, place >> np.uint64(6)], place & np.uint64(63)
            earlier = np.uint64(before[p, place >> np.uint64(6)]) + _ones(word & ((one << bit) - one))
            slots[p, r] = ((word >> bit) & one) * (earlier + one)


@dataclass(frozen=True, eq=False)
class Numbering:
    """A bit for each slot of each grid."""

    words: np.ndarray  # (P, words) uint64

    @classmethod
    def of(cls, counts: np.ndarray) -> Numbering:
        """From the rows in each slot, (P, slots)."""
        words = np.zeros((len(counts), -(-counts.shape[1] // WORD)), np.uint64)
        for grid, line in zip(counts, words, strict=True):
            bits = np.packbits(grid != 0, bitorder="little")
            line.view(np.uint8)[: len(bits)] = bits
        if not words.any():
            raise DataError("random binning needs at least one row, and there is none")
        return cls(words)

    def check(self, grids: int, slots: int) -> None:
        """Refuse bits that are not those of so many grids."""
        shape = (grids, -(-slots // WORD))
        if self.words.dtype != np.uint64 or self.words.shape != shape:
            raise FileFormatError(f"occupied slots of shape {self.words.shape} do not go with grids of {shape}")
        spare = shape[1] * WORD - slots
        if spare and (self.words[:, -1] >> np.uint64(WORD - spare)).any():
            raise FileFormatError("more slots are occupied than the grids have")

    def __reduce__(self) -> tuple[object, ...]:
        return Numbering, (self.words,)

    @cached_property
    def _counted(self) -> tuple[np.ndarray, np.ndarray]:
        """Occupied slots before each word, (P, words), and in all, (P,)."""
        ones = np.bitwise_count(self.words)
        through = np.cumsum(ones, axis=1, dtype=np.uint32)
        return through - ones, through[:, -1].astype(np.int64)

    @property
    def occupied(self) -> np.ndarray:
        """Slots of each grid that have rows, (P,)."""
        return self._counted[1]

    @cached_property
    def starts(self) -> np.ndarray:
        """Where the numbers of each grid begin among those of all, (P + 1,)."""
        return np.concatenate([[0], np.cumsum(self.occupied + 1)])

    def number(self, slots: np.ndarray) -> None:
        """Write over slots (P, n) with their numbers."""
        _number(self.words, self._counted[0], slots)

    def expand(self, values: np.ndarray, slots: int) -> np.ndarray:
        """Values of all numbers, (..., numbers), as values of all slots, (..., P, slots)."""
        out = np.zeros((*values.shape[:-1], len(self.words), slots), values.dtype)
        for p, start in enumerate(self.starts[:-1]):
            numbers = np.arange(slots, dtype=np.uint32)[None]
            Numbering(self.words[p : p + 1]).number(numbers)
            out[..., p, :] = values[..., start + numbers[0].astype(np.int64)]
        return out
