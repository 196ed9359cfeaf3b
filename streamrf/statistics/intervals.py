"""95 % intervals of metrics, from the losses of the rows that judged.

A metric is a mean of losses or a function of two of them, so its variance is that of the rows' influences on it. Rows
that belong together (copies, groups) count as one: their influences are added first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, t

LEVEL = 0.975  # of each side
FEWEST = 5  # rows, or groups of rows, that an interval can be told from

Interval = list[float]


@dataclass(frozen=True)
class Judges:
    """What rows count for, and which of them belong together."""

    weights: np.ndarray  # (n,)
    groups: np.ndarray  # (n,): 0 to count - 1
    count: int

    @classmethod
    def of(cls, weights: np.ndarray | None, keys: np.ndarray) -> Judges:
        known, groups = np.unique(keys, return_inverse=True)
        return cls(np.ones(len(keys)) if weights is None else weights, groups, len(known))

    def mean(self, values: np.ndarray) -> float:
        return float(self.weights @ values / self.weights.sum())

    def deviation(self, influences: np.ndarray) -> float:
        """Standard error of a mean whose rows have these influences on it."""
        sums = np.bincount(self.groups, self.weights * influences, minlength=self.count)
        return float(np.sqrt((sums**2).sum() * self.count / (self.count - 1)) / self.weights.sum())

    @property
    def quantile(self) -> float:
        return float(t.ppf(LEVEL, self.count - 1))

    @property
    def worth(self) -> float:
        """As how many rows of equal weight these say something."""
        sums = np.bincount(self.groups, self.weights, minlength=self.count)
        return float(sums.sum() ** 2 / (sums**2).sum())


def share_interval(wrong: np.ndarray, judges: Judges) -> Interval:
    """Wilson's interval of a share, for as many rows as would vary as these do."""
    share = judges.mean(wrong)
    deviation = judges.deviation(wrong - share)
    rows = share * (1 - share) / deviation**2 if deviation > 0 else judges.worth
    z = float(norm.ppf(LEVEL))
    middle, half = share + z * z / (2 * rows), z * np.sqrt(share * (1 - share) / rows + z * z / (4 * rows**2))
    return [max(0.0, float((middle - half) / (1 + z * z / rows))), float((middle + half) / (1 + z * z / rows))]


def mean_interval(losses: np.ndarray, judges: Judges, power: float = 1.0) -> Interval:
    """Of a mean of losses that are not negative, raised to a power: on the scale of its logarithm, as losses have long
    tails above and none below."""
    mean = judges.mean(losses)
    if not mean > 0:
        return [0.0, 0.0]
    reach = judges.quantile * judges.deviation(losses - mean) / mean
    return [float((mean * np.exp(sign * reach)) ** power) for sign in (-1.0, 1.0)]


def r2_interval(squares: np.ndarray, truth: np.ndarray, judges: Judges) -> Interval | None:
    """Of one less the unexplained share of the variance, in the mean over outputs (columns)."""
    influences, found = np.zeros(len(squares)), 0.0
    for error, y in zip(squares.T, truth.T, strict=True):
        spread = (y - judges.mean(y)) ** 2
        variance = judges.mean(spread)
        if not variance > 0:
            return None
        share = judges.mean(error) / variance
        found += 1 - share
        influences -= (error - share * spread) / variance
    outputs = squares.shape[1]
    reach = judges.quantile * judges.deviation(influences / outputs)
    return [found / outputs - reach, min(1.0, found / outputs + reach)]


def number_intervals(scores: np.ndarray, truth: np.ndarray, judges: Judges) -> dict[str, Interval]:
    """Of the metrics of predicted numbers (n, outputs)."""
    squares, absolute = (scores - truth) ** 2, np.abs(scores - truth)
    found = {
        "rmse": mean_interval(squares.mean(axis=1), judges, 0.5),
        "mae": mean_interval(absolute.mean(axis=1), judges),
    }
    r2 = r2_interval(squares, truth, judges)
    return found if r2 is None else {**found, "r2": r2}


def class_intervals(
    chances: np.ndarray, predicted: np.ndarray, codes: np.ndarray, judges: Judges
) -> dict[str, Interval]:
    """Of the metrics of predicted classes."""
    low, high = share_interval((predicted != codes).astype(np.float64), judges)
    own = np.maximum(chances[np.arange(len(codes)), codes], 1e-15)
    return {"error": [low, high], "accuracy": [1 - high, 1 - low], "log_loss": mean_interval(-np.log(own), judges)}
