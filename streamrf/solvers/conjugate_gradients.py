"""Conjugate gradients for (A + ridge I) x = b, where A is known only by its products: one pass over the data each.

All outputs share the pass, and each is its own system: a row of the matrices (k, m) here. The state is plain arrays, so
that a run can stop and resume after any step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from streamrf.features.base import FeatureMap
from streamrf.features.targets import TargetCoding
from streamrf.statistics.gradient import Gradient, GradientState
from streamrf.statistics.scores import Weights
from streamrf.support.errors import FileFormatError, InputError, MismatchError, NumericalError

Preconditioner = Callable[[np.ndarray], np.ndarray]
"""Residuals (k, m) to a new array of what solves them roughly."""


class System(Protocol):
    """What is solved: ``product(V)`` is A applied to each row of V, for V as ``rounded`` gives it."""

    def product(self, V: np.ndarray) -> np.ndarray: ...

    def rounded(self, V: np.ndarray) -> np.ndarray:
        """V at the precision that ``product`` works in (a copy of V, if that is float64)."""


@dataclass
class CGState:
    """Where the iteration stands; ``best`` is the solution with the best score so far, empty before the first score."""

    solution: np.ndarray  # (k, m)
    residual: np.ndarray  # (k, m)
    direction: np.ndarray  # (k, m)
    rho: np.ndarray  # (k,): residual' preconditioned residual
    target: np.ndarray  # (k,): the same of the right-hand side, which convergence is measured against
    iteration: int = 0
    best: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    best_score: float = np.inf
    best_iteration: int = 0

    def arrays(self) -> dict[str, np.ndarray]:
        """The state as named arrays, views where possible."""
        return {each.name: np.asarray(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray]) -> CGState:
        """The state that ``arrays()`` described."""
        names = [each.name for each in fields(cls)]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise FileFormatError(f"damaged state of conjugate gradients: {', '.join(missing)} missing")
        values: dict[str, Any] = {name: np.array(arrays[name]) for name in names}
        values |= {name: values[name].item() for name in ("iteration", "best_score", "best_iteration")}
        return cls(**values)


class ConjugateGradients:
    """One system and its state; each ``step`` is one product."""

    def __init__(
        self, system: System, ridge: float | np.ndarray, preconditioner: Preconditioner, state: CGState
    ) -> None:
        self.system, self.preconditioner, self.state = system, preconditioner, state
        self.ridge = np.broadcast_to(np.asarray(ridge, np.float64), state.rho.shape)[:, None]
        if not (self.ridge >= 0).all():
            raise InputError(f"lambda must be at least 0, not {self.ridge.min()}")

    @classmethod
    def begin(
        cls,
        system: System,
        right_hand_side: np.ndarray,
        ridge: float | np.ndarray,
        preconditioner: Preconditioner,
        start: np.ndarray | None = None,
    ) -> ConjugateGradients:
        """At zero, or at ``start``, which costs a product. ``ridge`` is one lambda, or one for each output."""
        zero, residual = np.zeros_like(right_hand_side), right_hand_side.copy()
        direction = preconditioner(residual)
        rho = row_dots(residual, direction)
        cg = cls(system, ridge, preconditioner, CGState(zero, residual, direction, rho, rho.copy()))
        if start is not None:
            cg._move_to(start)
        return cg

    def _move_to(self, start: np.ndarray) -> None:
        state = self.state
        if start.shape != state.solution.shape:
            raise MismatchError(f"a start of shape {start.shape} does not go with a system of {state.solution.shape}")
        state.solution = self.system.rounded(start)
        state.residual -= self.system.product(state.solution) + state.solution * self.ridge
        state.direction = self.preconditioner(state.residual)
        state.rho = row_dots(state.residual, state.direction)

    def at_ridge(
        self, ridge: float | np.ndarray, right_hand_side: np.ndarray, preconditioner: Preconditioner
    ) -> ConjugateGradients:
        """Another lambda, from where this one stands: what is left of it is known, so no product is needed."""
        state, direction = self.state, preconditioner(right_hand_side)
        residual = state.residual + (self.ridge - np.reshape(ridge, (-1, 1))) * state.solution
        towards = preconditioner(residual)
        begun = CGState(
            state.solution.copy(), residual, towards, row_dots(residual, towards), row_dots(right_hand_side, direction)
        )
        return ConjugateGradients(self.system, ridge, preconditioner, begun)

    def step(self) -> None:
        """One product, and the solutions move along their directions; a solved one stays where it is."""
        state = self.state
        direction = self.system.rounded(state.direction)
        image = self.system.product(direction)
        image += direction * self.ridge
        descent = row_dots(direction, state.residual)  # rho, but for the rounding of the direction
        move(state.solution, state.residual, direction, image, _ratio(descent, row_dots(direction, image)))
        towards = self.preconditioner(state.residual)
        rho = row_dots(state.residual, towards)
        if not np.isfinite(rho).all():
            raise NumericalError(
                f"the solver diverged (NaN or infinity) at step {state.iteration + 1}: use a larger `ridge`"
            )
        turn(direction, towards, _ratio(rho, state.rho))
        state.direction, state.rho, state.iteration = direction, rho, state.iteration + 1

    @property
    def relative_residual(self) -> float:
        """What is left of the right-hand side, in the preconditioner's norm; the largest over the outputs."""
        return float(np.sqrt(_ratio(self.state.rho, self.state.target).max(initial=0.0)))

    def run(
        self,
        steps: int,
        *,
        tolerance: float = 1e-10,
        score: Callable[[np.ndarray], float] | None = None,
        patience: int = 2,
        gain: float = 0.002,
        after_step: Callable[[CGState], None] | None = None,
    ) -> np.ndarray:
        """Go on until ``steps`` in all are done, the residual is small, or ``score`` (lower is better, on rows that are
        not in the system) has not fallen by a share ``gain`` for ``patience`` steps. The solution, or the best scored.
        """
        state = self.state
        while state.iteration < steps and self.relative_residual > tolerance and not self._is_stale(patience):
            self.step()
            if score is not None:
                self._judge(float(score(state.solution)), gain)
            if after_step is not None:
                after_step(state)
        return state.best if state.best_iteration else state.solution

    def _judge(self, value: float, gain: float) -> None:
        state = self.state
        if not state.best_iteration or state.best_score - value > gain * abs(state.best_score):
            state.best, state.best_score, state.best_iteration = state.solution.copy(), value, state.iteration

    def _is_stale(self, patience: int) -> bool:
        state = self.state
        return state.best_iteration > 0 and state.iteration - state.best_iteration >= patience


