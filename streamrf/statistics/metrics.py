"""Named figures from the sums that ``Scores`` gathers, and what a row of some weight counts for in them.

Counts are integers. A weight is counted in units of a power of two, 2^-30 of the heaviest, so a row of weight 2 counts
for exactly as much as two rows, and sums are the same in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from streamrf.support.exact_sum import to_float

Sums = dict[str, np.ndarray]

BINS = 2**18  # of scores, for the curves
CONFIDENCE_BINS = 15  # of the largest probability, for the calibration error
UNIT_BITS = 30  # a heaviest row counts for 2^30 or more, which leaves room for 2^32 of them
SMALLEST_UNIT = -1074  # the exponent of the smallest float64


@dataclass(frozen=True)
class Unit:
    """What rows are counted in: one, or a share of the heaviest weight."""

    size: float = 1.0

    @classmethod
    def of(cls, heaviest: float) -> Unit:
        """For weights up to this one."""
        return cls(math.ldexp(1.0, max(math.frexp(heaviest)[1] - 1 - UNIT_BITS, SMALLEST_UNIT)))

    def counts(self, weights: np.ndarray) -> np.ndarray:
        """(n,) int64."""
        return np.rint(weights / self.size).astype(np.int64)


def bins_of(scores: np.ndarray) -> np.ndarray:
    """8e-6 wide at zero, 3e-5 at one and 1e-3 at ten. Nothing but divisions, which every machine rounds alike."""
    return ((scores / (1.0 + np.abs(scores)) + 1.0) * ((BINS - 1) / 2)).astype(np.int64)


def confidence_bins(top: np.ndarray) -> np.ndarray:
    """The bin of each row's largest probability."""
    return np.minimum((top * CONFIDENCE_BINS).astype(np.int64), CONFIDENCE_BINS - 1)


def or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def counted(sums: Sums, unit: Unit | None) -> dict[str, Any]:
    """How many rows there were, and what they weigh where they have weights."""
    rows: dict[str, Any] = {"rows": int(sums["rows"][0])}
    return rows if unit is None else {**rows, "weight": int(sums["weight"][0]) * unit.size}


def _total(sums: Sums, unit: Unit | None) -> float:
    return int(sums["weight"][0]) * (unit or Unit()).size


# -- numbers


def number_metrics(sums: Sums, unit: Unit | None) -> dict[str, Any]:
    n = _total(sums, unit)
    total = {name: np.array([to_float(row) for row in sums[name]]) for name in ("square", "absolute", "y", "yy")}
    mean = total["y"] / n
    variance = np.maximum(total["yy"] / n - mean**2, 0.0)
    mse = total["square"] / n
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(variance > 0, 1 - mse / variance, np.nan)
        relative = np.sqrt(total["square"].sum() / total["yy"].sum())
    metrics: dict[str, Any] = {
        **counted(sums, unit),
        "rmse": float(np.sqrt(mse.mean())),
        "mae": float((total["absolute"] / n).mean()),
        "r2": or_none(r2.mean()),
        "relative_error": or_none(relative),
        "baseline": {"mean": mean.tolist(), "rmse": float(np.sqrt(variance.mean()))},
    }
    if len(mse) > 1:
        metrics["rmse_by_output"] = np.sqrt(mse).tolist()
    return metrics


# -- classes


