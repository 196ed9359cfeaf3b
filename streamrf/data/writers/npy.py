"""Predictions as one .npy array: a column is one-dimensional, several of one type are a table.

Rows are written to their place in the file rather than through a memory map: a full disk is then an error that can be
told, not a signal that kills the process, and written pages do not count as ours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from streamrf.data.source import Span
from streamrf.data.writers.base import Columns, Sink
from streamrf.support.errors import InputError


class NpySink(Sink):
    ordered = False
    _file: BinaryIO | None = None

    def __init__(self, path: str, n_rows: int, columns: Sequence[tuple[str, np.dtype]], *, overwrite: bool) -> None:
        super().__init__(path, n_rows, columns, overwrite=overwrite)
        self._dtype = common_type(path, self.columns)

    def _open(self, path: str) -> None:
        self._file = open(path, "w+b")  # noqa: SIM115 (closed with the sink)
        shape = (self.n_rows,) if len(self.columns) == 1 else (self.n_rows, len(self.columns))
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._header_bytes = self._file.tell()
        self._row_bytes = self._dtype.itemsize * len(self.columns)
        reserve(self._file, self._header_bytes + self.n_rows * self._row_bytes)

    def _write(self, span: Span, arrays: Columns) -> None:
        assert self._file is not None
        rows = np.column_stack([values.astype(self._dtype) for values in arrays.values()])
        self._file.seek(self._header_bytes + span.start * self._row_bytes)
        self._file.write(np.ascontiguousarray(rows).tobytes())

    def _close(self, complete: bool) -> None:
        if self._file is not None:
            self._file.close()


def common_type(path: str, columns: dict[str, np.dtype]) -> np.dtype:
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


def reserve(file: BinaryIO, size: int) -> None:
    """Take the space now, so that a full disk is known before the work is done."""
    if size and hasattr(os, "posix_fallocate"):
        file.flush()
        os.posix_fallocate(file.fileno(), 0, size)
