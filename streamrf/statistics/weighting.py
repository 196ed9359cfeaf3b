"""What rows count for: weights of their own, from the data, and weights of their classes, from the class counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamrf.data.locations import persistently
from streamrf.data.screening import missing_rows
from streamrf.data.source import Source, Span, work_spans
from streamrf.features.targets import TargetCoding
from streamrf.support.errors import DataError, InputError

READ_ROWS = 262_144


@dataclass(frozen=True)
class Weighting:
    """``heaviest`` is the largest weight that any row can have, which exact sums must know beforehand."""

    heaviest: float = 1.0
    class_weights: np.ndarray | None = None  # (classes,)
    sample_weights: bool = False

    @property
    def plain(self) -> bool:
        """Whether every row counts for one."""
        return self.class_weights is None and not self.sample_weights

    @classmethod
    def of(cls, source: Source, coding: TargetCoding, class_weight: str | None) -> Weighting:
        """Read targets and weights once, where either matters; X is not touched."""
        if class_weight is None and not source.has_weights:
            return cls()
        if class_weight is not None and not coding.classes:
            raise InputError("--class-weight is for classes, and these targets are numbers: use --sample-weight")
        by_class = None if class_weight is None else balanced(source, coding)
        largest = _heaviest(source) if source.has_weights else 1.0
        return cls(largest * (1.0 if by_class is None else float(by_class.max())), by_class, source.has_weights)


def balanced(source: Source, coding: TargetCoding) -> np.ndarray:
    """rows / (classes * rows of the class), as scikit-learn has it: every class counts for as much in all."""
    counts = np.zeros(len(coding.classes), np.int64)
    for span in _spans(source):
        y = persistently(source.read_targets, span)
        bad = missing_rows(y)
        counts += np.bincount(coding.codes(y[~bad] if bad.any() else y), minlength=len(counts))
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        raise DataError(f"class {coding.classes[empty[0]]!r} has no rows: --class-weight balanced needs some of each")
    return counts.sum() / (len(counts) * counts)


def _heaviest(source: Source) -> float:
    largest = max(float(persistently(source.read_weights, span).max(initial=0.0)) for span in _spans(source))
    if not largest > 0:
        raise DataError("no row has a positive weight: check --sample-weight")
    return largest


def _spans(source: Source) -> list[Span]:
    whole = work_spans(source, READ_ROWS, 2**30)
    return [Span(a, min(a + READ_ROWS, span.stop)) for span in whole for a in range(span.start, span.stop, READ_ROWS)]
