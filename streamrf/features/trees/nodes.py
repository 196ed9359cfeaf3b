"""The loops of growing trees whose nodes have cuts of their own, and of predicting with them.

Nodes are numbered as in a heap while they grow: those below node i are 2i + 1 and 2i + 2. The histogram of the smaller
one is summed, and that of the other is what remains of their parent's: sums of whole numbers, so it is exact.

Arrays are made outside and moved number by number: assigning slices took the compiler three quarters of its time.
"""

from __future__ import annotations

import numpy as np

from streamrf.features.trees.growth import COUNT_BITS, ROWS_A_BLOCK
from streamrf.support.compiled import inner_kernel, kernel

WHOLE, LEFT, REST = range(3)  # sums of a node: of all rows, up to a cut, and without one level


@kernel
def count_rows(
    codes: np.ndarray, lines: np.ndarray, offsets: np.ndarray, rows: np.ndarray, words: np.ndarray, table: np.ndarray
) -> None:
    """Add the words (k, n) of some rows to a histogram (k, bins) of some lines; ``codes`` is (n, lines)."""
    for i in range(len(rows)):
        r = rows[i]
        for k in range(words.shape[0]):
            word = words[k, r]
            for c in range(len(lines)):
                table[k, offsets[c] + codes[r, lines[c]]] += word


@inner_kernel
def _gain(sums: np.ndarray, side: int, ridge: float, least: float) -> float:
    """Of parting a node in two: what both sides explain of the gradients; negative where one has too few rows. ``sums``
    has those of the whole node, and of this side."""
    mask = (np.int64(1) << COUNT_BITS) - 1
    count = np.float64(sums[side, 0] & mask)
    other = np.float64(sums[WHOLE, 0] & mask) - count
    if count < least or other < least:
        return -1.0
    gain = 0.0
    for k in range(sums.shape[1]):
        below = np.float64(sums[side, k] >> COUNT_BITS)
        above = np.float64((sums[WHOLE, k] - sums[side, k]) >> COUNT_BITS)
        gain += below * below / (count + ridge) + above * above / (other + ridge)
    return gain


@inner_kernel
def _is_empty(table: np.ndarray, at: int) -> bool:
    empty = True
    for k in range(table.shape[0]):
        empty = empty and table[k, at] == 0
    return empty


@inner_kernel
def _best_cut(
    table: np.ndarray, lines: np.ndarray, offsets: np.ndarray, columns: np.ndarray, singles: np.ndarray, ridge: float,
    least: float, sums: np.ndarray,
) -> tuple[float, int, int]:  # fmt: skip
    """Gain, column and cut: of equal gains the first column, and its first cut."""
    outputs = table.shape[0]
    for k in range(outputs):
        sums[WHOLE, k] = 0
        for at in range(offsets[1]):
            sums[WHOLE, k] += table[k, at]
    whole, count = 0.0, np.float64(sums[WHOLE, 0] & ((np.int64(1) << COUNT_BITS) - 1))
    for k in range(outputs):
        all_ = np.float64(sums[WHOLE, k] >> COUNT_BITS)
        whole += all_ * all_ / (count + ridge)
    best, column, cut = whole, -1, -1
    left, rest = np.int64(LEFT), np.int64(REST)  # variables: ``_gain`` is compiled once for both
    for c in range(len(lines)):
        line, width = lines[c], offsets[c + 1] - offsets[c]
        for k in range(outputs):
            sums[LEFT, k] = 0
        for code in range(width):
            at, member = offsets[c] + code, singles[line, code]
            if _is_empty(table, at):
                continue  # both sides are those of the bin before, which was asked first
            if member >= 0:
                for k in range(outputs):
                    sums[REST, k] = sums[WHOLE, k] - table[k, at]
                gain = _gain(sums, rest, ridge, least)
                if gain > best or (gain == best and member < column):
                    best, column, cut = gain, member, 0
            if code < width - 1:
                for k in range(outputs):
                    sums[LEFT, k] += table[k, at]
                gain, own = _gain(sums, left, ridge, least), columns[line]
                if gain > best or (gain == best and own < column):
                    best, column, cut = gain, own, code
    return best - whole, column, cut


@inner_kernel
def _leads(gain: float, leading: np.ndarray) -> bool:
    """Whether it is one of the largest gains so far, which ``leading`` has in rising order, or as large."""
    if gain < leading[0]:
        return False
    at = 0
    while at + 1 < len(leading) and leading[at + 1] < gain:
        leading[at] = leading[at + 1]
        at += 1
    leading[at] = gain
    return True


@inner_kernel
def _wait(waiting: np.ndarray, at: int, node: int, level: int, start: int, end: int, table: int) -> None:
    waiting[at, 0], waiting[at, 1], waiting[at, 2], waiting[at, 3], waiting[at, 4] = node, level, start, end, table


