"""A preconditioner small enough for every mini-batch: the leading directions of a sample, one scale for the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg as sla

from streamrf.solvers.preconditioners import SampleRows
from streamrf.support.threads import Threads

SPARE, ROUNDS = 16, 3  # vectors beyond those wanted, and products with all of them
LEAST = 1e-20  # what nothing is taken for: z'z is about one, and constant features leave only rounding


@dataclass(frozen=True)
class EigenFactor:
    """Roughly (S + shift)^-1, in float32: S has ``values`` along the rows of U (r, D), the least of them elsewhere."""

    U: np.ndarray  # (r, D) float32
    values: np.ndarray  # (r,), falling
    trace: float  # of S

    @classmethod
    def of(cls, rows: SampleRows, rank: int, threads: Threads) -> EigenFactor:
        dual = rows.dual(threads)
        m, trace = len(dual), float(np.trace(dual))
        rank = max(1, min(rank, m // 2))
        with threads.blas_for(m):
            values, vectors = leading(dual, rank)
        values = np.maximum(values, LEAST)
        kept = values > 1e-10 * values[0]
        values, vectors = values[kept], vectors[:, kept]
        U = rows.back(np.ascontiguousarray(vectors.T)) / np.sqrt(values)[:, None]
        return cls(U.astype(np.float32), values.copy(), trace)

    def leverage(self, shift: float) -> float:
        """The usual z'(S + shift)^-1 z: how strongly one row can pull in the preconditioned norm."""
        rest = max(self.trace - float(self.values.sum()), 0.0)
        return float((self.values / (self.values + shift)).sum() + rest / (self.values[-1] + shift))

    def apply(self, gradient: np.ndarray, shift: float) -> np.ndarray:
        """(k, D) float32."""
        rest = 1.0 / (self.values[-1] + shift)
        gain = (1.0 / (self.values + shift) - rest).astype(np.float32)
        return np.float32(rest) * gradient + ((gradient @ self.U.T) * gain) @ self.U


def leading(lower: np.ndarray, rank: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues, falling, and their vectors (m, r), of a matrix given by its lower triangle.

    Subspace iteration from random vectors, a few more than are wanted: rough at the end of the list, where little hangs
    on it, and much quicker than all of the spectrum.
    """
    m = len(lower)
    start = np.random.default_rng([seed, 0x4547]).standard_normal((m, min(m, rank + SPARE)))
    basis = np.linalg.qr(start)[0]
    for _ in range(ROUNDS):
        basis = np.linalg.qr(sla.blas.dsymm(1.0, lower, basis, lower=1))[0]
    values, vectors = np.linalg.eigh(basis.T @ sla.blas.dsymm(1.0, lower, basis, lower=1))
    return values[::-1][:rank], (basis @ vectors)[:, ::-1][:, :rank]
