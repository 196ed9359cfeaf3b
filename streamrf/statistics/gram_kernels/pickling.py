"""A product for a machine that is not known yet."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from streamrf.statistics.gram_kernels import choose_product
from streamrf.statistics.gram_kernels.base import Layout, Product
from streamrf.support.threads import Threads


class ChosenThere(Product):
    """The fastest product of the machine this arrives at, chosen when it is first used."""

    name = "chosen there"

    def __init__(self, precision: int | str) -> None:
        self.precision = precision

    @cached_property
    def _chosen(self) -> Product:
        return choose_product(self.precision, 1)  # products rank alike on one thread and on many

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        return self._chosen.dtype

    @property
    def rows(self) -> int:  # type: ignore[override]
        return self._chosen.rows

    def add(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        self._chosen.add(Z, layout, totals, threads)

    def work_bytes(self, layout: Layout, threads: int) -> int:
        return self._chosen.work_bytes(layout, threads)
