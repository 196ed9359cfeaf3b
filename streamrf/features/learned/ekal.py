"""Frequencies and weights fitted to the kernel on landmarks: the empirical kernel approximation loss (Li et al. 2019).

The loss is the weighted mean over pairs of landmarks of ``(sum_j p_j cos(w_j'(x - y)) - k(x, y))^2``. Algorithm 1 of
the paper alternates between p, by an exact non-negative quadratic programme, and W, by descent.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize, nnls

from streamrf.features.kernels import Kernel, NormKernel
from streamrf.support.errors import DataError, MismatchError, NumericalError

SMALL = 4_000_000  # entries up to which plain k-means is quick
BATCH = 2048
ROUNDS = 30


class Landmarks(NamedTuple):
    """Rows that stand for the data, and the share of the data that each stands for."""

    X: np.ndarray  # (n, d)
    weights: np.ndarray  # (n,)


def sample_landmarks(X: np.ndarray, n: int, rng: np.random.Generator) -> Landmarks:
    """n different rows, which all count the same."""
    if n > len(X):
        raise DataError(f"{n} landmarks were asked for, of {len(X)} rows: give more rows or fewer landmarks")
    return Landmarks(X[rng.choice(len(X), n, replace=False)], np.full(n, 1.0 / n))


@dataclass(frozen=True, eq=False)
class Clusters:
    """Groups of near rows by k-means. None is empty, so there may be fewer than asked for."""

    X: np.ndarray  # the rows, those of one cluster next to one another
    starts: np.ndarray  # (n,): where each cluster begins in X
    sizes: np.ndarray  # (n,)

    @classmethod
    def find(cls, X: np.ndarray, n: int, seed: int) -> Clusters:
        """At most n clusters: k-means, by small batches where the sample is large."""
        from sklearn.cluster import KMeans, MiniBatchKMeans
        from sklearn.exceptions import ConvergenceWarning

        if n > len(X):
            raise DataError(f"{n} clusters were asked for, of {len(X)} rows: give more rows")
        options = {"n_clusters": n, "n_init": 1, "max_iter": ROUNDS, "random_state": seed}
        means = KMeans(**options) if X.size <= SMALL else MiniBatchKMeans(**options, batch_size=BATCH)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of fewer different rows than clusters, which is fine
            labels = means.fit(X).labels_
        sizes = np.bincount(labels, minlength=n)
        starts = np.cumsum(sizes) - sizes
        return cls(X[np.argsort(labels, kind="stable")], starts[sizes > 0], sizes[sizes > 0])

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def weights(self) -> np.ndarray:
        """The share of the rows that each cluster has."""
        return self.sizes / len(self.X)

    def centres(self) -> Landmarks:
        """The mean of each cluster."""
        sums = np.add.reduceat(np.asarray(self.X, np.float64), self.starts, axis=0)
        return Landmarks(sums / self.sizes[:, None], self.weights)

    def closest(self) -> Landmarks:
        """The row of each cluster nearest to its centre: in many columns a centre is unlike any row."""
        gaps = ((self.X - np.repeat(self.centres().X, self.sizes, axis=0)) ** 2).sum(axis=1)
        ends = self.starts + self.sizes
        rows = [start + int(np.argmin(gaps[start:end])) for start, end in zip(self.starts, ends, strict=True)]
        return Landmarks(self.X[rows], self.weights)

    def members(self, rng: np.random.Generator) -> Landmarks:
        """A random row of each cluster: two draws give pairs without bias, more even than those of random rows."""
        return Landmarks(self.X[self.starts + rng.integers(self.sizes)], self.weights)


# -- pairs of landmarks


def kernel_values(kernel: Kernel, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The kernel between rows, by one matrix product where it is a function of the Euclidean distance."""
    if not (isinstance(kernel, NormKernel) and kernel.order == 2):
        return kernel(X, Y)
    X, Y = (np.asarray(rows, np.float64) / kernel.length_scale for rows in (X, Y))
    squares = (X**2).sum(axis=1)[:, None] + (Y**2).sum(axis=1) - 2.0 * (X @ Y.T)
    return kernel.profile(np.sqrt(np.maximum(squares, 0.0)))


class Waves(NamedTuple):
    """cos(XW') and sin(XW'), (n, F) each."""

    cos: np.ndarray
    sin: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, W: np.ndarray) -> Waves:
        angles = X @ W.T
        return cls(np.cos(angles), np.sin(angles))

    def approximation(self, p: np.ndarray, other: Waves) -> np.ndarray:
        """The kernel that frequencies of weights p give between the two sides."""
        return (self.cos * p) @ other.cos.T + (self.sin * p) @ other.sin.T


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of a landmark on the left and one on the right, their weights, and the kernel between them."""

    left: np.ndarray  # (n, d)
    right: np.ndarray  # (m, d); the same array as ``left`` if landmarks are paired with one another
    left_weights: np.ndarray  # (n,), q^2 of the paper: they add up to 1
    right_weights: np.ndarray  # (m,)
    kernel: np.ndarray  # (n, m)

    @classmethod
    def within(cls, kernel: Kernel, X: np.ndarray, weights: np.ndarray | None = None) -> Pairs:
        """Every landmark with every one, itself included: the loss as the paper writes it."""
        X = np.asarray(X, np.float64)
        weights = _checked(X, weights)
        return cls(X, X, weights, weights, kernel_values(kernel, X, X))

    @classmethod
    def between(cls, kernel: Kernel, left: Landmarks, right: Landmarks, dtype: type = np.float64) -> Pairs:
        """Landmarks of two draws: no row meets itself, so the loss is that of the data without bias."""
        values = kernel_values(kernel, left.X, right.X)
        parts = (left.X, right.X, left.weights, right.weights, values)
        return cls(*(np.asarray(part, dtype) for part in parts))

    @property
    def symmetric(self) -> bool:
        return self.left is self.right

    @cached_property
    def kernel_square(self) -> float:
        """The loss of a map that is zero everywhere."""
        return float(self.left_weights @ self.kernel**2 @ self.right_weights)

    def waves(self, W: np.ndarray) -> tuple[Waves, Waves]:
        """Cosines and sines of both sides."""
        left = Waves.of(self.left, W)
        return left, left if self.symmetric else Waves.of(self.right, W)


def _checked(X: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    if X.ndim != 2 or len(X) < 2:
        raise DataError(f"landmarks are at least two rows, and these have shape {X.shape}: give more rows")
    weights = np.full(len(X), 1.0 / len(X)) if weights is None else np.asarray(weights, np.float64)
    if weights.shape != (len(X),):
        raise MismatchError(f"{len(X)} landmarks do not go with weights of shape {weights.shape}: give one each")
    return weights


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
