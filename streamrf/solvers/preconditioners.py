"""Preconditioners for S + lambda I, S the centred second moments of D features: rough inverses that never hold D x D.

``SampleFactor`` is the exact inverse for the Gram matrix of a sample of m rows, by its m x m dual. ``NystromFactor`` is
that of a rank-r approximation of S itself, from one sketch S Omega (Frangella, Tropp and Udell, 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from streamrf.features.base import FeatureMap, dot_rows, scored_width
from streamrf.features.precision import Precision, make_precision
from streamrf.solvers.conjugate_gradients import Preconditioner
from streamrf.statistics.gradient_kernels import add_pulls
from streamrf.statistics.gram_kernels import Layout, choose_product
from streamrf.support.errors import NumericalError
from streamrf.support.lapack import cholesky
from streamrf.support.simd import aligned_empty
from streamrf.support.threads import Threads

ROWS = 256  # of the sample, that a thread takes at a time
COLUMNS = 1024  # features that a thread takes at a time
KNOWN_SHARE = 0.35  # directions that a sample knows, for each of its rows
JITTERS = (0.0, 1e-13, 1e-11, 1e-9, 1e-7)
LEAST_SHIFT = 1e-15  # of a sketch, which is nothing but rounding where features are constant
NEEDS_LAMBDA = "a preconditioner needs a positive lambda: set `ridge` to 1e-10 or more"


@dataclass
class SampleRows:
    """Features of the sample, raw and padded, and what makes them rows of a square root of S: centre and scale."""

    Z: np.ndarray  # (m, width) as the map writes them
    precision: Precision
    centre: np.ndarray  # (D,) mean raw feature
    amplitudes: np.ndarray  # (D,)
    shares: np.ndarray  # (m,): square roots of the rows' shares of the weight
    threads: Threads

    @classmethod
    def of(
        cls, map: FeatureMap, X: np.ndarray, centre: np.ndarray, threads: Threads, weights: np.ndarray | None = None
    ) -> SampleRows:
        """From scaled inputs; rows share alike unless they have weights."""
        Z = np.zeros((len(X), scored_width(map)), map.precision.features)
        map.compute(X, Z, threads)
        Z[:, map.n_features :] = 0
        weights = np.ones(len(X)) if weights is None else weights
        return cls(Z, map.precision, centre, map.amplitudes, np.sqrt(weights / weights.sum()), threads)

    @property
    def rows(self) -> int:
        return len(self.Z)

    def times(self, V: np.ndarray) -> np.ndarray:
        """(k, m): the rows, centred and scaled, times each row of V (k, D). Each is summed in a fixed order."""
        W = aligned_empty((len(V), self.Z.shape[1]), np.float64)
        W[:] = 0
        W[:, : len(self.centre)] = V * self.amplitudes
        intercept, out = -(W[:, : len(self.centre)] @ self.centre), np.empty((self.rows, len(V)))

        def rows(first: int) -> None:
            part = self.Z[first : first + ROWS]
            dot_rows(part, len(part), W, intercept, out[first : first + ROWS])

        self.threads.each(rows, range(0, self.rows, ROWS))
        return (out * self.shares[:, None]).T

    def back(self, U: np.ndarray) -> np.ndarray:
        """(k, D): each row of U (k, m) times the rows, centred and scaled. A thread takes whole features."""
        pulls = np.ascontiguousarray(U * self.shares)
        sums = np.zeros((len(U), self.Z.shape[1]))

        def columns(first: int) -> None:
            part = slice(first, first + COLUMNS)
            add_pulls(self.Z[:, part], pulls, sums[:, part])

        self.threads.each(columns, range(0, self.Z.shape[1], COLUMNS))
        centred = sums[:, : len(self.centre)] - pulls.sum(axis=1)[:, None] * self.centre
        return centred * self.amplitudes

    def dual(self, threads: Threads) -> np.ndarray:
        """(m, m), its lower triangle: products of the rows with each other, centred, scaled and shared."""
        products, scale = self._products(threads)
        squared = self.amplitudes**2 * self.centre
        crossed = -self.times_raw(squared)
        norm = float(squared @ self.centre)
        m = self.rows
        out = np.empty((m, m), order="F")
        for j in range(m):
            out[j:, j] = products(j) * scale + crossed[j:] + (crossed[j] + norm)
            out[j:, j] *= self.shares[j:] * self.shares[j]
        return out

    def times_raw(self, v: np.ndarray) -> np.ndarray:
        """(m,): the raw features times v."""
        W = aligned_empty((1, self.Z.shape[1]), np.float64)
        W[:] = 0
        W[0, : len(v)] = v
        out = np.empty((self.rows, 1))
        dot_rows(self.Z, self.rows, W, np.zeros(1), out)
        return out[:, 0]

    def _products(self, threads: Threads) -> tuple[Callable[[int], np.ndarray], float]:
        """Column j of Z Z' from its diagonal down, and what it is to be multiplied by.

        Integer features of one amplitude go through the exact product that is fastest here, with rows as columns.
        """
        layout, D = Layout(self.rows), len(self.centre)
        uniform = self.precision.exact and np.ptp(self.amplitudes) <= 1e-12 * self.amplitudes[0]
        key = self.precision.key if uniform else "float64"
        product = choose_product(key, threads.count)
        totals = np.zeros(layout.length, np.int64 if uniform else np.float64)
        for first in range(0, D, product.rows):
            last = min(first + product.rows, D)
            block = np.ascontiguousarray(self.Z[:, first:last].T, product.dtype)
            if not uniform:
                block *= self.amplitudes[first:last, None]
            product.add(block, layout, totals, threads)

        def column(j: int) -> np.ndarray:
            number = j // layout.panel_width
            return layout.panel(totals, number)[j - layout.starts[number], j - layout.starts[number] :]

        return column, float(self.amplitudes[0] ** 2) if uniform else 1.0


class SampleFactor:
    """(S_m + mu I)^-1 for the m rows of a sample, exactly: 1/mu (I - Z' (Z Z' + mu I)^-1 Z).

    mu is lambda, or larger where the sample is too small to know that much about S: a third of the rows is as large an
    effective dimension as they can tell.
    """

    def __init__(self, rows: SampleRows, threads: Threads) -> None:
        self.rows, self.threads = rows, threads
        self._dual = rows.dual(threads)
        self.least = Spectrum(self._dual).shift_for(rows.rows * KNOWN_SHARE)

    def at(self, ridge: float) -> Preconditioner:
        """The preconditioner for one lambda: one factorisation of m x m."""
        return self.exactly(max(ridge, self.least))

    def exactly(self, ridge: float) -> Preconditioner:
        """At this very mu."""
        factor = self._factored(ridge)

        def apply(residual: np.ndarray) -> np.ndarray:
            inner = self.rows.times(residual)
            solved, _ = scipy.linalg.lapack.dpotrs(factor, inner.T, lower=1)
            return (residual - self.rows.back(np.ascontiguousarray(solved.T))) / ridge

        return apply

    def _factored(self, ridge: float) -> np.ndarray:
        if ridge <= 0:
            raise NumericalError(NEEDS_LAMBDA)
        for jitter in JITTERS:
            matrix = self._dual.copy(order="F")
            matrix.flat[:: len(matrix) + 1] += ridge + jitter
            with self.threads.blas_for(len(matrix)):
                if cholesky(matrix):
                    return matrix
        raise NumericalError(f"lambda {ridge:g} leaves the sample's system singular: choose a larger one, such as 1e-8")

    @staticmethod
    def nbytes(rows: int, D: int, bits: str) -> int:
        """Memory: the features, the dual, and its factors at two lambdas, one of which is about to be let go."""
        item = make_precision(bits).features.itemsize
        return rows * (D + 64) * item + 3 * 8 * rows * rows


class NystromFactor:
    """(U diag(values) U' + lambda I)^-1 with U (D, r) from one sketch; beyond U all values are taken for the least."""

    def __init__(self, sketch: np.ndarray, test: np.ndarray, noise: float) -> None:
        """From ``sketch`` = S ``test``, both (r, D), rows of ``test`` orthonormal; ``noise`` is its relative error."""
        shift = max(noise * float(np.linalg.norm(sketch)), LEAST_SHIFT)
        shifted = sketch + shift * test
        root = scipy.linalg.solve_triangular(_root_of(test @ shifted.T), shifted, lower=True)  # (r, D)
        _, singular, self.U = scipy.linalg.svd(root, full_matrices=False, overwrite_a=True)
        self.values = np.maximum(singular**2 - shift, 0.0)

    def at(self, ridge: float) -> Preconditioner:
        if self.values[-1] + ridge <= 0:
            raise NumericalError(NEEDS_LAMBDA)
        rest = 1.0 / (self.values[-1] + ridge)
        gain = 1.0 / (self.values + ridge) - rest

        def apply(residual: np.ndarray) -> np.ndarray:
            return rest * residual + ((residual @ self.U.T) * gain) @ self.U

        return apply

    @staticmethod
    def nbytes(rank: int, D: int) -> int:
        """Memory while it is made: test matrix, sketch, square root, its factors."""
        return 5 * 8 * rank * D


def _root_of(core: np.ndarray) -> np.ndarray:
    try:
        return scipy.linalg.cholesky((core + core.T) / 2, lower=True)
    except scipy.linalg.LinAlgError:
        raise NumericalError(
            f"the sketch of rank {len(core)} is not positive definite to rounding: use `preconditioner='sample'`"
        ) from None


def random_directions(rank: int, D: int, seed: int) -> np.ndarray:
    """(r, D) random orthonormal rows to sketch with."""
    rng = np.random.default_rng([seed, 0x4E59])
    return np.ascontiguousarray(np.linalg.qr(rng.standard_normal((D, min(rank, D))))[0].T)


PROBES, LANCZOS_STEPS = 4, 60
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
    steps = min(LANCZOS_STEPS, len(probe))
    basis, diagonal, beside = np.zeros((steps, len(probe))), np.zeros(steps), np.zeros(steps)
    basis[0] = probe / np.linalg.norm(probe)
    done = steps
    multiply = scipy.linalg.blas.ssymv if lower.dtype == np.float32 else scipy.linalg.blas.dsymv
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
    values, vectors = scipy.linalg.eigh_tridiagonal(diagonal[:done], beside[: done - 1])
    return values, vectors[0] ** 2
