"""Two stored arrays as a table: their shapes checked, their values in a plain numpy form.

Everything after a reader sees native booleans, integers and floats of 16, 32 or 64 bits in C order; and string targets
as "U", whose width may differ from block to block.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from streamrf.data.source import Matrix
from streamrf.support.errors import DataError

Array: TypeAlias = Any  # of any library: it has a shape, a dtype and slices of rows

CHUNK_BYTES = 8 << 20  # of a chunk, where the storage has none
TEXT = np.dtype("U")


def set_arrays(table: Matrix, X: Array, y: Array | None, x_name: str = "X", y_name: str = "y") -> None:
    """Set the sizes and types of a table of two stored arrays, or say why they cannot be one."""
    what = f"{x_name} in {table.location}"
    table.n_rows, table.n_features = _table_shape(X.shape, what)
    table.x_dtype = _feature_dtype(np.dtype(X.dtype), what)
    if y is None:
        table.n_outputs, table.y_dtype = 0, None
        return
    what = f"{y_name} in {table.location}"
    table.n_outputs = _output_count(y.shape, what)
    table.y_dtype = _target_dtype(np.dtype(y.dtype), what)
    if y.shape[0] != table.n_rows:
        raise DataError(
            f"{x_name} has {table.n_rows:,} rows but {y_name} has {y.shape[0]:,} in {table.location}: they must match"
        )


def _table_shape(shape: tuple[int, ...], what: str) -> tuple[int, int]:
    """Rows and columns of features; one dimension is one column."""
    if len(shape) not in (1, 2):
        raise DataError(f"{what} has {len(shape)} dimensions {shape}, but features are a table of rows and columns")
    columns = shape[1] if len(shape) == 2 else 1
    if shape[0] == 0 or columns == 0:
        raise DataError(f"{what} is empty: it has {shape[0]} rows and {columns} columns")
    return shape[0], columns


def _output_count(shape: tuple[int, ...], what: str) -> int:
    """Columns of targets."""
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] == 0):
        raise DataError(f"{what} has shape {shape}, but targets are one column or a table of columns")
    return shape[1] if len(shape) == 2 else 1


def rows_of(nbytes: int, row_bytes: int) -> int:
    """How many rows make about ``nbytes``, at least one."""
    return max(1, nbytes // max(1, row_bytes))


def _feature_dtype(stored: np.dtype, what: str) -> np.dtype:
    """What a numeric column is read as; anything else is a DataError that begins with ``what``."""
    if stored.kind not in "biuf":
        raise DataError(f"{what} is of type {stored}, but features must be numeric (boolean, integer or float)")
    if stored.kind == "f" and stored.itemsize > 8:  # long double: its width differs from machine to machine
        return np.dtype(np.float64)
    return stored.newbyteorder("=")


def _target_dtype(stored: np.dtype, what: str) -> np.dtype:
    """What targets are read as: numbers as features are, and strings of every kind as "U"."""
    if stored.kind in "USTO":
        return TEXT
    if stored.kind not in "biuf":
        raise DataError(f"{what} is of type {stored}, but targets must be numbers, booleans or strings")
    return _feature_dtype(stored, what)


def as_matrix(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Features in their plain form: two dimensions, C order, native type; a copy only where something differs."""
    matrix = values.reshape(-1, 1) if values.ndim == 1 else values
    return np.ascontiguousarray(matrix, dtype=dtype)


def as_targets(values: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """Targets in their plain form; a single column is one-dimensional."""
    plain = _as_text(values, what) if dtype.kind == "U" else np.ascontiguousarray(values, dtype=dtype)
    return plain[:, 0] if plain.ndim == 2 and plain.shape[1] == 1 else plain


def _as_text(values: np.ndarray, what: str) -> np.ndarray:
    """Strings of any numpy kind as "U"; where labels are missing, an object array with None in their place."""
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8")
    if values.dtype.kind == "O":
        return _text_of_objects(values, what)
    return values.astype(object).astype("U")  # numpy's StringDType does not become "U" in one step


def _text_of_objects(values: np.ndarray, what: str) -> np.ndarray:
    kinds = {type(value) for value in values.flat}
    wrong = sorted(kind.__name__ for kind in kinds if not issubclass(kind, str | type(None)))
    if wrong:
        raise DataError(f"{what} mixes objects of type {', '.join(wrong)} with strings: give one type of label")
    return values if type(None) in kinds else values.astype("U")
