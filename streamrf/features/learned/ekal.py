"""Frequencies and weights fitted to the kernel on landmarks: the empirical kernel approximation loss (Li et al. 2019).

The loss is the weighted mean over pairs of landmarks of ``(sum_j p_j cos(w_j'(x - y)) - k(x, y))^2``. Algorithm 1 of
the paper alternates between p, by an exact non-negative quadratic programme, and W, by descent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize, nnls

from streamrf.features.kernels import Kernel
from streamrf.features.learned.landmarks import Pairs, Waves
from streamrf.support.errors import MismatchError, NumericalError

ITERATIONS = 20  # T of the paper
STEPS = 10  # S of the paper
DECAY = 0.1  # lambda of the paper, times the number of frequencies
PATIENCE = 5  # iterations without a better loss on unseen pairs
PIVOTING_ROUNDS = 200
MEMORY, SQUARE_MEMORY = 0.9, 0.99  # of Adam


class Progress(NamedTuple):
    """Where learning stood: ``loss`` on landmarks with weight decay, and relative ``error`` on pairs it did not see."""

    iteration: int
    loss: float
    error: float


@dataclass(frozen=True, eq=False)
class Learned:
    """Frequencies (F, d) in the space of the scaled inputs, weights (F,), and how learning went."""

    W: np.ndarray
    p: np.ndarray
    history: list[Progress] = field(default_factory=list)


def equal_weights(W: np.ndarray) -> np.ndarray:
    """The weights of frequencies that all count the same."""
    return np.full(len(W), 1.0 / len(W))


# -- the loss, its gradient, and the quadratic programme


def ekal_loss(pairs: Pairs, W: np.ndarray, p: np.ndarray) -> float:
    """The weighted mean square of approximation minus kernel."""
    left, right = pairs.waves(W)
    return _weighted_square(pairs, left.approximation(p, right) - pairs.kernel)


def _weighted_square(pairs: Pairs, errors: np.ndarray) -> float:
    return float(pairs.left_weights @ errors**2 @ pairs.right_weights)


def relative_error(pairs: Pairs, W: np.ndarray, p: np.ndarray) -> float:
    """|K~ - K|_F / |K|_F over the pairs, each with its weight."""
    return float(np.sqrt(ekal_loss(pairs, W, p) / pairs.kernel_square))


def ekal_gradient(pairs: Pairs, W: np.ndarray, p: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss and its gradient in W, (F, d).

    Formula (6) of the paper is half of it: C stands on both sides of ``C diag(p) C'``, so its derivative has 4, not 2.
    """
    left, right = pairs.waves(W)
    return gradient_of_waves(pairs, left, right, p)


def gradient_of_waves(pairs: Pairs, left: Waves, right: Waves, p: np.ndarray) -> tuple[float, np.ndarray]:
    """As ``ekal_gradient``, from waves that are there already."""
    errors = left.approximation(p, right) - pairs.kernel
    pulls = 2.0 * (pairs.left_weights[:, None] * pairs.right_weights) * errors
    from_left = _turned(left, pulls, right, p).T @ pairs.left
    from_right = from_left if pairs.symmetric else _turned(right, pulls.T, left, p).T @ pairs.right
    return _weighted_square(pairs, errors), from_left + from_right


def _turned(side: Waves, pulls: np.ndarray, other: Waves, p: np.ndarray) -> np.ndarray:
    """The derivative by the angles of one side."""
    return (side.cos * (pulls @ other.sin) - side.sin * (pulls @ other.cos)) * p


def weight_equations(pairs: Pairs, left: Waves, right: Waves) -> tuple[np.ndarray, np.ndarray]:
    """A and b of the paper: the loss is ``p'Ap - 2b'p`` and a constant."""
    first, second = (left.cos, left.sin), (right.cos, right.sin)
    A = np.zeros((left.cos.shape[1],) * 2)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        products = _inner(first[i], first[j], pairs.left_weights)
        products *= products if pairs.symmetric else _inner(second[i], second[j], pairs.right_weights)
        A += products if i == j else products + products.T
    weighted = pairs.left_weights[:, None] * pairs.kernel * pairs.right_weights
    b = sum(np.einsum("nf,nf->f", mine, weighted @ theirs) for mine, theirs in zip(first, second, strict=True))
    return A, np.asarray(b, np.float64)


