"""Frequencies and weights learned from landmarks: formulas beside naive ones, and what learning promises."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from streamrf.features.fourier import draw
from streamrf.features.kernels import make_kernel
from streamrf.features.learned.ekal import (
    Adam,
    Clusters,
    Landmarks,
    Pairs,
    ekal_gradient,
    ekal_loss,
    fit_weights,
    kernel_values,
    learn_ekal,
    relative_error,
    sample_landmarks,
    solve_weights,
    typical_size,
    weight_equations,
)
from streamrf.features.learned.unsupervised import learn_fresh, learn_kernel_features
from streamrf.support.errors import DataError, InputError, MismatchError

KERNELS = ("gaussian", "laplacian", "cauchy", "matern32")


def curved_rows(n, d, seed=0):
    """Rows near a two-dimensional surface in d columns: the data that learned features are for."""
    rng = np.random.default_rng(seed)
    flat = rng.normal(size=(n, 2))
    return np.tanh(flat @ rng.normal(size=(2, d))) * 2 + 0.1 * rng.normal(size=(n, d))


def naive_loss(kernel, left, right, left_weights, right_weights, W, p):
    total = 0.0
    for x, u in zip(left, left_weights, strict=True):
        for y, v in zip(right, right_weights, strict=True):
            approximation = sum(weight * np.cos(w @ (x - y)) for w, weight in zip(W, p, strict=True))
            total += u * v * (approximation - kernel(x[None], y[None])[0, 0]) ** 2
    return total


def some_pairs(seed, n, m, d, within, kernel=None):
    rng = np.random.default_rng(seed)
    kernel = kernel or make_kernel("gaussian", length_scale=1.5)
    draws = []
    for count in (n, m):
        weights = rng.random(count) + 0.1
        draws.append(Landmarks(rng.normal(size=(count, d)), weights / weights.sum()))
    pairs = Pairs.within(kernel, *draws[0]) if within else Pairs.between(kernel, *draws)
    F = int(rng.integers(1, 5))
    return pairs, kernel, rng.normal(size=(F, d)), rng.random(F)


shapes = st.tuples(st.integers(0, 10**6), st.integers(2, 5), st.integers(2, 5), st.integers(1, 4), st.booleans())


@given(shapes)
@settings(max_examples=30, deadline=None)
def test_the_loss_is_the_weighted_mean_over_pairs(shape):
    pairs, kernel, W, p = some_pairs(*shape)
    expected = naive_loss(kernel, pairs.left, pairs.right, pairs.left_weights, pairs.right_weights, W, p)
    assert ekal_loss(pairs, W, p) == pytest.approx(expected, rel=1e-10, abs=1e-14)


@given(shapes)
@settings(max_examples=30, deadline=None)
def test_the_gradient_is_that_of_finite_differences(shape):
    pairs, _, W, p = some_pairs(*shape)
    loss, slope = ekal_gradient(pairs, W, p)
    assert loss == pytest.approx(ekal_loss(pairs, W, p), rel=1e-12)
    step = 1e-5
    for at in np.ndindex(*W.shape):
        move = np.zeros_like(W)
        move[at] = step
        difference = (ekal_loss(pairs, W + move, p) - ekal_loss(pairs, W - move, p)) / (2 * step)
        assert slope[at] == pytest.approx(difference, rel=1e-5, abs=1e-9)


def test_the_paper_writes_half_of_the_gradient():
    pairs, _, W, p = some_pairs(3, 6, 0 + 2, 3, True)
    C, S, q = np.cos(pairs.left @ W.T), np.sin(pairs.left @ W.T), np.sqrt(pairs.left_weights)
    R = (C @ np.diag(p) @ C.T + S @ np.diag(p) @ S.T - pairs.kernel) * np.outer(q, q)
    by_C, by_S = (2 * (R * np.outer(q, q)) @ side @ np.diag(p) for side in (C, S))
    formula_6 = pairs.left.T @ (-S * by_C + C * by_S)
    np.testing.assert_allclose(ekal_gradient(pairs, W, p)[1], 2 * formula_6.T, rtol=1e-12)


@given(shapes)
@settings(max_examples=30, deadline=None)
def test_the_loss_is_a_quadratic_in_the_weights(shape):
    pairs, _, W, p = some_pairs(*shape)
    A, b = weight_equations(pairs, *pairs.waves(W))
    assert p @ A @ p - 2 * b @ p + pairs.kernel_square == pytest.approx(ekal_loss(pairs, W, p), rel=1e-9, abs=1e-13)


@given(st.integers(0, 10**6), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_weights_are_the_exact_solution_of_the_quadratic_programme(seed, F):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(F + 3, F))
    A, b = root.T @ root, rng.normal(size=F)
    p = solve_weights(A, b, decay=0.5)
    L = np.linalg.cholesky(A + 0.5 / F * np.eye(F))
    np.testing.assert_allclose(p, nnls(L.T, np.linalg.solve(L, b))[0], atol=1e-9)


def test_no_weights_are_better_than_the_solution():
    pairs, _, W, _ = some_pairs(5, 5, 5, 3, True)
    p, rng = fit_weights(pairs, W, decay=0.0), np.random.default_rng(0)
    least = ekal_loss(pairs, W, p)
    assert all(ekal_loss(pairs, W, np.abs(p + 0.1 * rng.normal(size=len(p)))) >= least for _ in range(100))


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_values_are_those_of_the_kernel(name):
    kernel = make_kernel(name, length_scale=1.3)
    X, Y = curved_rows(20, 5), curved_rows(30, 5, seed=1)
    np.testing.assert_allclose(kernel_values(kernel, X, Y), kernel(X, Y), atol=1e-7)
    # a matern kernel has a kink at 0, where a squared distance by a matrix product is off by rounding
    np.testing.assert_allclose(kernel_values(kernel, X, X), kernel(X, X), atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_the_loss_never_rises_from_one_iteration_to_the_next(name):
    kernel = make_kernel(name, length_scale=2.0)
    X = curved_rows(60, 6)
    learned = learn_ekal(X, None, kernel, draw("mc", kernel, 30, 6, 0).dense(), iterations=8, steps=5)
    losses = [step.loss for step in learned.history]
    assert len(losses) == 9
    assert all(after <= before for before, after in pairwise(losses))
    assert losses[-1] < 0.5 * losses[0]


def test_unseen_pairs_choose_the_iteration():
    kernel = make_kernel("gaussian", length_scale=4.0)
    X, W0 = np.random.default_rng(0).normal(size=(500, 40)), draw("mc", kernel, 20, 40, 0).dense()
    unseen = Pairs.within(kernel, X[20:])
    stopped = learn_ekal(X[:20], None, kernel, W0, unseen=unseen, iterations=40)
    errors = [step.error for step in stopped.history]
    assert relative_error(unseen, stopped.W, stopped.p) == min(errors)
    assert len(errors) < 41, "twenty landmarks in forty columns are learned by heart, and it should have stopped"
    by_heart = learn_ekal(X[:20], None, kernel, W0, iterations=40)
    assert by_heart.history[-1].loss < stopped.history[-1].loss
    assert relative_error(unseen, by_heart.W, by_heart.p) > min(errors)


def test_frequencies_must_fit_the_rows():
    kernel = make_kernel("gaussian")
    with pytest.raises(MismatchError, match="3 columns"):
        learn_ekal(np.zeros((4, 3)), None, kernel, np.zeros((5, 2)))
    with pytest.raises(MismatchError, match="4 landmarks"):
        learn_ekal(np.zeros((4, 3)), np.ones(3), kernel, np.zeros((5, 3)))
    with pytest.raises(DataError, match="two rows"):
        learn_ekal(np.zeros((1, 3)), None, kernel, np.zeros((5, 3)))


# -- landmarks


def test_sampled_landmarks_are_different_rows_of_equal_weight():
    X = np.arange(40.0).reshape(20, 2)
    landmarks = sample_landmarks(X, 20, np.random.default_rng(0))
    assert sorted(landmarks.X[:, 0]) == sorted(X[:, 0])
    assert set(landmarks.weights) == {1 / 20}
    with pytest.raises(DataError, match="21 landmarks"):
        sample_landmarks(X, 21, np.random.default_rng(0))


def test_clusters_partition_the_rows():
    X = curved_rows(300, 4)
    clusters = Clusters.find(X, 12, seed=0)
    assert clusters.weights.sum() == pytest.approx(1.0)
    assert sorted(map(tuple, clusters.X)) == sorted(map(tuple, X))
    centres, closest = clusters.centres(), clusters.closest()
    members = clusters.members(np.random.default_rng(0))
    for i, (start, size) in enumerate(zip(clusters.starts, clusters.sizes, strict=True)):
        own = clusters.X[start : start + size]
        np.testing.assert_allclose(centres.X[i], own.mean(axis=0))
        np.testing.assert_array_equal(closest.X[i], own[np.argmin(((own - own.mean(axis=0)) ** 2).sum(axis=1))])
        assert (members.X[i] == own).all(axis=1).any()
    with pytest.raises(DataError, match="301 clusters"):
        Clusters.find(X, 301, seed=0)


def test_clusters_of_equal_rows_are_fewer_than_asked_for():
    X = np.repeat(np.arange(3.0), 10)[:, None]
    clusters = Clusters.find(X, 5, seed=0)
    assert sorted(clusters.centres().X[:, 0]) == [0.0, 1.0, 2.0]


def test_two_draws_of_members_give_the_loss_of_all_rows_without_bias():
    kernel, rng = make_kernel("gaussian", length_scale=2.0), np.random.default_rng(0)
    X, W, p = curved_rows(200, 3), rng.normal(size=(4, 3)), np.full(4, 0.25)
    clusters = Clusters.find(X, 20, seed=0)
    losses = [ekal_loss(Pairs.between(kernel, clusters.members(rng), clusters.members(rng)), W, p) for _ in range(2000)]
    truth = ekal_loss(Pairs.within(kernel, X), W, p)
    assert abs(np.mean(losses) - truth) < 4 * np.std(losses) / np.sqrt(len(losses))


# -- fresh landmarks, and the whole


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("landmarks", ["sample", "cluster"])
def test_learning_beats_its_start_for_every_kernel(name, landmarks):
    kernel = make_kernel(name, length_scale=2.0)
    X = curved_rows(1500, 6)
    found = learn_kernel_features(X[:1000], kernel, draw("mc", kernel, 40, 6, 0).dense(), landmarks=landmarks)
    test = Pairs.within(kernel, X[1000:])
    start = draw("mc", kernel, 40, 6, 0)
    assert found.chosen == landmarks
    assert relative_error(test, found.learned.W, found.learned.p) < 0.6 * relative_error(test, start.W, start.weights)
    assert found.losses[1] < found.losses[0]
    assert (found.learned.p >= 0).all()


def test_fresh_landmarks_beat_fixed_ones_where_these_are_few():
    kernel = make_kernel("gaussian", length_scale=3.0)
    X = curved_rows(2000, 20)
    W0 = draw("orthogonal", kernel, 30, 20, 0).dense()
    fixed, fresh = (learn_kernel_features(X, kernel, W0, fresh=choice) for choice in (False, True))
    assert set(fixed.errors) == {"start", "centres", "closest"}
    assert fresh.errors[fresh.chosen] < 0.8 * fixed.errors[fixed.chosen] < 0.8 * fixed.errors["start"]


def test_the_start_comes_back_where_nothing_is_better():
    X = np.zeros((100, 3))  # every kernel value is 1, and so is every approximation
    kernel = make_kernel("gaussian")
    W0 = draw("mc", kernel, 10, 3, 0).dense()
    found = learn_kernel_features(X, kernel, W0, landmarks="sample")
    assert found.chosen == "start"
    np.testing.assert_array_equal(found.learned.W, W0)


def test_learning_is_reproducible_from_its_seed():
    kernel, X = make_kernel("gaussian", length_scale=2.0), curved_rows(300, 4)
    W0 = draw("mc", kernel, 10, 4, 0).dense()
    first, again, other = (learn_kernel_features(X, kernel, W0, seed=seed).learned for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.W, again.W)
    np.testing.assert_array_equal(first.p, again.p)
    assert not np.array_equal(first.W, other.W)


def test_history_tells_where_learning_began_and_ended():
    kernel, X = make_kernel("gaussian", length_scale=2.0), curved_rows(300, 4)
    W0, unseen = draw("mc", kernel, 10, 4, 0).dense(), Pairs.within(kernel, X[:100])
    rng = np.random.default_rng(0)
    learned = learn_fresh(lambda: sample_landmarks(X[100:], 10, rng), kernel, W0, iterations=13, steps=4, unseen=unseen)
    assert learned.history[0].error == pytest.approx(relative_error(unseen, W0, np.full(10, 0.1)), rel=1e-4)
    assert learned.history[-1].iteration == 13
    assert learned.history[-1].error == pytest.approx(relative_error(unseen, learned.W, learned.p), rel=1e-4)


def test_refusals_say_what_to_give():
    kernel, W0 = make_kernel("gaussian"), np.zeros((5, 2))
    with pytest.raises(InputError, match="sample or cluster"):
        learn_kernel_features(np.zeros((50, 2)), kernel, W0, landmarks="grid")
    with pytest.raises(DataError, match="16 rows"):
        learn_kernel_features(np.zeros((5, 2)), kernel, W0)


# -- the optimiser


def test_the_first_step_has_the_size_that_was_asked_for():
    W = Adam(0.1, total=10).move(np.zeros(3), np.array([1e-8, -5.0, 3e6]))
    np.testing.assert_allclose(W, [-0.1, 0.1, -0.1], rtol=1e-6)


def test_steps_end_at_zero():
    adam, W = Adam(0.1, total=5), np.zeros(1)
    for _ in range(5):
        W = adam.move(W, np.ones(1))
    np.testing.assert_array_equal(adam.move(W, np.ones(1)), W)


def test_typical_size_is_a_standard_deviation_that_tails_do_not_sway():
    rng = np.random.default_rng(0)
    W = 3.0 * rng.normal(size=(200, 50))
    assert typical_size(W) == pytest.approx(3.0, rel=0.05)
    W[0, 0] = 1e12
    assert typical_size(W) == pytest.approx(3.0, rel=0.05)


def test_fixed_landmarks_heed_the_iterations_and_steps_that_they_report():
    rng = np.random.default_rng(0)
    X, kernel = rng.standard_normal((2000, 5)), make_kernel("gaussian", length_scale=1.6)
    W0 = kernel.sample(rng, 50, 5)
    few, many = (
        learn_kernel_features(X, kernel, W0, landmarks="sample", fresh=False, iterations=T, steps=S)
        for T, S in ((1, 1), (20, 10))
    )
    assert (few.report()["iterations"], few.report()["steps"], len(few.learned.history)) == (1, 1, 2)
    assert many.report()["iterations"] == 20
    assert many.errors[many.chosen] < few.errors[few.chosen]
