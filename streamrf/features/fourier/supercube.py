"""Latin supercube sampling (Owen 1998): more coordinates than a point set has different ones of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Points = Callable[[np.random.Generator, int, np.ndarray], np.ndarray]  # stream, F, spread of each coordinate


def supercube(points: Points, rng: np.random.Generator, F: int, spread: np.ndarray, group: int) -> np.ndarray:
    """Each group of coordinates has points of its own, in random order.

    F points allow few really different coordinates. Beyond them coordinates become near copies of each other, which is
    worse than independence.
    """
    starts = range(0, len(spread), group)
    parts = [points(rng, F, spread[start : start + group])[rng.permutation(F)] for start in starts]
    return np.concatenate(parts, axis=1)
