"""What a user would check by hand: is the model better than no model, and than a plain linear ridge on the same rows?

The linear ridge is fitted before the pass, to the sample that the pilot sees, with the scaled inputs themselves as
features; generalised cross-validation chooses its lambda. It is judged on the rows that judge the model. Its weights
are part of what a checkpoint keeps, so a run that is resumed reports the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.features.base import FeatureMap
from streamrf.features.blend import BlendMap
from streamrf.features.pipeline import Pipeline
from streamrf.features.scaling import Scaling
from streamrf.features.targets import TargetCoding
from streamrf.recipe import ANY, BLEND, LANDMARKS, Recipe
from streamrf.solvers.cholesky import FEW_FEATURES
from streamrf.solvers.judging import as_read
from streamrf.statistics.metrics import Unit
from streamrf.statistics.scores import Predictor, Scores, Weights
from streamrf.support.threads import Threads

MOST_COLUMNS, MOST_WEIGHTS = 1000, 100_000  # beyond which no linear ridge is fitted: it costs columns squared
ROWS, BLOCK = 24_000, 2048
RIDGES = tuple(10.0**e for e in range(-10, 3))  # times the mean variance of an input
LINEAR = "linear"  # in the metadata of what a checkpoint keeps
CLEARLY = 0.02  # worse by a smaller share is not worth a word
USED_UP = 0.9  # of the features
MORE_ROWS = "Train on more rows, or evaluate it on others."


# -- plain linear ridge


def linear_scaling(scaling: Scaling, map: FeatureMap) -> Scaling:
    """Of the inputs of the linear ridge: the model's, or that of a blend's first member."""
    return map.members[0].scaling if isinstance(map, BlendMap) else scaling


def fit_linear(sample: Block, scaling: Scaling, coding: TargetCoding) -> dict[str, Any] | None:
    """Weights and lambda as JSON has them; None where there are too many columns or too few rows."""
    d, outputs = scaling.n_outputs, coding.outputs
    sample = sample.take(slice(ROWS))
    if d > MOST_COLUMNS or d * outputs > MOST_WEIGHTS or len(sample) < 2:
        return None
    moments = _moments(sample, scaling, coding)
    coefficients, ridge = _best_ridge(moments, d, len(sample))
    intercept = moments.mean[d:] - moments.mean[:d] @ coefficients
    return {
        "rows": len(sample), "lambda": ridge, "coefficients": coefficients.tolist(), "intercept": intercept.tolist(),
    }  # fmt: skip


@dataclass(frozen=True)
class _Moments:
    """Of inputs and coded targets side by side."""

    mean: np.ndarray
    products: np.ndarray  # centred, over the weight of all rows


def _moments(sample: Block, scaling: Scaling, coding: TargetCoding) -> _Moments:
    """A block of rows at a time, about the first block's mean, so that nothing cancels."""
    size = scaling.n_outputs + coding.outputs
    total, products, weight = np.zeros(size), np.zeros((size, size)), 0.0
    centre: np.ndarray | None = None
    for start in range(0, len(sample), BLOCK):
        rows = sample.take(slice(start, start + BLOCK))
        inputs = scaling.transform(rows.X, np.dtype(np.float64))
        Z = np.concatenate([inputs, coding.values(rows.targets)], axis=1)
        w = np.ones(len(rows)) if rows.weights is None else rows.weights
        centre = Z.mean(axis=0) if centre is None else centre
        Z = Z - centre
        weight, total, products = weight + w.sum(), total + w @ Z, products + (Z * w[:, None]).T @ Z
    weight = max(weight, np.finfo(np.float64).tiny)
    mean = total / weight
    assert centre is not None
    return _Moments(centre + mean, products / weight - np.outer(mean, mean))


def _best_ridge(moments: _Moments, d: int, rows: int) -> tuple[np.ndarray, float]:
    """Coefficients (d, outputs) and the lambda of the smallest GCV, each output in units of its own variance."""
    S, cross, variance = moments.products[:d, :d], moments.products[:d, d:], np.diag(moments.products)[d:]
    values, vectors = np.linalg.eigh(S)
    values, rotated = np.maximum(values, 0.0), vectors.T @ cross
    unit = max(float(values.mean()), np.finfo(np.float64).tiny)
    best = (np.inf, RIDGES[-1] * unit)
    for ridge in (each * unit for each in RIDGES):
        left = 1 - ((values / (values + ridge)).sum() + 1) / rows
        inside = rotated / (values + ridge)[:, None]
        residual = variance - 2 * (inside * rotated).sum(axis=0) + (values[:, None] * inside**2).sum(axis=0)
        error = float((np.maximum(residual, 0) / np.maximum(variance, np.finfo(np.float64).tiny)).mean())
        if left > 0:
            best = min(best, (error / left**2, ridge))
    ridge = best[1]
    return vectors @ (rotated / (values + ridge)[:, None]), ridge


class LinearPredictor(Predictor):
    """Scores are linear in the scaled inputs."""

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        scaled = linear_scaling(self.pipeline.scaling, self.pipeline.map).transform(X, np.dtype(np.float64))
        return scaled @ self.weights.coefficients + self.weights.intercept


