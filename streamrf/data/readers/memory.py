"""Arrays that are in memory already, for the Python interface and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamrf.data.dtypes import as_matrix, as_targets, feature_dtype, target_dtype
from streamrf.data.source import Span
from streamrf.data.table import Table, even_spans
from streamrf.support.errors import InputError

CHUNK_BYTES = 8 << 20


class ArraySource(Table):
    """X and y as numpy arrays. Reading gives views, so chunks cost nothing and may be of any size."""

    location = "arrays in memory"

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray | None = None,
        *,
        chunk_rows: int | None = None,
        feature_names: Sequence[str] | None = None,
    ) -> None:
        self._X, self._y = np.asarray(X), None if y is None else np.asarray(y)
        self._check_shapes(self._X.shape, None if self._y is None else self._y.shape, "X", "y")
        self.x_dtype = feature_dtype(self._X.dtype, "X")
        self.y_dtype = None if self._y is None else target_dtype(self._y.dtype, "y")
        self.feature_names = self._checked_names(feature_names)
        self._chunk_rows = chunk_rows or rows_of(CHUNK_BYTES, self.n_features * self.x_dtype.itemsize)

    def _checked_names(self, names: Sequence[str] | None) -> tuple[str, ...] | None:
        if names is not None and len(names) != self.n_features:
            raise InputError(f"there are {len(names)} feature names for {self.n_features} columns of X")
        return None if names is None else tuple(names)

    def chunks(self) -> tuple[Span, ...]:
        return even_spans(self.n_rows, self._chunk_rows)

    def _features(self, span: Span) -> np.ndarray:
        return as_matrix(self._X[span.start : span.stop], self.x_dtype)

    def _targets(self, span: Span) -> np.ndarray:
        assert self._y is not None
        assert self.y_dtype is not None
        return as_targets(self._y[span.start : span.stop], self.y_dtype, "y")

    def read_bytes(self, span: Span) -> int:
        """What is not a view: rows that must be put in C order or native byte order, text, and the row numbers."""
        copied = 0 if self._is_plain() else self.n_features * self.x_dtype.itemsize
        return len(span) * (copied + self._target_copy_bytes() + 8)

    def _is_plain(self) -> bool:
        return bool(self._X.flags.c_contiguous) and self._X.dtype == self.x_dtype

    def _target_copy_bytes(self) -> int:
        if self._y is None or self._y.dtype == self.y_dtype or self._y.dtype.kind == "U":
            return 0
        return self.n_outputs * max(self._y.dtype.itemsize, 64)

    def has_partial_reads(self) -> bool:
        return True

    def spec(self) -> dict[str, Any]:
        raise InputError(
            "arrays in memory cannot be opened by another process: store them as zarr, parquet or npy and give the path"
        )

    def _format(self) -> str:
        return "numpy"


def rows_of(nbytes: int, row_bytes: int) -> int:
    """How many rows make about ``nbytes``, at least one."""
    return max(1, nbytes // max(1, row_bytes))
