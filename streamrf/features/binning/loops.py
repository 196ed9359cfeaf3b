"""Compiled loops of random binning: cells to buckets, look-ups, and sums into buckets.

Every result is the same in any blocking and on any machine: cells come from single float32 operations in a fixed order,
hashes and sums from integers. NaN and infinities must have been screened out.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOWEST, _HIGHEST = np.float32(-(2.0**30)), np.float32(2.0**30)  # beyond them every cell is the same one
_ROWS = 512  # rows hashed at once: their columns and hashes stay in the first caches


@njit(cache=True, nogil=True)
def _add_column(
    x: np.ndarray, shift: np.float32, inverse: np.float32, a: np.uint32, b: np.uint32, low: np.ndarray, high: np.ndarray
) -> None:
    """Mix the cells of one column into both halves of the hashes: one multiplication a half, eight rows at a time."""
    for r in range(low.shape[0]):
        cell = np.uint32(np.int32(min(max(np.floor((x[r] - shift) * inverse), _LOWEST), _HIGHEST)))
        low[r] += cell * a
        high[r] += cell * b


@njit(cache=True, nogil=True)
def _finish(low: np.ndarray, high: np.ndarray, bits: int, out: np.ndarray) -> None:
    """The top bits of the mixed 64-bit hashes."""
    drop = np.uint64(64 - bits)
    for r in range(low.shape[0]):
        out[r] = (((np.uint64(high[r]) << _HALF) | np.uint64(low[r])) * _MIX) >> drop


@njit(cache=True, nogil=True)
def hash_rows(
    X: np.ndarray, start: int, stop: int, starts: np.ndarray, columns: np.ndarray, shifts: np.ndarray,
    inverses: np.ndarray, lows: np.ndarray, highs: np.ndarray, bits: int, out: np.ndarray,
) -> None:  # fmt: skip
    """Bin indices (or, with 64 bits, whole hashes) of rows ``start`` to ``stop`` in every grid, into ``out`` (P, n)."""
    turned = np.empty((X.shape[1], _ROWS), np.float32)
    low_buffer, high_buffer = np.empty(_ROWS, np.uint32), np.empty(_ROWS, np.uint32)
    for first in range(start, stop, _ROWS):
        rows = min(_ROWS, stop - first)
        for r in range(rows):
            for j in range(X.shape[1]):
                turned[j, r] = X[first + r, j]
        low, high = low_buffer[:rows], high_buffer[:rows]
        for p in range(starts.shape[0] - 1):
            low[:] = 0
            high[:] = 0
            for k in range(starts[p], starts[p + 1]):
                _add_column(turned[columns[k], :rows], shifts[k], inverses[k], lows[k], highs[k], low, high)
            _finish(low, high, bits, out[p, first : first + rows])


@njit(cache=True, nogil=True)
def look_up(indices: np.ndarray, table: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """``out[r] = sum over grids of table[p, indices[p, r]]``; grid after grid, so that one at a time is in cache."""
    out[start:stop] = 0
    for p in range(indices.shape[0]):
        grid = table[p]
        for r in range(start, stop):
            out[r] += grid[indices[p, r]]


@njit(cache=True, nogil=True)
def add_to_buckets(indices: np.ndarray, values: np.ndarray, p: int, totals: np.ndarray) -> None:
    """Add one integer a row to the buckets of grid p."""
    grid = totals[p]
    for r in range(indices.shape[1]):
        grid[indices[p, r]] += values[r]


@njit(cache=True, nogil=True)
def count_buckets(indices: np.ndarray, p: int, counts: np.ndarray) -> None:
    """Add one a row to the buckets of grid p."""
    grid = counts[p]
    for r in range(indices.shape[1]):
        grid[indices[p, r]] += 1


@njit(cache=True, nogil=True)
def gather(table: np.ndarray, positions: np.ndarray, out: np.ndarray) -> None:
    """``out = table[positions]``, in one go whatever the types."""
    for i in range(positions.shape[0]):
        out[i] = table[positions[i]]


@njit(cache=True, nogil=True)
def scatter(values: np.ndarray, positions: np.ndarray, table: np.ndarray) -> None:
    """``table[positions] = values``."""
    for i in range(positions.shape[0]):
        table[positions[i]] = values[i]


@njit(cache=True, nogil=True)
def scatter_rounded(values: np.ndarray, factor: float, positions: np.ndarray, table: np.ndarray) -> None:
    """``table[positions] = rint(values factor)``."""
    for i in range(positions.shape[0]):
        table[positions[i]] = np.rint(values[i] * factor)


@njit(cache=True, nogil=True)
def moved_scores(
    X: np.ndarray, moves: np.ndarray, starts: np.ndarray, columns: np.ndarray, shifts: np.ndarray,
    inverses: np.ndarray, lows: np.ndarray, highs: np.ndarray, bits: int, table: np.ndarray, totals: np.ndarray,
) -> None:  # fmt: skip
    """Add to ``totals[j]`` the squared change of each row's scores as its column j alone moves to ``moves[r, j]``.

    A hash is linear in the cells until its last step, so a moved column costs one look-up a grid, and none where the
    cell stays the same.
    """
    drop = np.uint64(64 - bits)
    change = np.zeros((X.shape[1], table.shape[0]))
    for r in range(X.shape[0]):
        change[:] = 0.0
        for p in range(starts.shape[0] - 1):
            low, high = np.uint32(0), np.uint32(0)
            for k in range(starts[p], starts[p + 1]):
                cell = np.uint32(_cell(X[r, columns[k]], shifts[k], inverses[k]))
                low = np.uint32(low + cell * lows[k])
                high = np.uint32(high + cell * highs[k])
            here = (((np.uint64(high) << _HALF) | np.uint64(low)) * _MIX) >> drop
            for k in range(starts[p], starts[p + 1]):
                j = columns[k]
                step = _cell(moves[r, j], shifts[k], inverses[k]) - _cell(X[r, j], shifts[k], inverses[k])
                if step != 0:
                    a = np.uint32(low + np.uint32(step) * lows[k])
                    b = np.uint32(high + np.uint32(step) * highs[k])
                    there = (((np.uint64(b) << _HALF) | np.uint64(a)) * _MIX) >> drop
                    for o in range(table.shape[0]):
                        change[j, o] += table[o, p, there] - table[o, p, here]
        for j in range(X.shape[1]):
            for o in range(table.shape[0]):
                totals[j] += change[j, o] * change[j, o]


@njit(cache=True, nogil=True)
def _cell(x: np.float32, shift: np.float32, inverse: np.float32) -> np.int32:
    return np.int32(min(max(np.floor((x - shift) * inverse), _LOWEST), _HIGHEST))
