"""A pipeline with weights predicts: scores of rows, and what they mean for classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from streamrf.features.base import RowScorer
from streamrf.features.pipeline import Pipeline
from streamrf.features.targets import CLASSIFICATION
from streamrf.support.errors import DataError, InputError
from streamrf.support.threads import Threads


@dataclass(frozen=True)
class Weights:
    """Scores are ``intercept + z(x)' coefficients``; coefficients here already carry the features' amplitudes."""

    coefficients: np.ndarray  # (n_features, outputs) float64, for raw features as the map writes them
    intercept: np.ndarray  # (outputs,)
    ridge: float
    jitter: float = 0.0  # what was added to lambda because rounding had made the matrix indefinite
    rank: float | None = None  # effective dimension tr(S (S + lambda)^-1), where jitter was needed or it was asked for


@dataclass
class Predictor:
    """Everything that prediction needs."""

    pipeline: Pipeline
    weights: Weights
    calibration: Calibration | None  # of classes

    def __post_init__(self) -> None:
        if self.calibration is None and self.pipeline.coding.classes:
            self.calibration = Calibration.plain(self.pipeline.coding.outputs)

    @property
    def is_classifier(self) -> bool:
        return self.pipeline.coding.task == CLASSIFICATION

    @cached_property
    def _scorer(self) -> RowScorer:
        return self.pipeline.map.scorer(self.weights.coefficients, self.weights.intercept)

    def __getstate__(self) -> dict[str, object]:
        """What is packed for this CPU stays here."""
        return {name: value for name, value in self.__dict__.items() if name != "_scorer"}

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs): decision scores, or predicted numbers, of inputs as they come."""
        if X.shape[1] != self.pipeline.n_inputs:
            raise DataError(f"the data has {X.shape[1]} columns, the model was trained on {self.pipeline.n_inputs}")
        return self._scorer.scores(self.pipeline.scaled(X), threads)

    def codes(self, scores: np.ndarray) -> np.ndarray:
        """Position of the most probable class."""
        return self._calibrated.logits(scores).argmax(axis=1)

    def labels(self, codes: np.ndarray) -> np.ndarray:
        return np.asarray(self.pipeline.coding.classes)[codes]

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes)."""
        return self._calibrated.probabilities(scores)

    @property
    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise InputError("this model predicts numbers: it has no classes and no probabilities")
        return self.calibration


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
