"""Parquet: one file, or several that are read one after the other; row groups are the chunks.

Only the columns that are needed are read. Features are in the file's order unless ``features`` gives another; nulls
are NaN, so a column of integers or booleans that has any is read as floats. A target that is not named is the column
called ``y``. Columns pandas added for its index (``__index_level_0__``) are never features. Dates are read as days
since 1970; with a coding of columns (``Choice.columns``) categories and missing values become numbers too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from streamrf.data.columns.encoding import Encoder
from streamrf.data.dtypes import as_targets
from streamrf.data.readers.memory import rows_of
from streamrf.data.readers.parquet_columns import Choice, choose_columns, fill_column, widened
from streamrf.data.readers.parquet_files import BATCH_BYTES, ParquetFiles, RowGroup
from streamrf.data.source import Block, Source, Span
from streamrf.data.table import Table, row_numbers
from streamrf.support.errors import DataError

TEXT_BYTES = 128  # a guess at a label as a Python string, for memory only


class ParquetSource(Table):
    """Parquet files with the same columns as one table."""

    picks_columns = True

    def __init__(self, location: str, files: Sequence[str] | None = None, choice: Choice | None = None) -> None:
        self.location, self._choice = location, choice or Choice()
        self._files = ParquetFiles([location] if files is None else files)
        first, *others = self._files.schemas()
        self._columns = choose_columns(first, self._files.paths[0], self._choice)
        self.columns = self._choice.columns
        self._encoder = None if self.columns is None else Encoder(self.columns)
        for path, schema in zip(self._files.paths, [first, *others], strict=True):
            self._check_schema(schema, path)
        self.n_rows = sum(len(group.rows) for group in self._files.groups)
        if not self.n_rows:
            raise DataError(f"{location} has no rows")
        self.feature_names = tuple(self._columns.features) if self.columns is None else self.columns.feature_names
        self.n_features, self.n_outputs = len(self.feature_names), len(self._columns.targets)
        self.target_names = tuple(self._columns.targets) or None
        self._set_types()

    def _check_schema(self, schema: Any, path: str) -> None:
        if self._encoder is not None:
            self._encoder.check(schema, path)
        if path != self._files.paths[0]:
            same = self._columns if self._encoder is None else replace(self._columns, features={})
            same.check_same(schema, self._files.paths[0], path)

    def _set_types(self) -> None:
        whole = {name for name, dtype in self._columns.all.items() if dtype.kind in "biu"}
        nulls = self._files.nullable(whole)
        self.x_dtype = self._feature_type({n: widened(t, n in nulls) for n, t in self._columns.features.items()})
        y_types = [widened(t, name in nulls) for name, t in self._columns.targets.items()]
        self.y_dtype = np.result_type(*y_types) if y_types else None

    def _feature_type(self, types: dict[str, np.dtype]) -> np.dtype:
        return np.result_type(*types.values()) if self.columns is None else np.dtype(self.columns.dtype)

    @property
    def declared_dtypes(self) -> tuple[np.dtype, np.dtype | None]:
        """Types before nulls widen them."""
        targets = list(self._columns.targets.values())
        return self._feature_type(self._columns.features), np.result_type(*targets) if targets else None

    @property
    def unknown_levels(self) -> Counter[str]:
        """By column, how many values were read that the coding does not know."""
        return Counter() if self._encoder is None else self._encoder.unknown

    def chunks(self) -> tuple[Span, ...]:
        return tuple(group.rows for group in self._files.groups)

    def members(self) -> tuple[Source, ...]:
        """The files, as each would be read alone: one that is named later by itself is recognised."""
        return (self,) if len(self._files.paths) == 1 else self._members

    @cached_property
    def _members(self) -> tuple[Source, ...]:
        names = None if self.columns is not None else list(self._columns.features)  # in one order, whatever a file's is
        choice = replace(self._choice, features=names)
        filled = sorted({group.file for group in self._files.groups})
        return tuple(ParquetSource(self._files.paths[i], choice=choice) for i in filled)

    def read(self, span: Span) -> Block:
        """Features and targets in one go over the file."""
        self._check(span)
        X, y = self._load(span, list(self._columns.features), list(self._columns.targets))
        return Block(X, y if self.has_targets else None, row_numbers(span))

    def _features(self, span: Span) -> np.ndarray:
        return self._load(span, list(self._columns.features), [])[0]

    def _targets(self, span: Span) -> np.ndarray:
        return self._load(span, [], list(self._columns.targets))[1]

    def _load(self, span: Span, features: list[str], targets: list[str]) -> tuple[np.ndarray, np.ndarray]:
        y_dtype = self.y_dtype or np.dtype(float)
        X = np.empty((len(span), self.n_features if features else 0), self.x_dtype)
        y = np.empty((len(span), len(targets)), object if y_dtype.kind == "U" else y_dtype)
        for rows, batch in self._files.batches(span, [*features, *targets], self._batch_rows):
            part = slice(rows.start, rows.stop)
            if self._encoder is not None and features:
                self._encoder.encode(batch, X[part])
            else:
                self._fill(X[part], batch, features)
            self._fill(y[part], batch, targets)
        return X, as_targets(y, y_dtype, f"the target of {self.location}")

    def _fill(self, out: np.ndarray, batch: Any, names: list[str]) -> None:
        for j, name in enumerate(names):
            fill_column(out[:, j], batch.column(name), f"column '{name}' of {self.location}")

    def read_bytes(self, span: Span) -> int:
        """What is handed over, the pages of one row group at a time, and two decoded batches."""
        text = self.y_dtype is not None and self.y_dtype.kind == "U"
        row = self.n_features * self.x_dtype.itemsize + self.n_outputs * (TEXT_BYTES if text else 16) + 8
        touched = self._files.touched(span)
        stored = max((self._stored_bytes[group] for group in touched), default=0)
        decoded = min(self._batch_rows, max((len(group.rows) for group in touched), default=0))
        return len(span) * row + stored + 2 * decoded * self._decoded_row_bytes

    @property
    def _decoded_row_bytes(self) -> int:
        return sum(dtype.itemsize or TEXT_BYTES for dtype in self._columns.all.values())

    @property
    def _batch_rows(self) -> int:
        return rows_of(BATCH_BYTES, self._decoded_row_bytes)

    @cached_property
    def _stored_bytes(self) -> dict[RowGroup, int]:
        return {group: self._files.stored_bytes(group, self._columns.all) for group in self._files.groups}

    def spec(self) -> dict[str, Any]:
        return {"data": self.location, **self._choice.spec()}

    def _format(self) -> str:
        count = len(self._files.paths)
        return "parquet" if count == 1 else f"parquet ({count} files)"
