"""Ridge regression known by its products alone: (S + lambda I) w = c, one pass over the rows for each product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamrf.features.base import FeatureMap
from streamrf.features.targets import TargetCoding
from streamrf.statistics.gradient import Gradient, GradientState
from streamrf.statistics.predictor import Weights
from streamrf.support.errors import NumericalError

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
