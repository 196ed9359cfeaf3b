"""The section on how errors fall as rows are added.

Fourier features are fitted again by ridge regression. Of any other map, blends among them, the model itself is trained
again, on growing parts of a sample: what it was trained with stays as it is, but for lambda, steps, trees and shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg as sla

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.data.split import Split
from streamrf.features.fourier.map import FourierMap
from streamrf.models.model import Model, UntrainedModel
from streamrf.recipe import AUTO
from streamrf.reports.evidence import Evidence, fourier_features
from streamrf.reports.page import COLOURS, INK, Section, curve, legend
from streamrf.support.errors import StreamRFError
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads
from streamrf.support.units import format_count
from streamrf.training.run import Settings, Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE_FEATURES = 2000  # the size of the largest eigenproblem of the learning curve
CURVE_POINTS = 7
FEWEST_ROWS = 100
SHARES, PARTS = (1 / 8, 1 / 4, 1 / 2, 1.0), 2  # of the rows, that a model is trained on again; and how often
FEWEST_AGAIN, MOST_AGAIN = 50, 4000  # rows, those that judge among them
CHOOSE = 0.2  # of the rows that a model is trained on again: they choose lambda, steps, trees and shares
RIDGES = tuple(10.0**e for e in range(-10, 0))

Judge = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class LearningCurve:
    """Errors on unseen rows for numbers of rows fitted to, with ``features`` of the model's ``of``."""

    rows: Sequence[int]
    errors: Sequence[float]
    features: int
    of: int


def learning(evidence: Evidence) -> Section:
    """Error as rows are added."""
    section = Section("learning", "Learning curve")
    model, rows = evidence.model, evidence.rows
    if rows is None or rows.y is None or len(rows) < FEWEST_ROWS:
        return section
    if not isinstance(model.map, FourierMap):
        rows = rows.take(slice(0, MOST_AGAIN))
    assert rows.y is not None
    unseen = len(rows) // 4
    if isinstance(model.map, FourierMap):
        judge, what = (_wrong, "share of wrong classes") if model.is_classifier else (_rmse, "RMSE")
        Z = fourier_features(model, rows.X, spread_columns(model.map.n_features, CURVE_FEATURES), evidence.threads)
        with evidence.threads.blas():
            found = learning_curve(Z, model.coding.values(rows.y), unseen, judge, model.map.n_features)
        section.text = _about_features(found)
    else:
        what = "log loss" if model.is_classifier else "RMSE"
        try:
            found = trained_again(model, rows, unseen, evidence.threads)
        except StreamRFError:  # a class that a few rows do not have, or a machine without room: the rest is shown
            return section
        section.text = _about_model(evidence)
    _draw(section, evidence, found, what, unseen)
    return section


def _about_features(found: LearningCurve) -> str:
    fewer = "" if found.features == found.of else f", with {found.features} of the {found.of} features"
    return (
        f"Ridge regression on the features of the model{fewer}, fitted to growing parts of a sample. If the curve still"
        " falls at its end, more rows will help. If it is flat, try more features or another kernel."
    )


def _about_model(evidence: Evidence) -> str:
    columns = evidence.model.columns
    coded = " Codes of categories by the target are those of the whole run." if columns and columns.by_target else ""
    return (
        "The model at its own size, trained again on growing parts of a sample of the data, with the same settings."
        f"{coded} If the curve still falls at its end, more rows will help. If it is flat, look for other inputs."
    )


def _draw(section: Section, evidence: Evidence, found: LearningCurve, what: str, unseen: int) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure, axes = curve(found.rows, found.errors, ("rows fitted to", what))
    whole = None if isinstance(evidence.model.map, FourierMap) else _of_whole_run(evidence)
    caption = f"{what[:1].upper()}{what[1:]} on {format_count(unseen)} rows that are never fitted to."
    (first, last), (begin, end) = (found.rows[0], found.rows[-1]), (found.errors[0], found.errors[-1])
    alt = f"{what} goes from {begin:.3g} at {first} rows to {end:.3g} at {last}"
    if whole is not None and whole[0] > last:
        _add_whole(axes, (last, end), whole)
        caption += " The open point is the model itself, on the rows held out in training."
        alt += f"; the model itself has {whole[1]:.3g} at {whole[0]}"
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.minorticks_off()
    axes.set_ylim(0, 1.08 * max(found.errors))
    section.add("learning", caption, figure, alt)


def _of_whole_run(evidence: Evidence) -> tuple[int, float] | None:
    """Rows that the model was fitted to while others judged it, and its error on these."""
    metadata = evidence.metadata
    holdout = metadata.get("holdout") or {}
    error = holdout.get("log_loss" if evidence.model.is_classifier else "rmse")
    rows = (metadata.get("rows") or 0) - (holdout.get("rows") or 0)
    return (rows, float(error)) if isinstance(error, float) and rows > 0 else None


