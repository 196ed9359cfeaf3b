"""Frequencies aligned with the targets (Sinha and Duchi 2016).

Of many independent draws, weights q in a chi-square ball around uniform maximise the alignment, which is
sum_ij t_i t_j k_q(x_i, x_j). F of the draws are then taken with probability in proportion to q, each once, and
weighted so that their kernel is unbiased for that of q.
"""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.frequencies import Draw, Frequencies, Kind

POOL = 8  # draws for each frequency that is kept
RADIUS = 1.0  # chi-square divergence from uniform weights
ROWS = 4000  # of the sample
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
    X, T = request.rows()[:ROWS], target_columns(request.labels()[:ROWS])
    rng, F = request.rng(), request.F
    W = request.kernel.sample(rng, POOL * F, request.d)
    q = _weights_of_enough(alignments(X, T, W), F)
    pi = inclusion(q, F)
    taken = systematic(rng, pi, F)
    weights = q[taken] / pi[taken]
    return Frequencies(W[taken], weights / weights.sum())
