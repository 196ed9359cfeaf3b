"""The direct solver on a sample, as a preconditioner: where the sample has more rows than there are features, the Gram
matrix of the features is smaller than that of the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg as sla

from streamrf.features.base import FeatureMap
from streamrf.solvers.conjugate_gradients import Preconditioner
from streamrf.solvers.spectrum import Spectrum
from streamrf.statistics.gram_kernels import PRODUCT_ROWS, Layout, choose_product, worst_work_bytes
from streamrf.support.errors import NumericalError
from streamrf.support.threads import Threads, available_cores

KNOWN_SHARE = 0.25  # directions that a sample knows, for each of its rows
ROUNDING = 5e-7  # of the largest eigenvalue: what float32 can tell from nothing
FLOAT_ROWS = 1024  # of a block of floats
RAISED = (1.0, 10.0, 100.0)  # times mu, where a factor fails


@dataclass(frozen=True)
class SampleGram:
    """Sums of products of a sample's raw features, each row counting for its share of the weight; and its mean."""

    totals: np.ndarray  # flat, in panels
    layout: Layout
    mean: np.ndarray  # (D,)
    scale: float  # of the totals
    rows: int

    @classmethod
    def of(cls, map: FeatureMap, X: np.ndarray, threads: Threads, weights: np.ndarray | None = None) -> SampleGram:
        """From scaled inputs. Integer features of rows that count alike go through an exact product."""
        D, plain = map.n_features, weights is None and map.precision.exact
        product, layout = choose_product(map.precision.key if plain else "float64", threads.count), Layout(D)
        shares = np.ones(len(X)) if weights is None else weights * (len(X) / weights.sum())
        totals, sums = np.zeros(layout.length, np.int64 if plain else np.float64), np.zeros(D)
        step = product.rows if plain else FLOAT_ROWS
        Z = np.zeros((step, max(map.width, D)), product.dtype if plain else map.precision.features)
        for first in range(0, len(X), step):
            some = X[first : first + step]
            map.compute(some, Z, threads)
            features = Z[: len(some), :D]
            if plain:
                sums += features.sum(axis=0, dtype=np.int64)
                product.add(features, layout, totals, threads)
            else:
                share = shares[first : first + len(some)]
                sums += share @ features
                product.add(features * np.sqrt(share)[:, None], layout, totals, threads)
        return cls(totals, layout, sums / len(X), 1 / len(X), len(X))

    def centred(self, centre: np.ndarray, amplitudes: np.ndarray) -> np.ndarray:
        """(D, D) float32, its lower triangle in Fortran order: second moments about ``centre``, scaled."""
        D = self.layout.size
        out = np.zeros((D, D), np.float32)  # rows here are columns of the result
        for number, j0 in enumerate(self.layout.starts):
            own = slice(j0, j0 + self.layout.width(j0))
            part = self.layout.panel(self.totals, number) * self.scale
            part -= np.outer(self.mean[own], centre[j0:]) + np.outer(centre[own], self.mean[j0:] - centre[j0:])
            out[own, j0:] = part * np.outer(amplitudes[own], amplitudes[j0:])
        return out.T


class PrimalFactor:
    """(S_m + mu I)^-1 by a Cholesky factor in float32. mu is lambda, or larger where the sample knows no better."""

    def __init__(self, gram: SampleGram, centre: np.ndarray, amplitudes: np.ndarray, threads: Threads) -> None:
        self._gram, self._about, self._threads = gram, (centre, amplitudes), threads
        matrix = gram.centred(*self._about)
        with threads.blas_for(len(matrix)):
            spectrum = Spectrum(matrix)
        self.least = max(spectrum.shift_for(gram.rows * KNOWN_SHARE), ROUNDING * spectrum.largest)
        self._factored(matrix, self.least)

    def at(self, ridge: float) -> Preconditioner:
        """The preconditioner for one lambda."""
        mu = max(ridge, self.least)
        if mu != self._mu:
            self._factored(self._gram.centred(*self._about), mu)
        factor, threads = self._factor, self._threads

        def apply(residual: np.ndarray) -> np.ndarray:
            with threads.blas_for(len(factor)):
                solved, _ = sla.lapack.spotrs(factor, residual.T.astype(np.float32), lower=1)
            return np.ascontiguousarray(solved.T, np.float64)

        return apply

    def _factored(self, matrix: np.ndarray, mu: float) -> None:
        """In place, where that succeeds; only one factor is kept."""
        for times in RAISED:
            matrix.flat[:: len(matrix) + 1] += np.float32(mu * times)
            with self._threads.blas_for(len(matrix)):
                factor, info = sla.lapack.spotrf(matrix, lower=1, clean=0, overwrite_a=1)
            if info == 0:
                self._factor, self._mu = factor, mu
                return
            matrix = self._gram.centred(*self._about)
        raise NumericalError(f"the sample's system is singular even at lambda {mu * RAISED[-1]:g}: choose a larger one")

    @staticmethod
    def nbytes(D: int, bits: str) -> int:
        """Sums in int64, half a square of them; factors at two lambdas, one of which is about to be let go; and what
        the sums are made with."""
        work = 4 * PRODUCT_ROWS * (D + 64) + worst_work_bytes(bits, Layout(D), available_cores())
        return 4 * D * D + 2 * 4 * D * D + work
