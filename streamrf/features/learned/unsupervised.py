"""Frequencies and weights learned from a sample of rows, without targets; rows kept apart choose what is best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.features.fourier.frequencies import uniform_weights
from streamrf.features.kernels import Kernel
from streamrf.features.learned.ekal import DECAY, Landmarks, Learned, Pairs, ekal_loss, learn_ekal, relative_error
from streamrf.features.learned.fresh import Schedule, learn_fresh
from streamrf.features.learned.landmarks import Clusters, sample_landmarks
from streamrf.support.errors import DataError, InputError

SAMPLE, CLUSTER = "sample", "cluster"
FEWEST_LANDMARKS, MOST_LANDMARKS = 50, 256  # a step: more of them make steps dearer, not better
UNSEEN = 1000  # rows kept apart, whose pairs judge
POOL = 20_000  # rows that landmarks are drawn from
FEWEST_ROWS = 16
START = "start"


@dataclass(frozen=True, eq=False)
class KernelFeatures:
    """The learned frequencies and weights, and relative kernel errors on pairs of unseen rows by candidate."""

    learned: Learned
    chosen: str
    errors: dict[str, float]  # ``start`` is W0 with equal weights
    losses: tuple[float, float]  # mean squared error over pairs of landmarks, before and after
    landmarks: int
    schedule: Schedule

    def report(self) -> dict[str, Any]:
        """What a training run tells of it."""
        return {
            "kept": START if self.chosen == START else "learned",
            "landmarks": self.landmarks,
            "iterations": self.schedule.iterations,
            "steps": self.schedule.steps,
            "landmark_loss": {"before": self.losses[0], "after": self.losses[1]},
            "kernel_error": {"before": self.errors[START], "after": self.errors[self.chosen]},
            "history": [{"iteration": step.iteration, "kernel_error": step.error} for step in self.learned.history],
        }


@dataclass(frozen=True, eq=False)
class _Task:
    """Where to start from, where landmarks come from, what judges, and what was asked for."""

    unseen: Pairs
    kernel: Kernel
    W0: np.ndarray
    draw: Callable[[], Landmarks]
    clusters: Clusters | None
    schedule: Schedule
    decay: float


def learn_kernel_features(
    X: np.ndarray,
    kernel: Kernel,
    W0: np.ndarray,
    *,
    landmarks: str = CLUSTER,
    count: int | None = None,
    iterations: int | None = None,
    steps: int | None = None,
    decay: float | None = None,
    fresh: bool = True,
    seed: int = 0,
) -> KernelFeatures:
    """Learn from scaled rows X. ``count`` landmarks (by default as many as frequencies, from 50 to 256) are new at
    every step if ``fresh``, and otherwise fixed, as in the paper: then centres of clusters and rows closest to them
    compete.
    """
    if landmarks not in (SAMPLE, CLUSTER):
        raise InputError(f"there are no landmarks by {landmarks!r}: choose sample or cluster")
    if len(X) < FEWEST_ROWS:
        raise DataError(f"learning frequencies takes at least {FEWEST_ROWS} rows, and there are {len(X)}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    apart = min(UNSEEN, len(X) // 4)
    pool = np.asarray(X[order[apart : apart + POOL]], np.float64)
    count = max(2, min(len(pool) // 2, count or int(np.clip(len(W0), FEWEST_LANDMARKS, MOST_LANDMARKS))))
    clusters = Clusters.find(pool, count, seed) if landmarks == CLUSTER else None
    task = _Task(
        Pairs.within(kernel, X[order[:apart]]), kernel, np.asarray(W0, np.float64),
        (lambda: sample_landmarks(pool, count, rng)) if clusters is None else (lambda: clusters.members(rng)),
        clusters, Schedule.of(len(W0), iterations, steps), DECAY if decay is None else decay,
    )  # fmt: skip
    some = Pairs.within(kernel, *task.draw())
    candidates = _learn_with_fresh(task, landmarks) if fresh else _learn_with_fixed(task)
    return _best(candidates, task, some)


def _learn_with_fresh(task: _Task, name: str) -> dict[str, Learned]:
    T, S = task.schedule
    return {
        name: learn_fresh(
            task.draw, task.kernel, task.W0, iterations=T, steps=S, decay=task.decay, unseen=task.unseen
        )
    }  # fmt: skip


def _learn_with_fixed(task: _Task) -> dict[str, Learned]:
    """One set of landmarks for all iterations; for clusters both their centres and the rows closest to these."""
    clusters = task.clusters
    fixed = (
        {SAMPLE: task.draw()} if clusters is None else {"centres": clusters.centres(), "closest": clusters.closest()}
    )
    return {
        name: learn_ekal(each.X, each.weights, task.kernel, task.W0, decay=task.decay, unseen=task.unseen)
        for name, each in fixed.items()
    }


def _best(candidates: dict[str, Learned], task: _Task, some: Pairs) -> KernelFeatures:
    """The candidate with the least error; the start is one of them."""
    candidates = {START: Learned(task.W0, uniform_weights(len(task.W0))), **candidates}
    errors = {name: relative_error(task.unseen, each.W, each.p) for name, each in candidates.items()}
    chosen = min(errors, key=lambda name: errors[name])
    before, after = (ekal_loss(some, candidates[name].W, candidates[name].p) for name in (START, chosen))
    return KernelFeatures(candidates[chosen], chosen, errors, (before, after), len(some.left), task.schedule)
