"""The Gram product by numpy's BLAS: right on every machine, and what the float precisions use.

Integer-valued features in floating point give the same integers as the integer kernel as long as no partial sum of a
slice leaves the range where every integer has its own float: 2^24 in float32, 2^53 in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.statistics.gram_kernels.base import LIMITS, PANEL, Layout, Product, each_panel
from streamrf.support.threads import Threads


class BlasProduct(Product):
    """Slices of rows through sgemm or dgemm, one panel at a time, added to totals of the caller's type."""

    name = "blas"

    def __init__(self, precision: int | str) -> None:
        if precision in LIMITS:
            limit = LIMITS[int(precision)]
            self.dtype = np.dtype(np.int16)
            self.work = np.dtype(np.float32 if limit * limit * 512 < 2**24 else np.float64)
            self.slice = min(4096, (2 ** (24 if self.work == np.float32 else 53) - 1) // (limit * limit))
        else:
            self.dtype = self.work = np.dtype(str(precision))
            self.slice = 1024
        self.rows = self.slice * max(1, 4096 // self.slice)

    def add(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        for first in range(0, len(Z), self.slice):
            block = Z[first : first + self.slice, : layout.size].astype(self.work, copy=False)

            def multiply(number: int, block: Any = block) -> None:
                j0 = layout.starts[number]
                product = block[:, j0 : j0 + layout.width(j0)].T @ block[:, j0:]
                layout.add_panel(totals, number, product)

            each_panel(layout, threads, multiply)

    def work_bytes(self, layout: Layout, threads: int) -> int:
        converted = 0 if self.work == self.dtype else self.slice * layout.size
        return self.work.itemsize * (converted + 3 * threads * PANEL * layout.size)
