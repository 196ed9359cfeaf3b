"""The loops of growing trees and of predicting with them.

Rows are bytes: how many cut points of its column each value is beyond. A symmetric tree makes one cut at each depth,
the same in all of its cells, so a row's leaf is a number whose bits say on which side of each cut it lies.

Gradients are whole numbers here, packed in one 64-bit word with what the row counts for. A histogram is then one exact
sum of such words, whatever the order of the rows.
"""

from __future__ import annotations

import numpy as np

from streamrf.support.compiled import inlined_kernel, kernel

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


@kernel
def leaves(codes: np.ndarray, columns: np.ndarray, cuts: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """The leaf of each row from ``start`` to ``stop``."""
    out[start:stop] = 0
    for level in range(len(columns)):
        line, cut = codes[columns[level]], cuts[level]
        for i in range(start, stop):
            out[i] = 2 * out[i] + (line[i] > cut)


@inlined_kernel
def _next(steps: np.ndarray, node: int, code: np.ndarray, row: int) -> int:
    """Without a branch that the CPU would have to guess."""
    return steps[node, np.uint64(2) + np.uint64(code[steps[node, 0], row] > steps[node, 1])]


@kernel
def reach(codes: np.ndarray, steps: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """The leaf of each row from ``start`` to ``stop``, in one tree. Four rows go side by side: no step waits for that
    of another row."""
    inner, root = len(steps) // 2, np.uint32(0)
    for i in range(start, stop, 4):
        j, k, m = min(i + 1, stop - 1), min(i + 2, stop - 1), min(i + 3, stop - 1)
        a = b = c = d = root
        while (a < inner) | (b < inner) | (c < inner) | (d < inner):
            a, b = _next(steps, a, codes, i), _next(steps, b, codes, j)
            c, d = _next(steps, c, codes, k), _next(steps, d, codes, m)
        out[i], out[j], out[k], out[m] = a - inner, b - inner, c - inner, d - inner


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


@inlined_kernel
def _exp(x: float) -> float:
    """The same bits on every CPU: a series that no library or compiler replaces."""
    x = min(max(x, -700.0), 700.0)
    power = np.floor(x * _LOG2E + 0.5)
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW
    total = 1.0
    for k in (13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0):
        total = 1.0 + total * rest / k
    bits = np.int64(np.int32(power) + 1023) << 52  # of two to this power
    return total * np.int64(bits).view(np.float64)


@kernel
def to_probabilities(scores: np.ndarray, out: np.ndarray) -> None:
    """Of rows (n, k) with one column of log odds, or a column for each class, side by side: ``out`` (n * k,)."""
    count, outputs = scores.shape
    for i in range(count):
        largest = scores[i, 0]
        for k in range(1, outputs):
            largest = max(largest, scores[i, k])
        for k in range(outputs):
            out[i * outputs + k] = scores[i, k] - largest if outputs > 1 else -scores[i, k]
    for j in range(len(out)):
        out[j] = _exp(out[j])
    for i in range(count):
        total = 0.0
        for k in range(outputs):
            total += out[i * outputs + k]
        for k in range(outputs):
            out[i * outputs + k] = out[i * outputs + k] / total if outputs > 1 else 1.0 / (1.0 + total)


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


@inlined_kernel
def _child(where: np.ndarray, beyond: np.ndarray, below: np.ndarray, node: int, X: np.ndarray, row: int) -> np.int64:
    """A leaf, which has none, stays; without a branch that the CPU would have to guess."""
    at = min(node, len(where) - 1)
    side = np.uint64(X[row, where[at]] > beyond[at])
    return np.int64(below[at, side]) if node < len(where) else np.int64(node)


@kernel
def add_node_scores(
    X: np.ndarray, columns: np.ndarray, thresholds: np.ndarray, children: np.ndarray, values: np.ndarray, start: int,
    stop: int, out: np.ndarray,
) -> None:  # fmt: skip
    """Scores of rows by trees with values (P, leaves, k): a block of rows at a time, tree after tree. Four rows go side
    by side."""
    (trees, inner), outputs = columns.shape, values.shape[2]
    leaf = np.empty(ROWS_A_BLOCK, np.int64)
    for first in range(start, stop, ROWS_A_BLOCK):
        last = min(first + ROWS_A_BLOCK, stop)
        for tree in range(trees):
            where, beyond, below = columns[tree], thresholds[tree], children[tree]
            for i in range(first, last, 4):
                j, k, m = min(i + 1, last - 1), min(i + 2, last - 1), min(i + 3, last - 1)
                a = b = c = d = np.int64(0)
                while (a < inner) | (b < inner) | (c < inner) | (d < inner):
                    a, b = _child(where, beyond, below, a, X, i), _child(where, beyond, below, b, X, j)
                    c, d = _child(where, beyond, below, c, X, k), _child(where, beyond, below, d, X, m)
                leaf[i - first], leaf[j - first], leaf[k - first], leaf[m - first] = a, b, c, d
            for r in range(first, last):
                for output in range(outputs):
                    out[r, output] += values[tree, leaf[r - first] - inner, output]
