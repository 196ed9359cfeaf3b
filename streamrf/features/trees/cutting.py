"""Where one tree cuts: on a random part of the rows, and of the columns where there are many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamrf.features.trees.cuts import add_gains, count_rows, grow_below, split
from streamrf.features.trees.forest import Cells, best_nodes, cells_of_heap
from streamrf.features.trees.growth import MOST_ROWS, bits_for, pack
from streamrf.features.trees.lines import CODES, Lines
from streamrf.features.trees.scores import CLASSES, RIDGE, SQUARES, Rows
from streamrf.support.threads import ALONE, Threads

ROW_SHARE = 0.8  # that a tree is grown on
ROWS_A_SYMMETRIC_TREE = 1 << 16  # at most: each of its cuts is made by all of them
LINES_A_TREE = 40  # at least, of which it chooses
DEPTHS = {SQUARES: (4, 10, 30), CLASSES: (4, 8, 100)}  # least and most, and rows for each leaf: classes are noisier
FREE_DEPTH = 12  # of trees whose nodes have cuts of their own
LEAST = {SQUARES: 5, CLASSES: 20}  # rows of their leaves, at least
SMALL_WORK = 1 << 17  # rows times lines: so little is done sooner by one thread than it is handed to several
FEW = 0.3  # of a line's bins: nodes of fewer rows have no table of all of them
TOP = 2  # depth from which on the parts of a tree are grown by threads of their own
MIXTURES = 4  # of outputs that choose the cells, where there are more outputs


def depth_for(rows: int, loss: str) -> int:
    """Of symmetric trees: leaves for about so many rows each."""
    least, most, each = DEPTHS[loss]
    return int(np.clip(np.rint(np.log2(max(rows, 1) / each)), least, most))


def lines_a_tree(lines: int) -> int:
    return min(lines, max(LINES_A_TREE, lines // 3))


def table_bytes(lines: int, outputs: int, threads: int) -> int:
    """Of all histograms that are alive at once: those of the top of a tree, and of the parts that threads grow."""
    each = 8 * CODES * lines_a_tree(lines) * min(outputs, MIXTURES)
    return each * (TOP + 2 + (1 << TOP) + (FREE_DEPTH - TOP + 2) * min(threads, 1 << TOP))


@dataclass(frozen=True, eq=False)
class Packed:
    """Drawn rows, lines that a tree may cut, and words (k, n) of all rows: their gradients, and what they count for."""

    drawn: np.ndarray
    lines: np.ndarray
    words: np.ndarray
    units: int  # that a drawn row counts for on average


class Cutting:
    """Chooses the cells of trees for some rows."""

    def __init__(self, rows: Rows, lines: Lines, loss: str, rng: np.random.Generator, threads: Threads) -> None:
        self.rows, self.lines, self.loss, self.rng = rows, lines, loss, rng
        self.threads = ALONE if len(rows) * lines_a_tree(len(lines)) < SMALL_WORK else threads

    def symmetric(self, slopes: np.ndarray) -> Cells:
        """One cut at each depth, the best of all once those before it are made."""
        packed = self._packed(slopes, ROWS_A_SYMMETRIC_TREE)
        depth, chosen, cuts = depth_for(len(self.rows), self.loss), [], []
        order, spare, starts = packed.drawn.copy(), np.empty_like(packed.drawn), np.zeros((1 << depth) + 1, np.int64)
        starts[1] = len(order)
        nothing = self._no_gains(packed.lines)
        for level in range(depth):
            gains = nothing.copy()
            self._add_gains(packed, order, starts, 1 << level, gains)
            column, cut = divmod(int(gains.argmax()), gains.shape[1])
            split(self.rows.codes[column], cut, 1 << level, order, spare, starts)
            chosen.append(column)
            cuts.append(cut)
        return Cells(np.array(chosen, np.int32), np.array(cuts, np.int32))

    def free(self, slopes: np.ndarray, leaves: int) -> Cells:
        """A cut of its own in each node; of all of them those that gain most, for at most so many leaves."""
        packed = self._packed(slopes, MOST_ROWS)
        nodes = (1 << FREE_DEPTH) - 1
        found, gains = np.full((nodes, 2), -1, np.int32), np.zeros(nodes)
        self._grow(packed, found, gains, np.zeros(leaves - 1 if leaves <= nodes else 0))
        return cells_of_heap(found[:, 0], found[:, 1], best_nodes(found[:, 0], gains, leaves))

    def _packed(self, slopes: np.ndarray, most: int) -> Packed:
        count, outputs = slopes.shape
        drawn = np.flatnonzero(self.rng.random(count) < min(ROW_SHARE, most / count))[:most].astype(np.uint32)
        if outputs > MIXTURES:
            slopes = slopes @ self.rng.choice([-1.0, 1.0], (outputs, MIXTURES))
        units, bits = bits_for(len(drawn))
        counts, words = self._counts(drawn, units), np.empty(slopes.shape[::-1], np.int64)
        for column, word in zip(slopes.T, words, strict=True):
            largest = float(np.abs(column).max())
            pack(np.ascontiguousarray(column), counts, 2.0**bits / largest if largest > 0 else 0.0, word)
        return Packed(drawn, self._drawn_lines(), words, units)

    def _counts(self, drawn: np.ndarray, units: int) -> np.ndarray:
        """What each row counts for: all drawn rows together as much as if they were alike, so that sums fit a word
        however heavy one of them is."""
        weights = self.rows.weights
        mean = float(weights[drawn].sum()) / max(len(drawn), 1)
        if not mean > 0:
            return np.zeros(len(weights), np.int64)
        return np.rint(np.minimum(weights, mean * len(drawn)) * (units / mean)).astype(np.int64)

    def _drawn_lines(self) -> np.ndarray:
        total = len(self.lines)
        count = lines_a_tree(total)
        return np.arange(total) if count == total else np.sort(self.rng.permutation(total)[:count])

    def _parts(self, lines: np.ndarray) -> list[np.ndarray]:
        """Lines for each thread, of all widths."""
        order = lines[np.argsort(-self.lines.widths[lines], kind="stable")]
        return [order[first :: self.threads.count] for first in range(min(self.threads.count, len(order)))]

    def _no_gains(self, drawn: np.ndarray) -> np.ndarray:
        """(columns, cuts): zero, and negative where there is no such cut in the lines drawn."""
        lines = self.lines
        gains = np.full((len(self.rows.codes), int(lines.widths.max()) - 1), -1.0)
        for line in drawn:
            gains[lines.columns[line], : lines.widths[line] - 1] = 0
            gains[lines.singles[line][lines.singles[line] >= 0], 0] = 0
        return gains

    def _add_gains(
        self, packed: Packed, order: np.ndarray, starts: np.ndarray, many: int, gains: np.ndarray
    ) -> None:  # fmt: skip
        lines, words = self.lines, packed.words[:, order]

        def part(mine: np.ndarray) -> None:
            about = (lines.codes, mine, lines.widths, lines.columns, lines.singles, order, starts, many)
            table, _, sides, each, whole = _rooms_of_lines(1)
            for word in words:
                add_gains(*about, word, RIDGE * packed.units, 0, gains, table[0], sides, each, whole)

        self.threads.each(part, self._parts(packed.lines))

    def _grow(self, packed: Packed, found: np.ndarray, gains: np.ndarray, leading: np.ndarray) -> None:
        """The top by one thread, with the histogram of all rows made by all; then what is below it side by side."""
        lines, drawn, words = self.lines, packed.drawn, packed.words
        offsets = lines.offsets(packed.lines)
        shape, least, narrow = (len(words), int(offsets[-1])), LEAST[self.loss], np.empty_like(gains)
        few = max(2 * least - 1, int(FEW * offsets[-1]) // len(packed.lines))
        order, spare = drawn.copy(), np.empty_like(drawn)
        known = (
            lines.by_row, self.rows.codes, packed.lines, offsets, lines.columns, lines.singles, words, order, spare,
            RIDGE * packed.units, least * packed.units, 2 * least, few,
        )  # fmt: skip
        alone = self.threads.count == 1
        top, parts = (FREE_DEPTH, 0) if alone else (TOP, 1 << TOP)
        ends, root = np.zeros((2 << TOP, 3), np.int64), np.zeros((top + 2 + parts, *shape), np.int64)

        def count(places: np.ndarray) -> None:
            count_rows(lines.by_row, packed.lines[places], offsets[places], drawn, words, 1, root[0])

        self.threads.each(count, np.array_split(np.arange(len(packed.lines)), self.threads.count))
        grow_below(0, 0, top, alone, 0, len(drawn), *known, root, found, gains, narrow, leading, ends, *_rooms(root))

        def grow(node: int) -> None:
            start, end, table = ends[node]
            tables = np.empty((FREE_DEPTH - TOP + 2, *shape), np.int64)
            tables[0] = root[table]
            grow_below(
                node, TOP, FREE_DEPTH, True, start, end, *known, tables, found, gains, narrow, leading.copy(), ends,
                *_rooms(tables),
            )  # fmt: skip

        below = [node for node in range(parts - 1, 2 * parts - 1) if ends[node, 0] < ends[node, 1]]
        self.threads.each(grow, sorted(below, key=lambda node: ends[node, 0] - ends[node, 1]))


def _rooms(tables: np.ndarray) -> tuple[np.ndarray, ...]:
    """What the loop works with: nodes that wait, tables that are free, marks of bins, and what a line needs."""
    waiting, free = np.empty((len(tables), 5), np.int64), np.empty(len(tables), np.int64)
    return waiting, free, np.zeros(CODES // 64, np.uint64), *_rooms_of_lines(tables.shape[1])


def _rooms_of_lines(outputs: int) -> tuple[np.ndarray, ...]:
    """A table of one line, its bins, their sums, their gains, and sums of all rows."""
    table, sides = np.zeros((outputs, CODES), np.int64), np.empty((outputs, CODES), np.int64)
    return table, np.empty(CODES, np.uint32), sides, np.empty(CODES), np.empty(outputs, np.int64)
