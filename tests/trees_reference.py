"""Boosted trees in plain numpy, written to be read: every cut of every column is tried by summing rows."""

from __future__ import annotations

import numpy as np

from streamrf.features.trees import boosting as ours
from streamrf.features.trees.boosting import Style
from streamrf.features.trees.cutting import FREE_DEPTH, LEAST, ROW_SHARE, depth_for
from streamrf.features.trees.forest import Cells, Forest
from streamrf.features.trees.growth import GRADIENT_BITS, MOST_UNITS
from streamrf.features.trees.scores import CLASSES, RIDGE, Rows


def expected(scores: np.ndarray, loss: str) -> np.ndarray:
    """What scores stand for: numbers, or probabilities."""
    if loss != CLASSES:
        return scores
    if scores.shape[1] == 1:
        return 1 / (1 + np.exp(-scores))
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def mean_loss(scores: np.ndarray, rows: Rows, loss: str) -> float:
    """By what unseen rows say when to stop."""
    found = expected(scores, loss)
    if loss != CLASSES:
        return float((rows.weights * ((rows.targets - found) ** 2).mean(axis=1)).sum())
    if found.shape[1] == 1:
        found, truth = np.hstack([1 - found, found]), rows.targets[:, 0].astype(int)
    else:
        truth = rows.targets.argmax(axis=1)
    return float(-(rows.weights * np.log(found[np.arange(len(truth)), truth])).sum())


def first_scores(rows: Rows, loss: str) -> np.ndarray:
    mean = (rows.weights[:, None] * rows.targets).sum(axis=0) / rows.weights.sum()
    if loss != CLASSES:
        return mean
    return np.log(mean / (1 - mean)) if len(mean) == 1 else np.log(mean)


def derivatives(scores: np.ndarray, rows: Rows, loss: str) -> tuple[np.ndarray, np.ndarray]:
    p, w = expected(scores, loss), rows.weights[:, None]
    return (rows.targets - p) * w, (np.maximum(p * (1 - p), 1e-6) if loss == CLASSES else np.ones_like(p)) * w


