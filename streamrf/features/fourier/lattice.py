"""Rank-1 lattices of any number of points in any dimension, built at draw time and randomly shifted."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamrf.features.fourier.discrepancy import shifted_factors
from streamrf.features.fourier.supercube import supercube

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


def _units(F: int) -> np.ndarray:
    """Numbers without a common factor with F: the generators that give F different values."""
    return np.flatnonzero(np.gcd(np.arange(F), F) == 1)


def _one_lattice(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """F points {i z / F + shift}, with z chosen component by component."""
    units, tries = _units(F), candidates_within_budget(len(spread), F)
    same, opposite, points = np.ones(F), np.ones(F), np.empty((F, len(spread)))
    for j, g in enumerate(spread):
        z = _best_generator(units[rng.integers(0, len(units), tries)], *shifted_factors(float(g), F), same, opposite)
        points[:, j] = (np.arange(F) * z % F / F + rng.random()) % 1.0
    return points


def lattice_points(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """F points of a shifted lattice; of several in random order where the coordinates outnumber its generators."""
    return supercube(_one_lattice, rng, F, spread, max(1, len(_units(F)) // 4))
