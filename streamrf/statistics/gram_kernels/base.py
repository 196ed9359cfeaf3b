"""Gram totals as column panels of a lower triangle, and the protocol of the products that add to them.

A panel holds the columns ``j0:j1`` of Z'Z from row j0 down, stored by column; above the diagonal it is zero. Panels
cost half the memory of the whole matrix, are independent (one thread each), and are long enough for every kernel to run
at its full speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from streamrf.support.threads import Threads

# Columns of a panel, multiples of every tile of the integer kernel (6 columns by 16 or 32 rows): wide ones run faster,
# narrow ones waste less on the diagonal blocks of a small matrix. Part of the format of saved statistics.
PANEL, SMALL_PANEL, SMALL_SIZE = 192, 96, 1024


@dataclass(frozen=True)
class Layout:
    """Where each panel of a ``size`` by ``size`` lower triangle lies in one flat array."""

    size: int

    @property
    def panel_width(self) -> int:
        return SMALL_PANEL if self.size <= SMALL_SIZE else PANEL

    @cached_property
    def starts(self) -> tuple[int, ...]:
        return tuple(range(0, self.size, self.panel_width))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        offsets = [0]
        for j0 in self.starts:
            offsets.append(offsets[-1] + self.width(j0) * (self.size - j0))
        return tuple(offsets)

    def width(self, j0: int) -> int:
        return min(self.panel_width, self.size - j0)

    @property
    def length(self) -> int:
        """Elements of the flat array."""
        return self.offsets[-1]

    def panel(self, flat: np.ndarray, number: int) -> np.ndarray:
        """View of panel ``number``: [column - j0, row - j0]."""
        j0 = self.starts[number]
        return flat[self.offsets[number] : self.offsets[number + 1]].reshape(self.width(j0), self.size - j0)

    def add_panel(self, totals: np.ndarray, number: int, product: np.ndarray) -> None:
        """Add a product of a panel's shape, without what it has above the diagonal."""
        panel, width = self.panel(totals, number), product.shape[0]
        np.add(panel[:, width:], product[:, width:], out=panel[:, width:], casting="unsafe")
        square = panel[:, :width]
        np.add(square, np.triu(product[:, :width]), out=square, casting="unsafe")

    def columns(self, flat: np.ndarray, first: int, last: int) -> np.ndarray:
        """Columns ``first:last`` of the whole symmetric matrix, as (size, last - first)."""
        out = np.zeros((self.size, last - first), flat.dtype)
        for number, j0 in enumerate(self.starts):
            panel, j1 = self.panel(flat, number), j0 + self.width(j0)
            low, high = max(first, j0), min(last, j1)
            if low < high:  # what is stored of these columns: from the diagonal down
                out[j0:, low - first : high - first] += panel[low - j0 : high - j0].T
            if last > j0:  # the mirror image, right of the diagonal: rows j0:j1 of columns beyond them
                rows = max(first, j0)
                mirrored = panel[:, rows - j0 : last - j0].copy()
                own = np.arange(j0, j1)[:, None] >= np.arange(rows, last)[None, :]
                mirrored[own] = 0  # the diagonal and what lies below it is there already
                out[j0:j1, rows - first :] += mirrored
        return out


class Product(ABC):
    """One way to add ``Z'Z`` of a block to the totals. Every integer product gives the same integers."""

    name: ClassVar[str]
    dtype: np.dtype  # of the features it takes
    rows: int  # rows of one block it works best on

    @abstractmethod
    def add(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        """Add ``Z[:, :layout.size]' Z[:, :layout.size]`` to ``totals`` in place."""

    @abstractmethod
    def work_bytes(self, layout: Layout, threads: int) -> int:
        """Memory it takes besides Z and the totals."""


def each_panel(layout: Layout, threads: Threads, work: Callable[[int], None]) -> None:
    """``work(number)`` for every panel, the largest first so that the threads end together."""
    threads.each(work, range(len(layout.starts)))
