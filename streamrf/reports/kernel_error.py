"""How far the kernel of a map is from the exact one, on rows in memory.

Random binning has too many features to write down, but their inner products are not: two rows have in common the share
of grids in which they fall into one cell. That is the kernel it approximates, and enough for a ridge fit in the dual.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg as sla
from numba import njit

from streamrf.features.base import FeatureMap
from streamrf.features.binning.map import MAX_BITS, BinningMap
from streamrf.features.kernels import Kernel
from streamrf.support.threads import Threads

_COLUMNS = 1024  # features that are in float64 at once


def approximate_kernel(map: FeatureMap, X: np.ndarray, threads: Threads) -> np.ndarray:
    """z(x)'z(y) for all pairs of scaled rows, from the features that training would use."""
    features = feature_block(map, len(X))
    map.compute(X, features, threads)
    K = np.zeros((len(X), len(X)))
    with threads.blas():
        for first in range(0, map.n_features, _COLUMNS):
            part = slice(first, min(first + _COLUMNS, map.n_features))
            z = features[:, part] * map.amplitudes[part]
            K += z @ z.T
    return K


def feature_block(map: FeatureMap, rows: int) -> np.ndarray:
    """An uninitialised block for the features of this many rows, in a type that holds them."""
    return map.block(rows, np.int16 if map.precision.exact else map.precision.inputs)


def relative_error(map: FeatureMap, X: np.ndarray, K: np.ndarray, threads: Threads) -> float:
    """|K~ - K| / |K| in the Frobenius norm, over all pairs of scaled rows X, whose exact kernel is K."""
    return relative_gap(approximate_kernel(map, X, threads), K)


def relative_gap(approximate: np.ndarray, K: np.ndarray) -> float:
    """The same for a given approximation, which is overwritten."""
    approximate -= K
    return float(np.linalg.norm(approximate) / np.linalg.norm(K))


# -- random binning


def draw_grids(kernel: Kernel, d: int, grids: int, seed: int) -> BinningMap:
    """Grids whose cells do not collide: all bits of the hash tell them apart."""
    return BinningMap.draw(kernel, d, grids, MAX_BITS, seed)


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
