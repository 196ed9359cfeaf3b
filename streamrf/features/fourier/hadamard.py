"""The fast Hadamard transform, and projections by products of it with diagonal matrices.

A pass takes the top bits of the index, transforms over them, and writes them back as the lowest bits. After every bit
has gone round once the result is in natural order, and each pass reads long contiguous runs whatever the length is.
"""

from __future__ import annotations

import numpy as np
from numba import njit

ROW_BATCH = 32  # rows for which one block's diagonals stay in the first-level cache


def padded_length(d: int) -> int:
    """The smallest power of two that holds d columns."""
    return 1 << max(0, d - 1).bit_length()


@njit(cache=True, nogil=True)
def _pass_over_one_bit(x: np.ndarray, y: np.ndarray) -> None:
    half = x.shape[0] // 2
    low, high = x[:half], x[half:]
    for i in range(half):
        y[2 * i] = low[i] + high[i]
        y[2 * i + 1] = low[i] - high[i]


@njit(cache=True, nogil=True)
def _pass_over_two_bits(x: np.ndarray, y: np.ndarray) -> None:
    quarter = x.shape[0] // 4
    x0, x1, x2, x3 = x[:quarter], x[quarter : 2 * quarter], x[2 * quarter : 3 * quarter], x[3 * quarter :]
    for i in range(quarter):
        a, b, c, d = x0[i] + x1[i], x0[i] - x1[i], x2[i] + x3[i], x2[i] - x3[i]
        y[4 * i] = a + c
        y[4 * i + 1] = b + d
        y[4 * i + 2] = a - c
        y[4 * i + 3] = b - d


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _project_row(
    row: np.ndarray,
    diagonals: np.ndarray,
    permutation: np.ndarray,
    scale: np.ndarray,
    x: np.ndarray,
    spare: np.ndarray,
    out: np.ndarray,
) -> None:
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


@njit(cache=True, nogil=True)
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
