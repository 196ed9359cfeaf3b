"""Frequencies learned from targets: slopes beside finite differences, the machine beside scipy, and what is learned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from streamrf.features.fourier import draw
from streamrf.features.kernels import make_kernel
from streamrf.features.learned import machine
from streamrf.features.learned.machine import LOSSES, Fit, Moments, Products, least_squares, loss_named
from streamrf.features.learned.supervised import (
    Rows,
    default_rounds,
    features,
    learn_supervised,
    mistakes,
    prediction_slope,
    prepared,
)
from streamrf.support.errors import DataError, InputError, MismatchError

VALUES = {
    "squared": lambda g, t: (g - t) ** 2,
    "hinge": lambda g, t: np.maximum(0.0, 1.0 - t * g) ** 2,
    "logistic": lambda g, t: np.log1p(np.exp(-t * g)),
}


def mean_loss(name, Z, Y, coefficients, intercept):
    return VALUES[name](Z @ coefficients + intercept, Y).sum(axis=1).mean()


def signs(rng, n, k):
    return np.where(rng.random((n, k)) < 0.5, -1.0, 1.0)


# -- slopes


@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from(sorted(LOSSES)))
@settings(max_examples=30, deadline=None)
def test_the_slope_in_the_frequencies_is_that_of_finite_differences(seed, k, name):
    rng = np.random.default_rng(seed)
    X, W = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    Y, fit = signs(rng, 7, k), Fit(rng.normal(size=(8, k)), rng.normal(size=k))
    slope = prediction_slope(Rows(X, Y), W, fit, loss_named(name))
    for at in np.ndindex(*W.shape):
        move = np.zeros_like(W)
        move[at] = 1e-6
        above, below = (mean_loss(name, features(X, W + sign * move), Y, *fit) for sign in (1, -1))
        assert slope[at] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-6)


# -- the machine


def test_squares_are_fitted_in_closed_form():
    rng = np.random.default_rng(0)
    Z, Y, gamma = rng.normal(size=(50, 6)), rng.normal(size=(50, 2)), 0.3
    fit = LOSSES["squared"].fit(Z, Y, gamma)
    centred, targets = Z - Z.mean(axis=0), Y - Y.mean(axis=0)
    expected = np.linalg.solve(centred.T @ centred / 50 + gamma * np.eye(6), centred.T @ targets / 50)
    np.testing.assert_allclose(fit.coefficients, expected, rtol=1e-5)
    np.testing.assert_allclose(fit.scores(Z).mean(axis=0), Y.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("name", ["hinge", "logistic"])
def test_other_losses_are_minimised_by_reweighting(name):
    rng = np.random.default_rng(1)
    Z, gamma = rng.normal(size=(200, 4)), 0.05
    Y = np.sign(Z @ rng.normal(size=(4, 2)) + rng.normal(size=(200, 2)))

    def objective(a):
        coefficients = a[:8].reshape(4, 2)
        return mean_loss(name, Z, Y, coefficients, a[8:]) + gamma * (coefficients**2).sum()

    fit = None
    for _ in range(5):
        fit = LOSSES[name].fit(Z, Y, gamma, fit)
    found = minimize(objective, np.zeros(10), method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose(fit.coefficients, found.x[:8].reshape(4, 2), atol=1e-3)
    np.testing.assert_allclose(fit.intercept, found.x[8:], atol=1e-3)


def test_weighted_moments_are_those_of_repeated_rows():
    rng = np.random.default_rng(2)
    Z, Y, times = rng.normal(size=(40, 3)), rng.normal(size=(40, 1)), rng.integers(0, 4, 40)
    weighted = Moments.of(Z, Y, times.astype(float))
    repeated = Moments.of(np.repeat(Z, times, axis=0), np.repeat(Y, times, axis=0))
    np.testing.assert_allclose(weighted.square * 40, repeated.square * times.sum(), atol=1e-10)
    np.testing.assert_allclose(weighted.cross * 40, repeated.cross * times.sum(), atol=1e-10)
    np.testing.assert_allclose(weighted.target_mean, repeated.target_mean)


@pytest.mark.parametrize("weighted", [False, True])
def test_products_with_rows_find_what_moments_find(weighted):
    rng = np.random.default_rng(4)
    Z, Y = rng.normal(size=(80, 5)) + 1.0, rng.normal(size=(80, 2))
    weights = rng.random(80) if weighted else None
    near, exact = Products(Z, Y, weights).ridge(0.2), Moments.of(Z, Y, weights).ridge(0.2)
    np.testing.assert_allclose(near.coefficients, exact.coefficients, atol=2e-3 * np.abs(exact.coefficients).max())
    np.testing.assert_allclose(near.scores(Z), exact.scores(Z), atol=5e-3)
    again = Products(Z, Y, weights).ridge(0.2, exact)
    np.testing.assert_allclose(again.coefficients, exact.coefficients, atol=1e-5)


def test_many_features_are_fitted_by_products():
    few, many = np.zeros((3, machine.DENSE)), np.zeros((3, machine.DENSE + 1))
    assert isinstance(least_squares(few, np.zeros((3, 1))), Moments)
    assert isinstance(least_squares(many, np.zeros((3, 1))), Products)


def test_features_that_repeat_one_another_are_fitted_all_the_same():
    rng = np.random.default_rng(3)
    Z = np.repeat(rng.normal(size=(5000, 1)), 60, axis=1).astype(np.float32)
    fit = Moments.of(Z, Z[:, :1]).ridge(0.0)
    np.testing.assert_allclose(fit.scores(Z), Z[:, :1], atol=1e-2)


def test_there_is_no_other_loss():
    with pytest.raises(InputError, match="squared, hinge, logistic"):
        loss_named("absolute")


# -- targets and errors


def test_numbers_are_standardised_and_classes_become_signs():
    X = np.zeros((8, 1))
    numbers = prepared(X, np.arange(8.0), "regression").Y
    assert numbers.mean() == pytest.approx(0.0, abs=1e-6)
    assert numbers.std() == pytest.approx(1.0, rel=1e-6)
    one_hot = np.eye(3)[[0, 1, 2, 0, 1, 2, 0, 1]]
    np.testing.assert_array_equal(prepared(X, one_hot, "classification").Y, 2 * one_hot - 1)
    np.testing.assert_array_equal(prepared(X, np.full(8, 7.0), "regression").Y, 0)


def test_refusals_name_both_numbers():
    X = np.zeros((10, 1))
    with pytest.raises(MismatchError, match="10 rows and 9 targets"):
        prepared(X, np.zeros(9), "regression")
    with pytest.raises(DataError, match="at least 8 rows, and there are 3"):
        prepared(X[:3], np.zeros(3), "regression")
    with pytest.raises(InputError, match="ranking"):
        prepared(X, np.zeros(10), "ranking")


def test_mistakes_count_rows_and_break_ties_by_squares():
    Y = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    good, near = np.array([[0.9], [-0.9], [0.9], [0.1]]), np.array([[0.1], [-0.1], [0.1], [0.1]])
    assert mistakes(good, Y, "classification") == pytest.approx(0.25, abs=2e-3)
    assert mistakes(good, Y, "classification") < mistakes(near, Y, "classification")
    many = np.array([[1.0, -1.0, -1.0], [-1.0, 1.0, -1.0]])
    assert mistakes(many[::-1], many, "classification") == pytest.approx(1.0, abs=3e-3)
    assert mistakes(Y / 2, Y, "regression") == pytest.approx(0.25)


# -- learning


def one_direction(n, d, seed=0):
    """Targets that oscillate along one direction of many: hopeless for an isotropic kernel with few features."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=n)


