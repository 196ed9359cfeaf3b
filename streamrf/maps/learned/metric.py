"""A learned metric: which directions of the inputs matter, by the average gradient outer product of a predictor.

``M`` is the mean over rows of the gradient of the predictor times its transpose. Inputs multiplied by a root of M are
stretched along directions in which the target changes; a fit on them has a better M, for a few rounds, for as long as
rows it has not seen say that it gets better (Radhakrishnan et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streamrf.errors import InputError
from streamrf.maps.frequencies.base import apply_factor
from streamrf.maps.learned.machine import Fit, Moments
from streamrf.maps.learned.supervised import features, prepared

ISOTROPIC, DIAGONAL, FULL = "isotropic", "diagonal", "full"
ROUNDS = 4
POWERS = (0.5, 0.25)  # of M: its square root is the metric as it is written, the fourth root is more cautious
FLOOR = 1e-6  # of the mean eigenvalue: no direction is lost for good
LEAST_GAIN = 0.005  # of the isotropic error; less than this is noise
RIDGES = tuple(10.0**e for e in range(-6, 1))
WIDTH_STEP = 2**0.5
GRADIENT_ROWS = 10_000
BLOCK = 2048


# -- the average gradient outer product


def gradient_outer_product(X: np.ndarray, W: np.ndarray, phases: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Mean over rows, summed over outputs, of grad f grad f' for f(x) = sum_j a_j cos(w_j'x + b_j): (d, d).

    The sum over rows is the Gram matrix of the sines; the rest does not depend on their number.
    """
    sines = np.zeros((len(W),) * 2)
    for start in range(0, len(X), BLOCK):
        block = np.sin(X[start : start + BLOCK] @ W.T + phases)
        sines += block.T @ block
    return W.T @ ((sines / len(X)) * (coefficients @ coefficients.T)) @ W


def root(M: np.ndarray, power: float, form: str = FULL) -> np.ndarray:
    """M^power as a (d, d) factor, or (d,) of its diagonal, with a mean square of its singular values of 1."""
    d = len(M)
    mean = np.trace(M) / d
    if not mean > 0:
        return np.ones(d) if form == DIAGONAL else np.eye(d)
    if form == DIAGONAL:
        factor = (np.diag(M) / mean + FLOOR) ** power
        return factor / np.sqrt((factor**2).mean())
    values, vectors = np.linalg.eigh(M / mean)
    stretched = (np.maximum(values, 0.0) + FLOOR) ** power
    return (vectors * (stretched / np.sqrt((stretched**2).mean()))) @ vectors.T


# -- rounds of learning


class Judged(NamedTuple):
    """A fit with some metric: its error on unseen rows, the multiple of the frequencies it wants, and its gradients."""

    error: float
    scale: float
    outer_product: Callable[[], np.ndarray]
    width: float = 1.0  # the same multiple, at the spread that the inputs had at first


Fitting = Callable[[np.ndarray, "Judged | None"], Judged]  # of a factor, near a fit whose width may serve


class MetricRound(NamedTuple):
    """What one round tried and reached."""

    number: int
    form: str
    power: float
    scale: float
    error: float


@dataclass(frozen=True, eq=False)
class Metric:
    """A factor for the scaled inputs, (d, d) or (d,), and the multiple of the frequencies that goes with it."""

    factor: np.ndarray
    scale: float
    error: float
    isotropic_error: float
    history: list[MetricRound]

    @property
    def learned(self) -> bool:
        """Whether it is better than the isotropic start."""
        return self.error < self.isotropic_error

    @property
    def form(self) -> str:
        return ISOTROPIC if not self.learned else DIAGONAL if self.factor.ndim == 1 else FULL

    @property
    def narrowing(self) -> float:
        """What it wants the frequencies multiplied by, beside the best that an isotropic map had."""
        return self.scale / self.history[0].scale

    def shares(self) -> np.ndarray:
        """(d,): how much of the squared length of a step of one in each column is due to it; they add up to 1."""
        squares = self.factor**2 if self.factor.ndim == 1 else (self.factor**2).sum(axis=0)
        return squares / squares.sum()


