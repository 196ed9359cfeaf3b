"""Where the bins of each grid are in a table of all, and bin indices in words of 16 bits: two words for a grid that has
more bins than one word can tell apart, one for any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from streamrf.support.compiled import kernel

WORD_BINS = 1 << 16  # that 16 bits can tell apart
ONE_WORD = -1


@kernel
def _pack(indices: np.ndarray, high: np.ndarray, out: np.ndarray) -> None:
    """Low halves in the first rows, high halves in the rows that ``high`` names."""
    for p in range(indices.shape[0]):
        for r in range(indices.shape[1]):
            out[p, r] = indices[p, r] & np.uint32(0xFFFF)
        if high[p] >= 0:
            for r in range(indices.shape[1]):
                out[high[p], r] = indices[p, r] >> np.uint32(16)


@dataclass(frozen=True, eq=False)
class Layout:
    """``high`` is, for each grid, the row of bin indices that has their high halves, or -1 where they are whole."""

    starts: np.ndarray  # (P + 1,) int64: where each grid begins in a table of all bins
    high: np.ndarray  # (P,) int64

    @classmethod
    def whole(cls, grids: int, bins: int) -> Self:
        """Of grids of so many bins, and bin indices of a type that is wide enough."""
        return cls(np.arange(grids + 1, dtype=np.int64) * bins, np.full(grids, ONE_WORD, np.int64))

    @classmethod
    def packed(cls, starts: np.ndarray) -> Self:
        """Of bin indices in words of 16 bits."""
        wide = np.diff(starts) > WORD_BINS
        return cls(starts, np.where(wide, len(wide) - 1 + np.cumsum(wide), ONE_WORD))

    @property
    def grids(self) -> int:
        return len(self.high)

    @property
    def rows(self) -> int:
        """Words of a row of the data."""
        return self.grids + int((self.high >= 0).sum())

    def pack(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Bin indices (P, n) uint32 as words (rows, n) uint16."""
        _pack(indices, self.high, out)

    def unpack(self, words: np.ndarray) -> np.ndarray:
        """Bin indices (P, n) uint32 of words."""
        out = words[: self.grids].astype(np.uint32)
        for p in np.flatnonzero(self.high >= 0):
            out[p] |= words[self.high[p]].astype(np.uint32) << np.uint32(16)
        return out
