"""Probabilities from scores: a softmax (two classes: a logistic curve) fitted on rows the model has not seen.

``p = softmax(scores A + b)``, by maximum likelihood, held near ``A = 4 I`` by a little shrinkage so that few or
separable rows do no harm. With three classes or more this also decides better than the largest score: least squares
tends to hide a class that lies between two others, and a combination of scores brings it back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

SHRINKAGE = 1e-4
STEEP = 4.0  # logit of a score that is one class's 1 against another's 0


@dataclass(frozen=True)
class Calibration:
    """Slopes (outputs, outputs) and shifts (outputs,); two classes have one output, the score of the second."""

    slope: np.ndarray
    shift: np.ndarray

    @classmethod
    def plain(cls, outputs: int) -> Calibration:
        """For want of hold-out rows: scores of -1 and +1 (or 0 and 1) read as fairly sure."""
        return cls(np.eye(outputs) * (STEEP / 2 if outputs == 1 else STEEP), np.zeros(outputs))

    @classmethod
    def fit(cls, scores: np.ndarray, codes: np.ndarray, weights: np.ndarray | None = None) -> Calibration:
        """From scores (n, outputs), class positions (n,) and what each row counts for."""
        n, outputs = scores.shape
        share = np.full(n, 1 / n) if weights is None else weights / max(weights.sum(), np.finfo(np.float64).tiny)
        start = cls.plain(outputs)
        first = np.concatenate([start.slope.ravel(), start.shift])
        rows = np.arange(n)

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            slope, shift = theta[:-outputs].reshape(outputs, outputs), theta[-outputs:]
            logits = _two_sided(scores @ slope + shift)
            residual = softmax(logits, axis=1)
            residual[rows, codes] -= 1.0
            residual = residual[:, -outputs:] * share[:, None]
            gap = theta - first
            gradient = np.concatenate([(scores.T @ residual).ravel(), residual.sum(axis=0)]) + 2 * SHRINKAGE * gap
            value = -log_softmax(logits, axis=1)[rows, codes] @ share + SHRINKAGE * gap @ gap
            return float(value), gradient

        best = minimize(loss, first, jac=True, method="L-BFGS-B").x
        return cls(best[:-outputs].reshape(outputs, outputs), best[-outputs:])

    def logits(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes); the first of two classes stands at zero."""
        return _two_sided(scores @ self.slope + self.shift)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes), rows sum to one."""
        return softmax(self.logits(scores), axis=1)


def _two_sided(logits: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(logits), logits], axis=1) if logits.shape[1] == 1 else logits
