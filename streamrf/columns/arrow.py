"""Arrow columns as numpy: which types are numbers, dates or text, and the plain values of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SECONDS_PER_DAY = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def role_of(stored: Any) -> str | None:
    """``number``, ``date`` or ``text``; None for what is none of them."""
    if pa.types.is_dictionary(stored):
        return role_of(stored.value_type)
    if pa.types.is_boolean(stored) or pa.types.is_integer(stored) or pa.types.is_floating(stored):
        return "number"
    if pa.types.is_decimal(stored):
        return "number"
    if pa.types.is_temporal(stored):
        return None if pa.types.is_interval(stored) else "date"
    return "text" if is_text(stored) or pa.types.is_null(stored) else None


def is_text(stored: Any) -> bool:
    return pa.types.is_string(stored) or pa.types.is_large_string(stored) or pa.types.is_string_view(stored)


def whole(values: Any) -> Any:
    """One arrow array, of a column that may come in several."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def as_numbers(values: Any) -> np.ndarray:
    """A column of numbers or dates in numpy, nulls as NaN; dates are days since 1970, durations and times are days."""
    values = whole(values)
    if pa.types.is_dictionary(values.type):
        return as_numbers(values.dictionary_decode())
    if pa.types.is_temporal(values.type):
        return as_days(values)
    if pa.types.is_boolean(values.type):  # with nulls these would become Python objects
        values = values.cast(pa.uint8())
    elif pa.types.is_decimal(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.float64())
    return values.to_numpy(zero_copy_only=False)


def as_days(values: Any) -> np.ndarray:
    """Days as float64: of a time stamp since 1970 (in UTC), of a time of day since midnight."""
    kind = values.type
    if pa.types.is_date32(kind):
        return values.cast(pa.int32()).to_numpy(zero_copy_only=False).astype(np.float64)
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    stored = pa.int32() if pa.types.is_time32(kind) else pa.int64()
    ticks = values.cast(stored).to_numpy(zero_copy_only=False).astype(np.float64)
    return ticks / (_PER_SECOND[unit] * SECONDS_PER_DAY)


def as_levels(values: Any) -> Any:
    """A column as arrow text; whole numbers are written without a point, however they are stored."""
    values = whole(values)
    if pa.types.is_dictionary(values.type):
        return as_levels(values.dictionary).take(values.indices)
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        if pc.all(pc.or_kleene(pc.equal(pc.floor(values), values), pc.is_null(values))).as_py() is not False:
            values = values.cast(pa.int64())
    return values.cast(pa.string())


def level_codes(values: Any, levels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Place of each value among ``levels`` (-1: none of them), and which values are missing."""
    values = whole(values)
    if pa.types.is_dictionary(values.type):  # few texts to look up, many places to copy
        codes = pc.index_in(as_levels(values.dictionary), value_set=levels).take(values.indices)
    else:
        values = as_levels(values)
        codes = pc.index_in(values, value_set=levels)
    missing = _missing(values)
    return codes.fill_null(-1).to_numpy(zero_copy_only=False), missing


def _missing(values: Any) -> np.ndarray:
    return values.is_null().to_numpy(zero_copy_only=False)
