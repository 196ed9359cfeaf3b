"""A small fit on rows in memory: weights for every lambda at once, and their errors on other rows.

The same sums, solver and scores as a training run, for whoever tries settings: the pilot and the comparison of maps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from streamrf.data.source import Block
from streamrf.features.base import FeatureMap, Scorer
from streamrf.features.scaling import Scaling
from streamrf.features.targets import TargetCoding
from streamrf.solvers.ridge import NormalEquations, RidgeSolver, Weights
from streamrf.statistics.gram import Gram
from streamrf.support.threads import Threads


@dataclass(frozen=True)
class RidgeTrial:
    """A map and a scaling to be fitted and judged."""

    scaling: Scaling
    map: FeatureMap
    coding: TargetCoding
    threads: Threads

    def fit(self, rows: Block, ridges: Iterable[float]) -> list[Weights]:
        """Weights at each lambda, from one sum over these rows."""
        gram = Gram.on_this_machine(self.scaling, self.map, self.coding, self.threads.count)
        state = gram.zero()
        gram.update(state, rows, self.threads)
        return RidgeSolver(NormalEquations.from_state(state, self.map, self.coding), self.threads).path(ridges)

    def scores(self, path: list[Weights], rows: Block) -> np.ndarray:
        """(rows, lambdas, outputs): the weights of the whole path are columns of one score."""
        coefficients = np.concatenate([weights.coefficients for weights in path], axis=1)
        intercept = np.concatenate([weights.intercept for weights in path])
        X = self.scaling.transform(rows.X, self.map.precision.inputs)
        return Scorer(self.map, coefficients, intercept).scores(X, self.threads).reshape(len(X), len(path), -1)


def wrong_classes(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Whether each row's class is missed, from (rows, outputs) scores and coded targets."""
    if scores.shape[1] == 1:
        return ((scores > 0) != (truth > 0))[:, 0]
    return scores.argmax(axis=1) != truth.argmax(axis=1)
