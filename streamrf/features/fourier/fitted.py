"""Frequencies fitted to moments, to a sample, or to targets: moment-matched, weighted, aligned and learned."""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.frequencies import Draw, Frequencies, Kind, evenly, uniform_weights
from streamrf.features.fourier.monte_carlo import orthogonal_or_independent
from streamrf.features.kernels import Kernel

ROUNDS = 10  # directions are whitened and put back to norm 1 in turns; this many settle it to a few digits


def polar_factor(W: np.ndarray) -> np.ndarray:
    """The nearest matrix to W with orthonormal columns (or rows, where it has fewer): twice, to lose no digits."""
    if W.shape[0] < W.shape[1]:
        return polar_factor(W.T).T
    for _ in range(2):
        values, vectors = np.linalg.eigh(W.T @ W)
        W = W @ (vectors / np.sqrt(values)) @ vectors.T
    return W


def _normed(W: np.ndarray) -> np.ndarray:
    return W / np.linalg.norm(W, axis=1, keepdims=True)


def _whitened(W: np.ndarray) -> np.ndarray:
    """Mean zero and unit covariance, exactly; needs more rows than columns."""
    return polar_factor(W - W.mean(axis=0)) * np.sqrt(len(W))


def even_directions(W: np.ndarray) -> np.ndarray:
    """Unit vectors near the rows of W whose covariance is a multiple of the identity, or orthogonal if they are few."""
    U = _normed(W)
    if len(W) <= W.shape[1]:
        return polar_factor(U)
    for _ in range(ROUNDS):
        U = _normed(_whitened(U))
    return U


@Kind("moment-matched", "mean and covariance of the spectral measure, exactly", second_moment=True)
def draw_moment_matched(request: Draw) -> Frequencies:
    kernel, F, d = request.kernel, request.F, request.d
    W, variance = kernel.sample(request.rng(), F, d), kernel.second_moment(d) / d
    gaussian = kernel.radial and kernel.product  # it is the only one that is both
    if gaussian and d < F:
        return evenly(_whitened(W) * np.sqrt(variance))
    norms = np.linalg.norm(W, axis=1, keepdims=True)
    if gaussian:
        norms *= np.sqrt(d * variance / np.mean(norms**2))
    return evenly(even_directions(W) * norms)


RIDGE = 1e-2  # of the mean diagonal of the normal equations; the fit is the same for a tenth or ten times as much
WEIGHED_ROWS = 2000  # of the sample; its pairs are 4 million equations


def normal_equations(X: np.ndarray, W: np.ndarray, kernel: Kernel) -> tuple[np.ndarray, np.ndarray]:
    """A and b of least squares over all pairs of rows: k(x, y) by p_1 cos(w_1'(x - y)) + ... + p_F cos(w_F'(x - y))."""
    angles = X @ W.T
    C, S, K = np.cos(angles), np.sin(angles), kernel(X)
    mixed = C.T @ S
    A = (C.T @ C) ** 2 + mixed**2 + mixed.T**2 + (S.T @ S) ** 2
    b = np.einsum("if,if->f", C, K @ C) + np.einsum("if,if->f", S, K @ S)
    return A / len(X) ** 2, b / len(X) ** 2


@Kind("weighted", "weights fitted to the kernel on a sample", sample="needed")
def draw_weighted(request: Draw) -> Frequencies:
    from streamrf.features.learned.ekal import nonnegative_solution

    X, W = request.rows()[:WEIGHED_ROWS], orthogonal_or_independent(request)
    A, b = normal_equations(X, W, request.kernel)
    A[np.diag_indices_from(A)] += RIDGE * np.mean(np.diag(A))
    return Frequencies(W, nonnegative_solution(A, b))


POOL = 8  # draws for each frequency that is kept
RADIUS = 1.0  # chi-square divergence from uniform weights
ALIGNED_ROWS = 4000  # of the sample
_BATCH = 4096  # draws whose features are in memory at once


def target_columns(targets: np.ndarray) -> np.ndarray:
    """Centred (n, k) targets: numbers as they are, anything else one column a class."""
    if targets.dtype.kind not in "fiu":
        targets = targets[:, None] == np.unique(targets)
    T = np.asarray(targets, dtype=np.float64).reshape(len(targets), -1)
    return T - T.mean(axis=0)


def alignments(X: np.ndarray, T: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Of each frequency: sum_ij t_i't_j cos(w'(x_i - x_j)) / n^2."""
    values = np.empty(len(W))
    for start in range(0, len(W), _BATCH):
        angles = X @ W[start : start + _BATCH].T
        sums = np.concatenate([T.T @ np.cos(angles), T.T @ np.sin(angles)])
        values[start : start + _BATCH] = (sums**2).sum(axis=0) / len(X) ** 2
    return values


def onto_simplex(z: np.ndarray) -> np.ndarray:
    """The nearest point to z of non-negative weights that sum to 1."""
    falling = np.sort(z)[::-1]
    level = (np.cumsum(falling) - 1.0) / np.arange(1, len(z) + 1)
    return np.maximum(z - level[np.flatnonzero(falling > level)[-1]], 0.0)


def best_weights(v: np.ndarray, radius: float) -> np.ndarray:
    """The q on the simplex that maximises q'v with mean (n q_j - 1)^2 <= radius: uniform, moved along v, projected."""
    n, width = len(v), np.ptp(v)
    if width == 0.0:
        return np.full(n, 1.0 / n)
    direction, low, high = (v - v.mean()) / width, 0.0, 1.0
    while np.mean((n * onto_simplex(1.0 / n + high * direction) - 1.0) ** 2) < radius and high < 1e6:
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        inside = np.mean((n * onto_simplex(1.0 / n + middle * direction) - 1.0) ** 2) <= radius
        low, high = (middle, high) if inside else (low, middle)
    return onto_simplex(1.0 / n + low * direction)