def start_for(d, F=20):
    kernel = make_kernel("gaussian", length_scale=np.sqrt(d / 2))
    return kernel, draw("orthogonal", kernel, F, d, 0).dense()


def ridge_error(W, ridge, X, Y, X_test, Y_test):
    fit = Moments.of(features(X, W), Y).ridge(ridge)
    return float(((fit.scores(features(X_test, W)) - Y_test) ** 2).mean() / Y_test.var())


def test_frequencies_turn_towards_the_direction_that_matters():
    X, y = one_direction(1600, 8)
    kernel, W0 = start_for(8)
    found = learn_supervised(X[:800], y[:800], "regression", kernel, W0, rounds=10, steps=80)
    train, test = (X[:800], y[:800, None]), (X[800:], y[800:, None])
    assert found.error < 0.5 * found.start_error
    assert ridge_error(found.W, found.ridge, *train, *test) < 0.5 * ridge_error(W0, 1e-2, *train, *test)
    share = (found.W**2).sum(axis=0) / (found.W**2).sum()
    assert share[0] > 2 * share[1:].max()
    np.testing.assert_array_equal(found.p, np.full(20, 1 / 20))


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_classes_are_learned_with_every_loss(loss):
    X, y = one_direction(800, 6)
    kernel, W0 = start_for(6)
    labels = np.digitize(y, [-0.4, 0.4])
    found = learn_supervised(X, np.eye(3)[labels], "classification", kernel, W0, rounds=8, steps=60, loss=loss)
    assert found.error < 0.7 * found.start_error


