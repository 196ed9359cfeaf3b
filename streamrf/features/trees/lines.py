"""What histograms are made of: a line of bytes for each column, or one for all levels of a category."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamrf.features.trees.levels import Levels

CODES = 256


@dataclass(frozen=True, eq=False)
class Lines:
    """The column that each line is of, and what the single bytes of a line stand for: a column that is beyond its only
    cut just where the line has this byte, or -1."""

    codes: np.ndarray  # (columns, n) uint8, of the rows to fit
    columns: np.ndarray  # (lines,) int32
    singles: np.ndarray  # (lines, 256) int32
    widths: np.ndarray  # (lines,) int64: codes that there are

    @classmethod
    def of(cls, codes: np.ndarray, cuts: np.ndarray, levels: Levels) -> Lines:
        """Columns (d + groups, n) with so many cuts. Levels need no lines of their own where no row has two of them: a
        histogram of their places tells all about each."""
        inputs = len(levels.group)
        singles = np.full((len(codes), CODES), -1, np.int32)
        covered = cuts == 0
        for number, members in enumerate(levels.members):
            line = codes[inputs + number]
            if all(np.array_equal(codes[j] > 0, line == place) for place, j in enumerate(members, 1)):
                singles[inputs + number, 1 : len(members) + 1] = members
                covered[members] = True
        kept = np.flatnonzero(~covered)
        return cls(codes, kept.astype(np.int32), singles[kept], cuts[kept].astype(np.int64) + 1)

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def by_row(self) -> np.ndarray:
        """(n, lines): all bytes of a row side by side."""
        found = np.empty((self.codes.shape[1], len(self)), np.uint8)
        for line, column in enumerate(self.columns):
            found[:, line] = self.codes[column]
        return found

    def offsets(self, chosen: np.ndarray) -> np.ndarray:
        """Where the codes of some lines begin in one histogram of all of them."""
        return np.concatenate([[0], np.cumsum(self.widths[chosen])])
