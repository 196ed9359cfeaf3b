"""Probabilities from scores: a softmax (two classes: a logistic curve) fitted on rows the model has not seen.

``p = softmax(a * scores + b)``, one slope and one shift a class, by maximum likelihood with a touch of shrinkage so that
few or separable rows do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

SHRINKAGE = 1e-4


@dataclass(frozen=True)
class Calibration:
    """Slope and shift of each class (for two classes: of the score of the second)."""

    slope: np.ndarray  # (classes,) or (1,)
    shift: np.ndarray

    @classmethod
    def plain(cls, outputs: int) -> Calibration:
        """For want of hold-out rows: scores of -1 and +1 (or 0 and 1) read as fairly sure."""
        return cls(np.full(outputs, 2.0 if outputs == 1 else 4.0), np.zeros(outputs))

    @classmethod
    def fit(cls, scores: np.ndarray, codes: np.ndarray) -> Calibration:
        """From scores (n, outputs) and class positions (n,)."""
        outputs = scores.shape[1]
        start = cls.plain(outputs)

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            slope, shift = theta[:outputs], theta[outputs:]
            logits = _two_sided(scores * slope + shift)
            n = len(codes)
            value = -log_softmax(logits, axis=1)[np.arange(n), codes].mean()
            residual = softmax(logits, axis=1)
            residual[np.arange(n), codes] -= 1.0
            residual = residual[:, -outputs:] / n
            gap = theta - first
            gradient = np.concatenate([(residual * scores).sum(axis=0), residual.sum(axis=0)]) + 2 * SHRINKAGE * gap
            return float(value + SHRINKAGE * gap @ gap), gradient

        first = np.concatenate([start.slope, start.shift])
        best = minimize(loss, first, jac=True, method="L-BFGS-B").x
        return cls(best[:outputs], best[outputs:])

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes), rows sum to one."""
        return softmax(_two_sided(scores * self.slope + self.shift), axis=1)


def _two_sided(logits: np.ndarray) -> np.ndarray:
    """Logits of both classes where there is one column: the first class stands at zero."""
    return np.concatenate([np.zeros_like(logits), logits], axis=1) if logits.shape[1] == 1 else logits
