"""Datasets of an HDF5 file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from streamrf.data.dtypes import as_matrix, as_targets, feature_dtype, target_dtype
from streamrf.data.failures import no_such, reading
from streamrf.data.readers.matrix import Matrix, Rows
from streamrf.data.table import output_count, table_shape
from streamrf.support.errors import DataError, MissingDependencyError

ENDINGS = (".h5", ".hdf5", ".hdf", ".he5")
CACHE_BYTES = 4 << 20


class Hdf5Matrix(Matrix):
    """Datasets ``x`` and ``y``, in groups of any depth (``train/X``); the targets may be left out."""

    def __init__(self, location: str, *, x: str = "X", y: str = "y") -> None:
        self.location, self._x, self._y = location, x, y
        with reading(location), self._opened() as file:
            known = dataset_names(file)
            if x not in known:
                raise no_such("dataset", x, known, location, " (name another with --x)")
            X = file[x]
            self.n_rows, self.n_features = table_shape(X.shape, f"{x} in {location}")
            self.x_dtype = feature_dtype(X.dtype, f"{x} in {location}")
            if y in known:
                self._set_targets(file[y], y)

    def _set_targets(self, y: Any, name: str) -> None:
        self.n_outputs = output_count(y.shape, f"{name} in {self.location}")
        self.y_dtype = target_dtype(y.dtype, f"{name} in {self.location}")
        if y.shape[0] != self.n_rows:
            raise DataError(
                f"X has {self.n_rows:,} rows but {name} has {y.shape[0]:,} in {self.location}: they must match"
            )

    def _opened(self) -> Any:
        try:
            import h5py
        except ImportError as error:
            raise MissingDependencyError(
                "reading HDF5 needs a package that is missing: pip install 'streamrf[hdf5]'"
            ) from error
        return h5py.File(self.location, "r", rdcc_nbytes=CACHE_BYTES)

    def blocks(self, rows: int) -> Iterator[Rows]:
        with reading(self.location), self._opened() as file:
            for start in range(0, self.n_rows, rows):
                span = slice(start, start + rows)
                yield as_matrix(file[self._x][span], self.x_dtype), self._targets(file, span)

    def _targets(self, file: Any, span: slice) -> np.ndarray | None:
        if self.y_dtype is None:
            return None
        stored = file[self._y]
        values = stored.asstr()[span] if stored.dtype.kind == "O" else stored[span]
        return as_targets(values, self.y_dtype, f"{self._y} in {self.location}")


def dataset_names(file: Any) -> list[str]:
    """Paths of all datasets."""
    import h5py

    names: list[str] = []
    file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    return names
