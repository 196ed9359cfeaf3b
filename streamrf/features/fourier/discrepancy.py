"""How even a point set is, for cosines: what lattices and digital nets are chosen by, one coordinate at a time.

Take differences x - y with independent normal coordinates of variance g_j (in length scales). Up to a constant, the
mean squared error of the kernel is then the mean over pairs of frequencies v, w of prod_j exp(-g_j (v_j - w_j)^2 / 2)
plus prod_j exp(-g_j (v_j + w_j)^2 / 2); the second is there because v and -v are the same cosine. A random shift (or
digital shift) makes each factor, on average, a function of the difference between two points, so that one sum over
points is left.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import ndtri

TYPICAL_SPREAD = 2.0  # sum of g_j at which the kernel is 1/e
LARGEST_SPREAD = 4.0  # beyond it only pairs of rows that are nearly equal have a kernel value to get right
_QUADRATURE = 256
_SHIFTS = 65
_LEVELS = 7  # bits beyond which two points are as good as equal

Factors = tuple[np.ndarray, np.ndarray]  # at each difference: of v and w, and of v and -w


def gap_variances(coordinates: int, variances: np.ndarray | None, length_scale: float) -> np.ndarray:
    """g_j of each coordinate: from the variances of the rows, or the same for all where they are not known."""
    spread = np.full(coordinates, TYPICAL_SPREAD / coordinates)
    if variances is not None and np.any(variances):
        spread[coordinates - len(variances) :] = 2.0 * variances / length_scale**2
    return spread * min(1.0, LARGEST_SPREAD / spread.sum())


def _quantiles(count: int) -> np.ndarray:
    """Normal quantiles at the middles of equal intervals."""
    return ndtri((np.arange(count) + 0.5) / count)


def _both(g: float, v: np.ndarray, w: np.ndarray) -> Factors:
    return np.exp(-0.5 * g * (v - w) ** 2), np.exp(-0.5 * g * (v + w) ** 2)


@lru_cache(maxsize=32)
def shifted_factors(g: float, F: int) -> Factors:
    """Of two uniform points that differ by k/F (mod 1), for k = 0 .. F - 1; interpolated where F is large."""
    shifts = 0.5 * np.linspace(0.0, 1.0, _SHIFTS) ** 2  # they change fastest near 0, and are the same for k and F - k
    u = (np.arange(_QUADRATURE) + 0.5) / _QUADRATURE
    shifted = np.clip((u + shifts[:, None]) % 1.0, 2.0**-54, None)  # 0 has no finite quantile
    tables = (table.mean(axis=1) for table in _both(g, ndtri(u), ndtri(shifted)))
    k = np.arange(F)
    plain, mirrored = (np.interp(np.minimum(k, F - k) / F, shifts, table) for table in tables)
    return plain, mirrored


@lru_cache(maxsize=32)
def dyadic_factors(g: float, bits: int) -> Factors:
    """Of two uniform points that share exactly k leading bits, for k = 0 .. bits - 1, and that share them all."""
    middles, numbers = _quantiles(2**_LEVELS), np.arange(2**_LEVELS)
    shared = np.minimum(_LEVELS - np.frexp(numbers[:, None] ^ numbers)[1], bits).ravel()
    tables = (np.bincount(shared, table.ravel()) / np.bincount(shared) for table in _both(g, middles[:, None], middles))
    plain, mirrored = (table[np.minimum(np.arange(bits + 1), len(table) - 1)] for table in tables)
    return plain, mirrored
