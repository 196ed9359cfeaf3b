"""Rank-1 lattices of any number of points in any dimension, built at draw time and randomly shifted."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamrf.maps.frequencies.discrepancy import shifted_factors

CANDIDATES = 32  # for each coordinate; many more gain nothing
WORK = 2**29  # evaluations of one coordinate of one point that a construction may take: a second or two


def candidates_within_budget(coordinates: int, points: int) -> int:
    """How many candidates to try for each coordinate, so that large constructions still take seconds."""
    return max(1, min(CANDIDATES, WORK // (coordinates * points)))


@njit(cache=True, nogil=True)
def _badness(z: int, plain: np.ndarray, mirrored: np.ndarray, same: np.ndarray, opposite: np.ndarray) -> float:
    F, k, total = len(plain), 0, 0.0
    for i in range(F):
        total += same[i] * plain[k] + opposite[i] * mirrored[k]
        k += z
        if k >= F:
            k -= F
    return total


@njit(cache=True, nogil=True)
def _best_generator(
    candidates: np.ndarray, plain: np.ndarray, mirrored: np.ndarray, same: np.ndarray, opposite: np.ndarray
) -> int:
    """The candidate that adds least error; the products so far are multiplied by its factors."""
    F, best, chosen = len(plain), np.inf, candidates[0]
    for z in candidates:
        bad = _badness(z, plain, mirrored, same, opposite)
        if bad < best:
            best, chosen = bad, z
    for i in range(F):
        same[i] *= plain[i * chosen % F]
        opposite[i] *= mirrored[i * chosen % F]
    return chosen


def lattice_points(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """F points {i z / F + shift}, component by component.

    F points have few generators to choose from, and coordinates of the same one would be copies of each other. So
    where there are more coordinates than that, each group has a lattice of its own in random order (Latin supercube).
    """
    units, coordinates = np.flatnonzero(np.gcd(np.arange(F), F) == 1), len(spread)
    group, tries = max(1, len(units) // 4), candidates_within_budget(coordinates, F)
    points = np.empty((F, coordinates))
    for j, g in enumerate(spread):
        if j % group == 0:
            same, opposite, order = np.ones(F), np.ones(F), rng.permutation(F)
        z = _best_generator(units[rng.integers(0, len(units), tries)], *shifted_factors(float(g), F), same, opposite)
        points[:, j] = (order * z % F / F + rng.random()) % 1.0
    return points
