"""Limited-memory BFGS whose first guess at the curvature is a preconditioner: one pass over the data for each point.

Each call of ``step`` looks at one point and then stands somewhere: at that point, or where it was with a shorter step
to try. The state is plain arrays, so that a run can stop and resume at any point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from streamrf.solvers.conjugate_gradients import Preconditioner
from streamrf.support.errors import FileFormatError, NumericalError

Evaluate = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""A point (k, p) to the objective there and its gradient (k, p)."""

MEMORY = 10  # pairs of steps and changes of the gradient
SUFFICIENT = 1e-4  # of the promised descent
MAX_SHORTENINGS = 12


@dataclass
class LBFGSState:
    """Where the descent stands, and the step it would try next."""

    point: np.ndarray  # (k, p)
    value: float
    gradient: np.ndarray  # (k, p)
    direction: np.ndarray  # (k, p)
    length: float  # of the step along the direction
    steps: np.ndarray  # (m, k, p), the oldest first
    changes: np.ndarray  # (m, k, p)
    first_size: float = np.inf  # of the gradient at the start, in the preconditioner's norm
    iteration: int = 0
    evaluations: int = 0
    shortened: int = 0

    def arrays(self) -> dict[str, np.ndarray]:
        return {each.name: np.asarray(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray]) -> LBFGSState:
        names = [each.name for each in fields(cls)]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise FileFormatError(f"damaged state of L-BFGS: {', '.join(missing)} missing")
        values: dict[str, Any] = {name: np.array(arrays[name]) for name in names}
        scalars = ("value", "length", "first_size", "iteration", "evaluations", "shortened")
        return cls(**{name: value.item() if name in scalars else value for name, value in values.items()})


class LBFGS:
    """One objective and its state."""

    def __init__(self, evaluate: Evaluate, preconditioner: Preconditioner, state: LBFGSState) -> None:
        self.evaluate, self.preconditioner, self.state = evaluate, preconditioner, state

    @classmethod
    def at(cls, evaluate: Evaluate, preconditioner: Preconditioner, start: np.ndarray) -> LBFGS:
        """Standing nowhere yet: the first step looks at the start itself."""
        none = np.zeros((0, *start.shape))
        state = LBFGSState(start.copy(), np.inf, np.zeros_like(start), np.zeros_like(start), 0.0, none, none.copy())
        return cls(evaluate, preconditioner, state)

    def step(self) -> bool:
        """Look at one point; whether it was good enough to move there."""
        state = self.state
        trial = state.point + state.length * state.direction
        value, gradient = self.evaluate(trial)
        state.evaluations += 1
        if not np.isfinite(value):
            raise NumericalError(f"the objective left the finite numbers at step {state.iteration + 1}: raise lambda")
        if state.evaluations > 1:
            slope = float((state.gradient * state.direction).sum())
            if value > state.value + SUFFICIENT * state.length * slope:
                self._shorten(value, slope)
                return False
            self._learn(trial - state.point, gradient - state.gradient)
        state.point, state.value, state.gradient = trial, value, gradient
        state.iteration, state.shortened = state.iteration + (state.evaluations > 1), 0
        self._aim()
        return True

    def _shorten(self, value: float, slope: float) -> None:
        """The minimum of the parabola through what is known, within bounds."""
        state = self.state
        bend = value - state.value - state.length * slope
        best = -slope * state.length**2 / (2 * bend) if bend > 0 else 0.0
        state.length = float(np.clip(best, 0.1 * state.length, 0.5 * state.length))
        state.shortened += 1

    def _learn(self, step: np.ndarray, change: np.ndarray) -> None:
        state = self.state
        if (step * change).sum() > 1e-12 * np.sqrt((step**2).sum() * (change**2).sum()):
            state.steps = np.concatenate([state.steps, step[None]])[-MEMORY:]
            state.changes = np.concatenate([state.changes, change[None]])[-MEMORY:]

    def _aim(self) -> None:
        """The two loops of L-BFGS, round the preconditioner."""
        state, rest = self.state, self.state.gradient.copy()
        pairs = list(zip(state.steps, state.changes, strict=True))
        shares = []
        for step, change in reversed(pairs):
            share = (step * rest).sum() / (step * change).sum()
            rest -= share * change
            shares.append(share)
        solved = self.preconditioner(rest)
        if pairs:
            step, change = pairs[-1]
            solved *= (step * change).sum() / (change * self.preconditioner(change)).sum()
        elif not np.isfinite(state.first_size):
            state.first_size = float(np.sqrt(max((rest * solved).sum(), 0.0)))
        for (step, change), share in zip(pairs, reversed(shares), strict=True):
            solved += (share - (change * solved).sum() / (step * change).sum()) * step
        state.direction, state.length = -solved, 1.0

    @property
    def size(self) -> float:
        """Of the gradient, as a share of what it was at the start."""
        state = self.state
        if not state.first_size:
            return 0.0
        descent = max(-float((state.gradient * state.direction).sum()), 0.0)
        return float(np.sqrt(descent) / state.first_size) if np.isfinite(state.first_size) else np.inf

    @property
    def stuck(self) -> bool:
        """Whether no step along the direction helps any more: rounding is all that is left."""
        return self.state.shortened >= MAX_SHORTENINGS
