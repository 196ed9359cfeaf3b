"""The fast Hadamard transform, and projections by small factors instead of a d x F matrix.

A projection is a product of diagonal matrices, Hadamard transforms and at most one permutation.

A pass takes the top bits of the index, transforms over them, and writes them back as the lowest bits. After every bit
has gone round once the result is in natural order, and each pass reads long contiguous runs whatever the length is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.errors import FileFormatError
from streamrf.support.threads import Threads

SPAN = 256  # rows a thread takes at once
ROW_BATCH = 32  # rows for which one block's diagonals stay in the first-level cache


def padded_length(d: int) -> int:
    """The smallest power of two that holds d columns."""
    return 1 << max(0, d - 1).bit_length()


@inner_kernel
def _pass_over_one_bit(x: np.ndarray, y: np.ndarray) -> None:
    half = x.shape[0] // 2
    low, high = x[:half], x[half:]
    for i in range(half):
        y[2 * i] = low[i] + high[i]
        y[2 * i + 1] = low[i] - high[i]


@inner_kernel
def _pass_over_two_bits(x: np.ndarray, y: np.ndarray) -> None:
    quarter = x.shape[0] // 4
    x0, x1, x2, x3 = x[:quarter], x[quarter : 2 * quarter], x[2 * quarter : 3 * quarter], x[3 * quarter :]
    for i in range(quarter):
        a, b, c, d = x0[i] + x1[i], x0[i] - x1[i], x2[i] + x3[i], x2[i] - x3[i]
        y[4 * i] = a + c
        y[4 * i + 1] = b + d
        y[4 * i + 2] = a - c
        y[4 * i + 3] = b - d


@kernel
def transform(x: np.ndarray, spare: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """H x without normalisation, for a power-of-two length; overwrites both arrays, and returns the result first."""
    left = x.shape[0]
    while left >= 4:
        _pass_over_two_bits(x, spare)
        x, spare = spare, x
        left //= 4
    if left == 2:
        _pass_over_one_bit(x, spare)
        x, spare = spare, x
    return x, spare


@inner_kernel
def _project_row(
    row: np.ndarray, diagonals: np.ndarray, permutation: np.ndarray, scale: np.ndarray, x: np.ndarray,
    spare: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """One row through one block: scale H D_k ... H P D_2 H D_1 row, where P is there if it has a length."""
    d = row.shape[0]
    first = diagonals[0]
    for i in range(d):
        x[i] = row[i] * first[i]
    x[d:] = 0.0
    x, spare = transform(x, spare)
    for stage in range(1, diagonals.shape[0]):
        diagonal = diagonals[stage]
        if stage == 1 and permutation.shape[0] > 0:
            for i in range(x.shape[0]):
                spare[i] = x[permutation[i]] * diagonal[i]
            x, spare = spare, x
        else:
            for i in range(x.shape[0]):
                x[i] *= diagonal[i]
        x, spare = transform(x, spare)
    for i in range(out.shape[0]):
        out[i] = x[i] * scale[i]


@kernel
def project_rows(
    X: np.ndarray, diagonals: np.ndarray, permutations: np.ndarray, scale: np.ndarray, out: np.ndarray
) -> None:
    """All rows of X through all blocks into ``out`` (n, F); a row is computed alone, so blocking cannot change it."""
    n, F = out.shape
    blocks, _, length = diagonals.shape
    x, spare = np.empty(length, X.dtype), np.empty(length, X.dtype)
    for start in range(0, n, ROW_BATCH):
        for block in range(blocks):
            left, right = block * length, min(F, (block + 1) * length)
            for row in range(start, min(n, start + ROW_BATCH)):
                _project_row(
                    X[row], diagonals[block], permutations[block], scale[left:right], x, spare, out[row, left:right]
                )


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
