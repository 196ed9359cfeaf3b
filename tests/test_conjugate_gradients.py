"""Conjugate gradients against dense solves; stopping, resuming and warm starts."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrf.solvers.conjugate_gradients import CGState, ConjugateGradients, jacobi
from streamrf.support.errors import FileFormatError, InputError, MismatchError, NumericalError


@dataclass
class DenseSystem:
    A: np.ndarray
    precision: type = np.float64
    products: int = 0
    rows: list = field(default_factory=list)

    def product(self, V):
        self.products += 1
        return np.stack([self.A @ v for v in V])  # row by row, so that the others cannot change its bits

    def rounded(self, V):
        return V.astype(self.precision).astype(np.float64)


def problem(m=30, k=3, seed=0, condition=50.0):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((m, m)))[0]
    A = (Q * np.geomspace(1, condition, m)) @ Q.T
    return (A + A.T) / 2, rng.standard_normal((k, m))


def begin(A, B, ridge=0.1, start=None, precision=np.float64):
    return ConjugateGradients.begin(DenseSystem(A, precision), B, ridge, jacobi(np.diag(A), ridge), start)


def solved(A, B, ridge):
    ridges = np.broadcast_to(ridge, len(B))
    return np.stack([np.linalg.solve(A + r * np.eye(len(A)), b) for r, b in zip(ridges, B, strict=True)])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), m=st.integers(1, 40), k=st.integers(1, 4))
def test_the_solution_is_that_of_a_dense_solve(seed, m, k):
    A, B = problem(m, k, seed)
    np.testing.assert_allclose(begin(A, B).run(5 * m + 10), solved(A, B, 0.1), rtol=1e-6, atol=1e-8)


def test_each_output_may_have_its_own_lambda():
    A, B = problem()
    ridge = np.array([0.0, 1.0, 30.0])
    np.testing.assert_allclose(begin(A, B, ridge).run(200), solved(A, B, ridge), rtol=1e-6, atol=1e-8)


def test_outputs_solved_together_have_the_bits_of_each_alone():
    A, B = problem(k=4)
    together = begin(A, B).run(12)
    alone = np.concatenate([begin(A, b[None]).run(12) for b in B])
    assert (together == alone).all()


def test_jacobi_undoes_bad_scaling():
    A, B = problem(condition=5.0)
    scale = np.geomspace(1, 1e4, len(A))
    A, B = A * scale * scale[:, None], B * scale
    plain = ConjugateGradients.begin(DenseSystem(A), B, 0.0, np.copy)
    scaled = ConjugateGradients.begin(DenseSystem(A), B, 0.0, jacobi(np.diag(A), 0.0))
    error = [np.abs(cg.run(25) / solved(A, B, 0.0) - 1).max() for cg in (plain, scaled)]
    assert error[1] < 1e-3 < error[0]


def test_directions_rounded_to_less_precision_still_lead_to_the_solution():
    A, B = problem()
    found = begin(A, B, precision=np.float32).run(300, tolerance=1e-12)
    np.testing.assert_allclose(found, solved(A, B, 0.1), rtol=1e-9, atol=1e-10)


def test_it_stops_when_the_residual_is_small():
    A, B = problem()
    cg = begin(A, B)
    cg.run(500, tolerance=1e-3)
    steps = cg.state.iteration
    assert 3 < steps < 40
    assert cg.relative_residual <= 1e-3
    x, residual = cg.state.solution, B - cg.state.solution @ (A + 0.1 * np.eye(len(A)))
    np.testing.assert_allclose(cg.state.residual, residual, atol=1e-9 * np.abs(x).max())


def test_a_zero_right_hand_side_has_the_zero_solution_and_costs_nothing():
    A, B = problem(k=2)
    cg = begin(A, np.zeros_like(B))
    assert (cg.run(10) == 0).all()
    assert cg.system.products == 0
    B[0] = 0
    found = begin(A, B).run(200)
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1], solved(A, B, 0.1)[1], rtol=1e-6)


def scripted(scores):
    """A score that says what it is told, one value a step, and keeps what it was shown."""
    shown, values = [], iter(scores)

    def score(solution):
        shown.append(solution.copy())
        return next(values)

    return score, shown


@pytest.mark.parametrize(
    ("scores", "patience", "steps", "best"),
    [
        ([5, 4, 3, 3.5, 3.2, 9], 2, 5, 3),
        ([5, 4, 3, 3.5, 2, 3, 3, 9], 2, 7, 5),
        ([5, 6, 9], 1, 2, 1),
        ([5, 4.999, 4.998, 9], 2, 3, 1),
        ([5, 4, 3, 2, 1], 2, 5, 5),
    ],
)
def test_the_score_stops_it_and_the_best_solution_is_kept(scores, patience, steps, best):
    A, B = problem()
    cg, (score, shown) = begin(A, B), scripted(scores)
    found = cg.run(5 if len(scores) == 5 else 50, score=score, patience=patience)
    assert (cg.state.iteration, cg.state.best_iteration) == (steps, best)
    assert (found == shown[best - 1]).all()
    assert cg.state.best_score == scores[best - 1]


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(stop):
    A, B = problem()
    scores = [9, 8, 7, 6, 5, 4, 5, 5, 5]
    whole = begin(A, B)
    expected = whole.run(20, score=scripted(scores)[0], patience=3)
    first = begin(A, B)
    first.run(stop, score=scripted(scores)[0], patience=3)
    arrays = {name: array.copy() for name, array in first.state.arrays().items()}
    resumed = ConjugateGradients(DenseSystem(A), 0.1, jacobi(np.diag(A), 0.1), CGState.load(arrays))
    found = resumed.run(20, score=scripted(scores[stop:])[0], patience=3)
    assert (found == expected).all()
    for name, array in whole.state.arrays().items():
        assert (resumed.state.arrays()[name] == array).all()


def test_a_warm_start_needs_fewer_steps():
    A, B = problem(m=60, condition=1e3)
    cold = begin(A, B, 1.0)
    near = cold.run(500)
    again = begin(A, B, 1.1)
    again.run(500, tolerance=1e-4)
    warm = begin(A, B, 1.1, start=near)
    np.testing.assert_allclose(warm.run(500, tolerance=1e-4), solved(A, B, 1.1), atol=1e-3)
    assert warm.state.iteration < again.state.iteration
    exact = begin(A, B, 1.0, start=near)
    exact.run(500, tolerance=1e-8)
    assert exact.state.iteration <= 1


def test_every_step_is_announced():
    A, B = problem()
    seen = []
    begin(A, B).run(4, after_step=lambda state: seen.append(state.iteration))
    assert seen == [1, 2, 3, 4]


def test_what_cannot_be_is_refused():
    A, B = problem()
    with pytest.raises(InputError, match="lambda"):
        begin(A, B, -1.0)
    with pytest.raises(MismatchError, match="start"):
        begin(A, B, start=np.zeros((1, 2)))
    with pytest.raises(FileFormatError, match="rho"):
        CGState.load({name: array for name, array in begin(A, B).state.arrays().items() if name != "rho"})
    A[3, 3] = np.inf
    with np.errstate(all="ignore"), pytest.raises(NumericalError, match="step 1"):
        ConjugateGradients.begin(DenseSystem(A), B, 0.1, np.copy).run(3)


def test_another_lambda_goes_on_without_a_product():
    A, B = problem()
    cg = begin(A, B, ridge=1.0)
    cg.run(7)
    before = cg.system.products
    other = cg.at_ridge(0.1, B, jacobi(np.diag(A), 0.1))
    assert cg.system.products == before
    fresh = begin(A, B, ridge=0.1, start=cg.state.solution)
    np.testing.assert_allclose(other.state.residual, fresh.state.residual, atol=1e-10)
    np.testing.assert_allclose(other.relative_residual, fresh.relative_residual, rtol=1e-8)
    np.testing.assert_allclose(other.run(300), solved(A, B, 0.1), rtol=1e-6, atol=1e-8)
