"""Frequencies and weights learned from a sample of rows, without targets; rows kept apart choose what is best.

Algorithm 1 of Li et al. (2019) has a fixed set of landmarks, and as many of them as frequencies are soon learned by
heart. A large sample allows fresh landmarks: every step takes two new draws of them, moves W by their gradient, and
now and then adds their A and b to a running mean, from which p comes by the same quadratic programme.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streamrf.features.kernels import Kernel
from streamrf.features.learned.ekal import (
    DECAY,
    ITERATIONS,
    Adam,
    Clusters,
    Landmarks,
    Learned,
    Pairs,
    Progress,
    Waves,
    ekal_loss,
    equal_weights,
    gradient_of_waves,
    learn_ekal,
    relative_error,
    sample_landmarks,
    solve_weights,
    typical_size,
    weight_equations,
)
from streamrf.features.learned.ekal import STEPS as PAPER_STEPS
from streamrf.support.errors import DataError, InputError
from streamrf.support.storage.safejson import JSON

SAMPLE, CLUSTER = "sample", "cluster"
FEWEST_LANDMARKS, MOST_LANDMARKS = 50, 256  # a step: more of them make steps dearer, not better
UNSEEN = 1000  # rows kept apart, whose pairs judge
POOL = 20_000  # rows that landmarks are drawn from
FEWEST_ROWS = 16
START = "start"
MOST_STEPS, FEWEST_STEPS, WORK = 600, 100, 300_000  # steps times frequencies
STEP = 0.05  # of the typical size of a frequency's entry
STEPS, PER_SOLUTION = 4, 80  # S; one more for so many frequencies: a solution costs the cube of their number
FORGETTING = 0.2  # of the running mean of A and b, at every solution
MOST_SOLVED = 4096  # frequencies; beyond it the quadratic programme would take more memory and time than it is worth
REPORTS = 10


# -- Algorithm 1 with fresh landmarks


class Schedule(NamedTuple):
    """T and S of the paper: how often p is solved for, and how many steps W takes after each."""

    iterations: int
    steps: int

    @classmethod
    def of(cls, F: int, iterations: int | None = None, steps: int | None = None) -> Schedule:
        """600 steps in all where nothing is given, and fewer for many frequencies, whose start is closer."""
        steps = steps or max(STEPS, F // PER_SOLUTION)
        total = int(np.clip(WORK // F, FEWEST_STEPS, MOST_STEPS))
        return cls(iterations or max(1, total // steps), steps)


def learn_fresh(
    draw: Callable[[], Landmarks], kernel: Kernel, W0: np.ndarray, *, iterations: int | None = None,
    steps: int | None = None, decay: float = DECAY, unseen: Pairs | None = None,
) -> Learned:  # fmt: skip
    """Frequencies and weights from W0; ``draw`` gives new landmarks each time it is called."""
    W = np.array(W0, np.float32)
    p, T = equal_weights(W).astype(np.float32), Schedule.of(len(W), iterations, steps)
    adam, equations = Adam(STEP * typical_size(W), T.iterations * T.steps), _RunningMean()
    history = [_reached(0, np.nan, W, p, decay, unseen)]

    def fresh() -> tuple[Pairs, Waves, Waves]:
        pairs = Pairs.between(kernel, draw(), draw(), np.float32)
        return pairs, *pairs.waves(W)

    for iteration in range(1, T.iterations + 1):
        for step in range(T.steps):
            landmarks = fresh()
            p = equations.solution(*landmarks, p, decay) if step == 0 else p
            loss, slope = gradient_of_waves(*landmarks, p)
            W = adam.move(W, slope)
        if iteration % max(1, T.iterations // REPORTS) == 0 and iteration < T.iterations:
            history.append(_reached(iteration, loss, W, p, decay, unseen))
    p = equations.solution(*fresh(), p, decay)
    history.append(_reached(T.iterations, loss, W, p, decay, unseen))
    return Learned(W.astype(np.float64), p.astype(np.float64), history)


class _RunningMean:
    """A mean of A and b that forgets, as both change while W moves, and the weights that solve it."""

    def __init__(self) -> None:
        self.A: np.ndarray | None = None
        self.b = np.zeros(0)
        self.count = 0

    def solution(self, pairs: Pairs, left: Waves, right: Waves, p: np.ndarray, decay: float) -> np.ndarray:
        """The best weights by the mean with these pairs in it; as they were, where frequencies are too many."""
        if len(p) > MOST_SOLVED:
            return p
        return solve_weights(*self.add(*weight_equations(pairs, left, right)), decay).astype(np.float32)

    def add(self, A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.count += 1
        share = max(FORGETTING, 1.0 / self.count)
        if self.A is None:
            self.A, self.b = A, b
        else:
            self.A, self.b = self.A + share * (A - self.A), self.b + share * (b - self.b)
        return self.A, self.b


def _reached(number: int, loss: float, W: np.ndarray, p: np.ndarray, decay: float, unseen: Pairs | None) -> Progress:
    error = np.nan if unseen is None else relative_error(unseen, W, p)
    return Progress(number, loss + decay / len(p) * float(p @ p), float(error))


# -- the best of what was learned and the start


@dataclass(frozen=True, eq=False)
class KernelFeatures:
    """The learned frequencies and weights, and relative kernel errors on pairs of unseen rows by candidate."""

    learned: Learned
    chosen: str
    errors: dict[str, float]  # ``start`` is W0 with equal weights
    losses: tuple[float, float]  # mean squared error over pairs of landmarks, before and after
    landmarks: int
    schedule: Schedule

    def report(self) -> JSON:
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
    X: np.ndarray, kernel: Kernel, W0: np.ndarray, *, landmarks: str = CLUSTER, count: int | None = None,
    iterations: int | None = None, steps: int | None = None, decay: float | None = None, fresh: bool = True,
    seed: int = 0,
) -> KernelFeatures:  # fmt: skip
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
    paper = Schedule(iterations or ITERATIONS, steps or PAPER_STEPS)
    schedule = Schedule.of(len(W0), iterations, steps) if fresh else paper
    task = _Task(
        Pairs.within(kernel, X[order[:apart]]), kernel, np.asarray(W0, np.float64),
        (lambda: sample_landmarks(pool, count, rng)) if clusters is None else (lambda: clusters.members(rng)),
        clusters, schedule, DECAY if decay is None else decay,
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
        name: learn_ekal(
            each.X,
            each.weights,
            task.kernel,
            task.W0,
            iterations=task.schedule.iterations,
            steps=task.schedule.steps,
            decay=task.decay,
            unseen=task.unseen,
        )
        for name, each in fixed.items()
    }


def _best(candidates: dict[str, Learned], task: _Task, some: Pairs) -> KernelFeatures:
    """The candidate with the least error; the start is one of them."""
    candidates = {START: Learned(task.W0, equal_weights(task.W0)), **candidates}
    errors = {name: relative_error(task.unseen, each.W, each.p) for name, each in candidates.items()}
    chosen = min(errors, key=lambda name: errors[name])
    before, after = (ekal_loss(some, candidates[name].W, candidates[name].p) for name in (START, chosen))
    return KernelFeatures(candidates[chosen], chosen, errors, (before, after), len(some.left), task.schedule)
