"""Arrays of this process: in numpy, or in a library that hands out slices of rows (zarr, HDF5, scipy sparse)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamrf.data.readers.arrays import CHUNK_BYTES, Array, as_matrix, as_targets, rows_of, set_arrays
from streamrf.data.readers.base import RowReader
from streamrf.data.source import LABEL_BYTES, Span, Spec, even_spans
from streamrf.support.errors import InputError


class SlicedSource(RowReader):
    """X and y as arrays with a shape, a type and slices; only the rows asked for are ever dense numpy."""

    location = "arrays read in slices"

    def __init__(self, X: Array, y: Array = None, *, feature_names: Sequence[str] | None = None) -> None:
        self._X, self._y = X, y
        set_arrays(self, self._X, self._y)
        if feature_names is not None and len(feature_names) != self.n_features:
            raise InputError(f"there are {len(feature_names)} feature names for {self.n_features} columns of X")
        self.feature_names = None if feature_names is None else tuple(map(str, feature_names))
        self._chunks = _chunks(self._X, self.n_features * self.x_dtype.itemsize)

    def chunks(self) -> Sequence[Span]:
        return self._chunks

    def _features(self, span: Span) -> np.ndarray:
        return as_matrix(dense_rows(self._X, span), self.x_dtype)

    def _targets(self, span: Span) -> np.ndarray:
        assert self.y_dtype is not None
        return as_targets(dense_rows(self._y, span), self.y_dtype, "y")

    def read_bytes(self, span: Span) -> int:
        """What is decoded and what is returned: twice the rows, as chunks are joined."""
        return 2 * self.block_bytes(span)

    def spec(self) -> Spec:
        raise InputError(
            f"{self.location} cannot be opened by another process: store them as zarr, parquet or npy and give the path"
        )

    def _format(self) -> str:
        return type(self._X).__module__.partition(".")[0]


class ArraySource(SlicedSource):
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
        super().__init__(np.asarray(X), None if y is None else np.asarray(y), feature_names=feature_names)
        if chunk_rows is not None:
            self._chunks = even_spans(self.n_rows, chunk_rows)

    def read_bytes(self, span: Span) -> int:
        """What is not a view: rows that must be put in C order or native byte order, text, and the row numbers."""
        is_view = self._X.flags.c_contiguous and self._X.dtype == self.x_dtype
        copied = 0 if is_view else self.n_features * self.x_dtype.itemsize
        if self._y is not None and self._y.dtype != self.y_dtype and self._y.dtype.kind != "U":
            copied += self.n_outputs * max(self._y.dtype.itemsize, LABEL_BYTES)
        return len(span) * (copied + 8)

    def has_partial_reads(self) -> bool:
        return True


class CountingSource(ArraySource):
    """Rows 0, 1, 2, ... whose only feature is their number, each a chunk of its own: work that is counted, not read."""

    location = "numbered parts"

    def __init__(self, rows: int) -> None:
        numbers = np.arange(rows, dtype=np.float32)
        super().__init__(numbers[:, None], numbers, chunk_rows=1)

    def spec(self) -> Spec:
        return {"data": self.n_rows}


def is_sliced(X: object) -> bool:
    """Whether X is an array of a library that keeps it in chunks on a disk."""
    return type(X).__module__.partition(".")[0] in ("zarr", "h5py") and hasattr(X, "dtype")


def dense_rows(array: Array, span: Span) -> np.ndarray:
    """These rows as numpy."""
    part = array[span.start : span.stop]
    if hasattr(part, "toarray"):
        return np.asarray(part.toarray())
    return np.asarray(part)


def _chunks(array: Array, row_bytes: int) -> Sequence[Span]:
    chunks = getattr(array, "chunks", None)
    if not chunks:
        return even_spans(array.shape[0], rows_of(CHUNK_BYTES, row_bytes))
    return even_spans(array.shape[0], chunks[0])  # all of one size
