"""How good it is: residuals, or confusion, ROC and calibration."""

from __future__ import annotations

import numpy as np

from streamrf.models.model import Model
from streamrf.reports import curves, figures
from streamrf.reports.evidence import Evidence
from streamrf.reports.figures import Picture
from streamrf.reports.page import Section
from streamrf.reports.words import number
from streamrf.support.units import format_count

ROC_CLASSES = 6


def errors(evidence: Evidence) -> Section:
    section = Section("errors", "Errors", _about_rows(evidence))
    if evidence.rows is None:
        return _kept_errors(evidence, section)
    return _class_errors(evidence, section) if evidence.model.is_classifier else _number_errors(evidence, section)


def _about_rows(evidence: Evidence) -> str:
    if evidence.rows is None:
        return "On the rows that were held out in training."
    count = f"{format_count(len(evidence.rows))} rows of the data"
    if evidence.unseen_model is not None:
        return f"On {count}. The model was trained on them, so they were first taken out of its sums, exactly."
    return f"On {count}" + (", which the model was trained on: new rows will do worse." if evidence.seen else ".")


def _kept_errors(evidence: Evidence, section: Section) -> Section:
    found = evidence.model.metadata.get("holdout") or {}
    section.table = [(name.replace("_", " "), number(v)) for name, v in found.items() if isinstance(v, int | float)]
    if "confusion" in found:
        section.pictures.append(_confusion_picture(np.array(found["confusion"]), evidence.model))
    return section


def _number_errors(evidence: Evidence, section: Section) -> Section:
    truth, scores = evidence.truth, evidence.scores
    gap = scores - truth
    spread = float(truth.var(axis=0).mean())
    r2 = 1 - float((gap**2).mean()) / spread if spread > 0 else float("nan")
    section.table = [
        ("RMSE", f"{np.sqrt((gap**2).mean()):.5g}"),
        ("MAE", f"{np.abs(gap).mean():.5g}"),
        ("R²", f"{r2:.5g}"),
    ]
    for output in range(min(3, truth.shape[1])):
        name = "residuals" if truth.shape[1] == 1 else f"residuals-{output}"
        of = "" if truth.shape[1] == 1 else f" of output {output}"
        section.pictures.append(Picture(
            name, f"Left: predictions{of} against targets. Right: what is left over.",
            figures.residuals(truth[:, output], scores[:, output]), f"Predictions against targets, R² {r2:.3f}",
        ))  # fmt: skip
    return section


def _class_errors(evidence: Evidence, section: Section) -> Section:
    model, truth = evidence.judged, evidence.truth
    chances, predicted = model.probabilities(evidence.scores), model.codes(evidence.scores)
    counts = curves.confusion(truth, predicted, len(model.coding.classes))
    own = np.maximum(chances[np.arange(len(truth)), truth], 1e-15)
    section.table = [
        ("share of wrong classes", f"{(predicted != truth).mean():.4%}"),
        ("log loss", f"{-np.log(own).mean():.5g}"),
    ]
    section.pictures = [
        _confusion_picture(counts, model),
        Picture("roc", "ROC: how early the right rows are found.", figures.rocs(_rocs(model, chances, truth)),
                "Receiver operating characteristic"),
        _reliability_picture(chances, predicted, truth),
    ]  # fmt: skip
    return section


def _confusion_picture(counts: np.ndarray, model: Model) -> Picture:
    right = np.trace(counts) / max(counts.sum(), 1)
    return Picture("confusion", "Confusion: each row of cells is one true class.",
                   figures.confusion(counts, [str(label) for label in model.coding.classes]),
                   f"Confusion matrix, {right:.1%} on the diagonal")  # fmt: skip


def _rocs(model: Model, chances: np.ndarray, truth: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray, float]]:
    """Of the second of two classes, or of each of the most frequent ones against the rest."""
    labels = model.coding.classes
    common = np.argsort(-np.bincount(truth, minlength=len(labels)), kind="stable")
    found = []
    for code in [1] if len(labels) == 2 else sorted(common[:ROC_CLASSES].tolist()):
        false, true, area = curves.roc(chances[:, code], truth == code)
        found.append((str(labels[code]), *curves.thinned(false, true), area))
    return found


def _reliability_picture(chances: np.ndarray, predicted: np.ndarray, truth: np.ndarray) -> Picture:
    two = chances.shape[1] == 2
    chance = chances[:, 1] if two else chances.max(axis=1)
    happened = truth == 1 if two else predicted == truth
    what = "of the second class" if two else "of the predicted class"
    return Picture("calibration", f"Calibration: probabilities {what} against what happened; larger dots, more rows.",
                   figures.reliability(*curves.reliability(chance, happened)), "Reliability diagram")  # fmt: skip