def judge_linear(told: dict[str, Any], pipeline: Pipeline, judges: Block, threads: Threads) -> dict[str, Any]:
    """Its error on the rows that judge the model; the most probable class is predicted."""
    weights = Weights(np.array(told["coefficients"]), np.array(told["intercept"]), told["lambda"])
    heaviest = 0.0 if judges.weights is None else float(judges.weights.max())
    statistic = Scores(LinearPredictor(pipeline, weights, None), Unit.of(heaviest) if heaviest > 0 else None)
    state = statistic.zero()
    statistic.update(state, as_read(pipeline.coding, judges), threads)
    found = statistic.metrics(state)
    return {**{name: told[name] for name in ("rows", "lambda")}, _figure(found): found[_figure(found)]}


def _figure(found: dict[str, Any]) -> str:
    """What a task is judged by."""
    return "error" if "error" in found else "rmse"


# -- words


def advice(metadata: dict[str, Any], recipe: Recipe) -> list[str]:
    """What a user should know before trusting the model: one sentence for each thing, and what to do about it."""
    holdout = metadata.get("holdout")
    said = [*_judges(holdout, recipe)]
    if _has_features(metadata):
        said = [*metadata.get("warnings", ()), *_dimension(metadata, recipe), *said]
    if holdout and recipe.loss != "quantile":  # whose aim is another
        said += [*_baseline(holdout, recipe), *_linear(holdout, recipe)]
    return said


def _has_features(metadata: dict[str, Any]) -> bool:
    """Whether the model has what pilots and lambda were about: a blend may have left its landmarks out."""
    members = metadata.get("members")
    return members is None or any(each["map"] == LANDMARKS for each in members)


def _judges(holdout: dict[str, Any] | None, recipe: Recipe) -> list[str]:
    """Where rows that judge are too few for an interval, or there are none although nobody asked for that."""
    if holdout is None:
        return (
            [] if recipe.holdout == 0 else [f"No row judges the model: its error on new rows is unknown. {MORE_ROWS}"]
        )
    if holdout.get("interval", True):
        return []
    rows = holdout["rows"]
    few = "Only one row judges" if rows == 1 else f"Only {rows} rows judge"
    return [f"{few} the model: its error on new rows may be quite another. {MORE_ROWS}"]


def _baseline(holdout: dict[str, Any], recipe: Recipe) -> list[str]:
    name, baseline = _figure(holdout), holdout["baseline"]
    high = _interval(holdout, name)[1]
    if high < baseline[name] or baseline[name] == 0 or _knows_something(holdout, recipe):
        return []
    always = "the mean" if name == "rmse" else repr(baseline["class"])
    return [
        f"The model is no better than the baseline: {name} {holdout[name]:.4g} on rows held out (perhaps {high:.4g}),"
        f" and always predicting {always} has {baseline[name]:.4g}. Check the inputs, or find more rows."
    ]


def _knows_something(holdout: dict[str, Any], recipe: Recipe) -> bool:
    """Whether another figure is clearly better than without inputs. Of numbers the share of the variance that is
    explained, which compares row by row. Of a rare class no label may change, but probabilities know something; and
    where classes are to count alike, many labels of the common one do."""
    if "error" not in holdout:
        return _interval(holdout, "r2")[0] > 0 if "interval" in holdout and "r2" in holdout else False
    if recipe.class_weight is not None:
        return bool(holdout["balanced_accuracy"] > (1 + CLEARLY) / len(holdout["by_class"]))
    return bool(holdout["log_loss"] < (1 - CLEARLY) * holdout["baseline"]["log_loss"])


def _linear(holdout: dict[str, Any], recipe: Recipe) -> list[str]:
    name, linear = _figure(holdout), holdout.get("linear")
    if linear is None or recipe.threshold is not None or holdout[name] <= (1 + CLEARLY) * linear[name]:
        return []
    return [
        f"A plain linear ridge is better: {name} {linear[name]:.4g}, and the model has {holdout[name]:.4g} on the same"
        " rows. Use a linear model, or let the pilot try more (leave `kernel`, `length_scale` and `scaling` to it)."
    ]


def _dimension(metadata: dict[str, Any], recipe: Recipe) -> list[str]:
    rank, D = metadata.get("effective_dimension"), recipe.D
    if rank is None or D is None or rank < USED_UP * D:
        return []
    cure = "Raise `D`"
    if recipe.map == BLEND or metadata.get("asked", {}).get("map") == ANY:  # whose number of features nobody chose
        if FEW_FEATURES * metadata["rows"] < D:  # a kernel that goes through every point, and there are no more
            return []
        cure = f"Set `map` to {recipe.map} and `D` to more than {D:,}"
    return [
        f"The features are used up: the effective dimension is {rank:.0f} of {D:,} features."
        f" {cure} for a smaller error."
    ]


def _interval(holdout: dict[str, Any], name: str) -> tuple[float, float]:
    """The 95 % interval of a figure, where one is known."""
    low, high = (holdout.get("interval") or {}).get(name) or (holdout[name], holdout[name])
    return float(low), float(high)
