"""How many features a budget of time buys. Work is counted and not timed, so every machine trains the same model."""

from __future__ import annotations

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


def default_seconds(rows: int) -> float:
    """What the sums may take where no budget is given."""
    ratio = rows / AT_ROWS
    return float(np.clip(SECONDS * min(ratio, ratio**0.5), LEAST_SECONDS, MOST_SECONDS))


def affordable_features(rows: int, columns: int, budget: float | None = None) -> int:
    """The most features whose sums and solution fit the time of a run; ``budget`` is that of the whole run."""
    seconds = default_seconds(rows) if budget is None else max(LEAST_SECONDS, BUDGET_SHARE * budget)
    room = seconds * PRODUCTS_A_SECOND
    most = int(np.clip(rows / ROWS_A_FEATURE, 1, MOST))
    sizes = np.arange(FEWEST, MOST + 1, STEP, dtype=np.float64)
    work = rows * sizes * (sizes + MAP_COST * columns) + SOLVES * FACTOR_COST * sizes**3
    return min(most, int(sizes[work <= room].max(initial=FEWEST)))


def fewest_features(most: int, rows: float) -> int:
    """What ``enough_features`` comes to where targets are so noisy that the largest trial had enough of them."""
    return int(min(most, STEP * np.ceil(TRIED * max(rows, 1.0) ** 0.5 / STEP)))


def enough_features(errors: dict[int, float], most: int, rows: float) -> int:
    """The fewest features, up to ``most``, whose error is within a hair of that of the most; ``errors`` are of trials
    that double, and ``rows`` says how many times more rows the run has than they had.

    Every doubling is taken to bring a share of what the one before brought, as the last two trials show it.
    """
    sizes = sorted(errors)
    if most <= sizes[-1] or len(sizes) < 3:
        return most
    first, second, last = (errors[size] for size in sizes[-3:])
    gain, ratio = second - last, np.clip((second - last) / max(first - second, 1e-300), *RATIOS)
    left, size = max(gain, 0.0) * ratio / (1 - ratio), float(sizes[-1])
    while size < most and left > HAIR * last:
        size, left = 2 * size, left * ratio
    return int(min(most, STEP * np.ceil(size * max(rows, 1.0) ** 0.5 / STEP)))
