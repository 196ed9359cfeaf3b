"""Algorithm 1 with fresh landmarks at every step: what a large sample allows and a fixed set of landmarks does not.

A fixed set of as many landmarks as frequencies is soon learned by heart. Here every step takes two new draws of
landmarks, moves W by their gradient, and now and then adds their A and b to a running mean, from which p comes by the
same quadratic programme.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streamrf.kernels import Kernel
from streamrf.maps.frequencies.base import uniform_weights
from streamrf.maps.learned.adam import Adam
from streamrf.maps.learned.ekal import (
    DECAY,
    Landmarks,
    Learned,
    Pairs,
    Progress,
    gradient_of_waves,
    relative_error,
    solve_weights,
    typical_size,
    weight_equations,
)

MOST_STEPS, FEWEST_STEPS, WORK = 600, 100, 300_000  # steps times frequencies
STEP = 0.05  # of the typical size of a frequency's entry
SOLVE_EVERY, PER_SOLUTION = 4, 80  # steps; one more for so many frequencies: a solution costs the cube of their number
FORGETTING = 0.2  # of the running mean of A and b, at every solution
MOST_SOLVED = 4096  # frequencies; beyond it the quadratic programme would take more memory and time than it is worth
REPORTS = 10


def default_steps(F: int) -> int:
    """600, and fewer for many frequencies, whose start is closer."""
    return int(np.clip(WORK // F, FEWEST_STEPS, MOST_STEPS))


def learn_fresh(
    draw: Callable[[], Landmarks],
    kernel: Kernel,
    W0: np.ndarray,
    *,
    steps: int | None = None,
    decay: float = DECAY,
    unseen: Pairs | None = None,
) -> Learned:
    """Frequencies and weights from W0; ``draw`` gives new landmarks each time it is called."""
    W = np.array(W0, np.float32)
    F, p = len(W), uniform_weights(len(W)).astype(np.float32)
    steps = default_steps(F) if steps is None else steps
    adam, mean = Adam(STEP * typical_size(W), steps), _RunningMean()
    history = [_progress(0, np.nan, W, p, decay, unseen)]
    for step in range(1, steps + 1):
        pairs = Pairs.between(kernel, draw(), draw(), np.float32)
        left, right = pairs.waves(W)
        if F <= MOST_SOLVED and (step % max(SOLVE_EVERY, F // PER_SOLUTION) == 1 or step == steps):
            p = solve_weights(*mean.add(*weight_equations(pairs, left, right)), decay).astype(np.float32)
        loss, slope = gradient_of_waves(pairs, left, right, p)
        W = adam.move(W, slope)
        if step % max(1, steps // REPORTS) == 0 or step == steps:
            history.append(_progress(step, loss, W, p, decay, unseen))
    return Learned(W.astype(np.float64), p.astype(np.float64), history)


class _RunningMean:
    """A mean of A and b that forgets: both change as W moves."""

    def __init__(self) -> None:
        self.A: np.ndarray | None = None
        self.b = np.zeros(0)
        self.count = 0

    def add(self, A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.count += 1
        share = max(FORGETTING, 1.0 / self.count)
        if self.A is None:
            self.A, self.b = A, b
        else:
            self.A, self.b = self.A + share * (A - self.A), self.b + share * (b - self.b)
        return self.A, self.b


def _progress(step: int, loss: float, W: np.ndarray, p: np.ndarray, decay: float, unseen: Pairs | None) -> Progress:
    error = np.nan if unseen is None else relative_error(unseen, W, p)
    return Progress(step, loss + decay / len(p) * float(p @ p), float(error))
