"""Quantiles of weighted values: a value of weight 2 is the value twice, and one of weight 0 is not there."""

from __future__ import annotations

import numpy as np

ROUNDING = 1e-12


def quantiles(values: np.ndarray, levels: list[float], weights: np.ndarray | None = None) -> np.ndarray:
    """(levels,) of values (n,). Weights may be multiplied by any number and change nothing."""
    if weights is None:
        return np.quantile(values, levels, method="averaged_inverted_cdf")  # at one half, the usual median
    present = weights > 0
    order = np.argsort(values[present], kind="stable")
    ordered, reached = values[present][order], np.cumsum(weights[present][order], dtype=np.float64)
    wanted = np.asarray(levels) * reached[-1]
    slack = ROUNDING * reached[-1]
    last = len(ordered) - 1
    lower = np.minimum(np.searchsorted(reached, wanted - slack, "left"), last)
    upper = np.minimum(np.searchsorted(reached, wanted + slack, "right"), last)
    return (ordered[lower] + ordered[upper]) / 2


def median(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """(k,) of the columns of values (n, k)."""
    if weights is None:
        return np.median(values, axis=0)
    return np.array([quantiles(column, [0.5], weights)[0] for column in values.T])


def robust_deviation(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """(k,): the deviation that normal values of the same median distance from their median would have; not quite 0."""
    size = 1.4826 * median(np.abs(values - median(values, weights)), weights)
    return np.maximum(size, 1e-12 * np.maximum(np.abs(values).max(axis=0, initial=0.0), np.finfo(np.float64).tiny))


def copies(weights: np.ndarray | None, rows: int, most: int) -> np.ndarray:
    """Positions of rows, each as often as its weight says, for what knows no weights: at most ``most`` of ``rows``.

    Whole weights of few rows are followed exactly, others as closely as so many copies allow.
    """
    if weights is None:
        return np.arange(min(rows, most))
    if weights.sum() <= most and (weights == np.rint(weights)).all():
        return np.repeat(np.arange(rows), weights.astype(np.int64))
    reached = np.cumsum(weights)
    wanted = (np.arange(most) + 0.5) * (reached[-1] / most)
    return np.minimum(np.searchsorted(reached, wanted, "left"), rows - 1)
