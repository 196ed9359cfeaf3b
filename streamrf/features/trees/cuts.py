"""The loops that choose the cuts of a tree, by histograms that are sums of packed words: whole numbers, so exact.

Nodes with cuts of their own are numbered as in a heap while they grow: those below node i are 2i + 1 and 2i + 2. The
histogram of the smaller one is summed, and that of the other is what remains of their parent's. Nodes of few rows, most
of all nodes, have no histogram of all bins: line after line is summed in one small table, and only the bins that rows
are in are looked at.

What a cut explains is asked for a whole line of bins at once, without a branch, so that several are divided together.
Arrays are made outside and moved number by number: assigning slices took the compiler three quarters of its time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from streamrf.features.trees.growth import COUNT_BITS
from streamrf.support.compiled import inlined_kernel, kernel


@kernel
def count_rows(
    codes: np.ndarray, lines: np.ndarray, offsets: np.ndarray, rows: np.ndarray, words: np.ndarray, sign: int,
    table: np.ndarray,
) -> None:  # fmt: skip
    """Add the words (k, n) of some rows to a histogram (k, bins) of some lines, or take them off it; ``codes`` is
    (n, lines)."""
    for i in range(len(rows)):
        r = rows[i]
        for k in range(words.shape[0]):
            word = sign * words[k, r]
            for c in range(len(lines)):
                table[k, np.uint64(offsets[c]) + codes[r, np.uint64(lines[c])]] += word


@intrinsic
def _lowest(typing: Any, word: Any) -> Any:
    """The place of the lowest bit of a word that is set."""

    def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), code


@inlined_kernel
def _bins_of_table(table: np.ndarray, first: int, width: int, bins: np.ndarray) -> int:
    """Bins of one line that are not empty, in rising order, and how many these are."""
    count = 0
    for code in range(width):
        word = table[0, first + code]
        for k in range(1, table.shape[0]):
            word |= table[k, first + code]
        bins[count] = first + code
        count += word != 0
    return count


@inlined_kernel
def _bins_of_rows(
    codes: np.ndarray, line: int, rows: np.ndarray, start: int, end: int, words: np.ndarray, marks: np.ndarray,
    table: np.ndarray, bins: np.ndarray,
) -> int:  # fmt: skip
    """Sum some rows in an empty table, of this line alone: bins that they are in, in rising order, and how many."""
    for i in range(start, end):
        r = rows[i]
        code = np.uint64(codes[r, line])
        marks[code >> np.uint64(6)] |= np.uint64(1) << (code & np.uint64(63))
        table[0, code] += words[0, r]
    for k in range(1, words.shape[0]):
        for i in range(start, end):
            table[k, codes[rows[i], line]] += words[k, rows[i]]
    count = 0
    for part in range(len(marks)):
        left = marks[part]
        marks[part] = 0
        while left:
            bins[count] = 64 * part + _lowest(left)
            count += 1
            left &= left - np.uint64(1)
    return count


@inlined_kernel
def _add_up(table: np.ndarray, bins: np.ndarray, count: int, keep: bool, sides: np.ndarray) -> None:
    """Sums (k, count) up to and with each of some bins, which are emptied unless they are kept."""
    for k in range(table.shape[0]):
        left = np.int64(0)
        for j in range(count):
            word = table[k, bins[j]]
            table[k, bins[j]] = word if keep else 0
            left += word
            sides[k, j] = left


@inlined_kernel
def _gains(sides: np.ndarray, count: int, whole: np.ndarray, ridge: float, least: int, gains: np.ndarray) -> None:
    """Of parting a node with these sums in two: what both sides explain of the gradients; negative where one has too
    few rows. ``sides`` are sums of one side."""
    mask = (np.int64(1) << COUNT_BITS) - 1
    for k in range(len(whole)):
        slope = np.float64(whole[k] >> COUNT_BITS)
        for j in range(count):
            near = sides[0, j] & mask
            far = (whole[0] & mask) - near
            below = np.float64(sides[k, j] >> COUNT_BITS)
            above = slope - below
            gain = below * below / (np.float64(near) + ridge) + above * above / (np.float64(far) + ridge)
            gain += gains[j] if k else 0.0
            gains[j] = -1.0 if min(near, far) < least else gain


@inlined_kernel
def _rest(sides: np.ndarray, count: int, whole: np.ndarray) -> None:
    """Make sums up to each bin those of all bins but this."""
    for k in range(len(whole)):
        for j in range(count - 1, -1, -1):
            sides[k, j] = whole[k] - sides[k, j] + (sides[k, j - 1] if j else 0)


@inlined_kernel
def _best_cut(
    codes: np.ndarray, lines: np.ndarray, offsets: np.ndarray, columns: np.ndarray, singles: np.ndarray,
    words: np.ndarray, rows: np.ndarray, start: int, end: int, full: bool, table: np.ndarray, ridge: float, least: int,
    marks: np.ndarray, one: np.ndarray, bins: np.ndarray, sides: np.ndarray, gains: np.ndarray, whole: np.ndarray,
) -> tuple[float, int, int]:  # fmt: skip
    """Gain, column and cut of a node with these rows: of equal gains the first column, and its first cut. If not
    ``full``, it has no table. An empty bin cuts as the one before, which is asked first."""
    nothing, best, column, cut = 0.0, 0.0, -1, -1
    of = table if full else one
    for c in range(len(lines)):
        line, first = lines[c], offsets[c] if full else offsets[0]
        if full:
            count = _bins_of_table(of, first, offsets[c + 1] - first, bins)
        else:
            count = _bins_of_rows(codes, line, rows, start, end, words, marks, of, bins)
        _add_up(of, bins, count, full, sides)
        if c == 0:
            for k in range(len(whole)):
                whole[k] = sides[k, count - 1] if count else 0
                slope = np.float64(whole[k] >> COUNT_BITS)
                nothing += slope * slope / (np.float64(whole[0] & ((np.int64(1) << COUNT_BITS) - 1)) + ridge)
            best = nothing
        for levels in range(2 if singles[line, 1] >= 0 else 1):
            if levels:
                _rest(sides, count, whole)
            _gains(sides, count, whole, ridge, least, gains)
            for j in range(count):
                if gains[j] >= best:
                    code = bins[j] - first
                    own = singles[line, code] if levels else columns[line]
                    if own >= 0 and (gains[j] > best or own < column):
                        best, column, cut = gains[j], own, 0 if levels else code
    return best - nothing, column, cut


@inlined_kernel
def _leads(gain: float, leading: np.ndarray) -> bool:
    """Whether it is one of the largest gains so far, which ``leading`` has in rising order, or as large; always if it
    has no room for any."""
    if len(leading) == 0:
        return True
    if gain < leading[0]:
        return False
    at = 0
    while at + 1 < len(leading) and leading[at + 1] < gain:
        leading[at] = leading[at + 1]
        at += 1
    leading[at] = gain
    return True


@inlined_kernel
def _wait(waiting: np.ndarray, at: int, node: int, level: int, start: int, end: int, table: int) -> None:
    waiting[at, 0], waiting[at, 1], waiting[at, 2], waiting[at, 3], waiting[at, 4] = node, level, start, end, table


@inlined_kernel
def _part(line: np.ndarray, cut: int, order: np.ndarray, start: int, end: int, spare: np.ndarray) -> int:
    """Put rows up to a cut before those beyond it, both in their order; where these begin. No row is guessed at."""
    middle, others = start, start
    for i in range(start, end):
        r = order[i]
        order[middle] = spare[others] = r
        beyond = line[r] > cut
        others += beyond
        middle += 1 - beyond
    for i in range(middle, end):
        order[i] = spare[start + i - middle]
    return middle


@inlined_kernel
def _take_off(tables: np.ndarray, of: int, other: int) -> None:
    """One histogram off another, or off itself, which makes it empty."""
    for k in range(tables.shape[1]):
        for at in range(tables.shape[2]):
            tables[other, k, at] -= tables[of, k, at]


@kernel
def split(line: np.ndarray, cut: int, many: int, order: np.ndarray, spare: np.ndarray, starts: np.ndarray) -> None:
    """Part the rows of each of ``many`` cells of a symmetric tree, which are ``order[starts[i]:starts[i + 1]]``."""
    starts[2 * many] = starts[many]
    for cell in range(many - 1, -1, -1):
        start, end = starts[cell], starts[2 * cell + 2]
        starts[2 * cell + 1] = _part(line, cut, order, start, end, spare)
        starts[2 * cell] = start


@kernel
def add_gains(
    codes: np.ndarray, lines: np.ndarray, widths: np.ndarray, columns: np.ndarray, singles: np.ndarray,
    order: np.ndarray, starts: np.ndarray, many: int, words: np.ndarray, ridge: float, least: int, gains: np.ndarray,
    table: np.ndarray, sides: np.ndarray, each: np.ndarray, whole: np.ndarray,
) -> None:  # fmt: skip
    """What each cut of some lines would explain of the gradients: ``gains[column, cut]`` grows by the sum over ``many``
    cells and both sides of the cut. ``words`` are of the rows in this order."""
    for line in lines:
        width, column = widths[line], columns[line]
        for cell in range(many):
            for code in range(width):
                table[code] = 0
            for i in range(starts[cell], starts[cell + 1]):
                table[codes[column, order[i]]] += words[i]
            whole[0] = 0
            for code in range(width):
                whole[0] += table[code]
                sides[0, code] = whole[0]
            if whole[0] == 0:
                continue
            for levels in range(2 if singles[line, 1] >= 0 else 1):
                if levels:
                    _rest(sides, width, whole)
                _gains(sides, width, whole, ridge, least, each)
                if not levels:
                    for code in range(width - 1):
                        gains[column, code] += each[code]
                    continue
                for code in range(width):
                    if singles[line, code] >= 0:
                        gains[singles[line, code], 0] += each[code]


@kernel
def grow_below(
    node: int, level: int, stop: int, last: bool, start: int, end: int, codes: np.ndarray, every: np.ndarray,
    lines: np.ndarray, offsets: np.ndarray, columns: np.ndarray, singles: np.ndarray, words: np.ndarray,
    order: np.ndarray, spare: np.ndarray, ridge: float, least: int, fewest: int, few: int, tables: np.ndarray,
    found: np.ndarray, gains: np.ndarray, narrow: np.ndarray, leading: np.ndarray, ends: np.ndarray,
    waiting: np.ndarray, free: np.ndarray, marks: np.ndarray, one: np.ndarray, bins: np.ndarray, sides: np.ndarray,
    each: np.ndarray, whole: np.ndarray,
) -> None:  # fmt: skip
    """The cuts (column, cut) of a node and of those below it, above depth ``stop``. Its rows are ``order[start:end]``,
    which are parted on the way, and ``tables[0]`` is its histogram, if it has more than a ``few`` rows. If this depth
    is not the ``last``, nodes there leave in ``ends`` where their rows and their histograms are. ``every`` has columns
    by rows; fewer rows than ``fewest`` are not parted. A tree of few leaves keeps the nodes whose path gains most at
    its narrowest, which is ``narrow`` of each node: below a node that falls behind all of ``leading``, nothing is
    grown."""
    spares, pending, at = len(tables) - 1, 0, 0
    for i in range(len(tables)):
        free[i] = spares - i
    _wait(waiting, pending, node, level, start, end, at)
    pending += 1
    while pending:
        pending -= 1
        node, level, start = waiting[pending, 0], waiting[pending, 1], waiting[pending, 2]
        end, at = waiting[pending, 3], waiting[pending, 4]
        full = end - start > few
        if level == stop:
            ends[node, 0], ends[node, 1], ends[node, 2] = start, end, at
            continue
        if full:
            free[spares], spares = at, spares + 1
        gain, column, cut = _best_cut(
            codes, lines, offsets, columns, singles, words, order, start, end, full, tables[at], ridge, least, marks,
            one, bins, sides, each, whole,
        )  # fmt: skip
        if column < 0:
            continue
        found[node, 0], found[node, 1], gains[node] = column, cut, gain
        narrow[node] = min(gain, narrow[(node - 1) // 2]) if node else gain
        if not _leads(narrow[node], leading) or (last and level + 1 == stop):
            continue
        middle = _part(every[column], cut, order, start, end, spare)
        fewer = middle - start < end - middle
        larger = max(middle - start, end - middle)
        small = large = at
        if larger > few:
            spares -= 1
            add = end - start - larger > few
            if add:
                spares -= 1
                small = free[spares]
                _take_off(tables, small, small)
            part = order[start:middle] if fewer else order[middle:end]
            count_rows(codes, lines, offsets, part, words, 1 if add else -1, tables[small])
            if add:
                _take_off(tables, small, large)
        for place in range(2):  # the larger side is grown first: it gains more
            side = place if fewer else 1 - place
            first, after = (middle, end) if side else (start, middle)
            if after - first >= fewest:
                _wait(waiting, pending, 2 * node + 1 + side, level + 1, first, after, large if fewer == side else small)
                pending += 1