@inner_kernel
def _move(tables: np.ndarray, of: int, others: np.ndarray, to: int, sign: int) -> None:
    """Copy one histogram (1), make it zero (0), or take it off another (-1)."""
    for k in range(tables.shape[1]):
        for at in range(tables.shape[2]):
            if sign < 0:
                others[to, k, at] -= tables[of, k, at]
            else:
                others[to, k, at] = sign * tables[of, k, at]


@kernel
def grow_below(
    node: int, level: int, stop: int, start: int, end: int, codes: np.ndarray, every: np.ndarray, lines: np.ndarray,
    offsets: np.ndarray, columns: np.ndarray, singles: np.ndarray, words: np.ndarray, order: np.ndarray,
    spare: np.ndarray, ridge: float, least: float, fewest: int, tables: np.ndarray, found: np.ndarray,
    gains: np.ndarray, narrow: np.ndarray, leading: np.ndarray, ends: np.ndarray, below: np.ndarray,
    waiting: np.ndarray, free: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """The cuts (column, cut) of a node and of those below it, above depth ``stop``. Its rows are ``order[start:end]``,
    which are parted on the way, and ``tables[0]`` is its histogram. Nodes at ``stop`` leave where their rows are in
    ``ends``, and their histograms in ``below`` where there is room for any. ``every`` has columns by rows; fewer rows
    than ``fewest`` are not parted. A tree of few leaves keeps the nodes whose path gains most at its narrowest, which
    is ``narrow`` of each node: below a node that falls behind all of ``leading``, nothing is grown."""
    spares, pending, root = len(tables) - 1, 1, np.int64(0)
    copied, zeroed, taken = np.int64(1), np.int64(0), np.int64(-1)  # variables: ``_move`` is compiled once for them all
    for at in range(len(tables)):
        free[at] = len(tables) - 1 - at
    _wait(waiting, root, node, level, start, end, root)
    while pending:
        pending -= 1
        node, level, start = waiting[pending, 0], waiting[pending, 1], waiting[pending, 2]
        end, at = waiting[pending, 3], waiting[pending, 4]
        free[spares], spares = at, spares + 1
        if level == stop:
            ends[node, 0], ends[node, 1] = start, end
            if len(below):
                _move(tables, at, below, node + 1 - (1 << stop), copied)
            continue
        if end - start < fewest:
            continue
        gain, column, cut = _best_cut(tables[at], lines, offsets, columns, singles, ridge, least, sums)
        if column < 0:
            continue
        found[node, 0], found[node, 1], gains[node] = column, cut, gain
        narrow[node] = min(gain, narrow[(node - 1) // 2]) if node else gain
        if not _leads(narrow[node], leading) or (level + 1 == stop and not len(below)):
            continue
        middle, others = start, start
        for i in range(start, end):
            r = order[i]
            if every[column, r] > cut:
                spare[others], others = r, others + 1
            else:
                order[middle], middle = r, middle + 1
        for i in range(middle, end):
            order[i] = spare[start + i - middle]
        if not len(below) and max(middle - start, end - middle) < fewest:
            continue
        spares -= 2
        small, large = free[spares], free[spares + 1]  # the second is where the parent's is
        _move(tables, small, tables, small, zeroed)
        fewer = middle - start < end - middle
        part = order[start:middle] if fewer else order[middle:end]
        count_rows(codes, lines, offsets, part, words, tables[small])
        _move(tables, small, tables, large, taken)
        for place in range(2):  # the larger side is grown first: it gains more
            side = place if fewer else 1 - place
            first, last = (middle, end) if side else (start, middle)
            table = small if fewer != side else large
            _wait(waiting, pending, 2 * node + 1 + side, level + 1, first, last, table)
            pending += 1


@kernel
def reach(
    codes: np.ndarray, columns: np.ndarray, cuts: np.ndarray, children: np.ndarray, start: int, stop: int,
    out: np.ndarray,
) -> None:  # fmt: skip
    """The leaf of each row from ``start`` to ``stop``, in one tree."""
    inner = len(columns)
    for i in range(start, stop):
        node = 0
        while node < inner:
            node = children[node, 1 if codes[columns[node], i] > cuts[node] else 0]
        out[i] = node - inner


@kernel
def add_node_scores(
    X: np.ndarray, columns: np.ndarray, thresholds: np.ndarray, children: np.ndarray, values: np.ndarray, start: int,
    stop: int, out: np.ndarray,
) -> None:  # fmt: skip
    """Scores of rows by trees with values (P, leaves, k): a block of rows at a time, tree after tree."""
    (trees, inner), outputs = columns.shape, values.shape[2]
    for first in range(start, stop, ROWS_A_BLOCK):
        last = min(first + ROWS_A_BLOCK, stop)
        for tree in range(trees):
            for r in range(first, last):
                node = 0
                while node < inner:
                    side = 1 if X[r, columns[tree, node]] > thresholds[tree, node] else 0
                    node = children[tree, node, side]
                for k in range(outputs):
                    out[r, k] += values[tree, node - inner, k]