def _weights_of_enough(v: np.ndarray, F: int) -> np.ndarray:
    """The best weights of the widest ball in which F frequencies still carry weight."""
    radius = RADIUS
    while np.count_nonzero(q := best_weights(v, radius)) < F:
        radius /= 2.0
    return q


def inclusion(q: np.ndarray, F: int) -> np.ndarray:
    """Probabilities in proportion to q, none above 1, that sum to F."""
    certain = np.zeros(len(q), bool)
    while True:
        rest = np.where(certain, 0.0, q)
        pi = np.where(certain, 1.0, (F - certain.sum()) * rest / max(rest.sum(), np.finfo(float).tiny))
        if not np.any(above := pi > 1.0):
            return pi
        certain |= above


def systematic(rng: np.random.Generator, pi: np.ndarray, F: int) -> np.ndarray:
    """F different positions, each with its probability: where the running sum passes u, u + 1, ..., u + F - 1."""
    passed = np.cumsum(pi) * (F / pi.sum())
    passed[-1] = F
    return np.searchsorted(passed, rng.random() + np.arange(F), side="right")


@Kind("aligned", "draws and weights aligned with the targets", sample="needed", targets=True)
def draw_aligned(request: Draw) -> Frequencies:
    X, T = request.rows()[:ALIGNED_ROWS], target_columns(request.labels()[:ALIGNED_ROWS])
    rng, F = request.rng(), request.F
    W = request.kernel.sample(rng, POOL * F, request.d)
    q = _weights_of_enough(alignments(X, T, W), F)
    pi = inclusion(q, F)
    taken = systematic(rng, pi, F)
    weights = q[taken] / pi[taken]
    return Frequencies(W[taken], weights / weights.sum())


ROWS = 21_384  # of the sample: what learning uses, and what it is judged by
FEWEST_ROWS = 16


@Kind("ekal-sample", "frequencies and weights learned from random rows", sample="needed", rows=ROWS, learned=True)
def draw_ekal_sample(request: Draw) -> Frequencies:
    return _draw_ekal(request, "sample")


@Kind("ekal-cluster", "frequencies and weights learned from rows of clusters", sample="needed", rows=ROWS, learned=True)
def draw_ekal_cluster(request: Draw) -> Frequencies:
    return _draw_ekal(request, "cluster")


def _draw_ekal(request: Draw, landmarks: str) -> Frequencies:
    """Algorithm 1: frequencies and weights that fit the kernel between rows."""
    from streamrf.features.learned.unsupervised import learn_kernel_features

    X, W0, told = request.rows()[:ROWS], orthogonal_or_independent(request), request.learning
    if len(X) < FEWEST_ROWS:
        return _unlearned(W0, len(X))
    found = learn_kernel_features(
        X, request.kernel, W0, landmarks=landmarks, count=told.landmarks, iterations=told.iterations,
        steps=told.steps, decay=told.decay, seed=request.seed,
    )  # fmt: skip
    return Frequencies(found.learned.W, found.learned.p, report=found.report())


@Kind("supervised", "frequencies learned from rows and targets", sample="needed", targets=True, rows=ROWS, learned=True)
def draw_supervised(request: Draw) -> Frequencies:
    """Algorithm 2: frequencies that serve the targets."""
    from streamrf.features.learned.supervised import learn_supervised

    X, W0, told = request.rows()[:ROWS], orthogonal_or_independent(request), request.learning
    targets = request.labels()[:ROWS]
    if len(X) < FEWEST_ROWS:
        return _unlearned(W0, len(X))
    Y, task = columns_and_task(targets, told.task)
    found = learn_supervised(
        X, Y, task, request.kernel, W0, seed=request.seed, loss=told.loss or "squared",
        etas=None if told.eta is None else (told.eta,), rounds=told.iterations, steps=told.steps,
        landmarks=told.landmarks, decay=told.decay,
    )  # fmt: skip
    return Frequencies(found.W, found.p, report=found.report())


def columns_and_task(targets: np.ndarray, task: str | None) -> tuple[np.ndarray, str]:
    """Targets as (n, k) numbers, and what they are: classes, if text or of two values in each column."""
    if targets.dtype.kind not in "fiub":
        return (targets[:, None] == np.unique(targets)).astype(np.float64), task or "classification"
    Y = np.asarray(targets, np.float64).reshape(len(targets), -1)
    low, high = Y.min(axis=0), Y.max(axis=0)
    two_valued = (np.equal(Y, low) | np.equal(Y, high)).all()
    return Y, task or ("classification" if two_valued else "regression")


def _unlearned(W0: np.ndarray, rows: int) -> Frequencies:
    report = {"kept": "start", "reason": f"{rows} rows are too few to learn from"}
    return Frequencies(W0, uniform_weights(len(W0)), report=dict(report))
