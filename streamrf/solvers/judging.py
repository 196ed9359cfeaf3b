"""Calibration and metrics from rows that the weights have not seen. Every route ends here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.models.prepared import Prepared
from streamrf.solvers.ridge import Weights
from streamrf.statistics.calibration import Calibration
from streamrf.statistics.row_weights import row_weights
from streamrf.statistics.rowset import Ledger
from streamrf.statistics.scores import Scores
from streamrf.statistics.weighting import Weighting
from streamrf.support.threads import Threads

Unseen = tuple[Weights, Block]  # weights, and rows (``weighed``, with coded targets) that they have not seen


def judge(prepared: Prepared, parts: list[Unseen], threads: Threads) -> tuple[Calibration | None, dict[str, Any]]:
    """Calibration on rows that the weights beside them have not seen, and the metrics there."""
    calibration = calibrate(prepared, parts, threads) if prepared.coding.classes else None
    models = [prepared.model(weights, calibration, Ledger(), {}) for weights, _ in parts]
    state = Scores(models[0]).zero()
    for model, (_, rows) in zip(models, parts, strict=True):
        Scores(model).update(state, as_read(prepared.coding, rows), threads)
    return calibration, Scores(models[0]).metrics(state)


def calibrate(prepared: Prepared, parts: list[Unseen], threads: Threads) -> Calibration:
    models = [prepared.model(weights, None, Ledger(), {}) for weights, _ in parts]
    scores = [model.scores(rows.X, threads) for model, (_, rows) in zip(models, parts, strict=True)]
    codes = [class_codes(rows.y) for _, rows in parts]  # type: ignore[arg-type]
    weighed = [rows.weights for _, rows in parts if rows.weights is not None]
    weights = np.concatenate(weighed) if len(weighed) == len(parts) else None
    return Calibration.fit(np.concatenate(scores), np.concatenate(codes), weights)


def class_codes(values: np.ndarray) -> np.ndarray:
    """Class positions from the coded targets that hold-out rows keep."""
    return (values[:, 0] > 0).astype(np.int64) if values.shape[1] == 1 else values.argmax(axis=1)


def as_read(coding: TargetCoding, rows: Block) -> Block:
    """Hold-out rows with their targets as a source gives them."""
    if not coding.classes:
        return rows
    return replace(rows, y=np.asarray(coding.classes)[class_codes(rows.y)])  # type: ignore[arg-type]


def weighed(coding: TargetCoding, rows: Block, weighting: Weighting) -> Block:
    """Hold-out rows with all that they count for: their own weights times those of their classes."""
    return replace(rows, weights=row_weights(as_read(coding, rows), coding, weighting.class_weights))


def shares(rows: Block) -> np.ndarray:
    """What each of these rows counts for, one in all."""
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    return weights / max(weights.sum(), np.finfo(np.float64).tiny)
