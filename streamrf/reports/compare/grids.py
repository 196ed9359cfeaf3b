"""Random binning beside the maps of frequencies, with as many grids as those have features.

Its features are too many to write down, but their inner products are not: two rows have in common the share of the
grids in which they fall into one cell. That is the kernel it stands for, and enough for a ridge fit in the dual.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as sla
from numba import njit

from streamrf.features.binning.map import MAX_BITS, BinningMap
from streamrf.support.threads import Threads


def shared_grids(map: BinningMap, X: np.ndarray, Y: np.ndarray, threads: Threads) -> np.ndarray:
    """(n, m): the share of grids in which a row of X and one of Y fall into the same cell."""
    mine, theirs = (np.ascontiguousarray(map.keys(rows, threads).T) for rows in (X, Y))
    out = np.empty((len(X), len(Y)))
    step = max(1, -(-len(X) // (4 * threads.count)))

    def rows(first: int) -> None:
        _count(mine[first : first + step], theirs, out[first : first + step])

    threads.each(rows, range(0, len(X), step))
    return out / map.grids


@njit(cache=True, nogil=True)
def _count(mine: np.ndarray, theirs: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(mine)):
        for j in range(len(theirs)):
            same = 0
            for p in range(mine.shape[1]):
                same += mine[i, p] == theirs[j, p]
            out[i, j] = same


def draw_grids(kernel: Any, d: int, grids: int, seed: int) -> BinningMap:
    """Without collisions of cells: they are told apart by all bits of their hash."""
    return BinningMap.draw(kernel, d, grids, MAX_BITS, seed)


def dual_scores(K: np.ndarray, across: np.ndarray, y: np.ndarray, ridges: tuple[float, ...]) -> np.ndarray:
    """(unseen rows, lambdas, outputs) of ridge fits with kernel K (n, n) among the rows and ``across`` (unseen, n)."""
    n, mean = len(K), K.mean(axis=0)
    centred = K - mean - mean[:, None] + mean.mean()
    beside = across - across.mean(axis=1, keepdims=True) - mean + mean.mean()
    scores = np.empty((len(across), len(ridges), y.shape[1]))
    for number, ridge in enumerate(ridges):
        system = centred / n
        system.flat[:: n + 1] += ridge
        factor = sla.cho_factor(system, lower=True, overwrite_a=True, check_finite=False)
        scores[:, number] = y.mean(axis=0) + beside @ sla.cho_solve(factor, (y - y.mean(axis=0)) / n)
    return scores
