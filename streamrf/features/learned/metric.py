"""A learned metric: which directions of the inputs matter, by the average gradient outer product of a predictor.

``M`` is the mean over rows of the gradient of the predictor times its transpose. Inputs multiplied by a root of M are
stretched along directions in which the target changes; a fit on them has a better M, for a few rounds, for as long as
rows it has not seen say that it gets better (Radhakrishnan et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamrf.support.errors import InputError
from streamrf.support.threads import ALONE, Threads

ISOTROPIC, DIAGONAL, FULL = "isotropic", "diagonal", "full"
ROUNDS = 4
POWERS = (0.5, 0.25)  # of M: its square root is the metric as it is written, the fourth root is more cautious
FLOOR = 1e-6  # of the mean eigenvalue: no direction is lost for good
LEAST_GAIN = 0.005  # of the error; less than this is noise
BEHIND, BEHIND_AFTER = 1.03, 2  # a form this far behind another one after so many rounds is given up
BLOCK = 2048


# -- the average gradient outer product


def gradient_outer_product(X: np.ndarray, W: np.ndarray, phases: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Mean over rows, summed over outputs, of grad f grad f' for f(x) = sum_j a_j cos(w_j'x + b_j): (d, d)."""
    total = np.zeros((W.shape[1],) * 2)
    for start in range(0, len(X), BLOCK):
        sines = np.sin(X[start : start + BLOCK] @ W.T + phases)
        for a in coefficients.T:
            slopes = sines @ (a.astype(sines.dtype)[:, None] * W)
            total += slopes.T @ slopes
    return total / len(X)


def root(M: np.ndarray, power: float, form: str = FULL) -> np.ndarray:
    """M^power as a (d, d) factor, or (d,) of its diagonal, with a mean square of its singular values of 1."""
    d = len(M)
    mean = np.trace(M) / d
    if not mean > 0:
        return np.ones(d) if form == DIAGONAL else np.eye(d)
    if form == DIAGONAL:
        factor = (np.diag(M) / mean + FLOOR) ** power
        return factor / np.sqrt((factor**2).mean())
    values, vectors = np.linalg.eigh((M + M.T) / (2 * mean))
    stretched = (np.maximum(values, 0.0) + FLOOR) ** power
    return (vectors * (stretched / np.sqrt((stretched**2).mean()))) @ vectors.T


# -- rounds of learning


@dataclass(frozen=True, eq=False)
class Judged:
    """A fit with some metric: its error on unseen rows, its width, its gradients, and what its maker knows it by."""

    error: float
    length_scale: float
    outer_product: Callable[[], np.ndarray]
    origin: Any = None


class Fits(Protocol):
    """What fits a predictor to inputs multiplied by a factor, and judges it."""

    def fit(self, factor: np.ndarray, near: Judged) -> Judged:
        """At the width of a fit near by, which is a multiple of how far the inputs are spread."""

    def tuned(self, judged: Judged) -> Judged:
        """The same at the best width."""


class MetricRound(NamedTuple):
    """What one round reached, with the better power of M."""

    number: int
    form: str
    power: float
    length_scale: float
    error: float


@dataclass(frozen=True, eq=False)
class Metric:
    """A factor for the scaled inputs, (d, d) or (d,), and the best fit with it."""

    factor: np.ndarray
    judged: Judged
    isotropic: Judged
    history: list[MetricRound]

    @property
    def learned(self) -> bool:
        """Whether it is better than the isotropic start."""
        return self.judged is not self.isotropic

    @property
    def form(self) -> str:
        return ISOTROPIC if not self.learned else DIAGONAL if self.factor.ndim == 1 else FULL

    def shares(self) -> np.ndarray:
        """(d,): how much of the squared length of a step of one in each column is due to it; they add up to 1."""
        squares = self.factor**2 if self.factor.ndim == 1 else (self.factor**2).sum(axis=0)
        return squares / squares.sum()


def learn_metric(
    fits: Fits, start: Judged, d: int, *, rounds: int = ROUNDS, forms: tuple[str, ...] = (FULL, DIAGONAL),
    powers: tuple[float, ...] = POWERS, late: Callable[[], bool] = lambda: False, threads: Threads = ALONE,
) -> Metric:  # fmt: skip
    """The best metric on unseen rows: the identity, if no form is clearly better than the isotropic start.

    The first round of each form is made in any case; when it is ``late``, no other begins. Threads make rounds of all
    forms at once, more of them than one thread would; what these came to is not looked at, so that all choose alike.
    """
    if unknown := set(forms) - {FULL, DIAGONAL}:
        raise InputError(f"there is no metric of form {sorted(unknown)[0]!r}: choose full or diagonal")
    history = [MetricRound(0, ISOTROPIC, 0.0, start.length_scale, start.error)]
    factor, best, M = np.ones(d), start, start.outer_product()
    made: Iterable[Iterable[_Round]] = [_rounds(fits, start, M, form, rounds, powers) for form in forms]
    if threads.count > 1 and len(forms) > 1:
        made = threads.map(list, made)
    for each in made:
        for told, there, judged in each:
            history.append(told)
            if judged.error < best.error:
                factor, best = there, judged
            if late() or (told.number >= BEHIND_AFTER and judged.error > BEHIND * best.error):
                break
    if best.error > start.error * (1.0 - LEAST_GAIN):
        factor, best = np.ones(d), start
    return Metric(factor, best, start, history)


_Round = tuple[MetricRound, np.ndarray, Judged]


def _rounds(
    fits: Fits, start: Judged, M: np.ndarray, form: str, rounds: int, powers: tuple[float, ...]
) -> Iterator[_Round]:
    """Rounds of one form, until one brings little; M is that of the start."""
    current = start
    for number in range(1, rounds + 1):
        M, before = M if current is start else current.outer_product(), current.error
        tried = [(factor := root(M, power, form), fits.fit(factor, current), power) for power in powers]
        factor, judged, power = min(tried, key=lambda one: one[1].error)
        current = fits.tuned(judged)
        yield MetricRound(number, form, power, current.length_scale, current.error), factor, current
        if number > 1 and current.error > before * (1.0 - LEAST_GAIN):
            return
