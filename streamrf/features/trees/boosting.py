"""Boosting: each tree is grown on what the trees before it leave, and moves the scores a small step towards it.

Cells are chosen by a random part of rows and columns, values by all rows. Rows that are not fitted say when to stop,
and before that, in trials, what kind of trees to grow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamrf.features.trees.cutting import FREE_DEPTH, LEAST, MIXTURES, ROW_SHARE, Cutting, depth_for, lines_a_tree
from streamrf.features.trees.forest import Forest
from streamrf.features.trees.levels import Levels
from streamrf.features.trees.lines import Lines
from streamrf.features.trees.scores import Rows, Scores, first_scores
from streamrf.support.threads import Threads

RATE = 0.1  # of each step towards the mean of what is left, at most
LEAST_RATE, STEPS = 0.03, 400  # where that many trees are enough
HASTE = 0.3  # the same where trees are only tried
PATIENCE = 30  # trees that bring nothing before no more are grown, at the largest rate
MOST_TREES, LEAST_TREES, WORK = 1500, 100, 2e10  # look-ups of all of them
MANY_ROWS = 100_000  # from which on there may be more look-ups, as the square root of the rows
LOOKS = 4  # that a tree takes for each row and line: the smaller half of the rows at most depths
TRIED = 80  # trees of a trial
TRIED_PATIENCE = 15
MOST_VALUES = 3_000_000  # of the leaves of all trees, for all outputs
STREAM = 0x7E  # of random numbers


@dataclass(frozen=True)
class Style:
    """Trees with cuts of their own in each node have at most so many leaves; every second tree may be symmetric."""

    leaves: int
    mixed: bool = False


MIXED = Style(64, mixed=True)
STYLES = (MIXED, Style(256), Style(1 << FREE_DEPTH))


def tree_work(rows: int, lines: int, outputs: int) -> float:
    """Look-ups that one tree takes."""
    return max(1.0, ROW_SHARE * rows * min(outputs, MIXTURES) * lines_a_tree(lines) * LOOKS)


def most_trees(rows: int, lines: int, outputs: int) -> int:
    """That will be grown; unseen rows may stop earlier."""
    work = WORK * max(1.0, rows / MANY_ROWS) ** 0.5
    return int(np.clip(work / tree_work(rows, lines, outputs), LEAST_TREES, MOST_TREES))


def most_leaves(rows: int, outputs: int, loss: str, values: int = MOST_VALUES) -> int:
    """Of all trees, where so many values are allowed for, which the last tree may exceed."""
    of_one = max(1 << depth_for(rows, loss), min(1 << FREE_DEPTH, rows // LEAST[loss]))
    return min(MOST_TREES * of_one, values // outputs + of_one)


class Boosting:
    """The trees of one run. ``cuts`` says how many cut points each column has."""

    def __init__(
        self, loss: str, cuts: np.ndarray, seed: int, threads: Threads, rate: float = RATE, *,
        levels: Levels | None = None, style: Style = MIXED, values: int = MOST_VALUES,
    ) -> None:  # fmt: skip
        self.loss, self.cuts, self.threads, self.rate, self.style = loss, cuts, threads, rate, style
        self.levels, self.values = Levels.none(len(cuts)) if levels is None else levels, values
        self.rng = np.random.default_rng([seed, STREAM])
        self.patience = round(PATIENCE * RATE / rate) if rate < RATE else PATIENCE

    def grow(
        self, rows: Rows, unseen: Rows | None, most: int, told: Callable[[float], None] = lambda share: None
    ) -> Forest:
        """As many trees as unseen rows like, or ``most``."""
        forest = Forest(first_scores(rows, self.loss))
        both = rows if unseen is None else rows.and_(unseen)
        state = Scores(self.loss, self.rate, both, forest.start, self.threads)
        cutting = Cutting(rows, Lines.of(rows.codes, self.cuts, self.levels), self.loss, self.rng, self.threads)
        self.filled = False  # whether any tree has as many leaves as it may
        best, least = 0, np.inf if unseen is None else state.loss(len(rows))
        room = self.values // len(forest.start)
        while len(forest) < most and len(cutting.lines) and room > 0:
            slopes, curves = state.derivatives(len(rows))
            symmetric = self.style.mixed and len(forest) % 2 == 1
            forest.cells.append(cutting.symmetric(slopes) if symmetric else cutting.free(slopes, self.style.leaves))
            forest.values.append(state.step(forest.cells[-1], slopes, curves))
            room -= forest.cells[-1].leaves
            self.filled |= not symmetric and forest.cells[-1].leaves >= self.style.leaves
            told(len(forest) / most)
            if unseen is None:
                best = len(forest)
                continue
            now = state.loss(len(rows))
            if now < least:
                best, least = len(forest), now
            elif len(forest) - best >= self.patience:
                break
        self.least = least
        return forest.first(best)

    def lines(self, rows: Rows) -> int:
        """That histograms are made of."""
        return len(Lines.of(rows.codes, self.cuts, self.levels))

    def refitted(self, forest: Forest, rows: Rows) -> Forest:
        """The same cells, with values of these rows: tree after tree, as they were grown."""
        start = first_scores(rows, self.loss)
        state, values = Scores(self.loss, self.rate, rows, start, self.threads), []
        for cells in forest.cells:
            values.append(state.step(cells, *state.derivatives(len(rows))))
        return Forest(start, forest.cells, values)


def settled(
    loss: str, cuts: np.ndarray, seed: int, threads: Threads, levels: Levels, rows: Rows, unseen: Rows,
    values: int = MOST_VALUES,
) -> Boosting:  # fmt: skip
    """With the style that unseen rows like best after a few trees in haste, and a rate by how many they took."""
    found = []
    for style in STYLES:
        trial = Boosting(loss, cuts, seed, threads, HASTE, levels=levels, style=style, values=values)
        trial.patience = TRIED_PATIENCE
        forest = trial.grow(rows, unseen, TRIED)
        found.append((trial.least, len(forest), style))
        if not (style.mixed or trial.filled):
            break  # trees of more leaves would be the same
    _, count, style = min(found, key=lambda each: each[0])
    enough = count + TRIED_PATIENCE <= TRIED
    rate = float(np.clip(HASTE * count / STEPS, LEAST_RATE, RATE)) if enough else RATE
    return Boosting(loss, cuts, seed, threads, rate, levels=levels, style=style, values=values)
