"""The linear machine on cosines and sines: its losses, and how its coefficients are fitted to given features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from streamrf.support.errors import InputError, NumericalError

JITTERS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # a feature's mean square is about a half
BLOCK = 1024
DENSE = 1024  # features up to which second moments and their factorisation are quicker than products with the rows
PRODUCTS, ACCURACY = 30, 1e-3  # of conjugate gradients: what the steps that follow can tell from an exact fit
ROUNDS = 4  # of reweighting; it starts from the last coefficients, which are nearly right already


class Fit(NamedTuple):
    """Scores are ``features @ coefficients + intercept``."""

    coefficients: np.ndarray  # (2F, k): cosines, then sines
    intercept: np.ndarray  # (k,)

    def scores(self, Z: np.ndarray) -> np.ndarray:
        return Z @ self.coefficients + self.intercept

    def output(self, column: int) -> Fit:
        """Of one of the outputs."""
        return Fit(self.coefficients[:, [column]], self.intercept[[column]])


@dataclass(frozen=True)
class Loss:
    """A loss of scores g and targets t, by its slope and by the least squares problem that is its Newton step."""

    name: str
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray]
    reweighted: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None  # row weights, working targets

    def fit(self, Z: np.ndarray, Y: np.ndarray, gamma: float, start: Fit | None = None) -> Fit:
        """Coefficients that minimise the mean loss + gamma |coefficients|^2; the intercept is free."""
        if self.reweighted is None:
            return least_squares(Z, Y).ridge(gamma, start)
        fit = least_squares(Z, Y).ridge(gamma) if start is None else start
        for _ in range(ROUNDS):
            weights, targets = self.reweighted(fit.scores(Z), Y)
            columns = [
                least_squares(Z, targets[:, [j]], weights[:, j]).ridge(gamma, fit.output(j)) for j in range(Y.shape[1])
            ]
            fit = Fit(
                np.concatenate([column.coefficients for column in columns], axis=1),
                np.concatenate([column.intercept for column in columns]),
            )
        return fit


def _logistic_step(g: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    share = _sigmoid(g)
    curvature = np.maximum(share * (1 - share), 1e-4)  # rows that are certain keep a little weight: no division by zero
    return curvature / 2, g + ((t + 1) / 2 - share) / curvature


def _sigmoid(g: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * g))


LOSSES = {
    "squared": Loss("squared", lambda g, t: 2 * (g - t), None),
    "hinge": Loss("hinge", lambda g, t: -2 * t * np.maximum(1 - t * g, 0), lambda g, t: (1.0 * (t * g < 1), t)),
    "logistic": Loss("logistic", lambda g, t: -t * _sigmoid(-t * g), _logistic_step),
}


def loss_named(name: str) -> Loss:
    """``squared``, ``hinge`` (squared, so that it has a slope everywhere) or ``logistic``."""
    if name not in LOSSES:
        raise InputError(f"there is no loss {name!r}: choose one of {', '.join(LOSSES)}")
    return LOSSES[name]


@dataclass(frozen=True, eq=False)
class Moments:
    """Weighted, centred second moments of features and targets: every ridge is one Cholesky factorisation of them."""

    square: np.ndarray  # (2F, 2F)
    cross: np.ndarray  # (2F, k)
    mean: np.ndarray  # (2F,)
    target_mean: np.ndarray  # (k,)

    @classmethod
    def of(cls, Z: np.ndarray, Y: np.ndarray, weights: np.ndarray | None = None) -> Moments:
        """Sums over rows divided by their number, weighted or not, so that gamma means the same for every loss."""
        w = np.ones(len(Z)) if weights is None else weights.astype(np.float64)
        total = max(float(w.sum()), np.finfo(np.float64).tiny)
        scale = None if weights is None else w.astype(Z.dtype)
        mean = sum_of_products(Z, np.ones((len(Z), 1), Z.dtype), scale)[:, 0] / total
        target_mean = (w @ Y) / total
        square = sum_of_products(Z, Z, scale) - total * np.outer(mean, mean)
        cross = sum_of_products(Z, Y.astype(Z.dtype), scale) - total * np.outer(mean, target_mean)
        return cls(square / len(Z), cross / len(Z), mean, target_mean)

    def ridge(self, gamma: float, start: Fit | None = None) -> Fit:
        """Least squares with gamma on the diagonal, and a little more where float32 features leave it indefinite."""
        for jitter in JITTERS:
            A = self.square.copy()
            A[np.diag_indices_from(A)] += gamma + jitter
            try:
                coefficients = scipy.linalg.cho_solve(scipy.linalg.cho_factor(A, overwrite_a=True), self.cross)
            except np.linalg.LinAlgError:
                continue
            return Fit(coefficients, self.target_mean - self.mean @ coefficients)
        raise NumericalError(f"the features of {len(self.mean)} columns are not finite: check the inputs for NaN")


@dataclass(frozen=True, eq=False)
class Products:
    """The same fits without second moments: by conjugate gradients, whose products go through the rows."""

    Z: np.ndarray
    Y: np.ndarray
    weights: np.ndarray | None

    def ridge(self, gamma: float, start: Fit | None = None) -> Fit:
        """Least squares from a start, until the residual is a thousandth of the right hand side."""
        n, total = len(self.Z), float(len(self.Z)) if self.weights is None else float(self.weights.sum())
        mean, target_mean = self._sum(np.ones((n, 1)))[:, 0] / total, self._weighted(self.Y).sum(axis=0) / total
        b = (self._sum(self.Y) - total * np.outer(mean, target_mean)) / n

        def times(V: np.ndarray) -> np.ndarray:
            return (self._sum(self.Z @ V.astype(self.Z.dtype)) - total * np.outer(mean, mean @ V)) / n + gamma * V

        V = conjugate_gradients(times, b, np.zeros_like(b) if start is None else start.coefficients)
        return Fit(V, target_mean - mean @ V)

    def _weighted(self, values: np.ndarray) -> np.ndarray:
        return values if self.weights is None else values * self.weights[:, None]

    def _sum(self, values: np.ndarray) -> np.ndarray:
        return (self.Z.T @ self._weighted(values).astype(self.Z.dtype)).astype(np.float64)


def conjugate_gradients(times: Callable[[np.ndarray], np.ndarray], b: np.ndarray, V: np.ndarray) -> np.ndarray:
    """The V with ``times(V) = b``, nearly, column by column at once."""
    tiny = np.finfo(np.float64).tiny
    residual = b - times(V)
    direction, square = residual, (residual**2).sum(axis=0)
    enough = ACCURACY**2 * (b**2).sum(axis=0)
    for _ in range(PRODUCTS):
        if (square <= enough).all():
            break
        image = times(direction)
        step = square / np.maximum((direction * image).sum(axis=0), tiny)
        V, residual = V + step * direction, residual - step * image
        before, square = square, (residual**2).sum(axis=0)
        direction = residual + (square / np.maximum(before, tiny)) * direction
    return V


def least_squares(Z: np.ndarray, Y: np.ndarray, weights: np.ndarray | None = None) -> Moments | Products:
    """What fits a ridge to these rows at the least cost."""
    return Moments.of(Z, Y, weights) if Z.shape[1] <= DENSE else Products(Z, Y, weights)


def sum_of_products(Z: np.ndarray, other: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Z' diag(weights) other: products in the features' own precision, their sum over blocks of rows in float64."""
    total = np.zeros((Z.shape[1], other.shape[1]))
    for start in range(0, len(Z), BLOCK):
        part = slice(start, start + BLOCK)
        left = Z[part] if weights is None else Z[part] * weights[part, None]
        total += left.T @ other[part]
    return total
