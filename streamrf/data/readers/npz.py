"""Arrays in an .npz archive, compressed or not, read a few rows at a time without unpacking it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from streamrf.data.dtypes import as_matrix, as_targets, feature_dtype, target_dtype
from streamrf.data.failures import no_such, reading
from streamrf.data.readers.matrix import Matrix, Rows
from streamrf.data.table import output_count, table_shape
from streamrf.support.errors import DataError


class NpzMatrix(Matrix):
    """Members ``x`` and ``y`` of the archive; the targets may be left out."""

    def __init__(self, location: str, *, x: str = "X", y: str = "y") -> None:
        self.location = location
        with reading(location), zipfile.ZipFile(location) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            if x not in names:
                raise no_such("array", x, names, location, " (name another with --x)")
            self._names = [x, y] if y in names else [x]
            headers = [self._header(archive, name) for name in self._names]
        shape, stored = headers[0]
        self.n_rows, self.n_features = table_shape(shape, f"{x} in {location}")
        self.x_dtype = feature_dtype(stored, f"{x} in {location}")
        if len(headers) > 1:
            self._set_targets(*headers[1], y)

    def _set_targets(self, shape: tuple[int, ...], stored: np.dtype, name: str) -> None:
        self.n_outputs = output_count(shape, f"{name} in {self.location}")
        self.y_dtype = target_dtype(stored, f"{name} in {self.location}")
        if shape[0] != self.n_rows:
            raise DataError(
                f"X has {self.n_rows:,} rows but {name} has {shape[0]:,} in {self.location}: they must match"
            )

    def _header(self, archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
        with archive.open(f"{name}.npy") as file:
            shape, is_fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise DataError(f"{name} in {self.location} holds Python objects: save it as numbers or strings")
        if is_fortran and len(shape) > 1:
            raise DataError(
                f"{name} in {self.location} is stored by columns (Fortran order), and rows cannot be read one after the"
                " other: save numpy.ascontiguousarray of it"
            )
        return shape, dtype

    def blocks(self, rows: int) -> Iterator[Rows]:
        with ExitStack() as stack:
            stack.enter_context(reading(self.location))
            archive = stack.enter_context(zipfile.ZipFile(self.location))
            files = [stack.enter_context(archive.open(f"{name}.npy")) for name in self._names]
            headers = [read_header(file) for file in files]
            for start in range(0, self.n_rows, rows):
                count = min(rows, self.n_rows - start)
                parts = [_take(file, count, *header) for file, header in zip(files, headers, strict=True)]
                yield as_matrix(parts[0], self.x_dtype), self._plain_targets(parts[1:])

    def _plain_targets(self, parts: list[np.ndarray]) -> np.ndarray | None:
        if not parts or self.y_dtype is None:
            return None
        return as_targets(parts[0], self.y_dtype, f"the targets in {self.location}")


def read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether in Fortran order, and type of an .npy stream, which then stands at its first value."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def _take(file: Any, count: int, shape: tuple[int, ...], is_fortran: bool, dtype: np.dtype) -> np.ndarray:
    wanted = (count, *shape[1:])
    size = int(np.prod(wanted)) * dtype.itemsize
    data = file.read(size)
    if len(data) != size:
        raise EOFError(f"{size - len(data)} bytes of rows are missing")
    return np.frombuffer(data, dtype).reshape(wanted)