def _inner(A: np.ndarray, B: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (A.T @ (B * weights[:, None])).astype(np.float64)


def nonnegative_solution(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The p >= 0 that minimises p'Ap - 2b'p, for positive definite A, by block principal pivoting (Kim and Park).

    Whole sets of variables change sides at once, so thousands of them take a few Cholesky factorisations.
    """
    passive, p, fewest, patience = np.ones(len(b), bool), np.zeros(len(b)), len(b) + 1, 3
    for _ in range(PIVOTING_ROUNDS):
        p[:] = 0.0
        if passive.any():
            p[passive] = cho_solve(cho_factor(A[np.ix_(passive, passive)]), b[passive])
        wrong = np.where(passive, p < 0.0, A @ p - b < -1e-12 * np.abs(b).max())
        if not wrong.any():
            return p
        if wrong.sum() < fewest:
            fewest, patience = int(wrong.sum()), 3
        elif patience > 0:
            patience -= 1
        else:  # blocks go round in circles: one at a time always ends
            wrong[: np.flatnonzero(wrong)[-1]] = False
        passive ^= wrong
    raise NumericalError(
        f"weights of {len(b)} frequencies were not found in {PIVOTING_ROUNDS} rounds: use mc or orthogonal"
    )


def solve_weights(A: np.ndarray, b: np.ndarray, decay: float = DECAY) -> np.ndarray:
    """The p >= 0 that minimises ``p'Ap - 2b'p + lambda p'p``, with lambda = decay / F."""
    A = (A + A.T) / 2
    A[np.diag_indices_from(A)] += decay / len(b)
    try:
        return nonnegative_solution(A, b)
    except NumericalError:  # pivoting may go on for long; one variable at a time always ends
        L = cholesky(A, lower=True)
        return nnls(L.T, solve_triangular(L, b, lower=True))[0]


def fit_weights(pairs: Pairs, W: np.ndarray, decay: float = DECAY) -> np.ndarray:
    """The best weights of given frequencies."""
    return solve_weights(*weight_equations(pairs, *pairs.waves(W)), decay)


# -- descent


def typical_size(W: np.ndarray) -> float:
    """A standard deviation of the entries that the heavy tails of a spectral measure do not sway."""
    return max(float(np.median(np.abs(W))) / 0.6745, np.finfo(np.float64).tiny)


def descend(objective: Callable[[np.ndarray], tuple[float, np.ndarray]], W: np.ndarray, steps: int) -> np.ndarray:
    """So many steps of L-BFGS, whose line search needs no step size; never to a higher objective."""
    start, _ = objective(W)
    unit, size = max(start, np.finfo(np.float64).tiny), typical_size(W)

    def scaled(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = objective(w.reshape(W.shape) * size)
        return value / unit, slope.ravel() * (size / unit)

    found = minimize(scaled, W.ravel() / size, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return found.x.reshape(W.shape) * size if found.fun < 1.0 else W


class Adam:
    """Adam (Kingma and Ba 2015): the first step changes each entry by ``size``, and the rate falls to 0 by a cosine."""

    def __init__(self, size: float, total: int) -> None:
        self.size, self.total, self.taken = size, total, 0
        self._mean: np.ndarray | float = 0.0
        self._square: np.ndarray | float = 0.0

    def move(self, W: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """The array after one more step."""
        rate = self.size * 0.5 * (1.0 + math.cos(math.pi * min(1.0, self.taken / self.total)))
        self.taken += 1
        self._mean = MEMORY * self._mean + (1.0 - MEMORY) * slope
        self._square = SQUARE_MEMORY * self._square + (1.0 - SQUARE_MEMORY) * slope**2
        spread = np.sqrt(self._square / (1.0 - SQUARE_MEMORY**self.taken)) + np.finfo(W.dtype).tiny
        return W - W.dtype.type(rate / (1.0 - MEMORY**self.taken)) * self._mean / spread


# -- Algorithm 1


def learn_ekal(
    X_landmarks: np.ndarray, q2: np.ndarray | None, kernel: Kernel, W0: np.ndarray, *, iterations: int = ITERATIONS,
    steps: int = STEPS, decay: float = DECAY, unseen: Pairs | None = None,
) -> Learned:  # fmt: skip
    """Algorithm 1 from W0. ``unseen`` pairs choose the iteration, and end it when they see no gain any more."""
    pairs = Pairs.within(kernel, X_landmarks, q2)
    W = np.array(W0, np.float64)
    if W.ndim != 2 or W.shape[1] != pairs.left.shape[1]:
        raise MismatchError(f"frequencies of shape {W.shape} do not go with rows of {pairs.left.shape[1]} columns")
    best = Learned(W, equal_weights(W), [])
    history: list[Progress] = []
    for iteration in range(iterations + 1):
        p = fit_weights(pairs, W, decay)
        history.append(_progress(iteration, pairs, W, p, decay, unseen))
        if history[-1].error <= min(step.error for step in history):
            best = Learned(W, p, history)
        if iteration == iterations or _stale(history):
            break
        W = descend(partial(_slope_at, pairs, p), W, steps)
    return best


def _slope_at(pairs: Pairs, p: np.ndarray, W: np.ndarray) -> tuple[float, np.ndarray]:
    return ekal_gradient(pairs, W, p)


def _progress(
    iteration: int, pairs: Pairs, W: np.ndarray, p: np.ndarray, decay: float, unseen: Pairs | None
) -> Progress:
    loss = ekal_loss(pairs, W, p)
    error = np.sqrt(loss / pairs.kernel_square) if unseen is None else relative_error(unseen, W, p)
    return Progress(iteration, loss + decay / len(p) * float(p @ p), float(error))


def _stale(history: list[Progress]) -> bool:
    best = min(range(len(history)), key=lambda at: history[at].error)
    return len(history) - 1 - best >= PATIENCE
