"""Losses against their definitions and finite differences; L-BFGS against scipy."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize

from streamrf.features.targets import TargetCoding
from streamrf.solvers.newton import LBFGS, LBFGSState
from streamrf.statistics.losses import Hinge, Huber, Logistic, Quantile, check_task
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.quantiles import robust_deviation

LOSSES = {
    "logistic": Logistic(1),
    "multinomial": Logistic(3),
    "hinge": Hinge(1),
    "squared hinge": Hinge(1, 2),
    "squared hinge of classes": Hinge(3, 2),
    "huber": Huber(np.array([0.7, 0.2])),
    "quantile": Quantile(0.8, np.array([0.3])),
}


def rows(loss, n=50, seed=0):
    rng = np.random.default_rng(seed)
    scores = 2 * rng.standard_normal((n, loss.outputs))
    if loss.name in ("huber", "quantile"):
        return scores, rng.standard_normal((n, loss.outputs))
    if loss.outputs == 1:
        return scores, rng.choice([-1.0, 1.0], (n, 1))
    return scores, np.eye(loss.outputs)[rng.integers(0, loss.outputs, n)]


@pytest.mark.parametrize("name", LOSSES)
def test_the_pull_is_the_derivative_of_the_loss(name):
    loss = LOSSES[name]
    scores, targets = rows(loss)
    pulls, _ = loss.of_rows(scores, targets)
    for output in range(loss.outputs):
        step = np.zeros_like(scores)
        step[:, output] = 1e-6
        up, down = (loss.of_rows(scores + sign * step, targets)[1][:, 0] for sign in (1, -1))
        np.testing.assert_allclose(pulls[:, output], (up - down) / 2e-6, atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_no_pull_is_beyond_its_bound(name):
    loss = LOSSES[name]
    scores, targets = rows(loss, 500)
    pulls, _ = loss.of_rows(10 * scores, targets)
    assert (np.abs(pulls) <= loss.bounds(np.abs(10 * scores).max(axis=0)) * (1 + 1e-12)).all()


def test_losses_are_what_they_are_called():
    s, t = np.array([[0.5], [-2.0]]), np.array([[1.0], [1.0]])
    assert Logistic(1).values(s, t) == pytest.approx(np.log(1 + np.exp(-s[:, 0])))
    assert Hinge(1).values(s, t) == pytest.approx([0.5, 3.0])
    assert Hinge(1, 2).values(s, t) == pytest.approx([0.25, 9.0])
    assert Huber(np.array([1.0])).values(s, t) == pytest.approx([0.125, 2.5])
    assert Quantile(0.9, np.array([0.1])).values(s, t) == pytest.approx([0.45, 2.7])
    p = np.exp([1.0, 2.0, 0.5]) / np.exp([1.0, 2.0, 0.5]).sum()
    assert Logistic(3).values(np.array([[1.0, 2.0, 0.5]]), np.eye(3)[[1]]) == pytest.approx([-np.log(p[1])])


def test_the_rounded_corner_is_within_a_quarter_of_its_width():
    loss, s = Quantile(0.3, np.array([0.4])), np.linspace(-1, 1, 201)[:, None]
    gap = loss.of_rows(s, np.zeros_like(s))[1][:, 0] - loss.values(s, np.zeros_like(s))
    assert gap.min() >= -1e-15
    assert gap.max() == pytest.approx(0.4 / 4)


def test_robust_deviation_of_normal_residuals_is_theirs_even_with_outliers():
    r = np.random.default_rng(0).standard_normal((20_000, 1))
    r[:500] *= 1000
    assert robust_deviation(r)[0] == pytest.approx(1.0, rel=0.06)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_numbers_have_no_class_losses(loss):
    with pytest.raises(InputError, match="these targets are numbers"):
        check_task(loss, TargetCoding.regression(np.zeros(1), np.ones(1)))


def test_classes_have_no_losses_of_numbers():
    with pytest.raises(InputError, match="these targets are classes"):
        check_task("huber", TargetCoding.classification((0, 1)))


def objective(seed=0, n=200, p=12):
    """A logistic regression of badly scaled columns."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * np.geomspace(1, 30, p)
    t = np.where(X @ rng.standard_normal(p) + 5 * rng.standard_normal(n) > 0, 1.0, -1.0)[:, None]

    def evaluate(theta):
        pulls, losses = Logistic(1).of_rows((X @ theta[0])[:, None], t)
        return float(losses.mean() + 0.01 * (theta**2).sum()), (X.T @ pulls / n).T + 0.02 * theta

    H = X.T @ X / (4 * n) + 0.02 * np.eye(p)
    return evaluate, lambda g: np.linalg.solve(H, g.T).T, p


def run(lbfgs, tolerance=1e-8, most=200):
    while lbfgs.size > tolerance and not lbfgs.stuck and lbfgs.state.evaluations < most:
        lbfgs.step()
    return lbfgs.state


def test_lbfgs_finds_the_minimum_that_scipy_finds():
    evaluate, precondition, p = objective()
    state = run(LBFGS.at(evaluate, precondition, np.zeros((1, p))))
    found = minimize(lambda v: evaluate(v[None])[0], np.zeros(p), jac=lambda v: evaluate(v[None])[1][0], tol=1e-12)
    assert state.value == pytest.approx(found.fun, rel=1e-9)
    np.testing.assert_allclose(state.point[0], found.x, atol=1e-4)


def test_the_preconditioner_saves_most_of_the_passes():
    evaluate, precondition, p = objective()
    with_it = run(LBFGS.at(evaluate, precondition, np.zeros((1, p))), 1e-4).evaluations
    without = run(LBFGS.at(evaluate, lambda g: g.copy(), np.zeros((1, p))), 1e-4).evaluations
    assert with_it <= 20
    assert with_it <= without / 2


def test_a_step_that_is_too_long_is_shortened_until_it_helps():
    evaluate, precondition, p = objective()
    lbfgs = LBFGS.at(evaluate, lambda g: 1000 * precondition(g), np.zeros((1, p)))
    values = []
    for _ in range(40):
        if lbfgs.step():
            values.append(lbfgs.state.value)
    assert all(after <= before for before, after in pairwise(values))
    assert lbfgs.state.evaluations > len(values)


def test_a_run_goes_on_from_its_arrays_to_the_same_bits():
    evaluate, precondition, p = objective()
    whole = LBFGS.at(evaluate, precondition, np.zeros((1, p)))
    half = LBFGS.at(evaluate, precondition, np.zeros((1, p)))
    for _ in range(4):
        half.step()
    kept = {name: array.copy() for name, array in half.state.arrays().items()}
    resumed = LBFGS(evaluate, precondition, LBFGSState.load(kept))
    for _ in range(4):
        resumed.step()
    for _ in range(8):
        whole.step()
    assert np.array_equal(resumed.state.point, whole.state.point)
    with pytest.raises(FileFormatError, match="direction"):
        LBFGSState.load({name: array for name, array in kept.items() if name != "direction"})
