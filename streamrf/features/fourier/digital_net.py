"""Digital nets in base 2 for any number of points and any dimension, built at draw time and digitally shifted.

Yang et al. (2014) used tables of Niederreiter-Xing nets, which end at a few dozen dimensions. Here each coordinate's
generator matrix is the best of a few random ones, given the coordinates before it, by the error that cosines make.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streamrf.features.fourier.discrepancy import dyadic_factors
from streamrf.features.fourier.hadamard import transform
from streamrf.features.fourier.lattice import candidates_within_budget


@njit(cache=True, nogil=True)
def _full_rank(columns: np.ndarray) -> bool:
    """Whether the matrix of these bit columns is invertible, which makes its coordinate evenly stratified."""
    left = columns.copy()
    for i in range(len(left)):
        if left[i] == 0:
            return False
        lowest = left[i] & -left[i]
        for j in range(i + 1, len(left)):
            if left[j] & lowest:
                left[j] ^= left[i]
    return True


@njit(cache=True, nogil=True)
def _keep_full_rank(columns: np.ndarray, out: np.ndarray) -> int:
    kept = 0
    for i in range(len(columns)):
        if kept < len(out) and _full_rank(columns[i]):
            out[kept] = columns[i]
            kept += 1
    return kept


def _random_generators(rng: np.random.Generator, count: int, bits: int) -> np.ndarray:
    """``count`` uniform invertible bit matrices, as columns; three in ten uniform matrices are."""
    out, kept = np.empty((count, bits), np.int64), 0
    while kept < count:
        kept += _keep_full_rank(rng.integers(1, 2**bits, (4 * (count - kept), bits)), out[kept:])
    return out


@njit(cache=True, nogil=True)
def _fill(columns: np.ndarray, x: np.ndarray) -> None:
    """Coordinate of every point: the generator matrix times the bits of its number."""
    x[0] = 0
    for bit in range(len(columns)):
        size = 1 << bit
        for i in range(size):
            x[size + i] = x[i] ^ columns[bit]


@njit(cache=True, nogil=True)
def _badness(x: np.ndarray, plain: np.ndarray, mirrored: np.ndarray, same: np.ndarray, opposite: np.ndarray) -> float:
    total = 0.0
    for i in range(len(x)):
        total += same[i] * plain[x[i]] + opposite[i] * mirrored[x[i]]
    return total


@njit(cache=True, nogil=True)
def _best_generator(
    candidates: np.ndarray, plain: np.ndarray, mirrored: np.ndarray, same: np.ndarray, opposite: np.ndarray
) -> np.ndarray:
    """The coordinate that the best candidate gives; the products so far are multiplied by its factors."""
    best, chosen = np.inf, np.zeros(len(plain), np.int64)
    x = np.empty_like(chosen)
    for columns in candidates:
        _fill(columns, x)
        bad = _badness(x, plain, mirrored, same, opposite)
        if bad < best:
            best, chosen[:] = bad, x
    for i in range(len(chosen)):
        same[i] *= plain[chosen[i]]
        opposite[i] *= mirrored[chosen[i]]
    return chosen


def _pairs_at_each_difference(F: int, size: int) -> np.ndarray:
    """How many pairs of the first F points differ, as bits, by each number."""
    taken = (np.arange(size) < F).astype(np.float64)
    squared = transform(taken, np.empty(size))[0] ** 2
    return transform(squared, np.empty(size))[0] / size


def net_points(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """The first F points of a net of the next power of two, chosen for those F."""
    bits, coordinates = max(1, (F - 1).bit_length()), len(spread)
    size = 2**bits
    leading_zeros = bits - np.frexp(np.arange(size))[1]
    tries = candidates_within_budget(coordinates, size)
    same, opposite = _pairs_at_each_difference(F, size), _pairs_at_each_difference(F, size)
    points = np.empty((F, coordinates))
    for j, g in enumerate(spread):
        plain, mirrored = (table[leading_zeros] for table in dyadic_factors(float(g), bits))
        x = _best_generator(_random_generators(rng, tries, bits), plain, mirrored, same, opposite)[:F]
        points[:, j] = ((x ^ rng.integers(0, size)) + rng.random(F)) / size
    return points
