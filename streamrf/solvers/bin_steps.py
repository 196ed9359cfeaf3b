"""Conjugate gradients on the weights of bins, in place: for each output and bin a solution and a residual in single
precision, and a direction in integers, so that every pass is an exact sum.

Each output is a system of its own and stops by itself, so it does not matter which of them share passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.errors import FileFormatError, NumericalError
from streamrf.support.threads import Threads

PATIENCE, GAIN = 2, 0.002  # steps that do not lower the error on unseen rows by this share in so many end it
TOLERANCE = 1e-14  # of the squared residual: single precision has no more


@kernel
def right_hand_side(
    totals: np.ndarray, factor: float, weights: np.ndarray, mean: float, step: float, out: np.ndarray
) -> None:
    """Z'(y - mean) from sums of targets, in steps, and of weights."""
    for i in range(out.shape[0]):
        out[i] = (totals[i] * factor - weights[i] * mean) * step


@kernel
def downhill(
    pulls: np.ndarray, factor: float, bends: np.ndarray, shift: float, ridge: float, point: np.ndarray, out: np.ndarray
) -> None:
    """Less the gradient of the loss and of the ridge, once the intercept has moved by ``shift``."""
    for i in range(out.shape[0]):
        out[i] = -(pulls[i] * factor + bends[i] * shift + ridge * point[i])


@kernel
def dot(left: np.ndarray, right: np.ndarray) -> float:
    """Their inner product, in a fixed order."""
    total = 0.0
    for i in range(left.shape[0]):
        total += np.float64(left[i]) * right[i]
    return total


@kernel
def take_away(residual: np.ndarray, totals: np.ndarray, factor: float, ridge: float, solution: np.ndarray) -> None:
    """``residual -= (A + ridge) solution``."""
    for i in range(residual.shape[0]):
        residual[i] -= totals[i] * factor + ridge * solution[i]


@inner_kernel
def _preconditioned(value: float, weight: float) -> float:
    """A bin without rows has no weight where there is no ridge, and no residual either."""
    return value / weight if weight > 0 else 0.0


@kernel
def _go(
    direction: np.ndarray, unit: float, totals: np.ndarray, factor: float, lift: float, ridge: float,
    solution: np.ndarray, residual: np.ndarray, diagonal: np.ndarray,
) -> float:  # fmt: skip
    """Along the direction, so far as p'(A + ridge)p and p'r say; what is left, in the preconditioner's norm. All sums
    are in a fixed order."""
    bend, descent, rho = 0.0, 0.0, 0.0
    for i in range(direction.shape[0]):
        p = direction[i] * unit
        bend += p * (totals[i] * factor - lift * diagonal[i] + ridge * p)
        descent += p * residual[i]
    by = descent / bend if bend > 0 else 0.0
    for i in range(direction.shape[0]):
        p = direction[i] * unit
        solution[i] += by * p
        residual[i] -= by * (totals[i] * factor - lift * diagonal[i] + ridge * p)
        rho += _preconditioned(np.float64(residual[i]) * residual[i], diagonal[i] + ridge)
    return rho


@kernel
def size_of(residual: np.ndarray, diagonal: np.ndarray, ridge: float) -> float:
    """Of a residual, squared, in the preconditioner's norm."""
    rho = 0.0
    for i in range(residual.shape[0]):
        rho += _preconditioned(np.float64(residual[i]) * residual[i], diagonal[i] + ridge)
    return rho


@kernel
def _reach(
    residual: np.ndarray, diagonal: np.ndarray, ridge: float, direction: np.ndarray, keep: float, starts: np.ndarray
) -> float:
    """The sum over grids of the largest entry of the next direction: no row's score by it is larger."""
    total = 0.0
    for p in range(starts.shape[0] - 1):
        most = 0.0
        for i in range(starts[p], starts[p + 1]):
            most = max(most, abs(_preconditioned(residual[i], diagonal[i] + ridge) + keep * direction[i]))
        total += most
    return total


