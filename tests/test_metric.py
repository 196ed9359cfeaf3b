"""The learned metric: gradients beside finite differences, and the promise never to be worse than no metric."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrf.errors import InputError
from streamrf.kernels import make_kernel
from streamrf.maps.frequencies import draw
from streamrf.maps.learned import FourierFits, apply_factor, gradient_outer_product, learn_metric
from streamrf.maps.learned.metric import Judged, root


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_the_outer_product_is_that_of_numerical_gradients(seed, k, d):
    rng = np.random.default_rng(seed)
    X, W, phases = rng.normal(size=(9, d)), rng.normal(size=(5, d)), rng.random(5)
    a, step = rng.normal(size=(5, k)), 1e-6

    def predict(x):
        return np.cos(W @ x + phases) @ a

    expected = np.zeros((d, d))
    for x in X:
        gradients = np.array([(predict(x + step * e) - predict(x - step * e)) / (2 * step) for e in np.eye(d)])
        expected += gradients @ gradients.T / len(X)
    np.testing.assert_allclose(gradient_outer_product(X, W, phases, a), expected, rtol=1e-5, atol=1e-6)


def test_rows_are_summed_in_blocks():
    rng = np.random.default_rng(0)
    X, W, phases, a = rng.normal(size=(5000, 2)), rng.normal(size=(3, 2)), rng.random(3), rng.normal(size=(3, 1))
    halves = [gradient_outer_product(part, W, phases, a) for part in (X[:2500], X[2500:])]
    np.testing.assert_allclose(gradient_outer_product(X, W, phases, a), sum(halves) / 2, rtol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_root_squared_is_the_matrix_to_scale(seed, d):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(d, d))
    M = half @ half.T + 0.1 * np.eye(d)
    factor = root(M, 0.5)
    np.testing.assert_allclose(factor @ factor, M / np.trace(M) * d, atol=1e-4)
    assert (factor**2).sum() == pytest.approx(d)
    diagonal = root(M, 0.5, "diagonal")
    np.testing.assert_allclose(diagonal**2, np.diag(M) / np.diag(M).mean(), rtol=1e-3)


def test_no_gradient_is_no_metric():
    np.testing.assert_array_equal(root(np.zeros((3, 3)), 0.5), np.eye(3))
    np.testing.assert_array_equal(root(np.zeros((3, 3)), 0.5, "diagonal"), np.ones(3))


def test_a_factor_serves_inputs_and_frequencies():
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    for factor in (rng.random(3), root(np.cov(X.T), 0.5)):
        np.testing.assert_allclose(apply_factor(X, factor) @ W.T, X @ apply_factor(W, factor).T, atol=1e-12)


# -- scripted fits


def scripted(errors):
    """A fit whose errors are read from a list: the isotropic one first."""
    told = iter(errors)
    return lambda factor, near: Judged(next(told), 1.0, lambda: np.diag([4.0, 1.0]))


def test_the_best_round_is_kept_and_rounds_end_when_one_is_worse():
    metric = learn_metric(scripted([1.0, 0.9, 0.7, 0.8]), 2, forms=("diagonal",), powers=(0.5,), rounds=9)
    assert metric.error == 0.7
    assert metric.learned
    assert len(metric.history) == 4, "the third round is worse, and the last"
    np.testing.assert_allclose(metric.factor, root(np.diag([4.0, 1.0]), 0.5, "diagonal"))


def test_the_better_form_and_power_win():
    errors = [1.0, 0.9, 0.8, 0.6, 0.95]  # isotropic, full at two powers, diagonal at two powers
    metric = learn_metric(scripted(errors), 2, rounds=1, powers=(0.5, 0.25))
    assert metric.error == 0.6
    np.testing.assert_allclose(metric.factor, root(np.diag([4.0, 1.0]), 0.5, "diagonal"))


@pytest.mark.parametrize("others", [[1.2, 1.3, 1.1, 1.4], [0.999, 0.998, 0.997, 0.999]])
def test_no_clear_gain_is_no_metric(others):
    metric = learn_metric(scripted([1.0, *others]), 2, rounds=1)
    assert not metric.learned
    assert metric.error == metric.isotropic_error == 1.0
    np.testing.assert_array_equal(metric.factor, np.ones(2))


def test_there_are_two_forms():
    with pytest.raises(InputError, match="full or diagonal"):
        learn_metric(scripted([1.0]), 2, forms=("round",))


# -- fits with Fourier features


def fits_for(X, Y, task="regression", F=60):
    half, d = len(X) // 2, X.shape[1]
    kernel = make_kernel("gaussian", length_scale=np.sqrt(d / 2))
    return FourierFits(X[:half], Y[:half], X[half:], Y[half:], task, draw("orthogonal", kernel, F, d, 0).dense())


def test_a_metric_finds_the_columns_that_matter():
    X = np.random.default_rng(0).normal(size=(2000, 10))
    metric = learn_metric(fits_for(X, np.sin(2 * X[:, 0]) * X[:, 1]), 10)
    assert metric.error < 0.3 * metric.isotropic_error
    weights = np.abs(metric.factor) if metric.factor.ndim == 1 else np.abs(np.diag(metric.factor))
    assert weights[:2].min() > 3 * weights[2:].max()


def test_a_full_metric_finds_a_direction_between_columns():
    X = np.random.default_rng(0).normal(size=(2000, 8))
    direction = np.ones(8) / np.sqrt(8)
    metric = learn_metric(fits_for(X, np.sin(3 * X @ direction)), 8)
    assert metric.factor.ndim == 2
    vector = np.linalg.eigh(metric.factor)[1][:, -1]
    assert abs(vector @ direction) > 0.95


def test_classes_and_several_outputs_have_metrics():
    X = np.random.default_rng(0).normal(size=(1500, 8))
    labels = np.digitize(X[:, 0] * X[:, 1], [-0.4, 0.4])
    assert learn_metric(fits_for(X, np.eye(3)[labels], "classification"), 8, rounds=2).learned


def test_targets_that_use_every_direction_alike_lose_nothing():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 4))
    metric = learn_metric(fits_for(X, np.exp(-(X**2).sum(axis=1) / 4)), 4)
    assert metric.error <= metric.isotropic_error


def test_widths_are_tuned_at_each_fit():
    X = np.random.default_rng(0).normal(size=(600, 3))
    narrow = fits_for(X, np.sin(4 * X[:, 0]))(np.ones(3))
    wide = fits_for(X, 0.2 * X[:, 0])(np.ones(3))
    assert narrow.scale > 2 * wide.scale


def test_errors_are_those_of_ridge_regression_written_out():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(300, 2)), rng.normal(size=(300, 1))
    fits = fits_for(X, Y, F=5)
    judged = fits(np.array([2.0, 0.5]))
    W = fits.W0 * judged.scale * [2.0, 0.5]
    Y = (Y - Y.mean()) / Y.std()
    Z = np.concatenate([np.cos(X @ W.T), np.sin(X @ W.T)], axis=1)
    centre, middle = Z[:150].mean(axis=0), Y[:150].mean(axis=0)
    errors = []
    for ridge in 10.0 ** np.arange(-6, 1):
        A = (Z[:150] - centre).T @ (Z[:150] - centre) / 150 + ridge * np.eye(10)
        a = np.linalg.solve(A, (Z[:150] - centre).T @ (Y[:150] - middle) / 150)
        errors.append((((Z[150:] - centre) @ a + middle - Y[150:]) ** 2).mean())
    assert judged.error == pytest.approx(min(errors), rel=1e-3)
