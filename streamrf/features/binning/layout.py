"""Where the bins of each grid are in a table of all, and bin indices in words of 16 bits: a word for each grid, and for
one that has more bins than a word can tell apart the few bits above it, in a word that such grids share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from streamrf.support.compiled import kernel

BITS = 16  # of a word
WORD_BINS = 1 << BITS  # that they can tell apart
ONE_WORD = -1


@kernel
def _pack(indices: np.ndarray, high: np.ndarray, out: np.ndarray) -> None:
    """Low bits in the first rows, the bits above them where ``high`` says; the first bits of a word clear the rest."""
    for p in range(indices.shape[0]):
        for r in range(indices.shape[1]):
            out[p, r] = indices[p, r] & np.uint32(0xFFFF)
        row, down, mask = high[p, 0], np.uint32(high[p, 1]), np.uint32(high[p, 2])
        if row >= 0:
            for r in range(indices.shape[1]):
                before = np.uint32(0) if down == 16 else np.uint32(out[row, r])
                out[row, r] = before | ((indices[p, r] & mask) >> down)


@dataclass(frozen=True, eq=False)
class Layout:
    """``high`` says, for each grid, which row of words has the upper bits of its bin indices (-1 where one word has all
    of them), how far they are moved up from there, and a mask of where they then are."""

    starts: np.ndarray  # (P + 1,) int64: where each grid begins in a table of all bins
    high: np.ndarray  # (P, 3) int64

    @classmethod
    def whole(cls, grids: int, bins: int) -> Self:
        """Of grids of so many bins, and bin indices of a type that is wide enough."""
        return cls(np.arange(grids + 1, dtype=np.int64) * bins, np.full((grids, 3), ONE_WORD, np.int64))

    @classmethod
    def packed(cls, starts: np.ndarray) -> Self:
        """Of bin indices in words of 16 bits."""
        bins = np.diff(starts)
        high = np.full((len(bins), 3), ONE_WORD, np.int64)
        row, used = len(bins) - 1, BITS
        for p in np.flatnonzero(bins > WORD_BINS):
            more = max(1, (int(bins[p]) - 1).bit_length() - BITS)
            if used + more > BITS:
                row, used = row + 1, 0
            high[p] = row, BITS - used, ((1 << more) - 1) << BITS
            used += more
        return cls(starts, high)

    @property
    def grids(self) -> int:
        return len(self.high)

    @property
    def rows(self) -> int:
        """Words of a row of the data."""
        return max(self.grids, int(self.high[:, 0].max(initial=0)) + 1)

    def pack(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Bin indices (P, n) uint32 as words (rows, n) uint16."""
        _pack(indices, self.high, out)

    def unpack(self, words: np.ndarray) -> np.ndarray:
        """Bin indices (P, n) uint32 of words."""
        out = words[: self.grids].astype(np.uint32)
        for p, (row, up, mask) in enumerate(self.high):
            if row >= 0:
                out[p] |= (words[row].astype(np.uint32) << np.uint32(up)) & np.uint32(mask)
        return out


def words_of(grids: int, bins: int) -> int:
    """Words of a row whose grids may use so many bins each, and a number for those that none did."""
    return Layout.packed(np.arange(grids + 1, dtype=np.int64) * (bins + 1)).rows
