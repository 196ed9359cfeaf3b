"""From arrow columns to numpy: which types are numbers, dates or text, and the features that a coding makes of them."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamrf.data.columns import BOOL, DATE, FLOAT, INT, NUMBER, ONEHOT, PERIODS, TARGET, Column, Columns
from streamrf.data.columns.levels import FOLDS, fold_of, place_among
from streamrf.data.locations import no_such
from streamrf.support.errors import DataError

SECONDS_PER_DAY = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_READ_AS = {INT: (pa.int64(), pa.uint64(), pa.float64()), FLOAT: (pa.float64(),), BOOL: (pa.bool_(),)}


ABOUT = b"streamrf.about"  # in the metadata of a schema: what a conversion found out about columns


def about_column(schema: pa.Schema, name: str) -> str:
    """What the conversion of a file of text found out about a column: a half sentence, or nothing."""
    return json.loads((schema.metadata or {}).get(ABOUT, b"{}")).get(name, "")


class Encoder:
    """A coding made ready for arrow batches; ``unknown`` counts, by column, values that training had not seen."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.unknown: Counter[str] = Counter()
        self._levels = {c.name: pa.array(c.levels, pa.string()) for c in columns.columns if c.is_category}

    def check(self, schema: pa.Schema, where: str) -> None:
        """Refuse a table that lacks a column, or has it in a type that cannot be coded."""
        for column in self.columns.columns:
            if column.name not in schema.names:
                raise no_such("column", column.name, schema.names, where, " (the model was trained on it)")
            stored = schema.field(column.name).type
            if not _is_codable(column, stored):
                wanted = {NUMBER: "numbers", DATE: "dates"}.get(column.kind, "categories")
                about = about_column(schema, column.name)
                fix = "" if "`" in about else ": fix the data"  # or an option reads it
                raise DataError(
                    f"column '{column.name}' of {where} is of type {stored}, but the model knows {wanted} there"
                    f"{about}{fix}"
                )

    def encode(self, batch: pa.RecordBatch | pa.Table, out: np.ndarray, first: int = 0) -> np.ndarray | None:
        """Write the features of a batch, whose columns may be in any order, into ``out`` (n, width).

        ``first`` is the number of the first row in its table; it matters for rows that the sums of levels hold. Such
        rows are known by the features of their plain coding, which are returned.
        """
        folds, start = None, self.columns.first
        if start is not None:
            folds = fold_of(np.arange(start + first, start + first + len(batch)))
        place, plain = 0, list[np.ndarray]()
        for column in self.columns.columns:
            part = out[:, place : place + column.width]
            values = batch.column(column.name)
            if column.kind == TARGET:
                plain.append(self._write_by_target(column, values, part, folds))
            elif column.is_category:
                self._write_category(column, values, part)
            else:
                _write_number(column, values, part, folds)
            if column.kind != TARGET:
                plain.append(np.delete(part, 1, axis=1) if column.values else part)
            place += column.width
        return np.concatenate(plain, axis=1) if self.columns.knows_rows else None

    def _codes(self, column: Column, values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Places of levels, and which values are missing; those that are not known are counted."""
        if column.buckets:
            codes, missing = bucket_codes(values, column.buckets, column.of)
        else:
            codes, missing = level_codes(values, self._levels[column.name], column.of)
        strange = int(((codes < 0) & ~missing).sum())
        if strange:
            self.unknown[column.name] += strange
        return codes, missing

    def _write_category(self, column: Column, values: pa.Array, out: np.ndarray) -> None:
        codes, missing = self._codes(column, values)
        if column.kind == ONEHOT:
            _write_onehot(codes, out)
        else:
            out[:, 0] = np.where(codes < 0, column.places, codes)
            if column.fill is not None:
                out[missing, 0] = column.fill
        if column.flag:
            out[:, -1] = missing
        elif column.fill is None and missing.any():
            out[missing] = np.nan

    def _write_by_target(
        self, column: Column, values: pa.Array, out: np.ndarray, folds: np.ndarray | None
    ) -> np.ndarray:
        """The smoothed mean of the target and the rows of each level; before they are learned, nothing. Its places."""
        codes, missing = self._codes(column, values)
        places = np.where(missing, column.places + 1, np.where(codes < 0, column.places, codes))
        out[:] = 0 if column.table is None else column.table.codes[FOLDS if folds is None else folds, places]
        plain = places.astype(out.dtype)[:, None]
        if column.fill is None and missing.any():
            out[missing], plain[missing] = np.nan, np.nan
        return plain


def _is_codable(column: Column, stored: pa.DataType) -> bool:
    if column.is_category:
        return role_of(stored) in ("text", "number")
    role = role_of(stored)
    return role == column.kind or (pa.types.is_null(stored) and not is_text(stored))


def _write_onehot(codes: np.ndarray, out: np.ndarray) -> None:
    out[:] = 0
    rows = np.flatnonzero(codes >= 0)
    out[rows, codes[rows]] = 1


def _write_number(column: Column, values: pa.Array, out: np.ndarray, folds: np.ndarray | None) -> None:
    numbers = as_numbers(values)
    if column.fill is not None and numbers.dtype.kind == "f":
        missing = ~np.isfinite(numbers)
        numbers = np.where(missing, column.fill, numbers)
        if column.flag:
            out[:, -1] = missing
    elif column.flag:
        out[:, -1] = 0
    out[:, 0] = numbers
    for place, part in enumerate(column.parts):
        out[:, 1 + 2 * place : 3 + 2 * place] = circle(numbers, PERIODS[part])
    if column.values:
        found = place_among(column.values, out[:, 0])
        out[:, 1] = 0 if column.table is None else column.table.codes[FOLDS if folds is None else folds, found, 0]


def circle(days: np.ndarray, period: float) -> np.ndarray:
    """(n, 2) sine and cosine of where days stand in a period, on a grid of 2^-20: the same bits on every machine."""
    turns = 2 * np.pi * (days / period - np.floor(days / period))
    return np.rint(np.stack([np.sin(turns), np.cos(turns)], axis=1) * 2.0**20) / 2.0**20


def role_of(stored: pa.DataType) -> str | None:
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


def raw_type(stored: pa.DataType) -> str | None:
    """What a category of this type is made of, where text can be read as that; None for text and all else."""
    if pa.types.is_dictionary(stored):
        return raw_type(stored.value_type)
    if pa.types.is_integer(stored):
        return INT
    return FLOAT if pa.types.is_floating(stored) else BOOL if pa.types.is_boolean(stored) else None


def is_text(stored: pa.DataType) -> bool:
    return pa.types.is_string(stored) or pa.types.is_large_string(stored) or pa.types.is_string_view(stored)


def whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One arrow array, of a column that may come in several."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def as_numbers(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
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
    return _numbers(values)


def _numbers(values: pa.Array) -> np.ndarray:
    """As arrow's ``to_numpy``, which loads pandas where that is installed: 45 MB, and half a second."""
    kind = np.dtype(values.type.to_pandas_dtype())
    if values.null_count:
        kind = kind if kind.kind == "f" else np.dtype(np.float64)
        values = values.cast(pa.from_numpy_dtype(kind), safe=False).fill_null(np.nan)
    if not len(values):
        return np.empty(0, kind)
    return np.frombuffer(values.buffers()[1], kind, len(values), values.offset * kind.itemsize)


def as_texts(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A column of strings as Python objects, None where one is missing."""
    values = whole(values)
    plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    return plain.to_numpy(zero_copy_only=False)


def as_days(values: pa.Array) -> np.ndarray:
    """Days as float64: of a time stamp since 1970 (in UTC), of a time of day since midnight."""
    kind = values.type
    if pa.types.is_date32(kind):
        return _numbers(values.cast(pa.int32())).astype(np.float64)
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    stored = pa.int32() if pa.types.is_time32(kind) else pa.int64()
    ticks = _numbers(values.cast(stored)).astype(np.float64)
    return ticks / (_PER_SECOND[unit] * SECONDS_PER_DAY)


def as_levels(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as arrow text; whole numbers are written without a point, however they are stored."""
    values = whole(values)
    if pa.types.is_dictionary(values.type):
        return as_levels(values.dictionary).take(values.indices)
    return _levels_of_floats(values) if pa.types.is_floating(values.type) else values.cast(pa.string())


def _levels_of_floats(values: pa.Array) -> pa.Array:
    """Each for itself, so that no level depends on its neighbours; what is not finite is missing."""
    if pa.types.is_float16(values.type):  # which arrow cannot round
        values = values.cast(pa.float32())
    values = pc.if_else(pc.is_finite(values), values, pa.scalar(None, values.type))
    integral = pc.and_(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), pa.scalar(2.0**63, values.type)))
    integers = pc.if_else(integral, values, pa.scalar(0, values.type)).cast(pa.int64())
    return pc.if_else(integral, integers.cast(pa.string()), values.cast(pa.string()))


