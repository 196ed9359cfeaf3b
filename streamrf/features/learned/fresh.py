"""Algorithm 1 with fresh landmarks at every step: what a large sample allows and a fixed set of landmarks does not.

A fixed set of as many landmarks as frequencies is soon learned by heart. Here every step takes two new draws of
landmarks, moves W by their gradient, and now and then adds their A and b to a running mean, from which p comes by the
same quadratic programme.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from streamrf.features.fourier.frequencies import uniform_weights
from streamrf.features.kernels import Kernel
from streamrf.features.learned.adam import Adam
from streamrf.features.learned.ekal import (
    DECAY,
    Landmarks,
    Learned,
    Pairs,
    Progress,
    Waves,
    gradient_of_waves,
    relative_error,
    solve_weights,
    typical_size,
    weight_equations,
)

MOST_STEPS, FEWEST_STEPS, WORK = 600, 100, 300_000  # steps times frequencies
STEP = 0.05  # of the typical size of a frequency's entry
STEPS, PER_SOLUTION = 4, 80  # S; one more for so many frequencies: a solution costs the cube of their number
FORGETTING = 0.2  # of the running mean of A and b, at every solution
MOST_SOLVED = 4096  # frequencies; beyond it the quadratic programme would take more memory and time than it is worth
REPORTS = 10


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
    draw: Callable[[], Landmarks],
    kernel: Kernel,
    W0: np.ndarray,
    *,
    iterations: int | None = None,
    steps: int | None = None,
    decay: float = DECAY,
    unseen: Pairs | None = None,
) -> Learned:
    """Frequencies and weights from W0; ``draw`` gives new landmarks each time it is called."""
    W = np.array(W0, np.float32)
    p, T = uniform_weights(len(W)).astype(np.float32), Schedule.of(len(W), iterations, steps)
    adam, equations = Adam(STEP * typical_size(W), T.iterations * T.steps), _RunningMean()
    history = [_progress(0, np.nan, W, p, decay, unseen)]

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
            history.append(_progress(iteration, loss, W, p, decay, unseen))
    p = equations.solution(*fresh(), p, decay)
    history.append(_progress(T.iterations, loss, W, p, decay, unseen))
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


def _progress(number: int, loss: float, W: np.ndarray, p: np.ndarray, decay: float, unseen: Pairs | None) -> Progress:
    error = np.nan if unseen is None else relative_error(unseen, W, p)
    return Progress(number, loss + decay / len(p) * float(p @ p), float(error))
