"""How far the kernel of a map is from the exact one, on rows in memory."""

from __future__ import annotations

import numpy as np

from streamrf.features.base import FeatureMap
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
    """Room for the features of so many rows, in a type that holds them."""
    return map.block(rows, np.int16 if map.precision.exact else map.precision.inputs)


def relative_error(map: FeatureMap, X: np.ndarray, K: np.ndarray, threads: Threads) -> float:
    """|K~ - K| / |K| in the Frobenius norm, over all pairs of scaled rows X, whose exact kernel is K."""
    return relative_gap(approximate_kernel(map, X, threads), K)


def relative_gap(approximate: np.ndarray, K: np.ndarray) -> float:
    """The same of a matrix at hand, which is spent on it."""
    approximate -= K
    return float(np.linalg.norm(approximate) / np.linalg.norm(K))
