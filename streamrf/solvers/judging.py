"""Calibration and metrics from rows that the weights have not seen. Every solver ends here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.features.base import FeatureMap, Scorer
from streamrf.features.pipeline import Pipeline
from streamrf.features.scaling import Scaling
from streamrf.features.targets import TargetCoding
from streamrf.solvers.ridge import NormalEquations, RidgeSolver
from streamrf.statistics.gram import Gram
from streamrf.statistics.predictor import Calibration, Predictor, Weights
from streamrf.statistics.scores import Scores
from streamrf.statistics.targets import Weighting, row_weights
from streamrf.support.threads import Threads

Unseen = tuple[Weights, Block]  # weights, and rows (``weighed``, with coded targets) that they have not seen


def judge(pipeline: Pipeline, parts: list[Unseen], threads: Threads) -> tuple[Calibration | None, dict[str, Any]]:
    """Calibration on rows that the weights beside them have not seen, and the metrics there."""
    calibration = calibrate(pipeline, parts, threads) if pipeline.coding.classes else None
    return calibration, metrics(pipeline, parts, calibration, threads)


def metrics(
    pipeline: Pipeline, parts: list[Unseen], calibration: Calibration | None, threads: Threads
) -> dict[str, Any]:
    """The metrics of weights on rows that they have not seen."""
    scores = [Scores(Predictor(pipeline, weights, calibration)) for weights, _ in parts]
    state = scores[0].zero()
    for each, (_, rows) in zip(scores, parts, strict=True):
        each.update(state, as_read(pipeline.coding, rows), threads)
    return scores[0].metrics(state)


def calibrate(pipeline: Pipeline, parts: list[Unseen], threads: Threads) -> Calibration:
    scores = [Predictor(pipeline, weights, None).scores(rows.X, threads) for weights, rows in parts]
    codes = [class_codes(rows.targets) for _, rows in parts]
    weighed = [rows.weights for _, rows in parts if rows.weights is not None]
    weights = np.concatenate(weighed) if len(weighed) == len(parts) else None
    return Calibration.fit(np.concatenate(scores), np.concatenate(codes), weights)


def class_codes(values: np.ndarray) -> np.ndarray:
    """Class positions from the coded targets that hold-out rows keep."""
    return (values[:, 0] > 0).astype(np.int64) if values.shape[1] == 1 else values.argmax(axis=1)


def as_read(coding: TargetCoding, rows: Block) -> Block:
    """Hold-out rows with their targets as a source gives them."""
    return replace(rows, y=np.asarray(coding.classes)[class_codes(rows.targets)]) if coding.classes else rows


def weighed(coding: TargetCoding, rows: Block, weighting: Weighting) -> Block:
    """Hold-out rows with all that they count for: their own weights times those of their classes."""
    return replace(rows, weights=row_weights(as_read(coding, rows), coding, weighting.class_weights))


def shares(rows: Block) -> np.ndarray:
    """What each of these rows counts for, one in all."""
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    return weights / max(weights.sum(), np.finfo(np.float64).tiny)


def wrong_classes(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Whether each row's class is missed, from (rows, outputs) scores and coded targets."""
    if scores.shape[1] == 1:
        return ((scores > 0) != (truth > 0))[:, 0]
    return scores.argmax(axis=1) != truth.argmax(axis=1)


@dataclass(frozen=True)
class RidgeTrial:
    """A small fit on rows in memory, for whoever tries settings: the same sums, solver and scores as a training run."""

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
