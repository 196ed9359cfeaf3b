"""How many directions a matrix really has: its effective dimension tr(K (K + mu)^-1), from a few products with it."""

from __future__ import annotations

import numpy as np
import scipy.linalg as sla

PROBES, STEPS = 4, 60
LARGE = 4000  # rows of a matrix of which one probe tells enough
LEAST, MOST = 1e-14, 1.0


class Spectrum:
    """Nodes and weights that stand for the eigenvalues of a symmetric matrix: stochastic Lanczos quadrature."""

    def __init__(self, lower: np.ndarray, seed: int = 0) -> None:
        """From the lower triangle of a matrix in Fortran order."""
        rng, size = np.random.default_rng([seed, 0x5350]), len(lower)
        probes = 1 if size > LARGE else PROBES
        parts = [_quadrature(lower, rng.choice([-1.0, 1.0], size)) for _ in range(probes)]
        self.nodes = np.maximum(np.concatenate([nodes for nodes, _ in parts]), 0.0)
        self.weights = np.concatenate([weights for _, weights in parts]) * size / probes

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(self.nodes.max())

    def effective_dimension(self, mu: float) -> float:
        return float(self.weights @ (self.nodes / (self.nodes + mu)))

    def shift_for(self, dimension: float) -> float:
        """The mu at which the effective dimension is this; the smallest there is, where it is always lower."""
        low, high = np.log(LEAST), np.log(MOST)
        for _ in range(60):
            middle = (low + high) / 2
            too_many = self.effective_dimension(np.exp(middle)) > dimension
            low, high = (middle, high) if too_many else (low, middle)
        return float(np.exp(high))


def _quadrature(lower: np.ndarray, probe: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of the Lanczos matrix that starts at a probe, and the share of the probe that each has."""
    steps = min(STEPS, len(probe))
    basis, diagonal, beside = np.zeros((steps, len(probe))), np.zeros(steps), np.zeros(steps)
    basis[0] = probe / np.linalg.norm(probe)
    done = steps
    multiply = sla.blas.ssymv if lower.dtype == np.float32 else sla.blas.dsymv
    for k in range(steps):
        image = multiply(1.0, lower, basis[k].astype(lower.dtype), lower=1).astype(np.float64)
        diagonal[k] = basis[k] @ image
        image -= basis[: k + 1].T @ (basis[: k + 1] @ image)
        image -= basis[: k + 1].T @ (basis[: k + 1] @ image)  # twice is enough
        beside[k] = np.linalg.norm(image)
        if k + 1 == steps or beside[k] <= 1e-12 * abs(diagonal[0]):
            done = k + 1
            break
        basis[k + 1] = image / beside[k]
    values, vectors = sla.eigh_tridiagonal(diagonal[:done], beside[: done - 1])
    return values, vectors[0] ** 2
