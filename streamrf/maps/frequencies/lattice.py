"""Rank-1 lattices of any number of points in any dimension, built at draw time and randomly shifted."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamrf.maps.frequencies.discrepancy import shifted_correlation

CANDIDATES = 16
WORK = 2**29  # evaluations of one coordinate of one point that a construction may take: a second or two


def candidates_within_budget(coordinates: int, points: int) -> int:
    """How many candidates to try for each coordinate, so that large constructions still take seconds."""
    return max(1, min(CANDIDATES, WORK // (coordinates * points)))


@njit(cache=True, nogil=True)
def _badness(z: int, change: np.ndarray, plus: np.ndarray, minus: np.ndarray) -> float:
    F, k, total = len(change), 0, 0.0
    for i in range(F):
        total += plus[i] * (1.0 + change[k]) + minus[i] * (1.0 - change[k])
        k += z
        if k >= F:
            k -= F
    return total


@njit(cache=True, nogil=True)
def _best_generators(candidates: np.ndarray, spread: np.ndarray, correlation: np.ndarray, group: int) -> np.ndarray:
    """One generator for each coordinate (row of candidates), each chosen given those before it in its group."""
    F = len(correlation)
    plus, minus = np.ones(F), np.ones(F)
    chosen = np.empty(len(candidates), np.int64)
    for j in range(len(candidates)):
        if j % group == 0:
            plus[:], minus[:] = 1.0, 1.0
        change = spread[j] * correlation
        best = np.inf
        for z in candidates[j]:
            bad = _badness(z, change, plus, minus)
            if bad < best:
                best, chosen[j] = bad, z
        k = 0
        for i in range(F):
            plus[i] *= 1.0 + change[k]
            minus[i] *= 1.0 - change[k]
            k = (k + chosen[j]) % F
    return chosen


def lattice_points(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """F points {i z / F + shift}, component by component.

    F points have few generators to choose from, and coordinates of the same one would be copies of each other. So
    where there are more coordinates than that, each group has a lattice of its own in random order (Latin supercube).
    """
    coordinates = len(spread)
    units = np.flatnonzero(np.gcd(np.arange(F), F) == 1)
    group = min(coordinates, max(1, len(units) // 4))
    tries = candidates_within_budget(coordinates, F)
    candidates = units[rng.integers(0, len(units), (coordinates, tries))]
    z = _best_generators(candidates, spread, shifted_correlation(F), group)
    points = np.arange(F)[:, None] * z % F
    for start in range(group, coordinates, group):
        points[:, start : start + group] = points[rng.permutation(F), start : start + group]
    return (points / F + rng.random(coordinates)) % 1.0
