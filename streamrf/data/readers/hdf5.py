"""Datasets of an HDF5 file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from streamrf.data.locations import no_such, reading
from streamrf.data.readers.arrays import as_matrix, as_targets, set_arrays
from streamrf.data.readers.base import MatrixReader, Progress, silent
from streamrf.data.source import Rows
from streamrf.support.errors import MissingDependencyError

if TYPE_CHECKING:
    import h5py

CACHE_BYTES = 4 << 20


class Hdf5Matrix(MatrixReader):
    """Datasets ``x`` and ``y``, in groups of any depth (``train/X``); the targets may be left out."""

    format, endings, options = "hdf5", (".h5", ".hdf5", ".hdf", ".he5"), frozenset({"x", "y"})

    def __init__(self, location: str, *, x: str = "X", y: str = "y", progress: Progress = silent) -> None:
        self.location, self._x, self._y = location, x, y
        with reading(location), self._opened() as file:
            known = dataset_names(file)
            if x not in known:
                raise no_such("dataset", x, known, location, " (name another with `x`)")
            set_arrays(self, file[x], file[y] if y in known else None, x, y)

    def _opened(self) -> h5py.File:
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

    def _targets(self, file: h5py.File, span: slice) -> np.ndarray | None:
        if self.y_dtype is None:
            return None
        stored = file[self._y]
        values = stored.asstr()[span] if stored.dtype.kind == "O" else stored[span]
        return as_targets(values, self.y_dtype, f"{self._y} in {self.location}")


def dataset_names(file: h5py.File) -> list[str]:
    """Paths of all datasets."""
    import h5py

    names: list[str] = []
    file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    return names
