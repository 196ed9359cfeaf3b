"""Arrays of other libraries that can be read a slice of rows at a time: dask, zarr, HDF5, scipy sparse."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from streamrf.data.dtypes import as_matrix, as_targets, feature_dtype, target_dtype
from streamrf.data.readers.memory import CHUNK_BYTES, rows_of
from streamrf.data.source import Span
from streamrf.data.table import Table, even_spans
from streamrf.support.errors import InputError


class SlicedSource(Table):
    """X and y as arrays with a shape, a type and slices; only the rows asked for are ever dense numpy."""

    location = "arrays read in slices"

    def __init__(self, X: Any, y: Any = None, *, feature_names: Sequence[str] | None = None) -> None:
        self._X, self._y = _sized(X), None if y is None else _sized(y)
        self._check_shapes(self._X.shape, None if self._y is None else self._y.shape, "X", "y")
        self.x_dtype = feature_dtype(np.dtype(self._X.dtype), "X")
        self.y_dtype = None if self._y is None else target_dtype(np.dtype(self._y.dtype), "y")
        self.feature_names = None if feature_names is None else tuple(map(str, feature_names))
        self._chunks = _chunks(self._X, self.n_features * self.x_dtype.itemsize)

    def chunks(self) -> tuple[Span, ...]:
        return self._chunks

    def _features(self, span: Span) -> np.ndarray:
        return as_matrix(dense_rows(self._X, span), self.x_dtype)

    def _targets(self, span: Span) -> np.ndarray:
        assert self.y_dtype is not None
        return as_targets(dense_rows(self._y, span), self.y_dtype, "y")

    def read_bytes(self, span: Span) -> int:
        """What is decoded and what is handed over: twice the rows, as chunks are put together."""
        return 2 * self.block_bytes(span)

    def spec(self) -> dict[str, Any]:
        raise InputError(
            "arrays of this process cannot be opened by another: store them as zarr, parquet or npy and give the path"
        )

    def _format(self) -> str:
        return type(self._X).__module__.partition(".")[0]


def is_sliced(X: Any) -> bool:
    """Whether X is an array or a table of a library that keeps it in chunks."""
    library = type(X).__module__.partition(".")[0]
    return library in ("dask", "dask_expr", "zarr", "h5py") and hasattr(
        X, "dtypes" if hasattr(X, "columns") else "dtype"
    )


def plain_array(X: Any) -> tuple[Any, Sequence[str] | None]:
    """A dask table or series as an array, and the names of its columns; anything else as it is."""
    if not hasattr(X, "to_dask_array"):
        return X, None
    names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
    return X.to_dask_array(lengths=True), names


def dense_rows(array: Any, span: Span) -> np.ndarray:
    """These rows as numpy."""
    part = array[span.start : span.stop]
    if hasattr(part, "toarray"):
        return np.asarray(part.toarray())
    return np.asarray(part.compute() if hasattr(part, "compute") else part)


def _sized(array: Any) -> Any:
    """A dask array whose chunks are not known yet is asked to count its rows."""
    if hasattr(array, "compute_chunk_sizes") and np.isnan(array.shape[0]):
        return array.compute_chunk_sizes()
    return array


def _chunks(array: Any, row_bytes: int) -> tuple[Span, ...]:
    chunks = getattr(array, "chunks", None)
    if not chunks:
        return even_spans(array.shape[0], rows_of(CHUNK_BYTES, row_bytes))
    if isinstance(chunks[0], int):  # zarr, HDF5: all of one size
        return even_spans(array.shape[0], chunks[0])
    return tuple(Span(*ends) for ends in pairwise(accumulate(map(int, chunks[0]), initial=0)) if ends[0] < ends[1])