def levels_read(texts: pa.Array, of: str) -> pa.Array:
    """Text as the levels that it would be had it been stored as numbers; what is no number stays as it is."""
    try:
        return as_levels(texts.cast(_READ_AS[of][0]))
    except pa.ArrowInvalid:  # some are none, or written in another way: one by one, as often they are few
        known = texts.dictionary_encode()
        return pa.array([_level_read(text, of) for text in known.dictionary], pa.string()).take(known.indices)


def _level_read(text: pa.Scalar, of: str) -> str | None:
    for kind in _READ_AS[of]:
        try:
            return as_levels(pa.array([text.cast(kind).as_py()], kind))[0].as_py()
        except pa.ArrowInvalid:
            continue
    return text.as_py()


def level_codes(values: pa.Array, levels: pa.Array, of: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Place of each value among ``levels`` (-1: none of them), and which values are missing; ``of`` is Column's."""
    values = whole(values)
    if pa.types.is_dictionary(values.type):  # few texts to look up, many places to copy
        codes, missing = level_codes(values.dictionary, levels, of)
        codes, missing = (pa.array(part).take(values.indices) for part in (codes, missing))
        return _plain(codes, -1), _plain(missing, True)
    texts = levels_read(values, of) if of and is_text(values.type) else as_levels(values)
    return _plain(pc.index_in(texts, value_set=levels), -1), _plain(texts.is_null(), True)


def bucket_codes(values: pa.Array, buckets: int, of: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """As ``level_codes``, of levels that are not listed: a hash of the text. There is none that is not known."""
    values = whole(values)
    texts = levels_read(values, of) if of and is_text(values.type) else as_levels(values)
    missing = _plain(texts.is_null(), True)
    return (hash_texts(texts.fill_null("")) & np.uint64(buckets - 1)).astype(np.int64), missing


def hash_texts(texts: pa.Array) -> np.ndarray:
    """A 64-bit hash of each text, of its UTF-8 bytes."""
    from streamrf.data.hashing import hash_bytes  # late: what only reads or converts is spared the compiler

    if not len(texts):
        return np.zeros(0, np.uint64)
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return hash_bytes(starts, np.frombuffer(data or b"", np.uint8))


def _plain(values: pa.Array, otherwise: int | bool) -> np.ndarray:
    filled = values.fill_null(otherwise)
    if pa.types.is_boolean(filled.type):
        return _numbers(filled.cast(pa.uint8())).view(bool)
    return _numbers(filled)