def learn_metric(
    fit: Fitting,
    d: int,
    *,
    rounds: int = ROUNDS,
    forms: tuple[str, ...] = (FULL, DIAGONAL),
    powers: tuple[float, ...] = POWERS,
    each: Callable[[Callable[[str], _Found], Iterable[str]], Iterable[_Found]] = map,
) -> Metric:
    """The best metric that ``fit`` finds on unseen rows: the identity, if no form is clearly better than it.

    ``each`` is what forms are tried by: a map, which may have threads.
    """
    if unknown := set(forms) - {FULL, DIAGONAL}:
        raise InputError(f"there is no metric of form {sorted(unknown)[0]!r}: choose full or diagonal")
    start = fit(np.ones(d), None)
    found = list(each(lambda form: _refined(fit, start, form, rounds, powers), forms))
    history = [MetricRound(0, ISOTROPIC, 0.0, start.scale, start.error)]
    history += [step for one in found for step in one.history]
    factor, best, _ = min(found, key=lambda one: one.judged.error)
    if best.error > start.error * (1.0 - LEAST_GAIN):
        factor, best = np.ones(d), start
    return Metric(factor, best.scale, best.error, start.error, history)


class _Found(NamedTuple):
    factor: np.ndarray
    judged: Judged
    history: list[MetricRound]


def _refined(fit: Fitting, start: Judged, form: str, rounds: int, powers: tuple[float, ...]) -> _Found:
    """Rounds of one form, until one brings nothing."""
    best, current, history = _Found(np.ones(0), start, []), start, []
    for number in range(1, rounds + 1):
        M = current.outer_product()
        tried = [(factor := root(M, power, form), fit(factor, current), power) for power in powers]
        history += [MetricRound(number, form, power, judged.scale, judged.error) for _, judged, power in tried]
        factor, current, _ = min(tried, key=lambda one: one[1].error)
        if number > 1 and current.error >= best.judged.error:
            break
        best = _Found(factor, current, history)
    return best._replace(history=history)


# -- fits with Fourier features


class FourierFits:
    """Judges metrics by ridge regression on cosines and sines: called with a factor, it tunes the width and fits."""

    def __init__(
        self, X: np.ndarray, Y: np.ndarray, X_unseen: np.ndarray, Y_unseen: np.ndarray, task: str, W0: np.ndarray
    ) -> None:
        together = prepared(np.concatenate([X, X_unseen]), np.concatenate([Y, Y_unseen]), task)
        self.rows, self.unseen = together.take(slice(len(X))), together.take(slice(len(X), None))
        self.W0 = np.asarray(W0, np.float32)
        self.spread = self._spread(np.ones(self.W0.shape[1], np.float32))

    def __call__(self, factor: np.ndarray, near: Judged | None = None) -> Judged:
        """The best width by steps from that of the fit near by, at equal spread of the inputs."""
        factor = np.asarray(factor, np.float32)
        unit = self.spread / max(self._spread(factor), 1e-30)
        best = self._fit(factor, unit * (near.width if near else 1.0))
        for step in (1 / WIDTH_STEP, WIDTH_STEP):
            here = best
            while (other := self._fit(factor, best.scale * step)).error < best.error:
                best = other
            if best is not here:
                break
        return Judged(best.error, best.scale, lambda: self._outer_product(best), best.scale / unit)

    def _spread(self, factor: np.ndarray) -> float:
        return float(np.sqrt(apply_factor(self.rows.X, factor).var(axis=0).sum()))

    def _fit(self, factor: np.ndarray, scale: float) -> _FourierFit:
        W = apply_factor(self.W0 * np.float32(scale), factor)
        moments = Moments.of(features(self.rows.X, W), self.rows.Y)
        Z = features(self.unseen.X, W)
        fits = [moments.ridge(ridge) for ridge in RIDGES]
        errors = [float(((fit.scores(Z) - self.unseen.Y) ** 2).mean()) for fit in fits]
        best = int(np.argmin(errors))
        return _FourierFit(errors[best], scale, W, fits[best])

    def _outer_product(self, fitted: _FourierFit) -> np.ndarray:
        W = np.tile(fitted.W, (2, 1))
        phases = np.repeat(np.array([0.0, -np.pi / 2], np.float32), len(fitted.W))
        M = gradient_outer_product(self.rows.X[:GRADIENT_ROWS], W, phases, fitted.fit.coefficients)
        return (M + M.T) / 2


class _FourierFit(NamedTuple):
    error: float
    scale: float
    W: np.ndarray
    fit: Fit