def test_several_outputs_are_learned_together():
    X, y = one_direction(800, 6)
    Y = np.stack([y, np.sin(2.0 * X[:, 1])], axis=1)
    kernel, W0 = start_for(6)
    found = learn_supervised(X, Y, "regression", kernel, W0, rounds=10, steps=80)
    assert found.error < 0.5 * found.start_error
    energy = (found.W**2).sum(axis=0)
    assert energy[:2].min() > energy[2:].max()


def test_a_settings_best_round_is_what_comes_back_without_refit():
    X, y = one_direction(400, 4)
    kernel, W0 = start_for(4)
    found = learn_supervised(X, y, "regression", kernel, W0, rounds=8, steps=20, etas=(0.0, 10.0), refit=False, seed=3)
    assert set(found.history) == {(0.1, 0.0), (0.3, 0.0), (1.0, 0.0), (found.setting.gamma, 10.0)}
    assert found.error == min(check.error for check in found.history[found.setting])
    everything = learn_supervised(X, y, "regression", kernel, W0, rounds=8, steps=20, seed=3)
    assert everything.error == found.error
    assert not np.array_equal(everything.W, found.W)


def test_the_start_comes_back_where_there_is_nothing_to_learn():
    rng = np.random.default_rng(0)
    kernel, W0 = start_for(5)
    found = learn_supervised(rng.normal(size=(60, 5)), np.zeros(60), "regression", kernel, W0, rounds=2, steps=10)
    np.testing.assert_array_equal(found.W, W0)
    assert found.error == found.start_error


def test_many_frequencies_take_fewer_rounds_and_too_many_are_refused():
    assert default_rounds(200) == default_rounds(512) == 30
    assert default_rounds(2500) == 8
    kernel, _ = start_for(2)
    with pytest.raises(InputError, match="at most 5,000 frequencies, not 5,001"):
        learn_supervised(np.zeros((20, 2)), np.zeros(20), "regression", kernel, np.zeros((5001, 2)))


def test_many_frequencies_are_learned_too(monkeypatch):
    monkeypatch.setattr(machine, "DENSE", 16)
    X, y = one_direction(1200, 6)
    kernel, W0 = start_for(6, F=60)
    found = learn_supervised(X, y, "regression", kernel, W0, rounds=8, steps=60, gammas=(0.3,), etas=(0.0,))
    assert found.error < 0.6 * found.start_error


def test_losses_of_classes_are_not_for_numbers():
    kernel, W0 = start_for(2)
    with pytest.raises(InputError, match="hinge loss is for classes and the targets are numbers"):
        learn_supervised(np.zeros((20, 2)), np.zeros(20), "regression", kernel, W0, loss="hinge")


def test_the_report_tells_before_and_after():
    X, y = one_direction(400, 4)
    kernel, W0 = start_for(4)
    found = learn_supervised(X, y, "regression", kernel, W0, rounds=4, steps=20, landmarks=30, seed=3)
    told = found.report()
    assert told["holdout_error"] == {"before": found.start_error, "after": found.error}
    assert told["landmarks"] == 30
    assert told["kernel_error"]["before"] < told["kernel_error"]["after"], "targets pull the kernel away"
    assert len(told["history"]) == sum(map(len, found.history.values()))


def test_learning_is_reproducible_from_its_seed():
    X, y = one_direction(200, 4)
    kernel, W0 = start_for(4)
    first, again, other = (
        learn_supervised(X, y, "regression", kernel, W0, rounds=3, steps=10, seed=seed).W for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
