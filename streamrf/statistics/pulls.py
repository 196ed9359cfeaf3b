"""The two pulls of least squares: the scores themselves, for products with Z'Z, and the targets, for the right side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamrf.features.targets import RESOLUTION, TargetCoding
from streamrf.statistics.gradient import Pull


@dataclass(frozen=True)
class ScorePull(Pull):
    """c = scores: the sum is Z'(Z V)."""

    outputs: int

    def bounds(self, reach: np.ndarray) -> np.ndarray:
        return reach

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scores, np.empty((len(scores), 0))


@dataclass(frozen=True)
class TargetPull(Pull):
    """c = 1 and the targets less their offset: Z'1 and Z'y, with the squared targets as losses. No scores are made."""

    coding: TargetCoding

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return 1 + self.coding.outputs

    @property
    def losses(self) -> int:  # type: ignore[override]
        return self.coding.outputs

    def bounds(self, reach: np.ndarray) -> np.ndarray:
        largest = np.ones(self.coding.outputs) if self.coding.classes else self.coding.step * 2.0**RESOLUTION
        return np.concatenate([[1.0], largest])

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = targets - self.coding.offset
        return np.concatenate([np.ones((len(values), 1)), values], axis=1), values**2
