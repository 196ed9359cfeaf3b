"""Every Gram product gives the same integers as int64 arithmetic, at the limits too."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrf.features.precision import LIMITS, make_precision
from streamrf.statistics import gram_kernels
from streamrf.statistics.gram_kernels import Layout, choose_product, proven_products
from streamrf.statistics.gram_kernels.base import PANEL, Product
from streamrf.statistics.gram_kernels.integer import ByteProduct, IntegerProduct
from streamrf.statistics.gram_kernels.libraries import BlasProduct
from streamrf.support.threads import Threads

CASES = [(bits, name) for bits in LIMITS for name in proven_products(bits)]


def gram(product: Product, Z: np.ndarray, threads: int = 1, totals: np.ndarray | None = None) -> np.ndarray:
    layout = Layout(Z.shape[1])
    totals = np.zeros(layout.length, np.int64) if totals is None else totals
    with Threads(threads) as pool:
        product.add(np.ascontiguousarray(Z, product.dtype), layout, totals, pool)
    return layout.columns(totals, 0, layout.size)


def test_two_products_at_least_are_proven_here():
    assert {"integer", "blas"} <= set(proven_products(8)) & set(proven_products(12))
    assert {"integer", "blas", "bytes"} <= set(proven_products(7))


@pytest.mark.parametrize(("bits", "name"), CASES)
@pytest.mark.parametrize("sign", [1, -1])
def test_worst_case_sums_do_not_overflow(bits, name, sign):
    """Every product at its limit for as many rows as are summed in 32 bits, and one more."""
    product = proven_products(bits)[name]
    rows = max(product.rows, 2**31 // LIMITS[bits] ** 2 if name == "mkl" else 0) + 1
    Z = np.full((min(rows, 9000), 5), LIMITS[bits])
    Z[:, 1::2] *= sign
    assert np.array_equal(gram(product, Z), Z.T @ Z)


@pytest.mark.parametrize(("bits", "name"), CASES)
@settings(max_examples=12, deadline=None)
@given(n=st.integers(1, 1300), size=st.integers(1, 2 * PANEL + 30), threads=st.integers(1, 2), seed=st.integers(0, 99))
def test_same_integers_as_int64_arithmetic(bits, name, n, size, threads, seed):
    Z = np.random.default_rng(seed).integers(-LIMITS[bits], LIMITS[bits] + 1, (n, size))
    assert np.array_equal(gram(proven_products(bits)[name], Z, threads), Z.T @ Z)


@pytest.mark.parametrize(("bits", "name"), CASES)
def test_blocks_accumulate(bits, name):
    Z = np.random.default_rng(1).integers(-LIMITS[bits], LIMITS[bits] + 1, (500, 40))
    product, layout = proven_products(bits)[name], Layout(40)
    totals = np.zeros(layout.length, np.int64)
    for cut in (slice(0, 123), slice(123, 124), slice(124, 500)):
        last = gram(product, Z[cut], totals=totals)
    assert np.array_equal(last, Z.T @ Z)


def test_totals_hold_the_promised_number_of_rows():
    for bits, limit in LIMITS.items():
        assert limit**2 * make_precision(bits).most_rows < 2**63


def test_float_products_are_close_and_accumulate_in_double():
    Z = np.random.default_rng(2).standard_normal((3000, 50))
    for precision, tolerance in (("float32", 1e-4), ("float64", 1e-11)):
        product, layout = choose_product(precision, 1), Layout(50)
        totals = np.zeros(layout.length)
        with Threads(1) as pool:
            product.add(Z.astype(product.dtype), layout, totals, pool)
        assert np.abs(layout.columns(totals, 0, 50) - Z.T @ Z).max() < tolerance * 3000


@given(st.integers(1, 3 * PANEL), st.data())
@settings(max_examples=30, deadline=None)
def test_columns_of_the_symmetric_matrix(size, data):
    layout = Layout(size)
    A = np.random.default_rng(0).integers(-9, 9, (size, size))
    A = A + A.T
    flat = np.empty(layout.length, np.int64)
    for number, j0 in enumerate(layout.starts):
        layout.panel(flat, number)[:] = np.triu(A[j0 : j0 + layout.width(j0), j0:])
    first = data.draw(st.integers(0, size - 1))
    last = data.draw(st.integers(first + 1, size))
    assert np.array_equal(layout.columns(flat, first, last), A[:, first:last])


def test_a_product_that_saturates_is_not_proven(monkeypatch):
    from streamrf.statistics import gram_kernels as products

    class Saturating(BlasProduct):
        def add(self, Z, layout, totals, threads):
            super().add(Z, layout, totals, threads)
            np.clip(totals, -(2**22), 2**22, out=totals)

    assert products.prove(BlasProduct(8), 8)
    assert not products.prove(Saturating(8), 8)


@pytest.mark.parametrize("product", [IntegerProduct(), ByteProduct()])
def test_scratch_memory_is_as_announced(product):
    import tracemalloc

    layout = Layout(600)
    Z = np.ones((product.rows, 600), product.dtype)
    totals = np.zeros(layout.length, np.int64)
    with Threads(1) as pool:
        tracemalloc.start()
        product.add(Z, layout, totals, pool)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= product.work_bytes(layout, 1) * 1.05


def test_a_few_rows_are_summed_without_a_race(monkeypatch):
    monkeypatch.setattr(gram_kernels, "_fastest", lambda bits, count: pytest.fail("no race was wanted"))
    assert choose_product(12, 1, products=1000 * 500.0**2).name == "blas"
    assert choose_product(12, 1, "integer", products=1.0).name == "integer"
    monkeypatch.setattr(gram_kernels, "_fastest", lambda bits, count: "integer")
    assert choose_product(12, 1, products=1e6 * 500.0**2).name == "integer"
    for cached, chosen in ((False, "blas"), (True, "integer")):  # a second of products is not worth compiling for
        monkeypatch.setattr(gram_kernels, "is_cached", lambda kernel, cached=cached: cached)
        assert choose_product(12, 1, products=1e4 * 1000.0**2).name == chosen
