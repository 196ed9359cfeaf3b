"""Frequencies with weights fitted to the kernel on a sample (Chang et al. 2017): non-negative ridge regression."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from streamrf.features.fourier.frequencies import Draw, Frequencies
from streamrf.features.fourier.monte_carlo import draw_mc
from streamrf.features.fourier.orthogonal import draw_orthogonal
from streamrf.features.kernels import Kernel
from streamrf.support.errors import NumericalError

RIDGE = 1e-2  # of the mean diagonal of the normal equations; the fit is the same for a tenth or ten times as much
ROWS = 2000  # of the sample; its pairs are 4 million equations
ROUNDS = 200


def nonnegative_solution(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The p >= 0 that minimises p'Ap - 2b'p, for positive definite A, by block principal pivoting (Kim and Park).

    Whole sets of variables change sides at once, so thousands of them take a few Cholesky factorisations.
    """
    passive, p, fewest, patience = np.ones(len(b), bool), np.zeros(len(b)), len(b) + 1, 3
    for _ in range(ROUNDS):
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
    raise NumericalError(f"weights of {len(b)} frequencies were not found in {ROUNDS} rounds: use mc or orthogonal")


def normal_equations(X: np.ndarray, W: np.ndarray, kernel: Kernel) -> tuple[np.ndarray, np.ndarray]:
    """A and b of least squares over all pairs of rows: k(x, y) by p_1 cos(w_1'(x - y)) + ... + p_F cos(w_F'(x - y))."""
    angles = X @ W.T
    C, S, K = np.cos(angles), np.sin(angles), kernel(X)
    mixed = C.T @ S
    A = (C.T @ C) ** 2 + mixed**2 + mixed.T**2 + (S.T @ S) ** 2
    b = np.einsum("if,if->f", C, K @ C) + np.einsum("if,if->f", S, K @ S)
    return A / len(X) ** 2, b / len(X) ** 2


def draw_weighted(request: Draw) -> Frequencies:
    """Orthogonal frequencies where the kernel has them, else independent ones, and their fitted weights."""
    X = request.rows("weighted")[:ROWS]
    W = (draw_orthogonal if request.kernel.radial else draw_mc)(request).dense()
    A, b = normal_equations(X, W, request.kernel)
    A[np.diag_indices_from(A)] += RIDGE * np.mean(np.diag(A))
    return Frequencies(W, nonnegative_solution(A, b), "weighted")
