"""The section on how accurate a model is: its errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.models.model import Model
from streamrf.models.predict import evaluate_rows
from streamrf.reports.evidence import Evidence
from streamrf.reports.page import COLOURS, WIDE, Picture, Section, diagonal, legend, panel, panels
from streamrf.statistics.scores import Scores
from streamrf.support.progress import Reporter
from streamrf.support.units import format_count

OF_CLASSES = ("rows", "precision", "recall", "f1", "average_precision")  # in the order of their telling
NAMES = {"rmse": "RMSE", "mae": "MAE", "r2": "R²", "auc": "AUC", "brier": "Brier score"}
ROC_CLASSES = 6
POINTS = 1500  # of a scatter plot


# -- errors


def errors(evidence: Evidence) -> Section:
    """Residuals; or confusion, ROC and calibration."""
    section = Section("errors", "Errors", _about_rows(evidence))
    if evidence.rows is None:
        return _stored_errors(evidence, section)
    return _class_errors(evidence, section) if evidence.model.is_classifier else _number_errors(evidence, section)


def _about_rows(evidence: Evidence) -> str:
    if evidence.rows is None:
        return "On the rows that were held out in training."
    count = f"{format_count(len(evidence.rows))} rows of the data"
    if not evidence.seen and evidence.source is not None and evidence.source.n_rows > len(evidence.rows):
        return f"Figures of all {format_count(evidence.source.n_rows)} rows of the data; pictures of {count}."
    if evidence.unseen_model is not None:
        return f"On {count}. The model was trained on them, so they were first removed from its sums, exactly."
    return f"On {count}" + (", which the model was trained on: new rows will do worse." if evidence.seen else ".")


def _stored_errors(evidence: Evidence, section: Section) -> Section:
    found = evidence.metadata.get("holdout") or {}
    _add_figures(section, found)
    if "confusion" in found:
        section.pictures.append(_confusion_picture(np.array(found["confusion"]), evidence.model))
    return section


def _add_figures(section: Section, found: dict[str, Any]) -> None:
    """Every figure that `evaluate` prints. Older models have fewer."""
    for name, value in found.items():
        if isinstance(value, int | float):
            section.table.append((NAMES.get(name, name.replace("_", " ")), format_number(value)))
    baseline = found.get("baseline", {})
    for name, value in baseline.items():
        if isinstance(value, float):
            section.table.append((f"{NAMES.get(name, name.replace('_', ' '))} of the baseline", format_number(value)))
    if "by_class" in found:
        names = [name for name in OF_CLASSES if name in found["by_class"][0]]
        section.grid = [("class", *(name.replace("_", " ") for name in names))]
        section.grid += [
            (str(each["class"]), *(format_number(each[name]) for name in names)) for each in found["by_class"]
        ]


def measured(evidence: Evidence) -> dict[str, Any]:
    """Those of `evaluate`: of all rows of the data, or of the sample where the model was trained on them."""
    assert evidence.rows is not None
    if not evidence.seen and evidence.source is not None:
        whole, silent = evidence.source, Reporter()
        return evaluate_rows(evidence.model, whole, threads=evidence.threads, reporter=silent, nan="drop")
    statistic = Scores(evidence.judged.predictor)
    state = statistic.zero()
    statistic.update(state, evidence.rows, evidence.threads)
    return statistic.metrics(state)


def format_number(value: object) -> str:
    """A value as a table shows it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return format_count(value)
    return f"{value:.5g}" if isinstance(value, float) else "-" if value is None else str(value)


def _number_errors(evidence: Evidence, section: Section) -> Section:
    truth, scores = evidence.truth, evidence.scores
    outputs, found = truth.shape[1], measured(evidence)
    _add_figures(section, found)
    r2 = float("nan") if found["r2"] is None else found["r2"]
    for output in range(min(3, outputs)):
        name, of = ("residuals", "") if outputs == 1 else (f"residuals-{output}", f" of output {output}")
        section.pictures.append(_residuals_picture(name, of, truth[:, output], scores[:, output], r2))
    return section


def _residuals_picture(name: str, of: str, truth: np.ndarray, predicted: np.ndarray, r2: float) -> Picture:
    figure, (left, right) = panels(WIDE, 2)
    left.plot(truth[:POINTS], predicted[:POINTS], ".", markersize=3, alpha=0.5, color=COLOURS[0])
    diagonal(left, float(min(truth.min(), predicted.min())), float(max(truth.max(), predicted.max())))
    left.set(xlabel="target", ylabel="prediction")
    right.hist(truth - predicted, bins=60, color=COLOURS[0])
    right.set(xlabel="target − prediction", ylabel="rows")
    caption = f"Left: predictions{of} against targets. Right: residuals."
    return Picture(name, caption, figure, f"Predictions against targets, R² {r2:.3f}")


def _class_errors(evidence: Evidence, section: Section) -> Section:
    model, truth = evidence.judged, evidence.truth
    chances, predicted = model.probabilities(evidence.scores), model.codes(evidence.scores)
    _add_figures(section, measured(evidence))
    section.pictures = [
        _confusion_picture(confusion(truth, predicted, len(model.coding.classes)), model),
        _roc_picture(model, chances, truth),
        _recall_picture(model, chances, truth),
        _reliability_picture(chances, chances.argmax(axis=1), truth),
    ]
    return section


