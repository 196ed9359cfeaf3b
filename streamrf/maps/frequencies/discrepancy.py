"""How even a point set is, for cosines: what lattices and digital nets are chosen by, one coordinate at a time.

Take differences x - y with independent normal coordinates of variance g_j (in length scales). Up to terms of each
coordinate alone, which one-dimensional evenness already removes, the mean squared error of the kernel is the mean over
pairs of points of prod(1 + g_j c_j) / 2 + prod(1 - g_j c_j) / 2, where c_j is the correlation between the normal
quantiles of the two points' coordinates: the two products keep the even orders, which are all a cosine sees. A random
shift (or digital shift) makes c_j a function of the two points' difference alone, so only one sum over points is left.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

TYPICAL_SPREAD = 2.0  # sum of g_j at which the kernel is 1/e
LARGEST_SPREAD = 4.0  # beyond it high orders drown the low ones, and products overflow
_FINEST = 4096


def gap_variances(coordinates: int, variances: np.ndarray | None, length_scale: float) -> np.ndarray:
    """g_j of each coordinate: from the variances of the rows, or the same for all where they are not known."""
    spread = np.full(coordinates, TYPICAL_SPREAD / coordinates)
    if variances is None or not np.any(variances):
        return spread
    spread[coordinates - len(variances) :] = 2.0 * variances / length_scale**2
    return spread * min(1.0, LARGEST_SPREAD / spread.sum())


def shifted_correlation(F: int) -> np.ndarray:
    """Correlation of normal quantiles at u and u + k/F (mod 1) over uniform u, for k = 0 .. F - 1."""
    step = -(-_FINEST // F)
    quantiles = ndtri((np.arange(F * step) + 0.5) / (F * step))
    power = np.abs(np.fft.rfft(quantiles)) ** 2
    return np.fft.irfft(power, F * step)[::step] / (F * step)


def dyadic_correlation(bits: int) -> np.ndarray:
    """Correlation of normal quantiles at two uniform points that share exactly k leading bits; at the end, all bits."""
    within = np.array([np.mean(_interval_means(k) ** 2) for k in range(bits + 1)])  # sharing at least k bits
    return np.append(2.0 * within[:-1] - within[1:], within[-1])


def _interval_means(bits: int) -> np.ndarray:
    """Mean normal quantile on each of 2^bits equal intervals."""
    edges = ndtri(np.arange(1, 2**bits) / 2**bits)
    density = np.concatenate([[0.0], np.exp(-0.5 * edges**2) / np.sqrt(2.0 * np.pi), [0.0]])
    return 2**bits * (density[:-1] - density[1:])
