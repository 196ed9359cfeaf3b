"""Moment matching (Shen, Yang and Wang 2017): a draw changed as little as gives it the moments of the spectral measure.

The paper whitens a Gaussian draw. That asks for more frequencies than columns, and heavier tails than the Gaussian's
would be spoilt by it, because a few large frequencies decide the empirical covariance. So:

- Gaussian kernel, F > d: mean zero and the spectral covariance, exactly;
- F <= d, where no covariance can be matched: orthogonal frequencies; for the Gaussian their mean square is matched too;
- other kernels: it is the directions that have mean zero and equal covariance, and each frequency keeps its norm.
"""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.frequencies import Draw, Frequencies, Kind, evenly

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