def class_metrics(sums: Sums, unit: Unit | None, classes: tuple[Any, ...]) -> dict[str, Any]:
    n, confusion = _total(sums, unit), sums["confusion"]
    right = int(np.trace(confusion)) / int(sums["weight"][0])
    by_class = [_one_class(confusion, number, label, unit) for number, label in enumerate(classes)]
    recalls = [each["recall"] for each in by_class if each["recall"] is not None]
    metrics: dict[str, Any] = {
        **counted(sums, unit),
        "error": 1 - right,
        "accuracy": right,
        "balanced_accuracy": float(np.mean(recalls)),
        "log_loss": to_float(sums["log_loss"][0]) / n,
        "brier": to_float(sums["brier"][0]) / n,
        "calibration_error": _calibration_error(sums, unit or Unit()),
        "baseline": class_baseline(confusion.sum(axis=1), classes),
        "by_class": by_class,
        "confusion": (confusion if unit is None else confusion * unit.size).tolist(),
    }
    if "histogram" in sums:
        negative, positive = sums["histogram"]
        metrics |= {"auc": _auc(negative, positive), "average_precision": average_precision(negative, positive)}
        first = average_precision(positive[::-1], negative[::-1])  # which may be the rare one
        for each, found in zip(by_class, (first, metrics["average_precision"]), strict=True):
            each["average_precision"] = found
    return metrics


def class_baseline(counts: np.ndarray, classes: tuple[Any, ...]) -> dict[str, Any]:
    """Always the most frequent class, and always the shares of the classes as probabilities."""
    shares = counts / counts.sum()
    present = shares[shares > 0]
    spread = float((shares * (1 - shares)).sum())
    return {
        "class": classes[int(counts.argmax())],
        "error": float(1 - shares.max()),
        "log_loss": float(-(present * np.log(present)).sum()) + 0.0,
        "brier": spread / 2 if len(classes) == 2 else spread,
    }


def _one_class(confusion: np.ndarray, number: int, label: Any, unit: Unit | None) -> dict[str, Any]:
    hit, true, told = (int(c) for c in (confusion[number, number], confusion[number].sum(), confusion[:, number].sum()))
    rows = true if unit is None else true * unit.size
    return {
        "class": label, "rows": rows, "precision": _share(hit, told), "recall": _share(hit, true),
        "f1": _share(2 * hit, true + told),
    }  # fmt: skip


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _calibration_error(sums: Sums, unit: Unit) -> float:
    """Mean gap between the largest probability and how often it is right, over bins of that probability."""
    right, sure = sums["right"] * unit.size, np.array([to_float(row) for row in sums["confidence"]])
    return float(np.abs(right - sure).sum() / _total(sums, unit))


def _auc(negative: np.ndarray, positive: np.ndarray) -> float | None:
    """Chance that a random positive scores above a random negative, ties counting half."""
    pairs = float(negative.sum()) * float(positive.sum())
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / pairs) if pairs else None


def average_precision(negative: np.ndarray, positive: np.ndarray) -> float | None:
    """Mean precision over the rows of the second class, each at the threshold that is its own score: the PR-AUC."""
    found, told = np.cumsum(positive[::-1]), np.cumsum((negative + positive)[::-1])
    if not found[-1]:
        return None
    return float((positive[::-1] / found[-1] * (found / np.maximum(told, 1))).sum())


# -- the threshold of two classes


def best_threshold(logits: np.ndarray, codes: np.ndarray, weights: np.ndarray | None, *, f1: bool) -> float:
    """The probability above which the second class is predicted: best for balanced accuracy, or for its F1.

    It lies halfway between two rows (of log-odds), so it does not hang on a last bit. Of several that are as good, the
    one nearest to 0.5; and 0.5 where rows of one class are missing.
    """
    order = np.argsort(-logits, kind="stable")
    logits, true = logits[order], codes[order] == 1
    counts = np.ones(len(codes)) if weights is None else weights[order]
    hits, misses = np.cumsum(counts * true), np.cumsum(counts * ~true)
    if not len(codes) or not hits[-1] > 0 or not misses[-1] > 0:
        return 0.5
    edges = np.flatnonzero(logits[1:] < logits[:-1])  # the last row of those that are predicted to be of the class
    if not len(edges):
        return 0.5
    told, wrong = hits[edges], misses[edges]
    gains = 2 * told / (hits[-1] + told + wrong) if f1 else told / hits[-1] - wrong / misses[-1]
    margins = (logits[edges] + logits[edges + 1]) / 2
    best = margins[gains >= gains.max() - 1e-12]
    return float(scipy.special.expit(best[np.abs(best).argmin()]))
