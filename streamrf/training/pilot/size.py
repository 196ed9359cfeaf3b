"""How many features a budget of time buys. Work is counted and not timed, so every machine trains the same model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

PRODUCTS_A_SECOND = 1e11  # of a machine of two modest cores
SECONDS, AT_ROWS = 8.0, 50_000  # of the sums and the solution; beyond, it grows with the root of the rows
LEAST_SECONDS, MOST_SECONDS = 1.0, 600.0
MAP_COST, SOLVES, FACTOR_COST = 4.0, 10, 0.5  # products of a value of the kernel; factorisations; of a product in one
FEWEST, MOST, STEP = 512, 16_384, 128
BUDGET_SHARE = 0.5  # of a run that is not spent in the pilot and on random binning
RATIOS, HAIR = (0.3, 0.9), 0.01  # of what a doubling brings; and of the error, which is not worth twice the features
ROWS_A_FEATURE = 1.5  # no more features than rows bear
TRIED = 1024  # features of the largest trial, which may be enough
ERROR_CURVE = "error_curve"  # the note that says which error to expect of how much time
LARGER_BUDGET = "larger_budget"  # and the one of what twice the features would bring
WORTH_SAYING, FEWEST_MORE = 0.1, 1.5  # share of the error; and times the features


def default_seconds(rows: int) -> float:
    """What the sums may take where no budget is given."""
    ratio = rows / AT_ROWS
    return float(np.clip(SECONDS * min(ratio, ratio**0.5), LEAST_SECONDS, MOST_SECONDS))


def affordable_features(rows: int, columns: int, budget: float | None = None) -> int:
    """The most features whose sums and solution fit the time of a run; ``budget`` is that of the whole run."""
    seconds = default_seconds(rows) if budget is None else max(LEAST_SECONDS, BUDGET_SHARE * budget)
    sizes = np.arange(FEWEST, MOST + 1, STEP, dtype=np.float64)
    fit = _products(rows, columns, sizes) <= seconds * PRODUCTS_A_SECOND
    return min(most_features(rows), int(sizes[fit].max(initial=FEWEST)))


def most_features(rows: int) -> int:
    """That so many rows bear."""
    return int(np.clip(rows / ROWS_A_FEATURE, 1, MOST))


def budget_for(features: int, rows: int, columns: int) -> float:
    """Seconds of a run that buys so many features."""
    return float(_products(rows, columns, float(features)) / PRODUCTS_A_SECOND / BUDGET_SHARE)


def error_curve(errors: dict[int, float], rows: int, columns: int, ratio: float) -> list[dict[str, Any]]:
    """Sizes that double, the ``budget`` that buys each and its error: those of the trials, as sizes of a run with
    ``ratio`` times the rows, and beyond them as the curve says; no more features than rows bear."""
    if len(errors) < 3:
        return []
    curve, root, most = Curve.of(errors, ratio), max(ratio, 1.0) ** 0.5, most_features(rows)
    points = {size * root: error for size, error in sorted(errors.items())[-3:]}
    while (size := 2 * max(points)) <= most:
        points[size] = curve.at(size)
    found: dict[float, dict[str, Any]] = {}  # by budget: the most that it buys
    for features, error in points.items():
        if features <= most:
            budget = float(np.ceil(max(budget_for(int(features), rows, columns), LEAST_SECONDS / BUDGET_SHARE)))
            found[budget] = {"budget": budget, "features": int(features), "error": error}
    return list(found.values())


def larger_budget(errors: dict[int, float], features: int, rows: int, columns: int, ratio: float) -> dict[str, Any]:
    """A note of what twice the features would cost and bring; none where rows bear no more or the gain is small."""
    more = min(2 * features, most_features(rows))
    if len(errors) < 3 or more < FEWEST_MORE * features:
        return {}
    fall = Curve.of(errors, ratio).fall(features, more)
    seconds = 10 * np.ceil(budget_for(more, rows, columns) / 10)
    return {LARGER_BUDGET: {"seconds": float(seconds), "features": more, "fall": fall}} if fall >= WORTH_SAYING else {}


def _products(rows: int, columns: int, features: Any) -> Any:
    """Of the sums and the solution."""
    return rows * features * (features + MAP_COST * columns) + SOLVES * FACTOR_COST * features**3


@dataclass(frozen=True)
class Curve:
    """How errors fall with features: every doubling is taken to bring a share of what the one before brought, as the
    last two of three trials that double show it."""

    size: float  # features of the largest trial, times the root of how many more rows the run has
    error: float
    gain: float  # of the next doubling
    ratio: float

    @classmethod
    def of(cls, errors: dict[int, float], rows: float) -> Curve:
        sizes = sorted(errors)[-3:]
        first, second, last = (errors[size] for size in sizes)
        ratio = float(np.clip((second - last) / max(first - second, 1e-300), *RATIOS))
        return cls(sizes[-1] * max(rows, 1.0) ** 0.5, last, max(second - last, 0.0) * ratio, ratio)

    def at(self, features: float) -> float:
        """The error of at least as many features as the largest trial stands for."""
        return self.error - self.left(self.size) + self.left(features)

    def left(self, features: float) -> float:
        """What still more features would take off the error."""
        doublings = max(np.log2(features / self.size), 0.0)
        return float(self.gain / (1 - self.ratio) * self.ratio**doublings)

    def fall(self, fewer: int, more: int) -> float:
        """The share of the error that more features would take off."""
        error = self.at(fewer)
        return (error - self.at(more)) / error if error > 0 else 0.0


def halved(features: int) -> int:
    """Which takes a quarter of the time."""
    return int(min(features, max(FEWEST, STEP * np.ceil(features / 2 / STEP))))


def fewest_features(most: int, rows: float) -> int:
    """What ``enough_features`` comes to where targets are so noisy that the largest trial had enough of them."""
    return int(min(most, STEP * np.ceil(TRIED * max(rows, 1.0) ** 0.5 / STEP)))


def enough_features(errors: dict[int, float], most: int, rows: float) -> int:
    """The fewest features, up to ``most``, whose error is within a hair of that of the most; ``errors`` are of trials
    that double, and ``rows`` says how many times more rows the run has than they had."""
    if most <= max(errors) or len(errors) < 3:
        return most
    curve, doublings = Curve.of(errors, rows), 0
    while max(errors) * 2**doublings < most and curve.left(curve.size * 2**doublings) > HAIR * curve.error:
        doublings += 1
    return int(min(most, STEP * np.ceil(curve.size * 2**doublings / STEP)))
