"""Prediction from a pipeline and weights, and evaluation as a sum: what every metric needs, exact and in any order.

Squared and absolute errors are summed by exact float sums, class counts are integers, and the curve behind the AUC is a
histogram of the scores. Its bins keep ranks over the whole line, for log-odds and margins have no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy

from streamrf.data.source import Block
from streamrf.features.base import RowScorer
from streamrf.features.pipeline import Pipeline
from streamrf.features.targets import CLASSIFICATION, TargetCoding
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.metrics import (
    BINS,
    CONFIDENCE_BINS,
    Unit,
    best_threshold,
    bins_of,
    class_metrics,
    confidence_bins,
    number_metrics,
)
from streamrf.support.errors import DataError, FileFormatError, InputError
from streamrf.support.exact_sum import add_columns, carry, zero_sums
from streamrf.support.threads import Threads


@dataclass(frozen=True)
class Weights:
    """Scores are ``intercept + z(x)' coefficients``; coefficients here already carry the features' amplitudes."""

    coefficients: np.ndarray  # (n_features, outputs) float64, for raw features as the map writes them
    intercept: np.ndarray  # (outputs,)
    ridge: float  # of all outputs; the geometric mean, where each has its own
    jitter: float = 0.0  # what was added to lambda because rounding had made the matrix indefinite
    rank: float | None = None  # effective dimension tr(S (S + lambda)^-1), where jitter was needed or it was asked for
    ridges: tuple[float, ...] = ()  # of each output, where they differ

    @property
    def by_output(self) -> np.ndarray:
        """(outputs,): the lambda of each."""
        return np.array(self.ridges) if self.ridges else np.full(self.coefficients.shape[1], self.ridge)

    def with_outputs(self, other: Weights, outputs: np.ndarray) -> Weights:
        """With those of another for these outputs: a mask, or one value for all of them."""
        coefficients = np.where(outputs, other.coefficients, self.coefficients)
        intercept = np.where(outputs, other.intercept, self.intercept)
        jitter = max(self.jitter, other.jitter)
        ridges = np.where(outputs, other.by_output, self.by_output)
        return Weights(coefficients, intercept, 0.0, jitter).at_ridges(ridges)

    def at_ridges(self, ridges: np.ndarray) -> Weights:
        """With these lambdas, of each output or one for all."""
        if (ridges == ridges[0]).all():
            return replace(self, ridge=float(ridges[0]), ridges=())
        mean = float(np.exp(np.log(np.maximum(ridges, np.finfo(np.float64).tiny)).mean()))
        return replace(self, ridge=mean, ridges=tuple(ridges.tolist()))


@dataclass
class Predictor:
    """Everything that prediction needs."""

    pipeline: Pipeline
    weights: Weights
    calibration: Calibration | None  # of classes

    def __post_init__(self) -> None:
        if self.calibration is None and self.pipeline.coding.classes:
            self.calibration = Calibration.plain(self.pipeline.coding.outputs)

    @property
    def is_classifier(self) -> bool:
        return self.pipeline.coding.task == CLASSIFICATION

    @cached_property
    def _scorer(self) -> RowScorer:
        return self.pipeline.scorer(self.weights.coefficients, self.weights.intercept)

    def __getstate__(self) -> dict[str, object]:
        """What is packed for this CPU stays here."""
        return {name: value for name, value in self.__dict__.items() if name != "_scorer"}

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs): decision scores, or predicted numbers, of inputs as they come."""
        if X.shape[1] != self.pipeline.n_inputs:
            raise DataError(f"the data has {X.shape[1]} columns, the model was trained on {self.pipeline.n_inputs}")
        return self._scorer.scores(self.pipeline.scaled(X), threads)

    def codes(self, scores: np.ndarray) -> np.ndarray:
        """Position of the predicted class: the most probable one, unless there is a threshold."""
        return self._calibrated.codes(scores)

    def labels(self, codes: np.ndarray) -> np.ndarray:
        return np.asarray(self.pipeline.coding.classes)[codes]

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes)."""
        return self._calibrated.probabilities(scores)

    @property
    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise InputError("this model predicts numbers: it has no classes and no probabilities")
        return self.calibration


FARTHEST = 1.5  # score, from which the cube stays as it is
STEEP = 4.0  # logit of a score that is one class's 1 against another's 0


@dataclass(frozen=True)
class Calibration:
    """Slopes (outputs, outputs) and shifts (outputs,); two classes have one output, the score of the second.

    Of two classes the second is predicted where its probability is above ``threshold``. Scores of least squares stand
    for probabilities, whose log-odds grow faster towards both ends: ``bend`` times a cube says how much faster.
    """

    slope: np.ndarray
    shift: np.ndarray
    threshold: float = 0.5
    bend: float = 0.0

    @classmethod
    def plain(cls, outputs: int) -> Calibration:
        """For want of hold-out rows: scores of -1 and +1 (or 0 and 1) read as fairly sure."""
        return cls(np.eye(outputs) * (STEEP / 2 if outputs == 1 else STEEP), np.zeros(outputs))

    @classmethod
    def of_log_odds(cls, outputs: int) -> Calibration:
        """For scores that are log odds as they come."""
        return cls(np.eye(outputs), np.zeros(outputs))

    def with_threshold(
        self, asked: float | str | None, scores: np.ndarray, codes: np.ndarray, weights: np.ndarray | None
    ) -> Calibration:
        """With the threshold that is asked for; these rows choose it, where a name says what for."""
        if isinstance(asked, str):
            asked = best_threshold(self.logits(scores)[:, 1], codes, weights, f1=asked == "f1")
        return self if asked is None else replace(self, threshold=asked)

    def logits(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes); the first of two classes stands at zero."""
        return two_sided(bent(scores, self.bend) @ self.slope + self.shift)

    def codes(self, scores: np.ndarray) -> np.ndarray:
        """(n,): the position of the class that is predicted."""
        logits = self.logits(scores)
        if self.threshold != 0.5:
            logits[:, 1] -= self.margin
        return logits.argmax(axis=1)

    @property
    def margin(self) -> float:
        """The log-odds of the threshold."""
        return math.log(self.threshold / (1 - self.threshold))

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes), rows sum to one."""
        return scipy.special.softmax(self.logits(scores), axis=1)


def bent(scores: np.ndarray, bend: float) -> np.ndarray:
    """Scores with a cube about their middle: 0 of two classes (-1 and 1), one half of several (0 and 1)."""
    if not bend:
        return scores
    middle = scores if scores.shape[1] == 1 else 2.0 * scores - 1.0
    return scores + bend * np.clip(middle, -FARTHEST, FARTHEST) ** 3


def two_sided(logits: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(logits), logits], axis=1) if logits.shape[1] == 1 else logits


FLOAT_SUMS = ("square", "absolute", "y", "yy", "log_loss", "brier", "confidence")


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
    """How the rows of a block enter the metrics of a model; a ``unit`` where rows have weights."""

    model: Predictor
    unit: Unit | None = None

    @property
    def coding(self) -> TargetCoding:
        return self.model.pipeline.coding

    def zero(self) -> ScoresState:
        classes = len(self.coding.classes)
        sums = {"rows": np.zeros(1, np.int64), "weight": np.zeros(1, np.int64)}
        if self.model.is_classifier:
            sums |= {"confusion": np.zeros((classes, classes), np.int64), "right": np.zeros(CONFIDENCE_BINS, np.int64)}
            sums |= {"log_loss": zero_sums(1), "brier": zero_sums(1), "confidence": zero_sums(CONFIDENCE_BINS)}
            if classes == 2:
                sums["histogram"] = np.zeros((2, BINS), np.int64)
        else:
            outputs = self.coding.outputs
            sums |= {name: zero_sums(outputs) for name in FLOAT_SUMS[:4]}
        return ScoresState(sums)

    def load(self, arrays: dict[str, np.ndarray]) -> ScoresState:
        for name, zero in self.zero().sums.items():
            array = arrays.get(name)
            if array is None or array.shape != zero.shape or array.dtype != zero.dtype:
                raise FileFormatError(f"these are not the sums of an evaluation: {name} is missing or of another shape")
        return ScoresState(dict(arrays))

    def update(self, state: ScoresState, block: Block, threads: Threads) -> None:
        counts = np.ones(len(block), np.int64)
        if self.unit is not None and block.weights is not None:
            counts = self.unit.counts(block.weights)
            block, counts = block.take(counts > 0), counts[counts > 0]
        if not len(block):
            return
        scores = self.model.scores(block.X, threads)
        state.sums["rows"] += len(block)
        state.sums["weight"] += counts.sum()
        if self.model.is_classifier:
            self._classes(state.sums, scores, self.coding.codes(block.targets), counts)
        else:
            self._numbers(state.sums, scores, self.coding.values(block.targets), counts)

    def _weigh(self, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """(n, k): values times the weights of their rows."""
        return values if self.unit is None else values * (counts * self.unit.size)[:, None]

    def _numbers(self, sums: dict[str, np.ndarray], scores: np.ndarray, truth: np.ndarray, counts: np.ndarray) -> None:
        if scores.shape != truth.shape:
            raise InputError(f"the model predicts {scores.shape[1]} outputs, the data has {truth.shape[1]}")
        error = scores - truth
        for name, values in (("square", error**2), ("absolute", np.abs(error)), ("y", truth), ("yy", truth**2)):
            add_columns(sums[name], self._weigh(values, counts))

    def _classes(self, sums: dict[str, np.ndarray], scores: np.ndarray, codes: np.ndarray, counts: np.ndarray) -> None:
        np.add.at(sums["confusion"], (codes, self.model.codes(scores)), counts)
        if "histogram" in sums:
            np.add.at(sums["histogram"], (codes, bins_of(scores[:, 0].astype(np.float64))), counts)
        self._chances(sums, self.model.probabilities(scores), codes, counts)

    def _chances(self, sums: dict[str, np.ndarray], chances: np.ndarray, codes: np.ndarray, counts: np.ndarray) -> None:
        """What probabilities are worth: log loss, Brier score, and how often the largest is right."""
        own, top = chances[np.arange(len(codes)), codes], chances.max(axis=1)
        squares = (1 - own) ** 2 if chances.shape[1] == 2 else (chances**2).sum(axis=1) - 2 * own + 1
        add_columns(sums["log_loss"], self._weigh(-np.log(np.maximum(own, 1e-15))[:, None], counts))
        add_columns(sums["brier"], self._weigh(squares[:, None], counts))
        place, sure = confidence_bins(top), self._weigh(top[:, None], counts)
        np.add.at(sums["right"], place, counts * (chances.argmax(axis=1) == codes))
        for number in np.unique(place):
            add_columns(sums["confidence"][number : number + 1], sure[place == number])

    def metrics(self, state: ScoresState) -> dict[str, Any]:
        """The named figures of the command line."""
        if self.model.is_classifier:
            return class_metrics(state.sums, self.unit, self.coding.classes)
        return number_metrics(state.sums, self.unit)
