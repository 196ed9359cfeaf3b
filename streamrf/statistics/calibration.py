"""From scores to probabilities, on rows that the weights have not seen.

Three families, each within the next: one temperature for all classes, a shift for each class beside it, and a full
matrix of slopes that is shrunk towards the second. The first two are fitted in units of the scores' own spread: scores
of a rare class lie close together, and need steep slopes. Folds of these rows choose among the families by log loss,
and before that how much scores are bent.

What predicts clearly more of the rows wrongly than the largest score does is left out: calibration is not to cost
accuracy. Less than a standard error is not clear: of a rare class one row may decide, and a shift is what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy

from streamrf.statistics.scores import Calibration, bent, two_sided

FOLDS = 3
FEWEST_ROWS = 30  # for folds
BENDS, FEWEST_TO_BEND, LEAST_GAIN = (0.0, 0.3, 1.0, 3.0), 300, 0.003
LEAST_SHRINKAGE = 1e-4
UNIT_SHRINKAGE = 1e-6  # of scales and shifts, in units of the spread: classes that scores tell apart have finite ones
SHRINKAGES = (1e-1, 1e-2, 1e-3, LEAST_SHRINKAGE)  # of a full matrix
MOST_PRODUCTS = 2e8  # of scores and slopes, for the rows that choose
STEPS = 200
SCALE, SHIFTS, MATRIX = range(3)


class Family(NamedTuple):
    kind: int
    shrinkage: float = UNIT_SHRINKAGE


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
        return float(-scipy.special.log_softmax(logits, axis=1)[np.arange(len(self.codes)), self.codes] @ self.share)

    def excess(self, calibration: Calibration) -> tuple[float, float]:
        """The share of rows predicted wrongly beyond that of the largest score, and the variance of this."""
        plain = Calibration.plain(self.scores.shape[1])
        now, before = (one.logits(self.scores).argmax(axis=1) != self.codes for one in (calibration, plain))
        return float((1.0 * now - before) @ self.share), float((now != before) @ self.share**2)


def fit_calibration(scores: np.ndarray, codes: np.ndarray, weights: np.ndarray | None = None) -> Calibration:
    """Of these rows; ``weights`` are what each counts for."""
    rows = Scored.of(scores, codes, weights)
    bend = _best_bend(rows)
    rows = replace(rows, scores=bent(scores, bend))
    best, found = _chosen(rows), Calibration.plain(scores.shape[1])
    for family in _families(scores):
        if family.kind < best.kind or family == best:
            found = _fitted(rows, found, family)
    return replace(found, bend=bend)


def _best_bend(rows: Scored) -> float:
    """By the log loss of folds with a scale and shifts; none, unless it is clearly better."""
    if len(rows.codes) < FEWEST_TO_BEND:
        return 0.0
    losses = {}
    for bend in BENDS:
        moved = replace(rows, scores=bent(rows.scores, bend))
        *_, (_, losses[bend], _) = _judged(_folds(moved), [Family(SCALE), Family(SHIFTS)])
    best = min(losses, key=lambda bend: losses[bend])
    return best if losses[best] < losses[0.0] * (1 - LEAST_GAIN) else 0.0


def _families(scores: np.ndarray) -> list[Family]:
    """From the stiffest on. Two classes have one score, of which a scale and a shift are all there is."""
    n, outputs = scores.shape
    full = [Family(MATRIX, shrinkage) for shrinkage in SHRINKAGES] if 1 < outputs <= np.sqrt(n) else []
    return [Family(SCALE), Family(SHIFTS), *full]


def _chosen(rows: Scored) -> Family:
    """The family of the least log loss on rows that it was not fitted to."""
    families = _families(rows.scores)
    if len(rows.codes) < FEWEST_ROWS:
        return families[0]
    best, least = families[0], np.inf
    for family, loss, sound in _judged(_folds(rows), families):
        if sound and loss < least:
            best, least = family, loss
        elif family.kind == MATRIX and loss > least:  # less shrinkage will not help either
            break
    return best


def _folds(rows: Scored) -> list[tuple[Scored, Scored]]:
    """Rows to fit and rows to judge, three times."""
    n, outputs = rows.scores.shape
    order = np.random.default_rng(0).permutation(n)[: max(FEWEST_ROWS, int(MOST_PRODUCTS / outputs**2))]
    return [(rows.take(np.setdiff1d(order, order[i::FOLDS])), rows.take(order[i::FOLDS])) for i in range(FOLDS)]


def _judged(parts: list[tuple[Scored, Scored]], families: list[Family]) -> Iterator[tuple[Family, float, bool]]:
    """Each family with its log loss, and whether it costs no accuracy; one leads to the next."""
    outputs = parts[0][0].scores.shape[1]
    below = [Calibration.plain(outputs)] * len(parts)
    for family in families:
        found = [_fitted(seen, start, family) for (seen, _), start in zip(parts, below, strict=True)]
        judged = [(unseen.log_loss(one), *unseen.excess(one)) for (_, unseen), one in zip(parts, found, strict=True)]
        loss, excess, variance = np.mean(judged, axis=0)
        yield family, float(loss), bool(excess <= np.sqrt(variance / len(parts)))
        below = found if family.kind < MATRIX else below


@dataclass(frozen=True)
class Units:
    """What scores are measured in: (outputs,) their middles, and one spread for all."""

    middle: np.ndarray
    spread: float

    @classmethod
    def of(cls, rows: Scored, kind: int) -> Units:
        """A scale alone must not move scores; a matrix is shrunk towards slopes that are fitted already."""
        outputs = rows.scores.shape[1]
        if kind == MATRIX:
            return cls(np.zeros(outputs), 1.0)
        mean = rows.share @ rows.scores
        spread = float(np.sqrt((rows.share @ (rows.scores - mean) ** 2).mean()))
        return cls(mean if kind == SHIFTS else np.zeros(outputs), spread if spread > 0 else 1.0)

    def scaled(self, rows: Scored) -> Scored:
        return Scored((rows.scores - self.middle) / self.spread, rows.codes, rows.share)

    def inside(self, outer: Calibration) -> Calibration:
        """Of scaled scores, to the same logits."""
        return Calibration(outer.slope * self.spread, outer.shift + self.middle @ outer.slope)

    def outside(self, inner: Calibration) -> Calibration:
        slope = inner.slope / self.spread
        return Calibration(slope, inner.shift - self.middle @ slope)


def _fitted(rows: Scored, start: Calibration, family: Family) -> Calibration:
    """The maximum likelihood within a family, shrunk towards ``start``."""
    units = Units.of(rows, family.kind)
    found = _likeliest(units.scaled(rows), units.inside(start), family)
    return start if found is None else units.outside(found)


def _likeliest(rows: Scored, start: Calibration, family: Family) -> Calibration | None:
    """None for scores that mean the opposite: a scale must not turn them round."""
    n, outputs = rows.scores.shape
    first, numbers = _packed(start, family.kind), np.arange(n)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        calibration = _unpacked(theta, family.kind, outputs)
        logits = two_sided(rows.scores @ calibration.slope + calibration.shift)
        residual = scipy.special.softmax(logits, axis=1)
        residual[numbers, rows.codes] -= 1.0
        residual = residual[:, -outputs:] * rows.share[:, None]
        gap, shifts = theta - first, residual.sum(axis=0)
        if family.kind == MATRIX:
            gradient = np.concatenate([(rows.scores.T @ residual).ravel(), shifts])
        else:
            gradient = np.concatenate([[(rows.scores * residual).sum()], shifts])[: len(theta)]
        likelihoods = scipy.special.log_softmax(logits, axis=1)[numbers, rows.codes]
        value = -likelihoods @ rows.share + family.shrinkage * gap @ gap
        return float(value), gradient + 2 * family.shrinkage * gap

    found = scipy.optimize.minimize(loss, first, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x
    return _unpacked(found, family.kind, outputs) if family.kind == MATRIX or found[0] > 0 else None


def _packed(calibration: Calibration, kind: int) -> np.ndarray:
    if kind == MATRIX:
        return np.concatenate([calibration.slope.ravel(), calibration.shift])
    return np.concatenate([calibration.slope[:1, 0], calibration.shift])[: 1 if kind == SCALE else None]


def _unpacked(theta: np.ndarray, kind: int, outputs: int) -> Calibration:
    if kind == MATRIX:
        return Calibration(theta[:-outputs].reshape(outputs, outputs), theta[-outputs:])
    return Calibration(theta[0] * np.eye(outputs), np.zeros(outputs) if kind == SCALE else theta[1:])
