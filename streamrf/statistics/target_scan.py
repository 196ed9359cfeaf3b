"""Look: what the targets are, from one pass over the targets alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamrf.data.locations import persistently
from streamrf.data.screening import missing_rows
from streamrf.data.source import Source, Span, work_spans
from streamrf.features.targets import CLASSIFICATION, REGRESSION, TargetCoding
from streamrf.support.errors import DataError, InputError
from streamrf.support.units import format_count

MAX_CLASSES = 1000
READ_ROWS = 262_144  # targets read at a time: few trips, a megabyte or two
PIECE = 65_536  # rows whose labels are looked at together
FEW_INTEGERS = 50  # so many different whole numbers at most are taken for class labels

LARGEST_TARGET = 1e30  # weights stay well within what a float32 holds


@dataclass
class TargetScan:
    """Extremes and distinct values of the targets, seen in any order."""

    rows: int = 0
    missing: int = 0
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    distinct: set[Any] | None = field(default_factory=set)  # None: too many to be classes

    def update(self, y: np.ndarray) -> None:
        bad = missing_rows(y)
        self.rows += len(y)
        self.missing += int(bad.sum())
        y = y[~bad] if bad.any() else y
        if not len(y):
            return
        if y.dtype.kind in "bifu":
            self._extremes(y.reshape(len(y), -1))
        if y.ndim > 1:  # several outputs are numbers
            self.distinct = None
        for start in range(0, len(y), PIECE):
            self._note_labels(y[start : start + PIECE])

    def _note_labels(self, y: np.ndarray) -> None:
        """A piece at a time, and no Python object for a value that cannot be a label: numbers are most often many."""
        if self.distinct is None:
            return
        values = np.unique(y.astype(str) if y.dtype.kind == "O" else y)
        self.distinct = None if len(values) > MAX_CLASSES else self.distinct | set(values.tolist())
        if self.distinct is not None and len(self.distinct) > MAX_CLASSES:
            self.distinct = None

    def declare(self, classes: tuple[str, ...], kind: str) -> None:
        """Labels that may come, as people write them; one that was seen and is not among them is a DataError."""
        labels = {_label(text, kind) for text in classes}
        strange = (self.distinct or set()) - labels
        if self.distinct is None or strange:
            found = f"the label {min(strange)!r}" if strange else "targets that are not labels"
            raise DataError(f"--classes {','.join(classes)}: the data has {found}, which is not among them")
        self.distinct = labels

    def _extremes(self, y: np.ndarray) -> None:
        low, high = y.min(axis=0).astype(np.float64), y.max(axis=0).astype(np.float64)
        self.low = low if self.low is None else np.minimum(self.low, low)
        self.high = high if self.high is None else np.maximum(self.high, high)


def _label(text: str, kind: str) -> Any:
    """A label from its text, in the type of the targets (numpy's letter)."""
    try:
        if kind == "b":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return int(text) if kind in "iu" else float(text) if kind == "f" else text
    except (KeyError, ValueError):
        raise InputError(f"--classes: {text!r} is not a label of the targets' type") from None


def scan_targets(source: Source) -> TargetScan:
    """Read every target once; X is not touched."""
    if not source.has_targets:
        raise InputError("the data has no targets: name them with --y (zarr, npy) or --target (parquet)")
    scan = TargetScan()
    for span in work_spans(source, READ_ROWS, 2**30):
        for start in range(span.start, span.stop, READ_ROWS):
            scan.update(persistently(source.read_targets, Span(start, min(start + READ_ROWS, span.stop))))
    return scan


def settle_targets(scan: TargetScan, task: str, kind: str, nan: str) -> TargetCoding:
    """The coding of these targets; ``kind`` is numpy's letter for their type."""
    if scan.missing and nan == "error":
        raise DataError(
            f"{format_count(scan.missing)} of {format_count(scan.rows)} targets are missing or not finite:"
            " mend the data, or leave such rows out with --nan drop"
        )
    if scan.rows == scan.missing:
        raise DataError(
            f"no usable rows: {format_count(scan.rows)} rows, {format_count(scan.missing)} without a target"
        )
    task = infer_task(scan, kind) if task == "auto" else task
    return _classes(scan) if task == CLASSIFICATION else _numbers(scan)


def infer_task(scan: TargetScan, kind: str) -> str:
    """Labels and booleans are classes; so are few whole numbers, or just two values; all else is a number."""
    if kind not in "fiu":
        return CLASSIFICATION
    distinct = 0 if scan.distinct is None else len(scan.distinct)
    few = 1 <= distinct <= FEW_INTEGERS if kind in "iu" else distinct == 2
    return CLASSIFICATION if few else REGRESSION


def _classes(scan: TargetScan) -> TargetCoding:
    if scan.distinct is None:
        raise DataError(
            f"more than {MAX_CLASSES} different labels, or several outputs: for numbers use --task regression"
        )
    if len(scan.distinct) < 2:
        only = next(iter(scan.distinct), None)
        raise DataError(f"one class only ({only!r}): a classifier needs at least two, check the target column")
    return TargetCoding.classification(tuple(sorted(scan.distinct)))


def _numbers(scan: TargetScan) -> TargetCoding:
    if scan.low is None or scan.high is None:
        raise DataError("these targets are labels, not numbers: use --task classification")
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
