"""From batches of raw columns to rows of features."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from streamrf.data.columns.arrow import as_numbers, is_text, level_codes, role_of
from streamrf.data.columns.document import DATE, NUMBER, ONEHOT, Column, Columns
from streamrf.data.failures import no_such
from streamrf.support.errors import DataError


class Encoder:
    """A coding made ready for arrow batches; ``unknown`` counts, by column, values that training had not seen."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.unknown: Counter[str] = Counter()
        self._levels = {c.name: pa.array(c.levels, pa.string()) for c in columns.columns if c.is_category}

    def check(self, schema: Any, where: str) -> None:
        """Refuse a table that lacks a column, or has it in a type that cannot be coded."""
        for column in self.columns.columns:
            if column.name not in schema.names:
                raise no_such("column", column.name, schema.names, where, " (the model was trained on it)")
            stored = schema.field(column.name).type
            if not _is_codable(column, stored):
                wanted = {NUMBER: "numbers", DATE: "dates"}.get(column.kind, "categories")
                raise DataError(
                    f"column '{column.name}' of {where} is of type {stored}, but the model knows {wanted} there"
                )

    def encode(self, batch: Any, out: np.ndarray) -> None:
        """Write the features of a batch, whose columns may be in any order, into ``out`` (n, width)."""
        place = 0
        for column in self.columns.columns:
            part = out[:, place : place + column.width]
            values = batch.column(column.name)
            if column.is_category:
                self._write_category(column, values, part)
            else:
                _write_number(column, values, part)
            place += column.width

    def _write_category(self, column: Column, values: Any, out: np.ndarray) -> None:
        codes, missing = level_codes(values, self._levels[column.name], column.of)
        strange = int(((codes < 0) & ~missing).sum())
        if strange:
            self.unknown[column.name] += strange
        if column.kind == ONEHOT:
            _write_onehot(codes, out)
        else:
            out[:, 0] = np.where(codes < 0, len(column.levels), codes)
            if column.fill is not None:
                out[missing, 0] = column.fill
        if column.flag:
            out[:, -1] = missing
        elif column.fill is None and missing.any():
            out[missing] = np.nan


def _is_codable(column: Column, stored: Any) -> bool:
    if column.is_category:
        return role_of(stored) in ("text", "number")
    role = role_of(stored)
    return role == column.kind or (pa.types.is_null(stored) and not is_text(stored))


def _write_onehot(codes: np.ndarray, out: np.ndarray) -> None:
    out[:] = 0
    rows = np.flatnonzero(codes >= 0)
    out[rows, codes[rows]] = 1


def _write_number(column: Column, values: Any, out: np.ndarray) -> None:
    out[:, 0] = as_numbers(values)
    if column.fill is None:
        return
    missing = np.isnan(out[:, 0])
    out[missing, 0] = column.fill
    if column.flag:
        out[:, 1] = missing
