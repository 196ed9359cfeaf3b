"""Rows that trees learn from, and what the trees so far say of them: scores, their loss, and the next step downhill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamrf.features.trees.forest import Cells
from streamrf.features.trees.growth import leaf_sums, leaves, move, reach, to_probabilities
from streamrf.support.threads import Threads

SQUARES, CLASSES = "squares", "classes"  # what is minimised: squared errors, or the log loss of classes
RIDGE = 3.0  # rows of no difference that each cell has beside its own
PIECE = 1 << 15  # rows whose sums are made by one thread, whatever their number: sums do not depend on it
LEAST_PART = 1 << 13  # rows that are worth another thread


@dataclass(frozen=True)
class Rows:
    """Coded inputs (d, n), targets (n, k), and what each row counts for."""

    codes: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)

    def and_(self, *others: Rows) -> Rows:
        """All of them, one after the other."""
        parts = (self, *others)
        return Rows(
            np.concatenate([part.codes for part in parts], axis=1), np.concatenate([part.targets for part in parts]),
            np.concatenate([part.weights for part in parts]),
        )  # fmt: skip


def in_units(targets: np.ndarray, loss: str) -> tuple[np.ndarray, np.ndarray]:
    """Coded targets (n, k) as trees learn them, and what each output is counted in: numbers count alike, whatever their
    units, and classes are 0 or 1."""
    if loss == CLASSES:
        return (targets > 0).astype(np.float64), np.ones(targets.shape[1])
    spread = targets.std(axis=0)
    unit = np.where(spread > 0, spread, 1.0)
    return targets / unit, unit


def first_scores(rows: Rows, loss: str) -> np.ndarray:
    """Of all rows, before the first tree."""
    mean = rows.weights @ rows.targets / max(rows.weights.sum(), np.finfo(np.float64).tiny)
    if loss == SQUARES:
        return mean
    mean = np.clip(mean, 1e-9, 1 - 1e-9)
    return np.log(mean / (1 - mean)) if len(mean) == 1 else np.log(mean)


class Scores:
    """The scores of all rows so far; those to fit come first."""

    def __init__(self, loss: str, rate: float, rows: Rows, start: np.ndarray, threads: Threads) -> None:
        self.of, self.rate, self.rows, self.threads = loss, rate, rows, threads
        self.scores = np.tile(start, (len(rows), 1))
        self.leaf = np.empty(len(rows), np.uint16)
        self.probabilities, self.slopes = np.empty_like(self.scores), np.empty_like(self.scores)
        self.curves = np.repeat(rows.weights[:, None], self.scores.shape[1], axis=1)

    def _pieces(self, count: int) -> list[tuple[int, int]]:
        """Of rows that are summed."""
        return [(first, min(first + PIECE, count)) for first in range(0, count, PIECE)]

    def _parts(self, count: int) -> list[tuple[int, int]]:
        """Of rows that have nothing to do with one another: of one size, for all threads."""
        hands = min(self.threads.count, -(-count // LEAST_PART))
        step = max(1, -(-count // max(hands, 1)))
        return [(first, min(first + step, count)) for first in range(0, count, step)]

    def _expected(self, start: int, stop: int) -> np.ndarray:
        if self.of == SQUARES:
            return self.scores[start:stop]
        scores, found = self.scores[start:stop], self.probabilities[start:stop]
        parts = [slice(*part) for part in self._parts(len(found))]
        self.threads.each(lambda part: to_probabilities(scores[part], found[part].reshape(-1)), parts)
        return found

    def derivatives(self, fitted: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the loss of the rows to fit: downhill, and how it curves. Good until the next ones."""
        expected, weights = self._expected(0, fitted), self.rows.weights[:fitted, None]
        slopes, curves = self.slopes[:fitted], self.curves[:fitted]
        np.subtract(self.rows.targets[:fitted], expected, out=slopes)
        slopes *= weights
        if self.of != SQUARES:
            np.subtract(1, expected, out=curves)
            curves *= expected
            np.maximum(curves, 1e-6, out=curves)
            curves *= weights
        return slopes, curves

    def step(self, cells: Cells, slopes: np.ndarray, curves: np.ndarray) -> np.ndarray:
        """The values of one more tree, which all scores move by."""
        count, parts, leaf, codes = len(slopes), self._parts(len(self.rows)), self.leaf, self.rows.codes
        if cells.children is None:
            self.threads.each(lambda part: leaves(codes, cells.columns, cells.cuts, *part, leaf), parts)
        else:
            steps = cells.steps
            self.threads.each(lambda part: reach(codes, steps, *part, leaf), parts)
        fitted = self._pieces(count)
        sums = np.zeros((len(fitted), cells.leaves, 2, slopes.shape[1]))
        self.threads.each(lambda i: leaf_sums(leaf, slopes, curves, *fitted[i], sums[i]), range(len(fitted)))
        total = sums.sum(axis=0)
        ridge = RIDGE * (1.0 if self.of == SQUARES else 0.25)
        values = self.rate * total[:, 0] / (total[:, 1] + ridge)
        self.threads.each(lambda part: move(leaf, values, *part, self.scores), parts)
        return values

    def loss(self, fitted: int) -> float:
        """Loss of the rows after those to fit."""
        expected, truth = self._expected(fitted, len(self.rows)), self.rows.targets[fitted:]
        weights = self.rows.weights[fitted:]
        if self.of == SQUARES:
            return float(weights @ ((truth - expected) ** 2).mean(axis=1))
        if truth.shape[1] == 1:
            right = np.where(truth > 0.5, expected, 1 - expected)[:, 0]
        else:
            right = (expected * truth).sum(axis=1)
        return float(-(weights @ np.log(np.maximum(right, 1e-15))))
