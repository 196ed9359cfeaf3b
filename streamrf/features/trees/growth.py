"""The loops of growing trees and of predicting with them.

Rows are bytes: how many cut points of its column each value is beyond. A symmetric tree makes one cut at each depth,
the same in all of its cells, so a row's leaf is a number whose bits say on which side of each cut it lies.

Gradients are whole numbers here, packed in one 64-bit word with what the row counts for. A histogram is then one exact
sum of such words, whatever the order of the rows.
"""

from __future__ import annotations

import math

import numpy as np

from streamrf.support.compiled import inner_kernel, kernel

COUNT_BITS, GRADIENT_BITS = 26, 18  # of a packed word: sums of what rows count for; and the largest gradient
MOST_UNITS = 1 << 8  # that the mean row counts for
MOST_ROWS = 1 << 20  # of one histogram
ROWS_A_BLOCK = 512  # that are predicted together
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10


def bits_for(rows: int) -> tuple[int, int]:
    """Units of the mean row, and bits of the largest gradient, for which sums of so many rows fit a word."""
    doublings = max(rows - 1, 1).bit_length()
    return min(MOST_UNITS, 1 << (COUNT_BITS - 1 - doublings)), min(GRADIENT_BITS, 62 - COUNT_BITS - doublings)


@kernel
def pack(gradients: np.ndarray, counts: np.ndarray, scale: float, out: np.ndarray) -> None:
    """Gradients (n,), in whole steps, above the units that rows count for."""
    for i in range(len(gradients)):
        out[i] = (np.int64(np.rint(gradients[i] * scale)) << COUNT_BITS) + counts[i]


@inner_kernel
def _explained(left: int, right: int, ridge: float) -> float:
    """Of two sides of a cut: the sum of (sum of gradients)^2 / (count + ridge)."""
    mask = (np.int64(1) << COUNT_BITS) - 1
    below, above = np.float64(left >> COUNT_BITS), np.float64(right >> COUNT_BITS)
    return below * below / (np.float64(left & mask) + ridge) + above * above / (np.float64(right & mask) + ridge)


@kernel
def add_gains(
    codes: np.ndarray, lines: np.ndarray, widths: np.ndarray, columns: np.ndarray, singles: np.ndarray,
    rows: np.ndarray, cells: np.ndarray, words: np.ndarray, many: int, ridge: float, gains: np.ndarray,
) -> None:  # fmt: skip
    """What each cut of some lines would explain of the gradients: ``gains[column, cut]`` grows by the sum over cells
    and both sides of the cut."""
    for line in lines:
        width, column = widths[line], columns[line]
        bytes_ = codes[column]
        table = np.zeros(many * width, np.int64)
        for i in range(len(rows)):
            table[cells[i] * width + bytes_[rows[i]]] += words[rows[i]]
        for cell in range(many):
            sums, whole, left = table[cell * width : (cell + 1) * width], np.int64(0), np.int64(0)
            for k in range(width):
                whole += sums[k]
            if whole == 0:
                continue
            nothing = _explained(left, whole, ridge)
            explained = nothing
            for k in range(width):
                if singles[line, k] >= 0:
                    gains[singles[line, k], 0] += _explained(whole - sums[k], sums[k], ridge) if sums[k] else nothing
                if k < width - 1:
                    if sums[k]:  # most bins of small cells are empty, and cut as the one before
                        left += sums[k]
                        explained = _explained(left, whole - left, ridge)
                    gains[column, k] += explained


@kernel
def split(line: np.ndarray, cut: int, rows: np.ndarray, cells: np.ndarray) -> None:
    """Cells of some rows, after one more cut."""
    for i in range(len(rows)):
        cells[i] = 2 * cells[i] + (line[rows[i]] > cut)


@kernel
def leaves(codes: np.ndarray, columns: np.ndarray, cuts: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """The leaf of each row from ``start`` to ``stop``."""
    out[start:stop] = 0
    for level in range(len(columns)):
        line, cut = codes[columns[level]], cuts[level]
        for i in range(start, stop):
            out[i] = 2 * out[i] + (line[i] > cut)


@kernel
def leaf_sums(
    leaf: np.ndarray, slopes: np.ndarray, curves: np.ndarray, start: int, stop: int, out: np.ndarray
) -> None:  # fmt: skip
    """Sums of first and second derivatives (n, k) over the rows of each leaf: ``out`` (leaves, 2, k) grows."""
    for i in range(start, stop):
        for k in range(slopes.shape[1]):
            out[leaf[i], 0, k] += slopes[i, k]
            out[leaf[i], 1, k] += curves[i, k]


@kernel
def move(leaf: np.ndarray, values: np.ndarray, start: int, stop: int, scores: np.ndarray) -> None:
    """Add the values (leaves, k) of one tree to the scores."""
    for i in range(start, stop):
        for k in range(scores.shape[1]):
            scores[i, k] += values[leaf[i], k]


@inner_kernel
def _exp(x: float) -> float:
    """The same bits on every CPU: a series that no library or compiler replaces."""
    x = min(max(x, -700.0), 700.0)
    power = math.floor(x * _LOG2E + 0.5)
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW
    total = 1.0
    for k in range(13, 0, -1):
        total = 1.0 + total * rest / k
    return math.ldexp(total, int(power))


@kernel
def to_probabilities(scores: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """Of one column of log odds, or of a column for each class."""
    outputs = scores.shape[1]
    for i in range(start, stop):
        if outputs == 1:
            out[i, 0] = 1.0 / (1.0 + _exp(-scores[i, 0]))
            continue
        largest = scores[i, 0]
        for k in range(1, outputs):
            largest = max(largest, scores[i, k])
        total = 0.0
        for k in range(outputs):
            out[i, k] = _exp(scores[i, k] - largest)
            total += out[i, k]
        for k in range(outputs):
            out[i, k] /= total


@kernel
def add_scores(
    X: np.ndarray, columns: np.ndarray, thresholds: np.ndarray, values: np.ndarray, start: int, stop: int,
    out: np.ndarray,
) -> None:  # fmt: skip
    """Scores of rows by trees with values (P, leaves, k): a block of rows at a time, tree after tree."""
    inputs, (trees, depth), outputs = X.shape[1], columns.shape, values.shape[2]
    block, leaf = np.empty((inputs, ROWS_A_BLOCK), np.float32), np.empty(ROWS_A_BLOCK, np.int32)
    for first in range(start, stop, ROWS_A_BLOCK):
        rows = min(ROWS_A_BLOCK, stop - first)
        for r in range(rows):
            for j in range(inputs):
                block[j, r] = X[first + r, j]
        for tree in range(trees):
            for r in range(ROWS_A_BLOCK):
                leaf[r] = 0
            for level in range(depth):
                line, threshold = block[columns[tree, level]], thresholds[tree, level]
                for r in range(ROWS_A_BLOCK):
                    leaf[r] = 2 * leaf[r] + (line[r] > threshold)
            for r in range(rows):
                for k in range(outputs):
                    out[first + r, k] += values[tree, leaf[r], k]
