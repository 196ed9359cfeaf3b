"""Losses as pulls: what each row's score should move by, and the loss itself, row by row.

Classes are coded as everywhere: -1 and +1 in one column for two of them, a one among zeros for more. The objective is
the mean loss plus lambda |w|^2, so scikit-learn's C is 1 / (2 rows lambda).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from streamrf.features.targets import RESOLUTION, TargetCoding
from streamrf.statistics.gradient import Pull
from streamrf.support.errors import InputError
from streamrf.support.quantiles import quantiles


class Loss(Pull):
    """A pull that is the gradient of its one column of losses."""

    losses = 1
    curvature: float  # no second derivative is larger, or the usual one where there is no bound
    name: str

    def curvatures(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """(n, outputs): how much parabolas bend that stand for the loss near these scores, each output's by itself."""
        raise InputError(f"the {self.name} loss has corners: use a smooth one")

    @property
    def steepest(self) -> np.ndarray:
        """(outputs,): no parabola bends more."""
        return np.full(self.outputs, self.curvature)

    def flat(self, targets: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """(outputs,): scores without inputs that are about the best for these targets (n, outputs)."""
        return np.array([quantiles(column, [0.5], weights)[0] for column in targets.T])

    def values(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """(n,) losses; of a smoothed loss, without the smoothing."""
        return self.of_rows(scores, targets)[1][:, 0]


@dataclass(frozen=True)
class Logistic(Loss):
    """-log of the probability of the true class, softmax of the scores; of one score, the logistic curve."""

    outputs: int
    name = "logistic"

    @property
    def curvature(self) -> float:  # type: ignore[override]
        return 0.25 if self.outputs == 1 else 0.5

    def bounds(self, reach: np.ndarray) -> np.ndarray:
        return np.ones(self.outputs)

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.outputs == 1:
            margin = targets * scores
            return -targets * scipy.special.expit(-margin), np.logaddexp(0.0, -margin)
        loss = -(targets * scipy.special.log_softmax(scores, axis=1)).sum(axis=1, keepdims=True)
        return scipy.special.softmax(scores, axis=1) - targets, loss

    def curvatures(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Of the softmax twice the diagonal of its second derivatives, which no direction of all classes exceeds."""
        if self.outputs == 1:
            return scipy.special.expit(scores) * scipy.special.expit(-scores)
        shares = scipy.special.softmax(scores, axis=1)
        return 2 * shares * (1 - shares)

    def flat(self, targets: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        shares = _class_shares(targets, weights)
        logs = np.log(shares)
        return logs - np.log1p(-shares) if self.outputs == 1 else logs - logs.mean()


@dataclass(frozen=True)
class Hinge(Loss):
    """max(0, 1 - t s), for more than two classes one against the rest; ``power`` 2 is the squared hinge."""

    outputs: int
    power: int = 1

    @property
    def curvature(self) -> float:  # type: ignore[override]
        return float(self.power)

    @property
    def name(self) -> str:  # type: ignore[override]
        return "hinge" if self.power == 1 else "squared-hinge"

    def bounds(self, reach: np.ndarray) -> np.ndarray:
        return np.ones(self.outputs) if self.power == 1 else 2 * (1 + reach)

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sides = targets if self.outputs == 1 else 2 * targets - 1
        short = np.maximum(1 - sides * scores, 0.0)
        if self.power == 1:
            return -sides * (short > 0), short.sum(axis=1, keepdims=True)
        return -2 * sides * short, (short**2).sum(axis=1, keepdims=True)

    def curvatures(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        if self.power == 1:
            return super().curvatures(scores, targets)
        sides = targets if self.outputs == 1 else 2 * targets - 1
        return 2.0 * (sides * scores < 1)

    def flat(self, targets: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return 2 * _class_shares(targets, weights) - 1


@dataclass(frozen=True)
class Huber(Loss):
    """Half the squared residual up to ``threshold`` (outputs,), and linear from there on."""

    threshold: np.ndarray
    name = "huber"
    curvature = 1.0

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return len(self.threshold)

    def bounds(self, reach: np.ndarray) -> np.ndarray:
        return self.threshold

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residual = scores - targets
        pull = np.clip(residual, -self.threshold, self.threshold)
        return pull, (pull * (residual - pull / 2)).sum(axis=1, keepdims=True)

    def curvatures(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Of the parabola that touches the loss here and is nowhere below it."""
        return self.threshold / np.maximum(np.abs(scores - targets), self.threshold)


@dataclass(frozen=True)
class Quantile(Loss):
    """The pinball loss of one quantile, its corner rounded within ``width`` (outputs,)."""

    quantile: float
    width: np.ndarray
    name = "quantile"

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return len(self.width)

    @property
    def curvature(self) -> float:  # type: ignore[override]
        return float(0.5 / self.width.max())

    def bounds(self, reach: np.ndarray) -> np.ndarray:
        return np.ones(self.outputs)

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        above = targets - scores
        side = np.clip(above / self.width, -1.0, 1.0)
        rounded = side * above - self.width * (side**2 - 1) / 2  # |above| outside of the corner, a parabola in it
        pull = (0.5 - self.quantile) - side / 2
        return pull, ((self.quantile - 0.5) * above + rounded / 2).sum(axis=1, keepdims=True)

    def curvatures(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Of the parabola that touches the loss here and is nowhere below it."""
        return 0.5 / np.maximum(np.abs(targets - scores), self.width)

    @property
    def steepest(self) -> np.ndarray:
        return 0.5 / self.width

    def flat(self, targets: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.array([quantiles(column, [self.quantile], weights)[0] for column in targets.T])

    def values(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        above = targets - scores
        return np.maximum(self.quantile * above, (self.quantile - 1) * above).sum(axis=1)


def _class_shares(targets: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """(outputs,): of rows whose target is positive, with one row more that is half one and half the other."""
    weights = np.ones(len(targets)) if weights is None else weights
    whole, mean = weights.sum(), weights.mean()
    return (weights @ (targets > 0) + mean / 2) / (whole + mean)


CLASS_LOSSES = ("hinge", "squared-hinge", "logistic")


def check_task(loss: str, coding: TargetCoding) -> None:
    """Refuse a loss that these targets have no use for."""
    if loss in CLASS_LOSSES and not coding.classes:
        raise InputError(
            f"`loss={loss!r}` is for classes, and these targets are numbers: use squared, huber or quantile"
        )
    if loss in ("huber", "quantile") and coding.classes:
        raise InputError(
            f"`loss={loss!r}` is for numbers, and these targets are classes: use squared, logistic or hinge"
        )


def class_loss(name: str, outputs: int) -> Loss:
    """The loss of that name, for scores of classes."""
    made: dict[str, Any] = {
        "logistic": lambda: Logistic(outputs),
        "hinge": lambda: Hinge(outputs, 1),
        "squared-hinge": lambda: Hinge(outputs, 2),
    }
    return made[name]()


@dataclass(frozen=True)
class ScorePull(Pull):
    """c = scores: the sum is Z'(Z V)."""

    outputs: int

    def bounds(self, reach: np.ndarray) -> np.ndarray:
        return reach

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scores, np.empty((len(scores), 0))


@dataclass(frozen=True)
class TargetPull(Pull):
    """c = 1 and the targets less their offset: Z'1 and Z'y, with the squared targets as losses. No scores are made."""

    coding: TargetCoding

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return 1 + self.coding.outputs

    @property
    def losses(self) -> int:  # type: ignore[override]
        return self.coding.outputs

    def bounds(self, reach: np.ndarray) -> np.ndarray:
        largest = np.ones(self.coding.outputs) if self.coding.classes else self.coding.step * 2.0**RESOLUTION
        return np.concatenate([[1.0], largest])

    def of_rows(self, scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = targets - self.coding.offset
        return np.concatenate([np.ones((len(values), 1)), values], axis=1), values**2
