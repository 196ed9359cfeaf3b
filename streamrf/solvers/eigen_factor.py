"""A preconditioner small enough for every mini-batch: the leading directions of a sample, one scale for the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg as sla

from streamrf.solvers.preconditioners import SampleRows
from streamrf.threads import Threads


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
            values, vectors = sla.eigh(dual, lower=True, subset_by_index=(m - rank, m - 1), check_finite=False)
        values, vectors = values[::-1], vectors[:, ::-1]
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

    def arrays(self) -> dict[str, np.ndarray]:
        return {"U": self.U, "values": self.values, "trace": np.array([self.trace])}
