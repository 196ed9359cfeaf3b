"""A projection by small factors instead of a d x F matrix: diagonals, Hadamard transforms, at most one permutation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamrf.features.fourier.hadamard import padded_length, project_rows
from streamrf.support.errors import FileFormatError
from streamrf.support.threads import Threads

SPAN = 256  # rows a thread takes at once


@dataclass(frozen=True, eq=False)
class StructuredProjection:
    """Row j of block b of the frequencies is row j of ``scale H D_k ... H P D_2 H D_1``, cut to d columns.

    ``diagonals`` is (blocks, stages, n) with n a power of two, ``permutations`` (blocks, n), or (blocks, 0) where there
    is none, and ``scale`` (F,). H is the Hadamard matrix of 1 and -1.
    """

    d: int
    diagonals: np.ndarray
    permutations: np.ndarray
    scale: np.ndarray

    @property
    def F(self) -> int:
        return len(self.scale)

    @property
    def length(self) -> int:
        """Columns after padding to a power of two."""
        return int(self.diagonals.shape[2])

    @cached_property
    def _single(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The factors as the kernel wants them: float32, and an index type that gathers fast."""
        return (
            np.ascontiguousarray(self.diagonals, np.float32),
            np.ascontiguousarray(self.permutations, np.int32),
            self.scale.astype(np.float32),
        )

    def project(self, X: np.ndarray, out: np.ndarray, threads: Threads | None = None) -> None:
        """X (n, d) times the frequencies into ``out`` (n, F), in float32; the same bits for any split of the rows."""
        if X.shape != (len(out), self.d) or out.shape[1] != self.F:
            raise ValueError(f"inputs {X.shape} and output {out.shape} do not fit {self.F} x {self.d} frequencies")
        factors = self._single
        X = np.ascontiguousarray(X, np.float32)

        def span(start: int) -> None:
            project_rows(X[start : start + SPAN], *factors, out[start : start + SPAN])

        if threads is None:
            project_rows(X, *factors, out)
        else:
            threads.each(span, range(0, len(X), SPAN))

    def dense(self) -> np.ndarray:
        """The frequencies as (F, d) float64: the projection of the unit vectors."""
        columns = np.empty((self.d, self.F))
        scale = self.scale.astype(np.float64)
        project_rows(np.eye(self.d), self.diagonals.astype(np.float64), self.permutations, scale, columns)
        return np.ascontiguousarray(columns.T)

    def arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a model file."""
        columns = np.array([self.d], np.int64)
        parts = {"diagonals": self.diagonals, "permutations": self.permutations, "scale": self.scale}
        return {"columns": columns, **parts}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> StructuredProjection:
        """The projection that ``arrays()`` described; arrays that do not fit together are a FileFormatError."""
        try:
            columns = arrays["columns"]
            made = cls(int(columns[0]), arrays["diagonals"], arrays["permutations"], arrays["scale"])
        except (KeyError, IndexError) as error:
            raise FileFormatError(f"the map's structured frequencies are damaged: {error} is missing") from error
        made._check()
        return made

    def _check(self) -> None:
        """Everything the kernel relies on: it checks no bounds itself."""
        shapes = {"diagonals": self.diagonals.shape, "permutations": self.permutations.shape, "scale": self.scale.shape}
        fine = self.diagonals.ndim == 3 and self.permutations.ndim == 2 and self.scale.ndim == 1
        if fine:
            blocks, stages, n = self.diagonals.shape
            fine = n == padded_length(n) and 1 <= self.d <= n and stages >= 1
            fine = fine and (blocks - 1) * n < self.F <= blocks * n
            fine = fine and self.permutations.shape in ((blocks, n), (blocks, 0))
            fine = fine and self.permutations.dtype.kind in "iu"
            fine = fine and bool(np.all((self.permutations >= 0) & (self.permutations < n)))
        if not fine:
            raise FileFormatError(f"the map's structured frequencies are damaged: shapes {shapes} for {self.d} columns")
