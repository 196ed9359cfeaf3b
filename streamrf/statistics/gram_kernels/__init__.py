"""Choosing the Gram product: proven right on this CPU first, then the fastest in a short race."""

from __future__ import annotations

import math
from functools import cache, cached_property

import numpy as np

from streamrf.features.precision import LIMITS
from streamrf.statistics.gram_kernels.base import Layout, Product
from streamrf.statistics.gram_kernels.integer import ByteProduct, DotProduct, IntegerProduct
from streamrf.statistics.gram_kernels.libraries import BlasProduct, MklProduct, library
from streamrf.statistics.gram_kernels.tiles import pack_slices
from streamrf.support.compiled import is_cached
from streamrf.support.simd import has_dots
from streamrf.support.threads import Threads, Work, in_turn

RACE_ROWS, RACE_SIZE = 1024, 960
RACE_ROUNDS = 7  # a long run with the wrong product costs more than a few hundredths of a second
SEVEN, EIGHT, TWENTY = 7, 8, 20  # bits: of the kernel of bytes, of that of dots at most, and what is left to BLAS
FEW_PRODUCTS = 2e9  # a twentieth of a second
COLD_PRODUCTS = 4e10  # a second, which compiling other products would take as well
PRODUCT_ROWS = 4096  # no product takes larger blocks


def choose_product(
    precision: int | str, threads: int, name: str | None = None, *, products: float = math.inf
) -> Product:
    """The fastest proven product at this precision (7, 8, 12, 'float32', 'float64'), or the one named.

    Where a run has few ``products`` to add (rows D^2), it is done before a race would be, and nothing is compiled. They
    may be more where others are still to be compiled: every product gives the same integers.
    """
    if precision not in LIMITS:
        return BlasProduct(precision)
    few = FEW_PRODUCTS if is_cached(pack_slices) else COLD_PRODUCTS
    if name is None and products <= few and (plain := _proven_blas(int(precision))) is not None:
        return plain
    candidates = proven_products(int(precision))
    return candidates[name or _fastest(int(precision), threads)]


class DeferredProduct(Product):
    """The fastest product of the machine that uses it, chosen at the first use: a worker's CPU is not known before."""

    name = "deferred"

    def __init__(self, precision: int | str) -> None:
        self.precision = precision

    @cached_property
    def _chosen(self) -> Product:
        return choose_product(self.precision, 1)  # products rank alike on one thread and on many

    def __getattr__(self, name: str) -> object:
        if name in ("dtype", "rows"):
            return getattr(self._chosen, name)
        raise AttributeError(name)

    def add(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        self._chosen.add(Z, layout, totals, threads)

    def work_bytes(self, layout: Layout, threads: int) -> int:
        return self._chosen.work_bytes(layout, threads)


@cache
def _proven_blas(bits: int) -> Product | None:
    product = BlasProduct(bits)
    return product if prove(product, bits) else None


@cache
def proven_products(bits: int) -> dict[str, Product]:
    """Every product that gives the right integers here, worst case included."""
    products: list[Product] = []
    if bits < TWENTY:  # beyond 16 bits there is float64 arithmetic only
        products.append(IntegerProduct())
    if bits == SEVEN:
        products.append(ByteProduct())
    if bits <= EIGHT and has_dots():
        products.append(DotProduct())
    if library() is not None and bits < TWENTY:
        products.append(MklProduct(bits))
    proven = [_proven_blas(bits), *(product for product in products if prove(product, bits))]
    return {product.name: product for product in proven if product is not None}


def prove(product: Product, bits: int) -> bool:
    """Compare with int64 arithmetic on extreme values (no cancellation: saturation shows) and on random ones."""
    limit, layout = LIMITS[bits], Layout(200)
    rng = np.random.default_rng(0)
    extreme = np.where(rng.random(layout.size) < 0.5, -limit, limit)
    blocks = [np.tile(extreme, (600, 1)), rng.integers(-limit, limit + 1, (333, layout.size))]
    with Threads(1) as threads:
        for block in blocks:
            totals = np.zeros(layout.length, np.int64)
            product.add(np.ascontiguousarray(block, product.dtype), layout, totals, threads)
            if not np.array_equal(layout.columns(totals, 0, layout.size), block.T @ block):
                return False
    return True


@cache
def _fastest(bits: int, count: int) -> str:
    layout = Layout(RACE_SIZE)
    rng = np.random.default_rng(0)
    Z = rng.integers(-LIMITS[bits], LIMITS[bits] + 1, (RACE_ROWS, RACE_SIZE))
    totals = np.zeros(layout.length, np.int64)
    with Threads(count) as threads:

        def race(product: Product) -> Work:
            block = np.ascontiguousarray(Z, product.dtype)
            return lambda: product.add(block, layout, totals, threads)

        seconds = in_turn({name: race(product) for name, product in proven_products(bits).items()}, RACE_ROUNDS)
    return min(seconds, key=lambda name: seconds[name])


def worst_work_bytes(bits: str, layout: Layout, threads: int) -> int:
    """Scratch memory of the hungriest product that may be chosen; nothing is proven or timed for it."""
    named: int | str = int(bits) if bits.isdigit() else bits
    keys: list[int | str] = [*LIMITS, "float32", "float64"] if bits == "auto" else [named]
    sizes = [BlasProduct(key).work_bytes(layout, threads) for key in keys]
    return max(*sizes, IntegerProduct().work_bytes(layout, threads))
