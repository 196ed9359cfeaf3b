"""Sections on how accurate a model is: its errors, and how they fall as rows are added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg as sla

from streamrf.features.fourier.map import FourierMap
from streamrf.models.model import Model
from streamrf.reports.evidence import Evidence, fourier_features
from streamrf.reports.page import COLOURS, WIDE, Picture, Section, curve, diagonal, legend, panel, panels
from streamrf.statistics.scores import Scores
from streamrf.support.units import format_count

NAMES = {"rmse": "RMSE", "mae": "MAE", "r2": "R²", "auc": "AUC", "brier": "Brier score"}
CLASS_FIGURES = ("rows", "precision", "recall", "f1")
ROC_CLASSES = 6
POINTS = 1500  # of a scatter plot
CURVE_FEATURES = 500  # the size of the eigenproblem at each point of the learning curve
CURVE_POINTS = 7
FEWEST_ROWS = 100
RIDGES = tuple(10.0**e for e in range(-10, 0))

Judge = Callable[[np.ndarray, np.ndarray], float]


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
        section.grid = [("class", *CLASS_FIGURES)]
        section.grid += [
            (str(each["class"]), *(format_number(each[name]) for name in CLASS_FIGURES)) for each in found["by_class"]
        ]


def measured(evidence: Evidence) -> dict[str, Any]:
    """The figures of the sample, from the same sums as those of `evaluate`."""
    assert evidence.rows is not None
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


# -- learning curve


def learning(evidence: Evidence) -> Section:
    """Error as rows are added to the sums."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    section = Section("learning", "Learning curve")
    model, rows = evidence.model, evidence.rows
    if rows is None or rows.y is None or not isinstance(model.map, FourierMap) or len(rows) < FEWEST_ROWS:
        return section
    Z = fourier_features(model, rows.X, spread_columns(model.map.n_features, CURVE_FEATURES), evidence.threads)
    judge, what = (_wrong, "share of wrong classes") if model.is_classifier else (_rmse, "RMSE")
    with evidence.threads.blas():
        found = learning_curve(Z, model.coding.values(rows.y), len(rows) // 4, judge, model.map.n_features)
    fewer = "" if found.features == found.of else f", with {found.features} of the {found.of} features"
    section.text = (
        f"Sums of a sample that grow row by row, solved along the way{fewer}: nothing is retrained. If the curve still"
        " falls at its end, more rows will help. If it is flat, try more features or another kernel."
    )
    figure, axes = curve(found.rows, found.errors, ("rows in the sums", what))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    section.add(
        "learning", f"{what.capitalize()} on {format_count(len(rows) // 4)} rows that are never in the sums.", figure,
        f"{what} goes from {found.errors[0]:.3g} at {found.rows[0]} rows to {found.errors[-1]:.3g} at {found.rows[-1]}",
    )  # fmt: skip
    return section


def _rmse(scores: np.ndarray, values: np.ndarray) -> float:
    return float(np.sqrt(((scores - values) ** 2).mean()))


def _wrong(scores: np.ndarray, values: np.ndarray) -> float:
    if values.shape[1] == 1:
        return float(((scores[:, 0] > 0) != (values[:, 0] > 0)).mean())
    return float((scores.argmax(axis=1) != values.argmax(axis=1)).mean())


def spread_columns(count: int, most: int) -> np.ndarray:
    """All columns, or ``most`` of them evenly spread."""
    return np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).astype(int))


@dataclass(frozen=True)
class LearningCurve:
    """Errors on unseen rows for numbers of rows in the sums, with ``features`` of the model's ``of``."""

    rows: Sequence[int]
    errors: Sequence[float]
    features: int
    of: int


def learning_curve(Z: np.ndarray, targets: np.ndarray, unseen: int, judge: Judge, of: int) -> LearningCurve:
    """Errors on the last ``unseen`` rows; the sums of the others grow from one point of the curve to the next."""
    train, D = len(Z) - unseen, Z.shape[1]
    sums, cross = np.zeros((D + 1, D + 1)), np.zeros((D + 1, targets.shape[1]))
    done, errors, sizes = 0, [], curve_sizes(train)
    for size in sizes:
        part = np.column_stack([Z[done:size], np.ones(size - done)])
        sums += part.T @ part
        cross += part.T @ targets[done:size]
        done = size
        scores = _path_scores(sums, cross, size, Z[train:])
        errors.append(min(judge(found, targets[train:]) for found in scores))
    return LearningCurve(sizes, errors, D, of)


def curve_sizes(rows: int) -> list[int]:
    """Row counts in even steps of the logarithm, the last one all rows."""
    return sorted({int(size) for size in np.geomspace(min(50, rows), rows, CURVE_POINTS)})


def _path_scores(sums: np.ndarray, cross: np.ndarray, rows: int, Z: np.ndarray) -> list[np.ndarray]:
    """Scores of Z for a path of lambdas, from one eigendecomposition."""
    mean, target_mean = sums[-1, :-1] / rows, cross[-1] / rows
    values, vectors = sla.eigh(sums[:-1, :-1] / rows - np.outer(mean, mean))
    rotated, inside = vectors.T @ (cross[:-1] / rows - np.outer(mean, target_mean)), (Z - mean) @ vectors
    return [inside @ (rotated / (np.maximum(values, 0) + ridge)[:, None]) + target_mean for ridge in RIDGES]
