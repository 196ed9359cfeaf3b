"""Rows that choose and rows that judge, once weights are there: calibration by the first, metrics by the second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import CHOOSE, JUDGE, NUMBER, ORDER, Split
from streamrf.features.pipeline import Pipeline
from streamrf.features.targets import TargetCoding
from streamrf.statistics.calibration import fit_calibration
from streamrf.statistics.holdout import SampleState
from streamrf.statistics.intervals import FEWEST, Interval, Judges, class_intervals, number_intervals
from streamrf.statistics.metrics import Unit
from streamrf.statistics.scores import Calibration, Predictor, Scores, Weights
from streamrf.statistics.targets import Weighting, row_weights
from streamrf.support.threads import Threads

Unseen = tuple[Weights, Block]  # weights, and rows (with coded targets) that they have not seen


def by_role(split: Split, holdout: SampleState) -> tuple[Block | None, Block | None]:
    """The rows that choose, and those that judge, which ``holdout`` has no more then. A run that an older version began
    had only rows that did both."""
    if not split.judge > 0:
        rows = holdout.table()
        return rows, rows
    choose, judge = holdout.handed_out(split.roles, (CHOOSE, JUDGE))
    return choose.table(), judge.table()


def judge(
    pipeline: Pipeline, weights: Weights, rows: Block, calibration: Calibration | None, split: Split, threads: Threads
) -> dict[str, Any]:
    """The metrics of weights on rows that they have not seen and that have chosen nothing, with 95 % intervals. Rows
    count for weights of their own alone, as ``evaluate`` counts them."""
    heaviest = 0.0 if rows.weights is None else float(rows.weights.max())
    scores = Scores(Predictor(pipeline, weights, calibration), Unit.of(heaviest) if heaviest > 0 else None)
    state = scores.zero()
    scores.update(state, as_read(pipeline.coding, rows), threads)
    found = scores.metrics(state)
    return {**found, "interval": intervals(scores.model, rows, split, threads)}


def intervals(model: Predictor, rows: Block, split: Split, threads: Threads) -> dict[str, Interval]:
    """Of each metric that has one; none where rows are too few to tell."""
    if rows.weights is not None:
        rows = rows.take(rows.weights > 0)
    judges = Judges.of(rows.weights, rows.index if split.key in (NUMBER, ORDER) else split.keys(rows))
    if judges.count < FEWEST:
        return {}
    scores = model.scores(rows.X, threads)
    if not model.is_classifier:
        return number_intervals(scores, rows.targets, judges)
    return class_intervals(model.probabilities(scores), model.codes(scores), class_codes(rows.targets), judges)


def calibrate(
    pipeline: Pipeline, parts: list[Unseen], threads: Threads, weighting: Weighting | None = None,
    threshold: float | str | None = None, known: Calibration | None = None,
) -> Calibration | None:  # fmt: skip
    """Of classes, on rows that the weights beside them have not seen; or one that is known, with a threshold. Rows
    count for their weights in the threshold, and for those of their classes too in the slopes."""
    if not pipeline.coding.classes or not parts:
        return None
    weighting = weighting or Weighting()
    scores = np.concatenate([Predictor(pipeline, weights, None).scores(rows.X, threads) for weights, rows in parts])
    codes = np.concatenate([class_codes(rows.targets) for _, rows in parts])
    weights = _joined([weighed(pipeline.coding, rows, weighting).weights for _, rows in parts])
    calibration = known or fit_calibration(scores, codes, weights)
    return calibration.with_threshold(threshold, scores, codes, _joined([rows.weights for _, rows in parts]))


def _joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
    """All of them, or None where any is missing."""
    known = [each for each in parts if each is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


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