def confusion(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Counts: rows are the truth, columns the prediction."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    return counts


def _confusion_picture(counts: np.ndarray, model: Model) -> Picture:
    """Colours are shares of each true class; numbers are counts, if there is room for them."""
    k = len(model.coding.classes)
    figure, axes = panel("predicted", "true", (min(8.6, 2.6 + 0.5 * k), min(8.0, 1.9 + 0.42 * k)))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.grid(False)
    axes.pcolormesh(np.arange(k + 1) - 0.5, np.arange(k + 1) - 0.5, shares, cmap="Blues", vmin=0, vmax=1)
    axes.invert_yaxis()
    if k <= 12:
        for i, j in np.ndindex(k, k):
            colour = "#ffffff" if shares[i, j] > 0.5 else "#1c2733"  # on the cell's own colour, in either theme
            axes.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", fontsize=7.5, color=colour)
    places = range(0, k, max(1, k // 20))
    labels = [str(model.coding.classes[place])[:10] for place in places]
    axes.set_xticks(places, labels, rotation=45 if k > 4 else 0)
    axes.set_yticks(places, labels)
    right = np.trace(counts) / max(counts.sum(), 1)
    caption = "Confusion: each row of cells is one true class."
    return Picture("confusion", caption, figure, f"Confusion matrix, {right:.1%} on the diagonal")


def _roc_picture(model: Model, chances: np.ndarray, truth: np.ndarray) -> Picture:
    """A curve for the second of two classes, or for each of the most frequent classes against the rest."""
    figure, axes = panel("false positive rate", "true positive rate")
    labels = model.coding.classes
    common = np.argsort(-np.bincount(truth, minlength=len(labels)), kind="stable")
    for number, code in enumerate([1] if len(labels) == 2 else sorted(common[:ROC_CLASSES].tolist())):
        false, true, area = roc(chances[:, code], truth == code)
        axes.plot(*thinned(false, true), color=COLOURS[number], label=f"{labels[code]} (AUC {area:.3f})")
    diagonal(axes)
    legend(axes, "lower right")
    return Picture("roc", "ROC: how early the right rows are found.", figure, "Receiver operating characteristic")


def _recall_picture(model: Model, chances: np.ndarray, truth: np.ndarray) -> Picture:
    """Precision against recall, of the classes that the ROC shows."""
    figure, axes = panel("recall", "precision")
    labels = model.coding.classes
    common = np.argsort(-np.bincount(truth, minlength=len(labels)), kind="stable")
    for number, code in enumerate([1] if len(labels) == 2 else sorted(common[:ROC_CLASSES].tolist())):
        axes.plot(*thinned(*precision_recall(chances[:, code], truth == code)), color=COLOURS[number],
                  label=f"{labels[code]} ({(truth == code).mean():.0%} of rows)")  # fmt: skip
    axes.set_ylim(0, 1.02)
    legend(axes, "lower left")
    caption = "Precision and recall as the threshold falls; at its right end precision is the share of the class."
    return Picture("precision-recall", caption, figure, "Precision against recall")


def precision_recall(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision as the threshold falls; ties move together."""
    order = np.argsort(-scores, kind="stable")
    last = np.r_[np.flatnonzero(np.diff(scores[order])), len(scores) - 1]
    hits = np.cumsum(positive[order])[last]
    return hits / max(hits[-1], 1), hits / (last + 1)


def roc(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """False and true positive rates as the threshold falls, and the area under them; ties move together."""
    order = np.argsort(-scores, kind="stable")
    last = np.r_[np.flatnonzero(np.diff(scores[order])), len(scores) - 1]
    hits, misses = np.cumsum(positive[order])[last], np.cumsum(~positive[order])[last]
    true, false = np.r_[0, hits / max(hits[-1], 1)], np.r_[0, misses / max(misses[-1], 1)]
    return false, true, float(np.trapezoid(true, false))


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A curve of at most 300 points; the first and the last stay."""
    keep = np.unique(np.linspace(0, len(x) - 1, 300).astype(int))
    return x[keep], y[keep]


def _reliability_picture(chances: np.ndarray, predicted: np.ndarray, truth: np.ndarray) -> Picture:
    two = chances.shape[1] == 2
    chance = chances[:, 1] if two else chances.max(axis=1)
    forecast, observed, counts = reliability(chance, truth == 1 if two else predicted == truth)
    figure, axes = panel("predicted probability", "observed share")
    diagonal(axes)
    axes.plot(forecast, observed, color=COLOURS[0], marker="o", markersize=4)
    axes.scatter(forecast, observed, s=20 + 180 * counts / counts.max(), color=COLOURS[0], alpha=0.3, linewidths=0)
    what = "second" if two else "predicted"
    caption = f"Calibration: probabilities of the {what} class against what happened; larger dots, more rows."
    return Picture("calibration", caption, figure, "Reliability diagram")


def reliability(chance: np.ndarray, happened: np.ndarray, bins: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean forecast, observed share and count in each bin of equal width that has rows."""
    place = np.minimum((chance * bins).astype(int), bins - 1)
    counts = np.bincount(place, minlength=bins)
    full = counts > 0
    forecast = np.bincount(place, chance, bins)[full] / counts[full]
    return forecast, np.bincount(place, happened, bins)[full] / counts[full], counts[full]
