"""What the pilot returns: its trials, and the choice they led to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamrf.recipe import NONE, Recipe


@dataclass(frozen=True)
class Trial:
    """One setting and what it cost: ``error`` is the mean squared error on unseen rows over the targets' variance."""

    scaling: str
    kernel: str
    length_scale: float
    D: int
    bits: str
    rows: int
    ridge: float = 0.0
    error: float = np.inf
    misses: float | None = None  # share of wrong classes, for classification
    seconds: float = 0.0
    metric: str = NONE  # or the name of one that the run learned

    @property
    def size(self) -> tuple[object, ...]:
        """What trials have in common that differ in width alone."""
        return self.scaling, self.kernel, self.D, self.bits, self.rows, self.metric


@dataclass(frozen=True)
class BinningTrial(Trial):
    """Its length scale is the geometric mean over columns; it has grids in place of features."""

    grids: int = 0


@dataclass(frozen=True)
class Choice:
    """A recipe without ``auto``, and the arrays that the map is built from besides it."""

    recipe: Recipe
    trials: Sequence[Trial] = ()
    metric: np.ndarray | None = None  # a factor for the scaled inputs, where one was learned
    length_scales: np.ndarray | None = None  # of random binning: one for each column
    growth: float = 0.0  # length scales go as rows to the minus this
    notes: dict[str, Any] = field(default_factory=dict)  # for the metadata of the model

    def metadata(self) -> dict[str, Any]:
        """What the model says of the pilot; nothing that trains reads it back."""
        document = {"pilot": [vars(trial) for trial in self.trials]} if self.trials else {}
        if self.length_scales is not None:
            scales = [float(each) for each in self.length_scales]
            document["binning"] = {"length_scales": scales, "growth": self.growth}  # type: ignore[assignment]
        return {**document, **self.notes}
