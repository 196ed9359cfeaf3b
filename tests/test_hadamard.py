"""The fast Hadamard transform and the structured projection against matrices that are obviously right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from streamrf.features.fourier import draw
from streamrf.features.fourier.hadamard import padded_length, transform
from streamrf.features.kernels import make_kernel
from streamrf.support.threads import Threads

KINDS = ("fastfood", "sorf")
GAUSSIAN = make_kernel("gaussian", length_scale=2.0)


@pytest.mark.parametrize("bits", range(11))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transform_is_the_hadamard_matrix(bits: int, dtype: type) -> None:
    """On small integers every sum is exact, so equality is."""
    x = np.random.default_rng(bits).integers(-8, 9, 2**bits).astype(dtype)
    expected = hadamard(2**bits).astype(dtype) @ x
    assert np.array_equal(transform(x.copy(), np.empty_like(x))[0], expected)


@given(st.integers(1, 5000))
def test_padded_length(d: int) -> None:
    n = padded_length(d)
    assert n & (n - 1) == 0
    assert n // 2 < d <= n


def inputs(n: int, d: int) -> np.ndarray:
    return np.random.default_rng(n + d).standard_normal((n, d)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("F", "d"), [(1, 1), (5, 1), (3, 2), (100, 7), (64, 64), (130, 65), (700, 200)])
def test_projection_is_the_product_with_dense_frequencies(kind: str, F: int, d: int) -> None:
    factors = draw(kind, GAUSSIAN, F, d, 1).factors
    X, out = inputs(11, d), np.full((11, F), np.nan, np.float32)
    factors.project(X, out)
    expected = X.astype(np.float64) @ factors.dense().T
    np.testing.assert_allclose(out, expected, atol=2e-6 * np.sqrt(d) * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_blocking_of_rows_gives_the_same_bits(kind: str, data: st.DataObject) -> None:
    factors = draw(kind, GAUSSIAN, 300, 100, 1).factors
    X, whole = inputs(90, 100), np.empty((90, 300), np.float32)
    factors.project(X, whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, 90), max_size=6)))
    parts = np.empty_like(whole)
    for start, stop in zip([0, *cuts], [*cuts, 90], strict=True):
        factors.project(X[start:stop], parts[start:stop])
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_layouts_give_the_same_bits(kind: str) -> None:
    factors = draw(kind, GAUSSIAN, 300, 100, 1).factors
    X, alone, shared, strided = inputs(900, 100), *(np.empty((900, 300), np.float32) for _ in range(3))
    factors.project(X, alone)
    with Threads(2) as threads:
        factors.project(X, shared, threads)
    factors.project(np.asfortranarray(X), strided)
    assert np.array_equal(alone, shared)
    assert np.array_equal(alone, strided)


@pytest.mark.parametrize("kind", KINDS)
def test_output_may_be_wider_than_the_frequencies(kind: str) -> None:
    """A view of the first columns of a larger block is what maps write to."""
    factors = draw(kind, GAUSSIAN, 30, 10, 1).factors
    X, block, alone = inputs(20, 10), np.full((20, 40), 7, np.float32), np.empty((20, 30), np.float32)
    factors.project(X, block[:, :30])
    factors.project(X, alone)
    assert np.array_equal(block[:, :30], alone)
    assert np.all(block[:, 30:] == 7)


def test_shapes_that_do_not_fit_are_refused() -> None:
    factors = draw("sorf", GAUSSIAN, 30, 10, 1).factors
    with pytest.raises(ValueError, match=r"\(4, 9\) and output \(4, 30\) do not fit 30 x 10"):
        factors.project(inputs(4, 9), np.empty((4, 30), np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_as_large_as_the_matrix_is_kept(kind: str) -> None:
    drawn = draw(kind, GAUSSIAN, 8192, 2048, 1)
    assert sum(array.nbytes for array in drawn.arrays().values()) < 8192 * 2048 * 4 / 100
