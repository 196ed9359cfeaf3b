"""Frequencies and weights learned from a sample of rows, without targets; rows kept apart choose what is best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamrf.errors import DataError, InputError
from streamrf.kernels import Kernel
from streamrf.maps.frequencies.base import uniform_weights
from streamrf.maps.learned.ekal import Landmarks, Learned, Pairs, ekal_loss, learn_ekal, relative_error
from streamrf.maps.learned.fresh import learn_fresh
from streamrf.maps.learned.landmarks import Clusters, sample_landmarks

SAMPLE, CLUSTER = "sample", "cluster"
MOST_LANDMARKS = 256  # a step: more of them make steps dearer, not better
UNSEEN = 1000  # rows kept apart, whose pairs judge
POOL = 20_000  # rows that landmarks are drawn from
FEWEST_ROWS = 16


@dataclass(frozen=True, eq=False)
class KernelFeatures:
    """The learned frequencies and weights, and relative kernel errors on pairs of unseen rows by candidate."""

    learned: Learned
    chosen: str
    errors: dict[str, float]  # ``start`` is W0 with equal weights
    losses: tuple[float, float]  # mean squared error over these pairs, before and after


def learn_kernel_features(
    X: np.ndarray,
    kernel: Kernel,
    W0: np.ndarray,
    *,
    landmarks: str = CLUSTER,
    count: int | None = None,
    fresh: bool = True,
    seed: int = 0,
) -> KernelFeatures:
    """Learn from scaled rows X. ``count`` landmarks (by default as many as frequencies, at most 256) are new at every
    step if ``fresh``, and otherwise fixed, as in the paper: then centres of clusters and rows closest to them compete.
    """
    if landmarks not in (SAMPLE, CLUSTER):
        raise InputError(f"there are no landmarks by {landmarks!r}: choose sample or cluster")
    if len(X) < FEWEST_ROWS:
        raise DataError(f"learning frequencies takes at least {FEWEST_ROWS} rows, and there are {len(X)}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    apart = min(UNSEEN, len(X) // 4)
    unseen = Pairs.within(kernel, X[order[:apart]])
    pool = np.asarray(X[order[apart : apart + POOL]], np.float64)
    count = min(len(pool) // 2, count or min(MOST_LANDMARKS, len(W0)))
    learn = _learn_with_fresh if fresh else _learn_with_fixed
    candidates = learn(pool, count, landmarks, kernel, W0, unseen, seed, rng)
    return _best(candidates, np.asarray(W0, np.float64), unseen)


def _learn_with_fresh(
    pool: np.ndarray, count: int, landmarks: str, kernel: Kernel, W0: np.ndarray, unseen: Pairs, seed: int,
    rng: np.random.Generator,
) -> dict[str, Learned]:  # fmt: skip
    return {landmarks: learn_fresh(_drawing(pool, count, landmarks, seed, rng), kernel, W0, unseen=unseen)}


def _drawing(
    pool: np.ndarray, count: int, landmarks: str, seed: int, rng: np.random.Generator
) -> Callable[[], Landmarks]:
    if landmarks == SAMPLE:
        return lambda: sample_landmarks(pool, count, rng)
    clusters = Clusters.find(pool, count, seed)
    return lambda: clusters.members(rng)


def _learn_with_fixed(
    pool: np.ndarray, count: int, landmarks: str, kernel: Kernel, W0: np.ndarray, unseen: Pairs, seed: int,
    rng: np.random.Generator,
) -> dict[str, Learned]:  # fmt: skip
    if landmarks == SAMPLE:
        fixed = {"sample": sample_landmarks(pool, count, rng)}
    else:
        clusters = Clusters.find(pool, count, seed)
        fixed = {"centres": clusters.centres(), "closest": clusters.closest()}
    return {name: learn_ekal(each.X, each.weights, kernel, W0, unseen=unseen) for name, each in fixed.items()}


def _best(candidates: dict[str, Learned], W0: np.ndarray, unseen: Pairs) -> KernelFeatures:
    """The candidate with the least error; the start is one of them."""
    candidates = {"start": Learned(W0, uniform_weights(len(W0))), **candidates}
    errors = {name: relative_error(unseen, each.W, each.p) for name, each in candidates.items()}
    chosen = min(errors, key=lambda name: errors[name])
    before, after = (ekal_loss(unseen, candidates[name].W, candidates[name].p) for name in ("start", chosen))
    return KernelFeatures(candidates[chosen], chosen, errors, (before, after))
