"""How targets become columns of the Gram matrix: as digits of exact integers.

A regression target is held as an integer multiple of a step (a power of two, at most 2^-26 of the target's range), and
that integer is written in balanced digits small enough to be features themselves. A class label is one digit already:
-1 or +1 for two classes, one column of 0 or 1 a class for more. So ``Z'y`` and ``y'y`` come out of the same exact
integer product as ``Z'Z``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.features.precision import Precision
from streamrf.support.errors import DataError, FileFormatError

# Bits of a digit, and digits: 33 bits or more for a target.
DIGITS = {"7": (6, 6), "8": (7, 5), "12": (11, 3), "20": (19, 2)}
RESOLUTION = 26  # bits that the targets of rows to fit take: the rest is head-room
REACH = 29  # bits that the targets of any row may take: beyond, there is still room for later shards
REGRESSION, CLASSIFICATION = "regression", "classification"
TASKS = ("auto", REGRESSION, CLASSIFICATION)


@dataclass(frozen=True)
class TargetCoding:
    """Numbers or classes, and the integers that stand for them."""

    task: str
    classes: tuple[Any, ...]  # labels in sorted order; empty for regression
    offset: np.ndarray  # (k,) float64; regression: subtracted before the step is applied
    step: np.ndarray  # (k,) float64 powers of two

    @classmethod
    def regression(cls, low: np.ndarray, high: np.ndarray) -> TargetCoding:
        """From the smallest and the largest value of each output."""
        half = np.maximum(high / 2 - low / 2, np.finfo(np.float64).tiny * 2**60)
        step = np.exp2(np.ceil(np.log2(half)) - RESOLUTION)
        middle = low / 2 + high / 2
        return cls(REGRESSION, (), np.rint(middle / step) * step, step)

    def narrowed(self, y: np.ndarray) -> TargetCoding:
        """With the range of these targets, which are some of all. Others make the steps coarser only where they lie
        more than 8 times as far out."""
        if self.classes:
            return self
        values = self.values(y)
        inner = TargetCoding.regression(values.min(axis=0), values.max(axis=0))
        farthest = np.abs(self.offset - inner.offset) + self.step * 2.0**RESOLUTION
        step = np.maximum(inner.step, np.exp2(np.ceil(np.log2(farthest)) - REACH))
        return TargetCoding(REGRESSION, (), np.rint(inner.offset / step) * step, step)

    @classmethod
    def classification(cls, classes: tuple[Any, ...]) -> TargetCoding:
        columns = 1 if len(classes) == 2 else len(classes)
        return cls(CLASSIFICATION, classes, np.zeros(columns), np.ones(columns))

    def describe(self) -> str:
        """One sentence about the task."""
        if self.classes:
            shown = ", ".join(map(str, self.classes[:5])) + (", ..." if len(self.classes) > 5 else "")
            return f"classification into {len(self.classes)} classes ({shown})"
        return "regression" + (f" of {self.outputs} outputs" if self.outputs > 1 else "")

    @property
    def outputs(self) -> int:
        """Columns of scores the model gives."""
        return len(self.offset)

    def digits(self, precision: Precision) -> int:
        """Gram columns that one output takes."""
        return DIGITS[precision.name][1] if self.task == REGRESSION and precision.exact else 1

    def columns(self, precision: Precision) -> int:
        return self.outputs * self.digits(precision)

    def values(self, y: np.ndarray) -> np.ndarray:
        """Targets as the (n, outputs) float64 numbers the model learns: -1/+1, one-hot, or the targets themselves."""
        if self.task == REGRESSION:
            return np.asarray(y, np.float64).reshape(len(y), -1)
        codes = self.codes(y)
        if len(self.classes) == 2:
            return (2.0 * codes - 1.0)[:, None]
        return (codes[:, None] == np.arange(len(self.classes))).astype(np.float64)

    def codes(self, y: np.ndarray) -> np.ndarray:
        """Position of each label among the classes; a label that is not among them is a DataError."""
        labels = np.asarray(y).reshape(len(y))
        known = np.asarray(self.classes)
        if known.dtype.kind in "US":
            labels = labels.astype(str)
        codes = np.minimum(np.searchsorted(known, labels), len(known) - 1)
        wrong = np.flatnonzero(known[codes] != labels)
        if len(wrong):
            names = ", ".join(map(str, known[:10]))
            raise DataError(
                f"label {labels[wrong[0]].item()!r} is not one of the {len(known)} classes of this model ({names})"
            )
        return codes

    def encode(self, y: np.ndarray, precision: Precision) -> np.ndarray:
        """The Gram columns of these targets: digits as integers, or for float precisions numbers of about one."""
        values = self.values(y)
        if self.task == CLASSIFICATION:
            return values
        scaled = (values - self.offset) / self.step
        if not precision.exact:
            return scaled / 2.0**RESOLUTION
        return self._to_digits(np.rint(scaled), precision)

    def _to_digits(self, whole: np.ndarray, precision: Precision) -> np.ndarray:
        bits, count = DIGITS[precision.name]
        limit = 2 ** (bits * count - 1) - 2 ** (bits * (count - 1))
        if len(whole) and np.abs(whole).max() >= limit:
            row, column = np.argwhere(np.abs(whole) >= limit)[0]
            value = whole[row, column] * self.step[column] + self.offset[column]
            bound = limit * self.step[column]
            raise DataError(
                f"target {value:g} is outside {self.offset[column]:g} ± {bound:g}, the range that the first run fixed"
                " for exact sums: retrain on all of the data"
            )
        out = np.empty((*whole.shape, count), np.int16 if bits < 16 else np.int32)
        rest, half, mask = whole.astype(np.int64), 1 << (bits - 1), (1 << bits) - 1
        for place in range(count):  # balanced digits, the lowest first
            digit = ((rest + half) & mask) - half
            out[..., place] = digit
            rest = (rest - digit) >> bits
        return out.reshape(len(out), -1)

    def combine(self, columns: np.ndarray, precision: Precision) -> np.ndarray:
        """Products with Gram columns (..., columns) as products with the targets less their offset (..., outputs)."""
        if self.task == CLASSIFICATION:
            return columns.astype(np.float64)
        if not precision.exact:
            return columns * self.step * 2.0**RESOLUTION
        bits, count = DIGITS[precision.name]
        digits = columns.reshape(*columns.shape[:-1], self.outputs, count).astype(np.float64)
        return digits @ np.exp2(bits * np.arange(count, dtype=np.float64)) * self.step

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        document = {"task": self.task, "classes": list(self.classes)}
        return document, {"target.offset": self.offset, "target.step": self.step}

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> TargetCoding:
        offset, step = arrays["target.offset"], arrays["target.step"]
        task, classes = document["task"], tuple(document["classes"])
        if task not in (REGRESSION, CLASSIFICATION) or offset.shape != step.shape or offset.ndim != 1:
            raise FileFormatError("the model's target coding is damaged: task, offset and step do not fit together")
        return cls(task, classes, offset, step)
