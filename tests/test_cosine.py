"""The fused kernel against plain numpy, and bit for bit against itself in any blocking."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrf.features.fourier.map import PackedCosines
from streamrf.support.threads import Threads


def problem(n=301, d=7, count=100, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((count, d)) * spread
    return rng.standard_normal((n, d)).astype(np.float32), W, rng.uniform(0, 2 * np.pi, count)


def features(X, W, b, dtype, scale, inputs=np.float32, threads=1):
    packed = PackedCosines.pack(W, b, inputs)
    out = np.zeros((len(X), packed.padded), dtype)
    with Threads(threads) as pool:
        packed.compute(X, scale, out, pool)
    return out[:, : len(W)]


@pytest.mark.parametrize(("dtype", "scale"), [(np.int8, 63), (np.int8, 127), (np.int16, 127), (np.int16, 2047)])
def test_integers_are_the_rounded_cosine(dtype, scale):
    X, W, b = problem()
    exact = np.cos(X.astype(np.float64) @ W.T + b) * scale
    assert np.abs(features(X, W, b, dtype, scale) - exact).max() < 0.5 + 1e-5 * scale


def test_float64_is_the_cosine_to_the_last_bits():
    X, W, b = problem()
    exact = np.cos(X.astype(np.float64) @ W.T + b)
    assert np.abs(features(X, W, b, np.float64, 1, np.float64) - exact).max() < 1e-14


def test_float32_is_the_cosine_to_single_precision():
    X, W, b = problem()
    exact = np.cos(X.astype(np.float64) @ W.T + b)
    assert np.abs(features(X, W, b, np.float32, 1) - exact).max() < 3e-6


def test_huge_angles_stay_in_range():
    X, W, b = problem(spread=1e12)
    out = features(X, W, b, np.int16, 2047)
    assert np.abs(out).max() <= 2047


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 3), st.integers(1, 60))
def test_bits_do_not_depend_on_the_block(sizes, threads, d):
    n = sum(sizes)
    X, W, b = problem(n, d, 50)
    whole = features(X, W, b, np.int16, 2047, threads=threads)
    cuts = np.cumsum([0, *sizes])
    parts = [features(X[i:j], W, b, np.int16, 2047) for i, j in pairwise(cuts)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_bits_do_not_depend_on_the_layout_of_the_inputs():
    X, W, b = problem()
    assert np.array_equal(features(np.asfortranarray(X), W, b, np.int16, 2047), features(X, W, b, np.int16, 2047))


def test_a_feature_depends_on_its_own_frequency_alone():
    X, W, b = problem(count=77)
    some = [3, 50, 76]
    assert np.array_equal(features(X, W, b, np.int16, 2047)[:, some], features(X, W[some], b[some], np.int16, 2047))


def test_a_block_that_does_not_fit_is_refused():
    X, W, b = problem()
    packed = PackedCosines.pack(W, b, np.float32)
    with Threads(1) as pool, pytest.raises(ValueError, match="do not fit"):
        packed.compute(X, 127, np.zeros((len(X), 10), np.int16), pool)
