"""Paths of lambda: threads share them and change nothing, and what could not be factored is not tried again."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import scipy

from streamrf.data.source import Block
from streamrf.features.kernels import make_kernel
from streamrf.features.pipeline import build_map
from streamrf.features.precision import make_precision
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.solvers.ridge import Attempt, NormalEquations, RidgeSolver, RidgeTrial
from streamrf.support import lapack
from streamrf.support.lapack import cholesky
from streamrf.support.threads import ALONE, Threads

RIDGES = [10.0**e for e in range(-15, 0)]


def trial(threads: Threads = ALONE, D: int = 90) -> tuple[RidgeTrial, Block]:
    """Far more landmarks than a wide kernel has directions: singular to rounding."""
    X = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    y = X[:, :1] * X[:, 1:]
    kernel, precision = make_kernel("gaussian", length_scale=8.0), make_precision("float64")
    map = build_map("landmarks", kernel, D, 2, form="phase", precision=precision, seed=0, sample=X)
    coding = TargetCoding.regression(y.min(axis=0), y.max(axis=0))
    return RidgeTrial(fit_scaling("none", X), map, coding, threads), Block(X, y, np.arange(len(X)))


def test_a_path_is_the_same_on_any_number_of_threads():
    alone, rows = trial()
    state = alone.sums(rows)
    expected = alone.path(state, RIDGES)
    assert [weights.ridge for weights in expected] == RIDGES
    with Threads(3) as threads:
        for one, other in zip(expected, trial(threads)[0].path(state, RIDGES), strict=True):
            np.testing.assert_array_equal(one.coefficients, other.coefficients)
            assert (one.ridge, one.jitter) == (other.ridge, other.jitter)


def test_a_smaller_shift_than_one_that_failed_is_not_tried(monkeypatch):
    fit, rows = trial()
    equations = NormalEquations.from_state(fit.sums(rows), fit.map, fit.coding)
    tried: list[float] = []
    factor = RidgeSolver._cholesky

    def counted(self: RidgeSolver, ridge: float, attempt: Attempt) -> np.ndarray | None:
        tried.append(ridge + attempt.jitter)
        return factor(self, ridge, attempt)

    monkeypatch.setattr(RidgeSolver, "_cholesky", counted)
    solver = RidgeSolver(equations, ALONE)
    first = solver.solve(0.0)
    assert first.jitter > 0
    assert len(tried) > 1
    tried.clear()
    again = solver.solve(0.0)
    assert len(tried) == 1
    assert again.jitter == first.jitter
    np.testing.assert_array_equal(again.coefficients, first.coefficients)


@pytest.mark.parametrize("items", [0, 1, 2])
def test_one_item_alone_is_done_by_who_asks(items):
    with Threads(2) as threads:
        names = list(threads.map(lambda _: threading.current_thread().name, range(items)))
    assert len(names) == items
    assert all((name == threading.current_thread().name) == (items == 1) for name in names)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_factors_are_those_of_scipy(kind):
    A = np.random.default_rng(0).standard_normal((300, 300))
    A = np.asfortranarray(A @ A.T + 300 * np.eye(300), kind)
    expected = scipy.linalg.lapack.get_lapack_funcs("potrf", [A])(A, lower=1, clean=0)[0]
    plain = A.copy(order="F")
    assert cholesky(A)
    assert (expected == A).all()
    assert lapack._by_scipy(plain)  # where the routine of Cython code is another
    assert (expected == plain).all()
    assert not cholesky(np.asfortranarray(-np.eye(3), kind))


def test_factors_of_several_threads_do_not_wait_for_one_another():
    """Python goes on while a matrix is factored: scipy's own wrapper holds its lock."""
    A = np.asfortranarray(np.eye(3000) + 1 / 3000)
    begun, ended, ticks = threading.Event(), threading.Event(), 0

    def work() -> None:
        begun.set()
        cholesky(A)
        ended.set()

    with Threads(1).blas():
        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        while not ended.wait(0.001):
            ticks += 1
        thread.join()
    assert ticks > 10