def _add_whole(axes: Axes, last: tuple[int, float], whole: tuple[int, float]) -> None:
    axes.plot([last[0], whole[0]], [last[1], whole[1]], linestyle=":", color=COLOURS[0])
    axes.plot([whole[0]], [whole[1]], marker="o", markersize=6, markerfacecolor="none", color=INK, linestyle="none",
              label="the model")  # fmt: skip
    legend(axes)


def _rmse(scores: np.ndarray, values: np.ndarray) -> float:
    return float(np.sqrt(((scores - values) ** 2).mean()))


def _wrong(scores: np.ndarray, values: np.ndarray) -> float:
    if values.shape[1] == 1:
        return float(((scores[:, 0] > 0) != (values[:, 0] > 0)).mean())
    return float((scores.argmax(axis=1) != values.argmax(axis=1)).mean())


# -- the model itself, again


def trained_again(model: Model, rows: Block, unseen: int, threads: Threads) -> LearningCurve:
    """Errors on the last ``unseen`` rows of models trained on more and more of the others: of two parts of each size,
    where there are two, the mean."""
    train, errors = len(rows) - unseen, []
    sizes = sorted({max(int(train * share), min(FEWEST_AGAIN, train)) for share in SHARES})
    for size in sizes:
        parts = [slice(start, start + size) for start in range(0, train - size + 1, size)][:PARTS]
        made = (_fitted(model, rows.take(part), threads) for part in parts)
        errors.append(float(np.mean([_error(again, rows.take(slice(train, None)), threads) for again in made])))
    return LearningCurve(sizes, errors, model.map.n_features, model.map.n_features)


def _error(model: Model, rows: Block, threads: Threads) -> float:
    """Log loss, or root mean squared error."""
    assert rows.y is not None
    scores = model.scores(rows.X, threads)
    if not model.is_classifier:
        return _rmse(scores, model.coding.values(rows.y))
    chance = model.probabilities(scores)[np.arange(len(rows)), model.coding.codes(rows.y)]
    return float(-np.log(np.maximum(chance, np.finfo(np.float64).tiny)).mean())


def _fitted(model: Model, rows: Block, threads: Threads) -> Model:
    """A fifth of the rows choose, none judge."""
    recipe = model.recipe
    pipeline = replace(model.pipeline, columns=None, map=model.map.untrained())
    split = Split(choose=CHOOSE, seed=recipe.seed)
    untrained = UntrainedModel(recipe, pipeline, {"split": split.to_json()})
    source = ArraySource(np.ascontiguousarray(rows.X), rows.y, feature_names=model.feature_names)
    asked = recipe.with_(ridge=None, solver=AUTO)
    return Training(source, asked, Settings(threads=threads.count), Reporter(), threads).fit_again(untrained)


# -- ridge regression on features


def spread_columns(count: int, most: int) -> np.ndarray:
    """All columns, or ``most`` of them evenly spread."""
    return np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).astype(int))


def learning_curve(Z: np.ndarray, targets: np.ndarray, unseen: int, judge: Judge, of: int) -> LearningCurve:
    """Errors on the last ``unseen`` rows, at the best lambda, of fits to more and more of the others."""
    train, errors = len(Z) - unseen, []
    sizes = curve_sizes(train)
    for size in sizes:
        scores = _path_scores(Z[:size], targets[:size], Z[train:])
        errors.append(min(judge(found, targets[train:]) for found in scores))
    return LearningCurve(sizes, errors, Z.shape[1], of)


def curve_sizes(rows: int) -> list[int]:
    """Row counts in even steps of the logarithm, the last one all rows."""
    return sorted({int(size) for size in np.geomspace(min(50, rows), rows, CURVE_POINTS)})


def _path_scores(Z: np.ndarray, targets: np.ndarray, unseen: np.ndarray) -> list[np.ndarray]:
    """Scores of unseen rows for a path of lambdas, from one eigendecomposition: of the smaller side of Z."""
    mean, target_mean = Z.mean(axis=0), targets.mean(axis=0)
    Z, inside = Z - mean, unseen - mean
    if len(Z) < Z.shape[1]:
        values, vectors = sla.eigh(Z @ Z.T / len(Z))
        rotated, inside = vectors.T @ (targets - target_mean), inside @ (Z.T @ vectors)
    else:
        values, vectors = sla.eigh(Z.T @ Z / len(Z))
        rotated, inside = vectors.T @ (Z.T @ (targets - target_mean)), inside @ vectors
    lengths = [(np.maximum(values, 0) + ridge)[:, None] * len(Z) for ridge in RIDGES]
    return [inside @ (rotated / each) + target_mean for each in lengths]
