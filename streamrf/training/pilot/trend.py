"""Widths: where between those that were tried the best one lies, and how it falls with the number of features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

FAR = 3  # times the features of the largest trials: up to here the best width of these will do
SMALLER = (1, 2, 4)  # the trials that are looked at have so many times fewer features and rows than the largest
ROWS_A_FEATURE = 8  # features that have fewer rows than this each do not let the kernel be narrower still
STEEPEST = -1 / 3  # a cautious bound: small trials fall more steeply (covtype by about -0.5) than large ones seem to

Point = tuple[float, float]


def on_grid(width: float) -> float:
    """The nearest power of the root of two: two samples of one table then try the same widths."""
    return float(2.0 ** (np.rint(2 * np.log2(width)) / 2))


def reach(D: int, rows: int) -> int:
    """Up to which number of features the width goes on falling, on so many rows."""
    return min(D, rows // ROWS_A_FEATURE)


def lowest(points: Iterable[Point]) -> float:
    """The width (of pairs of a width and its error) at which a parabola through the best and its neighbours, over
    logarithms, is lowest; the best width itself at an edge."""
    found = sorted({float(np.log(width)): error for width, error in points}.items())
    best = min(range(len(found)), key=lambda i: found[i][1])
    if best in (0, len(found) - 1):
        return float(np.exp(found[best][0]))
    x, y = np.array(found[best - 1 : best + 2]).T
    a, b, _ = np.polyfit(x - x[1], y, 2)
    return float(np.exp(x[1] - b / (2 * a))) if a > 0 else float(np.exp(x[1]))


def power(points: Sequence[Point]) -> float:
    """The power of the number of features (first of each pair) that widths (second) follow; they never grow."""
    D, widths = np.log(np.array(points)).T
    return float(np.clip(np.polyfit(D, widths, 1)[0], STEEPEST, 0.0))


def at_an_end(width: float, tried: Sequence[float]) -> str:
    """A warning, where the best width is the last that was tried on its side."""
    if len(tried) < 2 or min(tried) < width < max(tried):
        return ""
    which, other = ("narrowest", "smaller") if width <= min(tried) else ("widest", "larger")
    return (
        f"the kernel's width, {width:.4g}, is the {which} that the pilot tried: compare with a {other} `length_scale`"
    )