def jacobi(diagonal: np.ndarray, ridge: float | np.ndarray) -> Preconditioner:
    """Division by the diagonal of A + ridge I."""
    divisor = diagonal + np.reshape(ridge, (-1, 1))
    return lambda residual: residual / divisor


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, and 0 where b is not positive: that output is solved."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def row_dots(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """a'b of each pair of rows, one product after the other: the same bits on every machine and for any number of
    rows."""
    products = A * B
    return np.cumsum(products, axis=1, out=products)[:, -1] + 0.0  # no zero is negative


def move(solution: np.ndarray, residual: np.ndarray, direction: np.ndarray, image: np.ndarray, by: np.ndarray) -> None:
    """``solution += by direction`` and ``residual -= by image``, which is lost."""
    solution += by[:, None] * direction
    image *= by[:, None]
    residual -= image


def turn(direction: np.ndarray, towards: np.ndarray, by: np.ndarray) -> None:
    """``direction = towards + by direction``."""
    direction *= by[:, None]
    direction += towards


Multiply = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Coefficients (D, k) and intercepts (k,) to the sums over rows of z times the score (k, D), and of the score (k,)."""


@dataclass(frozen=True)
class CentredMoments:
    """What the first pass gives: everything but S."""

    weight: float  # of all rows; their number, where each counts for one
    amplitudes: np.ndarray  # (D,)
    mean: np.ndarray  # (D,) mean raw feature
    target_mean: np.ndarray  # (k,), offset included
    cross: np.ndarray  # (k, D): c, in amplitude-scaled features
    target_variance: np.ndarray  # (k,)

    @classmethod
    def from_state(
        cls, state: GradientState, gradient: Gradient, map: FeatureMap, coding: TargetCoding
    ) -> CentredMoments:
        """From the sums of a ``TargetPull``."""
        if state.rows < 2:
            raise NumericalError(f"{state.rows} rows: at least two are needed to fit a model")
        (ones, *products), (weight, *sums) = gradient.sums(state)
        squares, _ = gradient.loss_sums(state)
        mean, target_mean = ones / weight, np.array(sums) / weight
        cross = (np.array(products) / weight - target_mean[:, None] * mean) * map.amplitudes
        variance = np.maximum(squares / weight - target_mean**2, 0.0)
        return cls(float(weight), map.amplitudes, mean, target_mean + coding.offset, cross, variance)

    def weights(self, solution: np.ndarray, ridge: float) -> Weights:
        """From a solution (k, D) in amplitude-scaled features to weights for raw ones."""
        coefficients = (solution * self.amplitudes).T
        return Weights(coefficients, self.target_mean - self.mean @ coefficients, ridge)


@dataclass(frozen=True)
class NormalSystem:
    """S times directions, for conjugate gradients. Scores are centred before they are summed, so nothing cancels."""

    moments: CentredMoments
    multiply: Multiply

    def product(self, V: np.ndarray) -> np.ndarray:
        moments = self.moments
        coefficients = (V * moments.amplitudes).T
        sums, pulls = self.multiply(coefficients, -(moments.mean @ coefficients))
        return (sums - pulls[:, None] * moments.mean) * (moments.amplitudes / moments.weight)

    def rounded(self, V: np.ndarray) -> np.ndarray:
        return V.copy()
