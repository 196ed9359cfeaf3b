"""Which stored types are features, which are targets, and the plain numpy form each is handed over in.

Everything after a source sees native booleans, integers and floats of 16, 32 or 64 bits, C-ordered; and for string
targets numpy's "U", whose width may differ from block to block.
"""

from __future__ import annotations

import numpy as np

from streamrf.support.errors import DataError

TEXT = np.dtype("U")


def feature_dtype(stored: np.dtype, what: str) -> np.dtype:
    """What a numeric column is read as; anything else is a DataError that begins with ``what``."""
    if stored.kind not in "biuf":
        raise DataError(f"{what} is of type {stored}, but features must be numeric (boolean, integer or float)")
    if stored.kind == "f" and stored.itemsize > 8:  # long double: its width differs from machine to machine
        return np.dtype(np.float64)
    return stored.newbyteorder("=")


def target_dtype(stored: np.dtype, what: str) -> np.dtype:
    """What targets are read as: numbers as features are, and strings of every kind as "U"."""
    if stored.kind in "USTO":
        return TEXT
    if stored.kind not in "biuf":
        raise DataError(f"{what} is of type {stored}, but targets must be numbers, booleans or strings")
    return feature_dtype(stored, what)


def as_matrix(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Features in their plain form: two dimensions, C order, native type; a copy only where something differs."""
    matrix = values.reshape(-1, 1) if values.ndim == 1 else values
    return np.ascontiguousarray(matrix, dtype=dtype)


def as_targets(values: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """Targets in their plain form; a single column is one-dimensional."""
    plain = as_text(values, what) if dtype.kind == "U" else np.ascontiguousarray(values, dtype=dtype)
    return plain[:, 0] if plain.ndim == 2 and plain.shape[1] == 1 else plain


def as_text(values: np.ndarray, what: str) -> np.ndarray:
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
