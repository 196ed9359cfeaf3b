"""Frequencies with weights fitted to the kernel on a sample (Chang et al. 2017): non-negative ridge regression."""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.frequencies import Draw, Frequencies, Kind
from streamrf.features.fourier.monte_carlo import orthogonal_or_independent
from streamrf.features.kernels import Kernel

RIDGE = 1e-2  # of the mean diagonal of the normal equations; the fit is the same for a tenth or ten times as much
ROWS = 2000  # of the sample; its pairs are 4 million equations


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

    X, W = request.rows()[:ROWS], orthogonal_or_independent(request)
    A, b = normal_equations(X, W, request.kernel)
    A[np.diag_indices_from(A)] += RIDGE * np.mean(np.diag(A))
    return Frequencies(W, nonnegative_solution(A, b))
