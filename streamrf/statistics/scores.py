"""Evaluation as a sum: what every metric needs, exact and in any order.

Squared and absolute errors are summed by exact float sums, class counts are integers, and the curve behind the AUC is a
histogram of the scores. Its bins keep ranks over the whole line, for log-odds and margins have no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.predictor import Predictor
from streamrf.support.errors import InputError
from streamrf.support.exact_sum import add_columns, carry, to_float, zero_sums
from streamrf.support.threads import Threads

BINS = 2**18
FLOAT_SUMS = ("square", "absolute", "y", "yy", "log_loss")


@dataclass
class ScoresState(State):
    """Named arrays of integers: rows, confusion counts, limbs of exact sums, score histograms."""

    sums: dict[str, np.ndarray]

    def __iadd__(self, other: ScoresState) -> Self:
        for name, array in self.sums.items():
            array += other.sums[name]
        return self._carried()

    def __isub__(self, other: ScoresState) -> Self:
        for name, array in self.sums.items():
            array -= other.sums[name]
        return self._carried()

    def _carried(self) -> Self:
        for name in FLOAT_SUMS:
            if name in self.sums:
                carry(self.sums[name])
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return self.sums


@dataclass
class Scores(Statistic[ScoresState]):
    """How the rows of a block enter the metrics of a model."""

    model: Predictor

    @property
    def coding(self) -> TargetCoding:
        return self.model.pipeline.coding

    def zero(self) -> ScoresState:
        classes = len(self.coding.classes)
        sums = {"rows": np.zeros(1, np.int64)}
        if self.model.is_classifier:
            sums |= {"confusion": np.zeros((classes, classes), np.int64), "log_loss": zero_sums(1)}
            if classes == 2:
                sums["histogram"] = np.zeros((2, BINS), np.int64)
        else:
            outputs = self.coding.outputs
            sums |= {name: zero_sums(outputs) for name in FLOAT_SUMS[:-1]}
        return ScoresState(sums)

    def load(self, arrays: dict[str, np.ndarray]) -> ScoresState:
        return ScoresState(dict(arrays))

    def update(self, state: ScoresState, block: Block, threads: Threads) -> None:
        targets = block.targets
        scores = self.model.scores(block.X, threads)
        state.sums["rows"] += len(block)
        if self.model.is_classifier:
            self._classes(state.sums, scores, self.coding.codes(targets))
        else:
            self._numbers(state.sums, scores, self.coding.values(targets))

    def _numbers(self, sums: dict[str, np.ndarray], scores: np.ndarray, truth: np.ndarray) -> None:
        if scores.shape != truth.shape:
            raise InputError(f"the model predicts {scores.shape[1]} outputs, the data has {truth.shape[1]}")
        error = scores - truth
        for name, values in (("square", error**2), ("absolute", np.abs(error)), ("y", truth), ("yy", truth**2)):
            add_columns(sums[name], values)

    def _classes(self, sums: dict[str, np.ndarray], scores: np.ndarray, codes: np.ndarray) -> None:
        predicted = self.model.codes(scores)
        np.add.at(sums["confusion"], (codes, predicted), 1)
        chance = self.model.probabilities(scores)[np.arange(len(codes)), codes]
        add_columns(sums["log_loss"], -np.log(np.maximum(chance, 1e-15))[:, None])
        if "histogram" in sums:
            np.add.at(sums["histogram"], (codes, _bins_of(scores[:, 0].astype(np.float64))), 1)

    def metrics(self, state: ScoresState) -> dict[str, Any]:
        """The named figures of the command line."""
        return _class_metrics(state.sums) if self.model.is_classifier else _number_metrics(state.sums)


def _bins_of(scores: np.ndarray) -> np.ndarray:
    """8e-6 wide at zero, 3e-5 at one and 1e-3 at ten. Nothing but divisions, which every machine rounds alike."""
    return ((scores / (1.0 + np.abs(scores)) + 1.0) * ((BINS - 1) / 2)).astype(np.int64)


def _number_metrics(sums: dict[str, np.ndarray]) -> dict[str, Any]:
    n = int(sums["rows"][0])
    total = {name: np.array([to_float(row) for row in sums[name]]) for name in FLOAT_SUMS[:-1]}
    variance = np.maximum(total["yy"] / n - (total["y"] / n) ** 2, 0.0)
    mse = total["square"] / n
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(variance > 0, 1 - mse / variance, np.nan)
        relative = np.sqrt(total["square"].sum() / total["yy"].sum())
    metrics: dict[str, Any] = {
        "rows": n,
        "rmse": float(np.sqrt(mse.mean())),
        "mae": float((total["absolute"] / n).mean()),
        "r2": _or_none(r2.mean()),
        "relative_error": _or_none(relative),
    }
    if len(mse) > 1:
        metrics["rmse_by_output"] = np.sqrt(mse).tolist()
    return metrics


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _class_metrics(sums: dict[str, np.ndarray]) -> dict[str, Any]:
    n = int(sums["rows"][0])
    confusion = sums["confusion"]
    accuracy = float(np.trace(confusion) / n)
    metrics: dict[str, Any] = {
        "rows": n,
        "error": 1 - accuracy,
        "accuracy": accuracy,
        "log_loss": to_float(sums["log_loss"][0]) / n,
        "confusion": confusion.tolist(),
    }
    if "histogram" in sums:
        metrics["auc"] = _auc(*sums["histogram"])
    return metrics


def _auc(negative: np.ndarray, positive: np.ndarray) -> float | None:
    """Chance that a random positive scores above a random negative, ties counting half."""
    pairs = float(negative.sum()) * float(positive.sum())
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / pairs) if pairs else None
