"""95 % intervals of metrics, from the losses of the rows that judged.

A metric is a mean of losses or a function of two of them, so its variance is that of the rows' influences on it. Rows
that belong together (copies, groups) count as one: their influences are added first.

Losses have long tails, and weights make them longer. A few rows then decide the figure and its variance alike, and both
are too small where these rows are missing. So the quantile has the degrees of freedom that the kurtosis of the
influences leaves, and the upper end allows for their skewness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

LEVEL = 0.975  # of each side
LEAST_SKEWNESS = 1e-6  # of a mean, below which there is nothing to undo
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

    def spread(self, influences: np.ndarray) -> Spread:
        """Of a mean whose rows have these influences on it."""
        sums = np.bincount(self.groups, self.weights * influences, minlength=self.count) / self.weights.sum()
        pulls = sums / np.maximum(1 - self.shares, np.finfo(np.float64).tiny)  # what leaving one out would change
        return Spread.of(pulls)

    @property
    def shares(self) -> np.ndarray:
        """(count,): what each group counts for, one in all."""
        return np.bincount(self.groups, self.weights, minlength=self.count) / self.weights.sum()

    @property
    def worth(self) -> float:
        """As how many groups of equal weight these say something (Kish)."""
        return float(1 / (self.shares**2).sum())

    @property
    def worth_by_weights(self) -> float:
        """As how many rows of equal weight, whatever their groups."""
        return float(self.weights.sum() ** 2 / (self.weights**2).sum())


@dataclass(frozen=True)
class Spread:
    """How far a mean may be off: its standard error, Student's quantile of it, and its skewness."""

    error: float
    quantile: float
    skewness: float

    @classmethod
    def of(cls, pulls: np.ndarray) -> Spread:
        """From what each row (or group) adds to the mean. The variance is known as well as from 2 n / (kurtosis - 1)
        normal values."""
        n, squares = len(pulls), float((pulls**2).sum())
        if not squares > 0:
            return cls(0.0, _student(n - 1), 0.0)
        unit = pulls / np.sqrt(squares)
        kurtosis = n * float((unit**4).sum())
        freedom = min(n - 1.0, 2 * n / (kurtosis - 1)) if kurtosis > 1 else n - 1.0
        return cls(float(np.sqrt(squares)), _student(freedom), float((unit**3).sum()))

    @property
    def reach(self) -> float:
        return self.quantile * self.error

    @property
    def reach_up(self) -> float:
        """By Hall's transformation, which undoes the skewness of Student's ratio: a mean of few rows of a long tail is
        more often too small than too large."""
        if not self.skewness > LEAST_SKEWNESS:
            return self.reach
        moved = 1 - self.skewness * (self.quantile + self.skewness / 6)
        return -3 / self.skewness * float(np.cbrt(moved) - 1) * self.error


def _student(freedom: float) -> float:
    return float(scipy.special.stdtrit(freedom, LEVEL))


def share_interval(wrong: np.ndarray, judges: Judges) -> Interval:
    """Wilson's interval of a share, for as many rows as would vary as these do; but for no more than their weights are
    worth: if only light rows are wrong, that is chance. How much groups of equal rows matter shows in how they vary."""
    share, worth = judges.mean(wrong), judges.worth
    error = judges.spread(wrong - share).error
    rows = min(share * (1 - share) / error**2, judges.worth_by_weights) if error > 0 else worth
    z = _student(max(worth - 1, 1.0))
    middle, half = share + z * z / (2 * rows), z * np.sqrt(share * (1 - share) / rows + z * z / (4 * rows**2))
    return [max(0.0, float((middle - half) / (1 + z * z / rows))), float((middle + half) / (1 + z * z / rows))]


def mean_interval(losses: np.ndarray, judges: Judges, power: float = 1.0) -> Interval:
    """Of a mean of losses that are not negative, raised to a power: on the scale of its logarithm, as losses have long
    tails above and none below; above at least as far as their skewness asks for."""
    mean = judges.mean(losses)
    if not mean > 0:
        return [0.0, 0.0]
    spread = judges.spread(losses - mean)
    low, high = (mean * np.exp(sign * spread.reach / mean) for sign in (-1.0, 1.0))
    return [float(low**power), float(max(high, mean + spread.reach_up) ** power)]


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
    reach = judges.spread(influences / outputs).reach
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
