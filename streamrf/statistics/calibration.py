"""From scores to probabilities, on rows that the weights have not seen.

Three families, each within the next: one temperature for all classes, a shift for each class beside it, and a full
matrix of slopes that is shrunk towards the second. Folds of these rows choose among them by log loss. What predicts
more of the rows wrongly than the largest score does is left out, so calibration never costs accuracy there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from streamrf.statistics.scores import Calibration, two_sided

FOLDS = 3
FEWEST_ROWS = 30  # for folds
LEAST_SHRINKAGE = 1e-4
SHRINKAGES = (1e-1, 1e-2, 1e-3, LEAST_SHRINKAGE)  # of a full matrix
MOST_PRODUCTS = 2e8  # of scores and slopes, for the rows that choose
STEPS = 200
SCALE, SHIFTS, MATRIX = range(3)


class Family(NamedTuple):
    kind: int
    shrinkage: float = LEAST_SHRINKAGE


@dataclass(frozen=True)
class Scored:
    """Scores (n, outputs), class positions (n,) and shares of the whole (n,) of rows."""

    scores: np.ndarray
    codes: np.ndarray
    share: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, codes: np.ndarray, weights: np.ndarray | None) -> Scored:
        weights = np.ones(len(codes)) if weights is None else weights
        return cls(scores, codes, weights / max(weights.sum(), np.finfo(np.float64).tiny))

    def take(self, rows: np.ndarray) -> Scored:
        return Scored.of(self.scores[rows], self.codes[rows], self.share[rows])

    def log_loss(self, calibration: Calibration) -> float:
        logits = calibration.logits(self.scores)
        return float(-log_softmax(logits, axis=1)[np.arange(len(self.codes)), self.codes] @ self.share)

    def error(self, calibration: Calibration) -> float:
        return float((calibration.logits(self.scores).argmax(axis=1) != self.codes) @ self.share)


def fit_calibration(scores: np.ndarray, codes: np.ndarray, weights: np.ndarray | None = None) -> Calibration:
    """Of these rows; ``weights`` are what each counts for."""
    rows = Scored.of(scores, codes, weights)
    best, found = _chosen(rows), Calibration.plain(scores.shape[1])
    for family in _families(scores):
        if family.kind < best.kind or family == best:
            found = _fitted(rows, found, family)
    return found


def _families(scores: np.ndarray) -> list[Family]:
    """From the stiffest on. Two classes have one score, of which a scale and a shift are all there is."""
    n, outputs = scores.shape
    full = [Family(MATRIX, shrinkage) for shrinkage in SHRINKAGES] if 1 < outputs <= np.sqrt(n) else []
    return [Family(SCALE), Family(SHIFTS), *full]


def _chosen(rows: Scored) -> Family:
    """The family of the least log loss on rows that it was not fitted to."""
    n, outputs = rows.scores.shape
    families = _families(rows.scores)
    if n < FEWEST_ROWS:
        return families[0]
    order = np.random.default_rng(0).permutation(n)[: max(FEWEST_ROWS, int(MOST_PRODUCTS / outputs**2))]
    parts = [(rows.take(np.setdiff1d(order, order[i::FOLDS])), rows.take(order[i::FOLDS])) for i in range(FOLDS)]
    plain = np.mean([unseen.error(Calibration.plain(outputs)) for _, unseen in parts])
    best, least = families[0], np.inf
    for family, loss, error in _judged(parts, families):
        if error <= plain and loss < least:
            best, least = family, loss
        elif family.kind == MATRIX and loss > least:  # less shrinkage will not help either
            break
    return best


def _judged(parts: list[tuple[Scored, Scored]], families: list[Family]) -> Iterator[tuple[Family, float, float]]:
    """Each family with its log loss and its share of wrong classes; one leads to the next."""
    outputs = parts[0][0].scores.shape[1]
    below = [Calibration.plain(outputs)] * len(parts)
    for family in families:
        found = [_fitted(seen, start, family) for (seen, _), start in zip(parts, below, strict=True)]
        judged = [(unseen.log_loss(one), unseen.error(one)) for (_, unseen), one in zip(parts, found, strict=True)]
        loss, error = np.mean(judged, axis=0)
        yield family, float(loss), float(error)
        below = found if family.kind < MATRIX else below


def _fitted(rows: Scored, start: Calibration, family: Family) -> Calibration:
    """The maximum likelihood within a family, shrunk towards ``start``."""
    n, outputs = rows.scores.shape
    first, numbers = _packed(start, family.kind), np.arange(n)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        calibration = _unpacked(theta, family.kind, outputs)
        logits = two_sided(rows.scores @ calibration.slope + calibration.shift)
        residual = softmax(logits, axis=1)
        residual[numbers, rows.codes] -= 1.0
        residual = residual[:, -outputs:] * rows.share[:, None]
        gap, shifts = theta - first, residual.sum(axis=0)
        if family.kind == MATRIX:
            gradient = np.concatenate([(rows.scores.T @ residual).ravel(), shifts])
        else:
            gradient = np.concatenate([[(rows.scores * residual).sum()], shifts])[: len(theta)]
        value = -log_softmax(logits, axis=1)[numbers, rows.codes] @ rows.share + family.shrinkage * gap @ gap
        return float(value), gradient + 2 * family.shrinkage * gap

    found = minimize(loss, first, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x
    if family.kind == MATRIX or found[0] > 0:
        return _unpacked(found, family.kind, outputs)
    return start  # scores that mean the opposite: a scale must not turn them round


def _packed(calibration: Calibration, kind: int) -> np.ndarray:
    if kind == MATRIX:
        return np.concatenate([calibration.slope.ravel(), calibration.shift])
    return np.concatenate([calibration.slope[:1, 0], calibration.shift])[: 1 if kind == SCALE else None]


def _unpacked(theta: np.ndarray, kind: int, outputs: int) -> Calibration:
    if kind == MATRIX:
        return Calibration(theta[:-outputs].reshape(outputs, outputs), theta[-outputs:])
    return Calibration(theta[0] * np.eye(outputs), np.zeros(outputs) if kind == SCALE else theta[1:])
