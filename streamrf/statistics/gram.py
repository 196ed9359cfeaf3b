"""The Gram statistic: Z'Z, Z'1, Z'y and y'y of a block in one exact product.

The block is the features, a column of ones and the digits of the targets, side by side; one integer product of that
block with itself holds every sum that ridge regression with an intercept needs.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.features.base import FeatureMap
from streamrf.features.scaling import Scaling
from streamrf.features.targets import TargetCoding
from streamrf.statistics.base import PIECE_ROWS, CountedState, Statistic
from streamrf.statistics.gram_kernels import PRODUCT_ROWS, DeferredProduct, Layout, Product, choose_product
from streamrf.statistics.targets import row_weights
from streamrf.support.errors import FileFormatError, InputError, NumericalError
from streamrf.support.threads import ALONE, Threads

SMALL_STATE = 8 * 2**20  # bytes: fits the last-level cache, once a thread
PIECE_WORK, MOST_PIECE = 2.7e9, 65_536  # products of a piece, a hundredth of a second or two; and rows of one at most


@dataclass
class GramState(CountedState):
    """The lower triangle of the sum, in panels, and the number of rows in it."""

    layout: Layout
    totals: np.ndarray
    rows: int = 0

    def __iadd__(self, other: GramState) -> Self:
        self.totals += other.totals
        self.rows += other.rows
        return self

    def __isub__(self, other: GramState) -> Self:
        self.totals -= other.totals
        self.rows -= other.rows
        return self

    def copy(self) -> GramState:
        return GramState(self.layout, self.totals.copy(), self.rows)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"gram.totals": self.totals, "gram.rows": np.array([self.rows], np.int64)}


@dataclass
class Gram(Statistic[GramState]):
    """Scale, map and multiply: how rows enter the Gram matrix."""

    scaling: Scaling
    map: FeatureMap
    coding: TargetCoding
    product: Product
    class_weights: np.ndarray | None = None  # (classes,); weights, of classes or of rows, go with float sums alone
    floats: bool = False  # sums in float64 even of whole features: for few rows with weights
    _buffer: threading.local = field(default_factory=threading.local, repr=False)

    @classmethod
    def on_this_machine(
        cls, scaling: Scaling, map: FeatureMap, coding: TargetCoding, threads: int,
        class_weights: np.ndarray | None = None, *, floats: bool = False, rows: float = math.inf,
    ) -> Gram:  # fmt: skip
        """With the product that is fastest here for so many rows."""
        products = rows * float(map.n_features) ** 2
        product = choose_product("float64" if floats else map.precision.key, threads, products=products)
        return cls(scaling, map, coding, product, class_weights, floats)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the product is chosen again: what is right and fast depends on the CPU."""
        product = DeferredProduct("float64" if self.floats else self.map.precision.key)
        return Gram, (self.scaling, self.map, self.coding, product, self.class_weights, self.floats)

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.map.n_features + 1 + self.coding.columns(self.map.precision))

    def zero(self) -> GramState:
        layout = self.layout
        return GramState(layout, np.zeros(layout.length, self._totals))

    def nbytes(self) -> int:
        return self.layout.length * self._totals.itemsize

    @property
    def _totals(self) -> np.dtype[Any]:
        return np.dtype(np.float64) if self.floats else self.map.precision.totals

    def load(self, arrays: dict[str, np.ndarray]) -> GramState:
        layout, totals, rows = self.layout, arrays.get("gram.totals"), arrays.get("gram.rows")
        if totals is None or rows is None or totals.shape != (layout.length,) or rows.shape != (1,):
            found = None if totals is None else totals.shape
            raise FileFormatError(
                f"these statistics do not fit the model: {layout.length} totals wanted, {found} found"
            )
        if totals.dtype != self._totals or rows.dtype.kind != "i":
            raise FileFormatError(f"statistics of type {totals.dtype}, where {self._totals} is wanted")
        return GramState(layout, totals, int(rows[0]))

    def update(self, state: GramState, block: Block, threads: Threads, skip: np.ndarray | None = None) -> None:
        """Add a block's rows, those that ``skip`` marks apart."""
        rows = len(block) - (0 if skip is None else int(skip.sum()))
        most = self.map.precision.most_rows
        if state.rows + rows > most:
            raise NumericalError(f"{state.rows + rows:,} rows: exact sums of these features hold up to {most:,}")
        if self.is_small and threads.count > 1 and not self.floats:
            self._each_thread_its_rows(state, block, threads, skip)
        else:
            self._add(state.totals, block, threads, skip)
        state.rows += rows

    @property
    def is_small(self) -> bool:
        """Whether a state is so small that each thread can have its own."""
        return self.nbytes() <= SMALL_STATE

    @property
    def piece_rows(self) -> int:
        """More where they are summed in no time: threads then seldom wait for each other, and for Python."""
        D = self.map.n_features
        return int(np.clip(PIECE_WORK // (D * (D + 4 * self.map.n_inputs)), PIECE_ROWS, MOST_PIECE))

    @property
    def block_rows(self) -> int:
        """Rows mapped and multiplied at once: more where they are short, so that Python is called less often."""
        return max(self.product.rows, PRODUCT_ROWS) if self.is_small else self.product.rows

    def _each_thread_its_rows(self, state: GramState, block: Block, threads: Threads, skip: np.ndarray | None) -> None:
        step = min(self.block_rows, -(-len(block) // (2 * threads.count)))
        firsts = iter(range(0, len(block), step))  # whoever is free takes the next: one of them may be reading too

        def share(_: int) -> np.ndarray:
            totals = np.zeros_like(state.totals)
            for first in firsts:
                part = slice(first, first + step)
                self._add(totals, block.take(part), ALONE, None if skip is None else skip[part])
            return totals

        for totals in threads.map(share, range(threads.count)):
            state.totals += totals

    def _add(self, totals: np.ndarray, block: Block, threads: Threads, skip: np.ndarray | None) -> None:
        layout, step = self.layout, self.block_rows
        for first in range(0, len(block), step):
            part = slice(first, first + step)
            Z = self._augmented(block.take(part), threads)
            if skip is not None:
                Z[skip[part]] = 0  # a row of zeros adds nothing to any sum
            self.product.add(Z, layout, totals, threads)

    def _augmented(self, block: Block, threads: Threads) -> np.ndarray:
        """Features, ones and digits of a block, in a buffer that this thread uses again for the next."""
        n, D = len(block), self.map.n_features
        out = self._work()[:n]
        self._features(block.X, out, threads)
        out[:, D] = 1
        out[:, D + 1 : self.layout.size] = self.coding.encode(block.targets, self.map.precision)
        weights = row_weights(block, self.coding, self.class_weights)
        if weights is not None:
            self._weigh(out, weights)
        return out

    def _features(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        X = self.scaling.transform(X, self.map.precision.inputs)
        if not self.floats:
            self.map.compute(X, out, threads)
            return
        whole = self.map.block(len(X), self.map.precision.features)  # compiled maps write no other type
        self.map.compute(X, whole, threads)
        out[:, : self.map.n_features] = whole[:, : self.map.n_features]

    def _weigh(self, out: np.ndarray, weights: np.ndarray) -> None:
        """Rows times the roots of their weights: then every product of two columns is weighted."""
        if self.map.precision.exact and not self.floats:
            raise InputError(
                f"weights of rows cannot enter exact sums of {self.map.precision.name}-bit features: use"
                " `solver='cg'`, or `bits='float32'`"
            )
        out[:, : self.layout.size] *= np.sqrt(weights)[:, None].astype(out.dtype)

    def _work(self) -> np.ndarray:
        if not hasattr(self._buffer, "block"):
            extra = self.layout.size - self.map.n_features
            self._buffer.block = self.map.block(self.block_rows, self.product.dtype, extra)
        return self._buffer.block

    def work_bytes(self, threads: int) -> int:
        """Memory of one update besides the state: the block, the scaled inputs, what the product needs."""
        layout, rows = self.layout, self.block_rows
        block = rows * max(self.map.width, layout.size) * self.product.dtype.itemsize
        inputs = rows * self.map.n_inputs * self.map.precision.inputs.itemsize
        return block + inputs + self.product.work_bytes(layout, threads)