def rounded(rows: Rows, slopes: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients in whole steps, and what rows count for in whole units: of few rows, as fine as can be."""
    steps = np.rint(slopes * (2.0**GRADIENT_BITS / np.abs(slopes).max(axis=0)))
    return steps, np.rint(rows.weights * (MOST_UNITS / rows.weights[drawn].mean()))


def explained(steps: np.ndarray, units: np.ndarray, side: np.ndarray) -> float:
    """Of the gradients of some rows, by their mean."""
    return float(sum(column[side].sum() ** 2 / (units[side].sum() + RIDGE * MOST_UNITS) for column in steps.T))


def all_cuts(cuts: np.ndarray) -> list[tuple[int, int]]:
    return [(column, cut) for column in range(len(cuts)) for cut in range(cuts[column])]


def symmetric(rows: Rows, slopes: np.ndarray, cuts: np.ndarray, drawn: np.ndarray, depth: int) -> Cells:
    """At each depth the first of the cuts that explain most of the rounded gradients, in all cells together."""
    steps, units = rounded(rows, slopes, drawn)
    cells, found = np.zeros(len(rows), int), []
    for level in range(depth):
        gains = {}
        for column, cut in all_cuts(cuts):
            beyond, gain = rows.codes[column] > cut, 0.0
            for k in range(slopes.shape[1]):
                for cell in range(1 << level):
                    here = drawn & (cells == cell)
                    gain += sum(explained(steps[:, k : k + 1], units, here & side) for side in (~beyond, beyond))
            gains[column, cut] = gain
        column, cut = max(gains, key=lambda place: gains[place])  # the first of equals
        found.append((column, cut))
        cells = 2 * cells + (rows.codes[column] > cut)
    return Cells(*np.array(found).T)


def best_cut(rows: Rows, steps: np.ndarray, units: np.ndarray, cuts: np.ndarray, here: np.ndarray, least: int):
    """(gain, column, cut) of one node, or None: the first of those that gain most, with enough rows on either side, of
    which heavy ones count for several."""
    best = None
    if here.sum() < 2 * least:
        return None
    for column, cut in all_cuts(cuts):
        sides = [here & (rows.codes[column] <= cut), here & (rows.codes[column] > cut)]
        if min(units[side].sum() for side in sides) < least * MOST_UNITS:
            continue
        gain = sum(explained(steps, units, side) for side in sides) - explained(steps, units, here)
        if gain > (0 if best is None else best[0] * (1 + 1e-12)):
            best = (gain, column, cut)
    return best


def free(
    rows: Rows, slopes: np.ndarray, cuts: np.ndarray, drawn: np.ndarray, leaves: int, least: int
) -> list[tuple[str, int, int]]:
    """Cuts are made one by one, where they gain most, until there are enough leaves: (path, column, cut) of each, where
    a path is the sides that lead there."""
    steps, units = rounded(rows, slopes, drawn)
    waiting = {"": (drawn, best_cut(rows, steps, units, cuts, drawn, least))}
    made: list[tuple[str, int, int]] = []
    while len(made) + 1 < leaves:
        open_ = {path: best for path, (_, best) in waiting.items() if best is not None and len(path) < FREE_DEPTH}
        if not open_:
            break
        path = max(open_, key=lambda each: open_[each][0])
        here, (_, column, cut) = waiting.pop(path)
        made.append((path, column, cut))
        for side, beyond in (("0", rows.codes[column] <= cut), ("1", rows.codes[column] > cut)):
            part = here & beyond
            waiting[path + side] = (part, best_cut(rows, steps, units, cuts, part, least))
    return sorted(made, key=lambda cut: (len(cut[0]), cut[0]))


def as_cells(made: list[tuple[str, int, int]]) -> Cells:
    """Nodes by depth and from left to right, then leaves in the order in which nodes lead to them."""
    if not made:
        return Cells(np.array([0]), np.array([255]), np.array([[1, 2]]))
    number, children, leaf = {path: i for i, (path, _, _) in enumerate(made)}, [], len(made)
    for path, _, _ in made:
        for side in "01":
            if path + side not in number:
                number[path + side], leaf = leaf, leaf + 1
            children.append(number[path + side])
    columns, cuts = zip(*[cut[1:] for cut in made], strict=True)
    return Cells(np.array(columns), np.array(cuts), np.array(children).reshape(-1, 2))


def leaf_of(cells: Cells, codes: np.ndarray) -> np.ndarray:
    """The leaf of each row, by going from cut to cut."""
    found = []
    for row in codes.T:
        sides = row[cells.columns] > cells.cuts
        if cells.children is None:
            found.append(int("".join("01"[int(side)] for side in sides), 2))
            continue
        node = 0
        while node < len(cells.columns):
            node = int(cells.children[node, int(sides[node])])
        found.append(node - len(cells.columns))
    return np.array(found)


def leaf_values(rows: Rows, scores: np.ndarray, cells: Cells, loss: str) -> tuple[np.ndarray, np.ndarray]:
    """The leaf of each row, and a small step of Newton's method in each leaf."""
    leaf = leaf_of(cells, rows.codes)
    slopes, curves = derivatives(scores, rows, loss)
    ridge = RIDGE * (0.25 if loss == CLASSES else 1.0)
    values = [
        ours.RATE * slopes[leaf == i].sum(axis=0) / (curves[leaf == i].sum(axis=0) + ridge) for i in range(cells.leaves)
    ]
    return leaf, np.array(values)


def grow(rows: Rows, cuts: np.ndarray, loss: str, trees: int, seed: int, style: Style) -> Forest:
    """No more than 40 columns and four outputs, of which nothing is drawn."""
    rng, forest = np.random.default_rng([seed, ours.STREAM]), Forest(first_scores(rows, loss))
    scores = np.tile(forest.start, (len(rows), 1))
    for tree in range(trees):
        slopes, _ = derivatives(scores, rows, loss)
        drawn = rng.random(len(rows)) < ROW_SHARE
        if style.mixed and tree % 2 == 1:
            cells = symmetric(rows, slopes, cuts, drawn, depth_for(len(rows), loss))
        else:
            cells = as_cells(free(rows, slopes, cuts, drawn, style.leaves, LEAST[loss]))
        leaf, values = leaf_values(rows, scores, cells, loss)
        scores += values[leaf]
        forest.cells.append(cells)
        forest.values.append(values)
    return forest


def scores_of(forest: Forest, codes: np.ndarray) -> list[np.ndarray]:
    """Of rows as bytes: before the first tree, and after each."""
    found = [np.tile(forest.start, (codes.shape[1], 1))]
    for cells, values in zip(forest.cells, forest.values, strict=True):
        found.append(found[-1] + values[leaf_of(cells, codes)])
    return found
