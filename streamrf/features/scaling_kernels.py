"""The compiled loops of a scaling.

A value goes through the same float64 operations in the same order whatever block it comes in and whatever the memory
layout, no library function among them, and is rounded once at the end: the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_ONE_BITS, _ROOT_HALF_BITS = 0x3FF0000000000000, 0x3FE6A09E667F3BCD  # 1 and the root of 1/2 as float64
_TILE = 128  # values that are bisected in step
_ROWS_AT_ONCE = 8  # share one reading of the rotation
FARTHEST = 1e30


@njit(cache=True, nogil=True)
def _log1p(v: float) -> float:
    """log(1 + v) for v >= 0 to 1e-15, by plain arithmetic: a library's logarithm differs between machines."""
    v = min(v, 1e300)
    y = 1.0 + v
    bits = np.float64(y).view(np.int64) + (_ONE_BITS - _ROOT_HALF_BITS)
    power = (bits >> 52) - 1023  # y is 2^power times m, and m lies between the roots of 1/2 and of 2
    m = np.int64((bits & 0xFFFFFFFFFFFFF) + _ROOT_HALF_BITS).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = 1.0 / 17.0
    series = series * z + 1.0 / 15.0
    series = series * z + 1.0 / 13.0
    series = series * z + 1.0 / 11.0
    series = series * z + 1.0 / 9.0
    series = series * z + 1.0 / 7.0
    series = series * z + 1.0 / 5.0
    series = series * z + 1.0 / 3.0
    series = series * z + 1.0
    lost = v - (y - 1.0)  # what 1 + v rounded away
    return power * 0.6931471805599453 + (2.0 * s * series + lost / y)


@njit(cache=True, nogil=True)
def _signed_log(x: float, rate: float) -> float:
    size = _log1p(abs(x) * rate)
    return -size if x < 0.0 else size


@njit(cache=True, nogil=True)
def _find(values: np.ndarray, knots: np.ndarray, places: np.ndarray) -> None:
    """For each value the last knot but one, or an earlier one, that is not above it (the first where all are)."""
    places.fill(0)
    left = len(knots) - 1
    while left > 1:  # bisection of all values in step: it runs in SIMD, and has no branch to guess wrong
        half = left >> 1
        for r in range(len(values)):
            place = places[r]
            places[r] = place + half if knots[np.uint64(place + half)] <= values[r] else place
        left -= half


@njit(cache=True, nogil=True)
def _level(x: float, knots: np.ndarray, levels: np.ndarray, place: int) -> float:
    """The level of x on the line between two knots, held at both ends."""
    after = min(place + 1, len(knots) - 1)
    gap = knots[after] - knots[place]
    share = (x - knots[place]) / (gap if gap > 0.0 else 1.0)
    return levels[place] + min(max(share, 0.0), 1.0) * (levels[after] - levels[place])


@njit(cache=True, nogil=True)
def shift_and_stretch(X: np.ndarray, centre: np.ndarray, factor: np.ndarray, out: np.ndarray) -> None:
    """``(X - centre) * factor``, column by column; small, as it is compiled for every type and layout of X.

    What is farther out than FARTHEST is there: beyond what a float32 holds no map knows what to do.
    """
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            value = (np.float64(X[i, j]) - centre[j]) * factor[j]
            out[i, j] = min(max(value, -FARTHEST), FARTHEST)


@njit(cache=True, nogil=True)
def take_logs(columns: np.ndarray, rates: np.ndarray, centre: np.ndarray, factor: np.ndarray) -> None:
    """Signed logs of columns (k, n), shifted and stretched, in place."""
    for k in range(len(rates)):
        for i in range(columns.shape[1]):
            columns[k, i] = (_signed_log(columns[k, i], rates[k]) - centre[k]) * factor[k]


@njit(cache=True, nogil=True)
def take_ranks(columns: np.ndarray, offsets: np.ndarray, knots: np.ndarray, levels: np.ndarray) -> None:
    """Levels of columns (k, n) on their curves, in place; the knots of column k are offsets[k]..offsets[k + 1]."""
    places = np.empty(_TILE, np.int64)
    for k in range(columns.shape[0]):
        own_knots, own_levels = knots[offsets[k] : offsets[k + 1]], levels[offsets[k] : offsets[k + 1]]
        for start in range(0, columns.shape[1], _TILE):
            tile = columns[k, start : start + _TILE]
            _find(tile, own_knots, places)
            for r in range(len(tile)):
                tile[r] = _level(tile[r], own_knots, own_levels, places[r])


@njit(cache=True, nogil=True)
def rotate_rows(Z: np.ndarray, rotation: np.ndarray) -> None:
    """Z @ rotation in place, with every sum in the order of the columns of Z."""
    d = Z.shape[1]
    sums = np.empty((_ROWS_AT_ONCE, d))
    for start in range(0, Z.shape[0], _ROWS_AT_ONCE):
        rows = min(_ROWS_AT_ONCE, Z.shape[0] - start)
        sums.fill(0.0)
        for j in range(d):
            for r in range(rows):
                z = Z[start + r, j]
                for k in range(d):
                    sums[r, k] += z * rotation[j, k]
        for r in range(rows):
            for k in range(d):
                Z[start + r, k] = sums[r, k]
