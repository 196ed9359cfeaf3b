"""Error bounds: inverses of each other, right by their formula, and true of measured errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrf.features.fourier import draw, draw_phases
from streamrf.features.kernels import make_kernel
from streamrf.reports import bounds
from streamrf.support.errors import InputError

CASES = {"epsilon": st.floats(0.01, 1.0), "delta": st.floats(1e-6, 0.5)}


@given(**CASES, d=st.integers(1, 1000), diameter=st.floats(0.1, 1e3), sigma=st.floats(0.1, 1e3))
def test_claim_1_holds_at_the_smallest_number_and_not_below(
    epsilon: float, delta: float, d: int, diameter: float, sigma: float
) -> None:
    D = bounds.features_uniform(epsilon, delta, d, diameter, sigma)

    def failure(D: int) -> float:
        return 2**8 * (sigma * diameter / epsilon) ** 2 * math.exp(-D * epsilon**2 / (32 * (d + 1)))

    assert failure(D) <= delta * (1 + 1e-9)
    assert D == 1 or failure(D - 1) > delta * (1 - 1e-9)


@given(**CASES, d=st.integers(1, 1000), diameter=st.floats(0.1, 1e3), sigma=st.floats(0.1, 1e3))
def test_claim_1_inverts(epsilon: float, delta: float, d: int, diameter: float, sigma: float) -> None:
    D = bounds.features_uniform(epsilon, delta, d, diameter, sigma)
    allowed = bounds.epsilon_uniform(D, delta, d, diameter, sigma)
    assert allowed <= epsilon * (1 + 1e-9)
    assert bounds.features_uniform(allowed * (1 + 1e-9), delta, d, diameter, sigma) <= D


@given(**CASES)
def test_hoeffding_inverts(epsilon: float, delta: float) -> None:
    D = bounds.features_pointwise(epsilon, delta)
    assert 2 * math.exp(-D * epsilon**2 / 8) <= delta * (1 + 1e-9)
    assert bounds.epsilon_pointwise(D, delta) <= epsilon * (1 + 1e-9)
    assert bounds.features_pointwise(bounds.epsilon_pointwise(D, delta) * (1 + 1e-9), delta) <= D


def test_measured_errors_stay_below_both_bounds() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (40, 3))
    kernel, D = make_kernel("gaussian"), 800
    worst = []
    for seed in range(20):
        W, b = draw("mc", kernel, D, 3, seed).dense(), draw_phases(D, seed)
        Z = np.sqrt(2 / D) * np.cos(X @ W.T + b)
        worst.append(np.abs(Z @ Z.T - kernel(X)).max())
    assert max(worst) < bounds.epsilon_uniform(D, 0.05, 3, 2 * math.sqrt(3), math.sqrt(kernel.second_moment(3)))
    assert np.median(worst) < bounds.epsilon_pointwise(D, 0.05)


def test_points_that_are_all_the_same_need_nothing() -> None:
    assert bounds.features_uniform(0.1, 0.1, 5, 0.0, 1.0) == 1
    assert bounds.epsilon_uniform(10, 0.1, 5, 0.0, 1.0) == 0.0


def test_claim_1_needs_a_second_moment_and_says_so() -> None:
    heavy = bounds.claim_1(make_kernel("laplacian"), 100, 5, 10.0, 0.1, 0.05)
    assert (heavy.D, heavy.epsilon_at_D) == (None, None)
    assert "laplacian kernel has no second moment" in heavy.reason
    light = bounds.claim_1(make_kernel("gaussian", length_scale=2.0), 100, 5, 10.0, 0.1, 0.05)
    assert light.reason is None
    assert bounds.features_uniform(0.1, 0.05, 5, 10.0, math.sqrt(5) / 2) == light.D
    assert bounds.features_pointwise(0.1, 0.05) < light.D


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (-1.0, 0.1), (math.nan, 0.1), (0.1, 0.0), (0.1, 1.0)])
def test_numbers_that_cannot_be_right(epsilon: float, delta: float) -> None:
    with pytest.raises(InputError, match=r"`epsilon` must be|`delta` must be"):
        bounds.features_pointwise(epsilon, delta)


def test_claim_1_refuses_an_infinite_second_moment() -> None:
    with pytest.raises(InputError, match="use features_pointwise"):
        bounds.features_uniform(0.1, 0.1, 5, 1.0, math.inf)
    with pytest.raises(InputError, match="use epsilon_pointwise"):
        bounds.epsilon_uniform(100, 0.1, 5, 1.0, math.inf)


@pytest.mark.parametrize("form", ["phase", "pairs"])
def test_promises_are_kept_by_either_form(form):
    """The largest error of 300 draws at one pair, and over a set, beside what the bounds allow for one draw in 100."""
    kernel, rng, D = make_kernel("gaussian", length_scale=1.0), np.random.default_rng(0), 64
    X = rng.uniform(-1, 1, (20, 2))
    K, errors = kernel(X), []
    for _ in range(300):
        W = rng.standard_normal((2, D // 2 if form == "pairs" else D))
        if form == "pairs":
            Z = np.concatenate([np.cos(X @ W), np.sin(X @ W)], axis=1) * math.sqrt(2 / D)
        else:
            Z = np.cos(X @ W + rng.uniform(0, 2 * np.pi, D)) * math.sqrt(2 / D)
        errors.append(np.abs(Z @ Z.T - K))
    gaps = np.stack(errors)
    allowed = bounds.epsilon_pointwise(D, 0.01, form)
    assert (gaps > allowed).mean(axis=0).max() <= 0.01
    diameter, sigma = 2 * math.sqrt(2), math.sqrt(kernel.second_moment(2))
    assert (gaps.max(axis=(1, 2)) > bounds.epsilon_uniform(D, 0.01, 2, diameter, sigma, form)).mean() <= 0.01


def test_phases_ask_for_more_features_than_the_paper_prints():
    """Its 4 (d + 2) takes products of two features to be in [-1, 1], and the error to depend on x - y alone."""
    assert bounds.divisor_uniform(10, "phase") == 32 * 11
    assert bounds.divisor_uniform(10, "pairs") == 8 * 12