@kernel
def _turn(
    residual: np.ndarray, diagonal: np.ndarray, ridge: float, direction: np.ndarray, keep: float, scale: float
) -> None:
    """The next direction, in integers."""
    for i in range(direction.shape[0]):
        value = _preconditioned(residual[i], diagonal[i] + ridge)
        direction[i] = np.int32(np.rint((value + keep * direction[i]) * scale))


def in_integers(values: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values (g, m), rounded in place, as integers whose sums over grids fit 32 bits, and the units (g,) of these."""
    integers, units = np.empty(values.shape, np.int32), np.empty(len(values))
    for g, row in enumerate(values):
        scale = _scale(float(np.maximum.reduceat(np.abs(row), starts[:-1]).sum(dtype=np.float64)), starts)
        _round(row, scale, integers[g])
        units[g] = 1.0 / scale
    return integers, units


@kernel
def _round(values: np.ndarray, scale: float, integers: np.ndarray) -> None:
    """``values = integers / scale``: what is exact in single precision was so before, or has few digits now."""
    for i in range(values.shape[0]):
        integers[i] = np.int32(np.rint(values[i] * scale))
        values[i] = integers[i] / scale


def _scale(reach: float, starts: np.ndarray) -> float:
    """The largest power of two at which no sum over grids of rounded values can leave 32 bits."""
    if not np.isfinite(reach):
        raise NumericalError("the solver diverged (NaN or infinity): use a larger `ridge`, or scale the targets")
    room = 2.0**31 - 1 - len(starts)  # each grid's value may be rounded up by a half
    return float(np.exp2(np.frexp(room / reach)[1] - 1.0)) if reach > 0 else 1.0


class Products(NamedTuple):
    """Z'WZ times some directions in whole units."""

    totals: np.ndarray  # (g, m) int64
    factors: np.ndarray  # (g,): what one of these integers stands for
    lifts: np.ndarray  # (g,): what an intercept that follows the direction takes of it, in units of the diagonal


class BinSystem(Protocol):
    """The normal equations of some outputs: A is known by ``products`` with directions in integers, one pass each."""

    def diagonal(self, output: int) -> np.ndarray:
        """Of A, (m,) float32."""

    @property
    def ridge(self) -> float: ...
    @property
    def starts(self) -> np.ndarray:
        """Where the bins of each grid begin."""

    def products(self, directions: np.ndarray, outputs: np.ndarray) -> Products:
        """With the direction of each of these outputs; the caller may change the totals until the next call."""


@dataclass
class StepsState:
    """Where the outputs stand that have not stopped yet."""

    outputs: np.ndarray  # (g,) int64
    solution: np.ndarray  # (g, m) float32
    residual: np.ndarray  # (g, m) float32
    direction: np.ndarray  # (g, m) int32
    unit: np.ndarray  # (g,): what one of the direction's integers stands for
    rho: np.ndarray  # (g,): the squared residual in the preconditioner's norm
    target: np.ndarray  # (g,): what it was for a solution of zero
    best_score: np.ndarray  # (g,)
    best_step: np.ndarray  # (g,) int64
    iteration: int = 0

    @classmethod
    def at(
        cls, outputs: np.ndarray, residual: np.ndarray, solution: np.ndarray, direction: np.ndarray | None
    ) -> StepsState:
        """Before the first step; directions will be written over ``direction``, if there is one."""
        g = len(outputs)
        direction, zero = np.zeros(residual.shape, np.int32) if direction is None else direction, np.zeros(g)
        score, step = np.full(g, np.inf), np.zeros(g, np.int64)
        return cls(outputs, solution, residual, direction, np.ones(g), zero, zero.copy(), score, step)

    def arrays(self) -> dict[str, np.ndarray]:
        return {each.name: np.asarray(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray]) -> StepsState:
        names = [each.name for each in fields(cls)]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise FileFormatError(f"damaged state of conjugate gradients: {', '.join(missing)} missing")
        values: dict[str, Any] = {name: np.array(arrays[name]) for name in names}
        return cls(**{**values, "iteration": int(values["iteration"])})

    def take(self, kept: np.ndarray) -> None:
        """Leave these outputs only."""
        for each in fields(self):
            if each.name != "iteration":
                setattr(self, each.name, getattr(self, each.name)[kept])


Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Solutions (g, m) and the numbers of their outputs to errors (g,) on rows that are not in the system."""


Stopped = Callable[[int, int, int], None]
"""Told of an output that stopped: its number, its steps, and the one whose solution was taken."""


class BinSteps:
    """The steps of some outputs; what each ends with goes to its row of ``found`` (outputs, m)."""

    def __init__(
        self, system: BinSystem, state: StepsState, found: np.ndarray, threads: Threads, stopped: Stopped
    ) -> None:
        self.system, self.state, self.found, self.threads, self.stopped = system, state, found, threads, stopped

    def begin(self, sizes: np.ndarray) -> None:
        """Aim for the first time; ``sizes`` are those of the right-hand sides: convergence is measured against them."""
        state, system = self.state, self.system
        state.rho = np.array([
            size_of(each, system.diagonal(output), system.ridge)
            for each, output in zip(state.residual, state.outputs.tolist(), strict=True)
        ])  # fmt: skip
        state.target = sizes
        self._aim(np.zeros(len(state.rho)))

    def run(self, steps: np.ndarray, score: Score | None = None) -> None:
        """Until so many steps (of each output of all) are done, nothing is left, or ``score`` has not fallen for a
        while."""
        state = self.state
        while len(state.outputs):
            self._stop(steps, judged=score is not None)
            if not len(state.outputs):
                return
            self.step()
            if score is not None:
                self._judge(score(state.solution, state.outputs))

    def step(self) -> None:
        state, system = self.state, self.system
        products = system.products(state.direction, state.outputs)
        rho = np.empty(len(state.rho))

        def work(g: int) -> None:
            unit, about = state.unit[g], (state.solution[g], state.residual[g], system.diagonal(state.outputs[g]))
            factor, lift = products.factors[g] * unit, products.lifts[g] * unit
            rho[g] = _go(state.direction[g], unit, products.totals[g], factor, lift, system.ridge, *about)

        self.threads.each(work, range(len(rho)))
        keep = np.divide(rho, state.rho, out=np.zeros_like(rho), where=state.rho > 0)
        state.rho, state.iteration = rho, state.iteration + 1
        self._aim(keep)

    def _aim(self, keep: np.ndarray) -> None:
        """The next directions: so much of the last ones is kept. Integers are as large as 32 bits of a score allow."""
        state, system = self.state, self.system

        def work(g: int) -> None:
            diagonal = system.diagonal(state.outputs[g])
            about = state.residual[g], diagonal, system.ridge, state.direction[g], keep[g] * state.unit[g]
            scale = _scale(_reach(*about, system.starts), system.starts)
            _turn(*about, scale)
            state.unit[g] = 1.0 / scale

        self.threads.each(work, range(len(keep)))

    def _judge(self, errors: np.ndarray) -> None:
        state = self.state
        better = (state.best_step == 0) | (state.best_score - errors > GAIN * np.abs(state.best_score))
        for g in np.flatnonzero(better):
            self.found[state.outputs[g]] = state.solution[g]
            state.best_score[g], state.best_step[g] = errors[g], state.iteration

    def _stop(self, steps: np.ndarray, *, judged: bool) -> None:
        state = self.state
        over = (state.rho <= TOLERANCE * state.target) | (state.iteration >= steps[state.outputs])
        stale = (state.best_step > 0) & (state.iteration - state.best_step >= PATIENCE)
        for g in np.flatnonzero(over | stale):
            if not (judged and state.best_step[g]):
                self.found[state.outputs[g]] = state.solution[g]
                state.best_step[g] = state.iteration
            self.stopped(int(state.outputs[g]), state.iteration, int(state.best_step[g]))
        if (over | stale).any():
            state.take(~(over | stale))
