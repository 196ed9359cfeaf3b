"""The median heuristic: a first width for a kernel, from distances between rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from streamrf.features.kernels import make_kernel
from streamrf.support.quantiles import median

ROWS, SHIFTS = 1000, 8
MOST_GAPS = 8_000_000  # values
ALL_PAIRS = 300  # different rows up to which every pair counts, in few enough columns


def median_length_scale(
    X: np.ndarray, kernel_name: str, rng: np.random.Generator, weights: np.ndarray | None = None
) -> float:
    """The length scale at which the median kernel value over pairs of different rows is 1/e.

    That is the median distance in the kernel's own norm (times 2^-1/2 for the Gaussian), from at most 1,000 rows. A
    pair counts for the product of its rows' weights.
    """
    from scipy.optimize import brentq

    kernel = make_kernel(kernel_name)
    gaps, shares = _pair_gaps(X, rng, weights, kernel._reduced)
    apart = gaps.any(axis=1)
    gaps, shares = gaps[apart], None if shares is None else shares[apart]
    if len(gaps) == 0:
        return 1.0
    typical = float(median(gaps.max(axis=1)[:, None], shares)[0])

    def excess(log_scale: float) -> float:
        values = kernel._of_gaps(gaps / (typical * math.exp(log_scale)))
        return float(median(values[:, None], shares)[0]) - math.exp(-1.0)

    reach = 2.0
    while excess(-reach) * excess(reach) > 0:
        reach *= 2.0
        if reach > 256:  # a Matern of tiny nu is noise plus a constant: no width changes it
            return typical
    return typical * math.exp(brentq(excess, -reach, reach, xtol=1e-10))


def _pair_gaps(
    X: np.ndarray, rng: np.random.Generator, weights: np.ndarray | None, reduced: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Absolute differences of pairs of rows, ``reduced`` to what a kernel sees of them, and what each pair counts for:
    of a few rows all pairs, else each of some random rows with its next few neighbours in random order."""
    if weights is not None:
        X, weights = X[weights > 0], weights[weights > 0]
    rows = rng.permutation(len(X))[:ROWS]
    sample = np.asarray(X[rows], dtype=np.float64)
    shares = None if weights is None else weights[rows]
    different, place = np.unique(sample, axis=0, return_inverse=True)
    if len(different) <= ALL_PAIRS and different.size * len(different) <= MOST_GAPS:
        counts = np.bincount(place.ravel(), weights=shares, minlength=len(different))
        one, other = np.triu_indices(len(different), 1)
        return reduced(np.abs(different[one] - different[other])), counts[one] * counts[other]
    shifts = range(1, min(SHIFTS, len(rows) - 1) + 1)
    gaps = np.concatenate([reduced(np.abs(sample - np.roll(sample, shift, axis=0))) for shift in shifts])
    pairs = None if shares is None else np.concatenate([shares * np.roll(shares, shift) for shift in shifts])
    return gaps, pairs
