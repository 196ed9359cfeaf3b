"""Predictions as one .npy array: a column is one-dimensional, several of one type are a table.

Rows are written to their place in the file, not through a memory map. A full disk is then an error that can be reported
and not a signal that kills the process, and written pages do not count as our memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
from numpy.lib import format as npy

from streamrf.data.source import Span
from streamrf.data.writers.base import LOCAL, SHARED, Columns, ColumnTypes, PartSpec, Writer, check_there
from streamrf.data.writers.files import FileWriter
from streamrf.support.errors import InputError


class NpyRows(Writer):
    """A file with its header, and space for the rows of these columns."""

    def __init__(self, place: str, names: Iterable[str]) -> None:
        self._names = names
        self._file = open(check_there(place), "r+b")  # noqa: SIM115 (closed by ``commit`` and ``abort``)

    def open(self) -> None:
        version = npy.read_magic(self._file)
        if version != (1, 0):
            raise InputError(
                f"the output was prepared by another version (npy {version[0]}.{version[1]}, expected 1.0)"
            )
        _, _, self._dtype = npy.read_array_header_1_0(self._file)
        self._first_byte = self._file.tell()

    def write(self, first_row: int, block: Columns) -> None:
        rows = np.column_stack([block[name].astype(self._dtype) for name in self._names])
        self._file.seek(self._first_byte + first_row * self._dtype.itemsize * rows.shape[1])
        self._file.write(np.ascontiguousarray(rows).tobytes())

    def commit(self) -> None:
        self._file.close()

    def abort(self) -> None:
        self._file.close()


class NpyWriter(FileWriter):
    endings = (".npy",)
    modes = (LOCAL, SHARED)
    ordered = False

    def __init__(self, path: str, n_rows: int, columns: ColumnTypes, *, overwrite: bool) -> None:
        super().__init__(path, n_rows, columns, overwrite=overwrite)
        self._dtype = _common_type(path, self.columns)

    def begin(self) -> NpyRows:
        shape = (self.n_rows,) if len(self.columns) == 1 else (self.n_rows, len(self.columns))
        with open(self.place, "wb") as file:
            header = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
            npy.write_array_header_1_0(file, header)
            size = file.tell() + self.n_rows * self._dtype.itemsize * len(self.columns)
            if hasattr(os, "posix_fallocate"):
                file.flush()
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is then known before the work is done
        return NpyRows(self.place, self.columns)

    @classmethod
    def begin_part(cls, spec: PartSpec, region: Span) -> NpyRows:
        return NpyRows(spec["place"], spec["columns"])


def _common_type(path: str, columns: dict[str, np.dtype]) -> np.dtype:
    """The one type of all columns; strings of different width count as one."""
    types = list(columns.values())
    if len({dtype.kind for dtype in types} - {"U"}) == 0:
        widest = max(types, key=lambda dtype: dtype.itemsize)
        if widest.itemsize == 0:
            raise InputError(f"{path} needs strings of a known width: write .parquet, .zarr or .csv instead")
        return widest
    if len(set(types)) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in columns.items())
        raise InputError(f"{path} would hold columns of different types ({listed}): write .parquet instead")
    return types[0]
