"""A pipeline with weights predicts: scores of rows, and what they mean for classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamrf.features.base import RowScorer
from streamrf.features.pipeline import Pipeline
from streamrf.features.targets import CLASSIFICATION
from streamrf.statistics.calibration import Calibration
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
