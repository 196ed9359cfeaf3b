"""The target scan: what the targets are and what rows count for, from one pass over targets and weights alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from streamrf.data.screening import missing_rows
from streamrf.data.source import Block
from streamrf.features.targets import CLASSIFICATION, REGRESSION, TargetCoding
from streamrf.statistics.base import State, Statistic
from streamrf.support.errors import DataError, FileFormatError, InputError
from streamrf.support.threads import Threads
from streamrf.support.units import format_count

MAX_CLASSES = 1000
READ_ROWS = 262_144  # targets read at a time: few trips, a megabyte or two
PIECE = 65_536  # rows whose labels are looked at together
FEW_INTEGERS, FEW_LABELS = 50, 10  # so many different whole numbers at most are class labels; without further ado
EVEN, THIN = 0.5, 0.1  # of the mean number of rows, that the rarest label has
WEIGHTING = "weighting"  # what metadata calls it
LARGEST_TARGET = 1e30  # weights stay well within what a float32 holds


@dataclass
class TargetScan(State):
    """Extremes and labels of the targets, and the largest weight, seen in any order. Extremes never shrink again."""

    rows: int = 0
    missing: int = 0
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    labels: dict[Any, int] | None = field(default_factory=dict)  # rows of each; None: too many to be classes
    heaviest: float = 0.0
    weighing: int = 0  # rows of a positive weight, all of those without weights

    def update(self, y: np.ndarray) -> None:
        bad = missing_rows(y)
        self.rows += len(y)
        self.missing += int(bad.sum())
        y = y[~bad] if bad.any() else y
        if not len(y):
            return
        if y.dtype.kind in "bifu":
            table = y.reshape(len(y), -1)
            self._extend(table.min(axis=0).astype(np.float64), table.max(axis=0).astype(np.float64))
        if y.ndim > 1:  # several outputs are numbers
            self.labels = None
        for start in range(0, len(y), PIECE):
            self._count_labels(y[start : start + PIECE])

    def _count_labels(self, y: np.ndarray) -> None:
        """A piece at a time, and no Python object for a value that cannot be a label: numbers are most often many."""
        if self.labels is None:
            return
        values, counts = np.unique(y.astype(str) if y.dtype.kind == "O" else y, return_counts=True)
        self._add_labels(
            None if len(values) > MAX_CLASSES else dict(zip(values.tolist(), counts.tolist(), strict=True))
        )

    def _add_labels(self, more: dict[Any, int] | None, sign: int = 1) -> None:
        if self.labels is None or more is None:
            self.labels = None
            return
        for label, count in more.items():
            self.labels[label] = self.labels.get(label, 0) + sign * count
        self.labels = {label: count for label, count in self.labels.items() if count}
        if len(self.labels) > MAX_CLASSES:
            self.labels = None

    def _extend(self, low: np.ndarray | None, high: np.ndarray | None) -> None:
        if low is not None and high is not None:
            self.low = low if self.low is None else np.minimum(self.low, low)
            self.high = high if self.high is None else np.maximum(self.high, high)

    def __iadd__(self, other: TargetScan) -> Self:
        self.rows, self.missing = self.rows + other.rows, self.missing + other.missing
        self.heaviest, self.weighing = max(self.heaviest, other.heaviest), self.weighing + other.weighing
        self._extend(other.low, other.high)
        self._add_labels(other.labels)
        return self

    def __isub__(self, other: TargetScan) -> Self:
        self.rows, self.missing = self.rows - other.rows, self.missing - other.missing
        self.weighing -= other.weighing
        self._add_labels(other.labels, -1)
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        few = self.labels is not None
        labels = sorted(self.labels) if self.labels is not None else []
        nothing = np.zeros((2, 0))
        return {
            "scan.counts": np.array([self.rows, self.missing, few, self.weighing], np.int64),
            "scan.heaviest": np.array([self.heaviest]),
            "scan.range": nothing if self.low is None or self.high is None else np.stack([self.low, self.high]),
            "scan.labels": np.array(labels),
            "scan.label_rows": np.array([(self.labels or {})[label] for label in labels], np.int64),
        }

    def digest(self) -> str:
        """Of what can be subtracted again."""
        return State.digest(replace(self, low=None, high=None, heaviest=0.0))

    def labels_among(self, scan: TargetScan) -> dict[Any, int] | None:
        """Rows of each label of another scan, at least one of those that it has."""
        known = self.labels or {}
        return scan.labels and {label: max(known.get(label, 0), min(count, 1)) for label, count in scan.labels.items()}

    def declare(self, classes: tuple[str, ...], kind: str) -> None:
        """Labels that may come, as people write them; one that was seen and is not among them is a DataError."""
        labels = {_label(text, kind) for text in classes}
        strange = set(self.labels or ()) - labels
        if self.labels is None or strange:
            found = f"the label {min(strange)!r}" if strange else "targets that are not labels"
            raise DataError(f"`classes={list(classes)}`: the data has {found}, which is not among them")
        self.labels = {label: self.labels.get(label, 0) for label in labels}


class ScanTargets(Statistic[TargetScan]):
    """How the targets and weights of a block enter the scan."""

    @property
    def piece_rows(self) -> int:
        return READ_ROWS

    def zero(self) -> TargetScan:
        return TargetScan()

    def update(self, state: TargetScan, block: Block, threads: Threads) -> None:
        state.update(block.targets)
        state.weighing += len(block) if block.weights is None else int(np.count_nonzero(block.weights))
        if block.weights is not None:
            state.heaviest = max(state.heaviest, float(block.weights.max(initial=0.0)))

    def load(self, arrays: dict[str, np.ndarray]) -> TargetScan:
        counts, heaviest, extremes, labels, rows = (arrays.get(name) for name in TargetScan().arrays())
        if counts is None or heaviest is None or extremes is None or labels is None or rows is None:
            raise FileFormatError("a target scan lacks some of its sums")
        shapes = (counts.shape, heaviest.shape, extremes.shape[:1], labels.shape)
        kinds = counts.dtype.kind + heaviest.dtype.kind + extremes.dtype.kind + rows.dtype.kind
        if (
            shapes != ((4,), (1,), (2,), rows.shape)
            or extremes.ndim != 2
            or kinds != "iffi"
            or labels.dtype.kind == "c"
        ):
            raise FileFormatError(f"a target scan has sums of shapes {shapes} and types {kinds}")
        low, high = extremes if extremes.shape[1] else (None, None)
        found = dict(zip(labels.tolist(), rows.tolist(), strict=True)) if counts[2] else None
        return TargetScan(int(counts[0]), int(counts[1]), low, high, found, float(heaviest[0]), int(counts[3]))


def _label(text: str, kind: str) -> Any:
    """A label from its text, in the type of the targets (numpy's letter)."""
    try:
        if kind == "b":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return int(text) if kind in "iu" else float(text) if kind == "f" else text
    except (KeyError, ValueError):
        raise InputError(f"`classes`: {text!r} is not a label of the targets' type") from None


def settle_targets(
    scan: TargetScan, task: str, kind: str, nan: str, first: Callable[[], np.ndarray] | None = None
) -> TargetCoding:
    """The coding of these targets; ``kind`` is numpy's letter for their type. ``first`` gives a few of them, for a
    message where they are too many to be classes."""
    if scan.missing and nan == "error":
        raise DataError(
            f"{format_count(scan.missing)} of {format_count(scan.rows)} targets are missing or not finite:"
            " fix the data, or leave such rows out with `nan='drop'`"
        )
    if scan.rows == scan.missing:
        raise DataError(
            f"no usable rows: {format_count(scan.rows)} rows, {format_count(scan.missing)} without a target"
        )
    if task == "auto" and kind not in "bfiu":
        many = scan.labels is None and first is not None
        _refuse_numbers(dict.fromkeys(first()) if many and first else scan.labels or {}, more=many)
    task = infer_task(scan, kind) if task == "auto" else task
    return _classes(scan) if task == CLASSIFICATION else _numbers(scan)


def infer_task(scan: TargetScan, kind: str) -> str:
    """Labels and booleans are classes; so are two values, and few whole numbers that look like labels; all else is a
    number."""
    if kind not in "fiu":
        return CLASSIFICATION
    counts = scan.labels or {}
    if len(counts) == 2 or (kind in "iu" and 1 <= len(counts) <= FEW_INTEGERS and _look_like_labels(counts)):
        return CLASSIFICATION
    return REGRESSION


def _look_like_labels(counts: dict[Any, int]) -> bool:
    """Whether whole numbers are names rather than grades, years or counts of things: names begin with 0 or 1, and
    beyond a few of them leave none out and have rows for each; or all of them have about as many rows."""
    mean, rarest = sum(counts.values()) / len(counts), min(counts.values())
    if rarest >= EVEN * mean:
        return True
    numbered = min(counts) in (0, 1)
    without_gaps = max(counts) - min(counts) + 1 == len(counts)
    return numbered and (len(counts) <= FEW_LABELS or (without_gaps and rarest >= THIN * mean))


def _refuse_numbers(counted: Iterable[Any], *, more: bool) -> None:
    """Text that was meant to be numbers or dates must not become classes without a word."""
    import pyarrow as pa

    from streamrf.data.readers.text_types import finding

    labels = [str(label) for label in counted if label is not None]
    found = finding(pa.array(labels, pa.string()), 0, None) if labels else None
    cures = {"comma": "`decimal=','` reads numbers", "order": "`dates='DMY'` (or MDY) reads dates"}
    cure = cures.get(found.why) if found else None
    if found and found.why == "numbers" and len(labels) > FEW_INTEGERS:
        cure = f"`null={found.value!r}` makes gaps of such values, and numbers of the others"
    elif not cure and len(labels) > FEW_INTEGERS and found is None and _are_numbers(labels):
        cure = "store numbers, not text"
    if cure:
        example = found.value if found else labels[0]
        raise DataError(
            f"the targets are text such as {example!r}, {f'over {MAX_CLASSES:,}' if more else f'{len(labels):,}'}"
            f" different ones: {cure}; if they are classes all the same, use `task='classification'`"
        )


def _are_numbers(labels: list[str]) -> bool:
    try:
        return bool(np.isfinite([float(each) for each in labels]).all())
    except ValueError:
        return False


def _classes(scan: TargetScan) -> TargetCoding:
    if scan.labels is None:
        raise DataError(
            f"more than {MAX_CLASSES} different labels, or several outputs: for numbers use `task='regression'`; where"
            " a CSV file has them as text, `decimal`, `dates` and `null` say how they are written; an identifier is no"
            " target"
        )
    if len(scan.labels) < 2:
        only = next(iter(scan.labels), None)
        raise DataError(f"one class only ({only!r}): a classifier needs at least two, check the target column")
    return TargetCoding.classification(tuple(sorted(scan.labels)))


def _numbers(scan: TargetScan) -> TargetCoding:
    if scan.low is None or scan.high is None:
        raise DataError("these targets are labels, not numbers: use `task='classification'` (or a KernelClassifier)")
    constant = np.flatnonzero(scan.low == scan.high)
    if len(constant):
        where = f"output {constant[0]} of y" if len(scan.low) > 1 else "the target"
        raise DataError(f"{where} is constant ({scan.low[constant[0]]:g}): there is nothing to learn")
    largest = max(np.abs(scan.low).max(), np.abs(scan.high).max())
    if largest > LARGEST_TARGET:
        raise DataError(
            f"targets are as large as {largest:.3g}, and weights are kept for those up to {LARGEST_TARGET:g}: divide"
            " them by a constant"
        )
    narrowest = (scan.high - scan.low).min()
    if narrowest < 1 / LARGEST_TARGET:
        raise DataError(
            f"targets lie within {narrowest:.3g} of each other, and weights are kept for those at least"
            f" {1 / LARGEST_TARGET:g} apart: multiply them by a constant"
        )
    return TargetCoding.regression(scan.low, scan.high)


@dataclass(frozen=True)
class Weighting:
    """``heaviest`` is the largest weight that any row can have, which exact sums must know beforehand."""

    heaviest: float = 1.0
    class_weights: np.ndarray | None = None  # (classes,)
    sample_weights: bool = False

    def to_json(self) -> dict[str, Any]:
        """Nothing of rows that count for one each."""
        by_class = None if self.class_weights is None else self.class_weights.tolist()
        return {} if self.plain else {WEIGHTING: {**vars(self), "class_weights": by_class}}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Weighting:
        by_class = document["class_weights"]
        return cls(**{**document, "class_weights": None if by_class is None else np.array(by_class)})

    @property
    def plain(self) -> bool:
        """Whether every row counts for one."""
        return self.class_weights is None and not self.sample_weights

    @classmethod
    def of(cls, scan: TargetScan, coding: TargetCoding, class_weight: str | None, *, weighted: bool) -> Weighting:
        """From the counts of labels and the largest weight of a row."""
        if class_weight is not None and not coding.classes:
            raise InputError("`class_weight` is for classes, and these targets are numbers: use `sample_weight`")
        if weighted and not scan.heaviest > 0:
            raise DataError("no row has a positive weight: check `sample_weight`")
        by_class = None if class_weight is None else balanced(scan, coding)
        largest = scan.heaviest if weighted else 1.0
        return cls(largest * (1.0 if by_class is None else float(by_class.max())), by_class, weighted)


def balanced(scan: TargetScan, coding: TargetCoding) -> np.ndarray:
    """rows / (classes * rows of the class), as scikit-learn has it: every class counts for as much in all."""
    labels = scan.labels or {}
    counts = np.array([labels.get(label, 0) for label in coding.classes], np.int64)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        raise DataError(f"class {coding.classes[empty[0]]!r} has no rows: `class_weight='balanced'` needs some of each")
    return counts.sum() / (len(counts) * counts)


def row_weights(block: Block, coding: TargetCoding, class_weights: np.ndarray | None) -> np.ndarray | None:
    """What each row counts for: its own weight times that of its class; None where all count the same."""
    if class_weights is None:
        return block.weights
    by_class = class_weights[coding.codes(block.targets)]
    return by_class if block.weights is None else by_class * block.weights
