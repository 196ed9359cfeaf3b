"""Error as rows join the sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamrf.features.fourier.map import FourierMap
from streamrf.models.model import Model
from streamrf.reports import curves, figures
from streamrf.reports.evidence import Evidence, fourier_features
from streamrf.reports.figures import Picture
from streamrf.reports.page import Section
from streamrf.support.units import format_count

CURVE_FEATURES = 500  # an eigenproblem of this size for each point of the curve
FEWEST_ROWS = 100


def learning(evidence: Evidence) -> Section:
    """Error as rows join the sums."""
    section = Section("learning", "Learning curve")
    model, rows = evidence.model, evidence.rows
    if rows is None or not isinstance(model.map, FourierMap) or len(rows) < FEWEST_ROWS:
        return section
    columns = curves.spread_columns(model.map.n_features, CURVE_FEATURES)
    Z = fourier_features(model, rows.X, columns, evidence.threads)
    truth, judge, what = _judge(model)
    with evidence.threads.blas():
        curve = curves.learning_curve(Z, truth(evidence), len(rows) // 4, judge, model.map.n_features)
    fewer = "" if curve.features == curve.of else f", with {curve.features} of the {curve.of} features"
    section.text = (
        f"Sums of a sample that grow row by row, solved along the way{fewer}: nothing is trained anew. A curve that is"
        " still falling at its end wants more rows; one that is flat wants more features or another kernel."
    )
    section.pictures = [Picture(
        "learning", f"{what.capitalize()} on {format_count(len(rows) // 4)} rows that are never in the sums.",
        figures.learning(curve.rows, curve.errors, what),
        f"{what} goes from {curve.errors[0]:.3g} at {curve.rows[0]} rows to {curve.errors[-1]:.3g} at"
        f" {curve.rows[-1]}",
    )]  # fmt: skip
    return section


Truth = Callable[[Any], np.ndarray]
Judge = Callable[[np.ndarray, np.ndarray], float]


def _judge(model: Model) -> tuple[Truth, Judge, str]:
    """Coded targets, how scores are judged, and what that error is called."""
    if not model.is_classifier:
        return lambda e: e.truth, lambda s, y: float(np.sqrt(((s - y) ** 2).mean())), "RMSE"

    def wrong(scores: np.ndarray, values: np.ndarray) -> float:
        if values.shape[1] == 1:
            return float(((scores[:, 0] > 0) != (values[:, 0] > 0)).mean())
        return float((scores.argmax(axis=1) != values.argmax(axis=1)).mean())

    return lambda e: model.coding.values(e.rows.y), wrong, "share of wrong classes"
