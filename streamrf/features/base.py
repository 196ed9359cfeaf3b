"""What a feature map is to a statistic or a predictor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np

from streamrf.features.precision import Precision
from streamrf.support.threads import Threads


class RowScorer(Protocol):
    """A map with coefficients: scaled inputs in, scores out."""

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64."""


class FeatureMap(ABC):
    """Fixed features of scaled inputs; a feature is between -1 and 1 (or an integer that stands for it)."""

    kind: ClassVar[str]
    precision: Precision
    n_inputs: int
    n_features: int

    @property
    @abstractmethod
    def width(self) -> int:
        """Columns an output block needs: the features, rounded up to what the kernel writes at once."""

    @property
    @abstractmethod
    def amplitudes(self) -> np.ndarray:
        """(n_features,) float64: feature times amplitude is z, with z(x)'z(y) ~ k(x, y)."""

    @abstractmethod
    def compute(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        """Features of scaled X into ``out[:len(X), :n_features]``; columns up to ``width`` may be overwritten."""

    @abstractmethod
    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON and arrays for the model file."""

    def scorer(self, coefficients: np.ndarray, intercept: np.ndarray) -> RowScorer:
        """Predictions with coefficients (n_features, outputs) of the features as they are written."""
        from streamrf.features.scores import Scorer

        return Scorer(self, coefficients, intercept)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process as it is to a file: what is packed for this CPU stays here."""
        from streamrf.features.build import map_from_parts

        return map_from_parts, self.to_parts()

    def block(self, rows: int, dtype: Any, extra: int = 0) -> np.ndarray:
        """An output block for so many rows, with room for ``extra`` columns after the features."""
        return np.empty((rows, max(self.width, self.n_features + extra)), dtype)

    def dense(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """z(X) as (n, n_features) float64: for tests, pilots and small data."""
        dtype = np.int16 if self.precision.exact else self.precision.inputs
        out = self.block(len(X), dtype)
        self.compute(X, out, threads)
        return out[:, : self.n_features] * self.amplitudes
