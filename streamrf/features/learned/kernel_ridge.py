"""A metric by exact kernel ridge with exp(-|x - y| / L) on a few thousand rows: fits whose gradients tell what matters.

An exact fit sees signals that a few thousand random features of the same rows do not. Its best L is many times the
distance of rows, so that L is searched anew, widely, for every metric.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import scipy.linalg as sla

from streamrf.features.learned.metric import Judged, Metric, learn_metric
from streamrf.features.scaling import apply_factor

ROWS, FEW_ROWS, FEWEST_ROWS = 5000, 2000, 64  # at most; to find L with; at least
JUDGES = 0.25
ROUNDS = 5
WIDTHS = (0.5, 2.0, 4.0, 8.0, 16.0)  # of the median distance
RIDGES = (1e-5, 1e-3, 1e-2, 1e-1, 1.0)
NEAR = (0.1, 1.0, 10.0)  # ridges round the best of few rows, with all
BLOCK = 512
LEAST_DISTANCE = 1e-6  # of the median: the kernel has no gradient at its own point


def distances(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """(n, m) Euclidean."""
    squares = (A * A).sum(axis=1)[:, None] + (B * B).sum(axis=1) - 2.0 * (A @ B.T)
    return np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares)


class KernelRidgeFits:
    """Fits to the first rows, judged by the last: X (n, d), centred Y (n, k), weights (n,) or none."""

    def __init__(self, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None = None) -> None:
        shares = np.ones(len(X)) if weights is None else np.asarray(weights, np.float64)
        kept = np.flatnonzero(shares > 0)[:ROWS]
        self.X, self.shares = np.asarray(X[kept], np.float64), shares[kept] / shares[kept].mean()
        Y = np.asarray(Y, np.float64)[kept]
        Y = Y - np.average(Y, axis=0, weights=self.shares)
        spread = np.sqrt(np.average(Y**2, axis=0, weights=self.shares))
        self.Y = Y / np.where(spread > 0, spread, 1.0)

    @property
    def enough(self) -> bool:
        return len(self.X) >= FEWEST_ROWS and bool(self.Y.any())

    def start(self) -> Judged:
        return self._fitted(np.ones(self.X.shape[1]))

    def fit(self, factor: np.ndarray, near: Judged) -> Judged:
        """At the best width: a metric has its own."""
        return self._fitted(factor)

    def tuned(self, judged: Judged) -> Judged:
        return judged

    def _fitted(self, factor: np.ndarray) -> Judged:
        Z, few = apply_factor(self.X, factor), min(FEW_ROWS, len(self.X))
        gaps = self._gaps(Z, few)
        median = max(float(np.median(gaps[0][:500])), 1e-30)
        tried = [self._solved(gaps, few, width * median, RIDGES) for width in WIDTHS]
        error, scale, ridge, coefficients = min(tried, key=lambda one: one[0])
        if few < len(self.X):
            gaps = self._gaps(Z, len(self.X))
            near = tuple(each * ridge for each in NEAR)
            error, scale, ridge, coefficients = self._solved(gaps, len(self.X), scale, near)
        least = LEAST_DISTANCE * median
        return Judged(error, scale, partial(self._outer_product, factor, scale, coefficients, least))

    def _gaps(self, Z: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances among the rows that are fitted, and from those that judge to them."""
        cut = _cut(rows)
        return distances(Z[:cut], Z[:cut]), distances(Z[cut:rows], Z[:cut])

    def _solved(
        self, gaps: tuple[np.ndarray, np.ndarray], rows: int, scale: float, ridges: tuple[float, ...]
    ) -> tuple[float, float, float, np.ndarray]:
        """The least error of these ridges, with the width, the ridge and its coefficients."""
        cut = _cut(rows)
        across = np.exp(gaps[1] / -scale)
        judges, doubt = self.shares[cut:rows], 1.0 / self.shares[:cut]
        variance = np.average(self.Y[cut:rows] ** 2, axis=0, weights=judges).sum()
        best = (np.inf, scale, ridges[0], np.zeros_like(self.Y[:cut]))
        for ridge in ridges:
            A = np.divide(gaps[0], -scale)
            np.exp(A, out=A)
            A.flat[:: cut + 1] += ridge * doubt
            try:
                factored = sla.cho_factor(A.T, lower=True, overwrite_a=True, check_finite=False)  # symmetric
            except sla.LinAlgError:
                continue
            a = sla.cho_solve(factored, self.Y[:cut], check_finite=False)
            off = np.average((across @ a - self.Y[cut:rows]) ** 2, axis=0, weights=judges).sum()
            if off < best[0] * variance:
                best = (float(off / variance), scale, ridge, a)
        return best

    def _outer_product(self, factor: np.ndarray, scale: float, coefficients: np.ndarray, least: float) -> np.ndarray:
        """Mean of grad f grad f' over the rows that were fitted, for f(x) = sum_j a_j exp(-|M (x - x_j)| / L)."""
        Z = apply_factor(self.X[: len(coefficients)], factor)
        total, shares = np.zeros((Z.shape[1],) * 2), self.shares[: len(Z)]
        for start in range(0, len(Z), BLOCK):
            here, counted = Z[start : start + BLOCK], shares[start : start + BLOCK, None]
            gaps = distances(here, Z)
            slopes = np.exp(gaps / -scale) / (np.maximum(gaps, least) * scale)
            slopes[np.arange(len(here)), start + np.arange(len(here))] = 0.0
            for a in few_outputs(coefficients).T:
                pulled = slopes * a
                gradients = apply_factor(pulled @ Z - pulled.sum(axis=1)[:, None] * here, factor)
                total += (gradients * counted).T @ gradients
        return total / shares.sum()


def kernel_ridge_bytes(rows: int, columns: int) -> int:
    """Distances, the matrix that is factored, what judges need, and the inputs in two metrics."""
    rows = min(rows, ROWS)
    return 3 * 8 * rows * _cut(rows) + 4 * 8 * rows * columns


def _cut(rows: int) -> int:
    return rows - int(rows * JUDGES)


MOST_OUTPUTS = 16


def few_outputs(coefficients: np.ndarray) -> np.ndarray:
    """Of many outputs random sums and differences, whose gradients have the outer product of all, on the average."""
    k = coefficients.shape[1]
    if k <= MOST_OUTPUTS:
        return coefficients
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (k, MOST_OUTPUTS))
    return coefficients @ signs / np.sqrt(MOST_OUTPUTS)


def metric_by_kernel_ridge(fits: KernelRidgeFits, forms: tuple[str, ...]) -> Metric:
    """The best metric on unseen rows, or the identity."""
    return learn_metric(fits, fits.start(), fits.X.shape[1], rounds=ROUNDS, forms=forms, powers=(0.5,))
