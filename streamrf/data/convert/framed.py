"""A frame as a matrix: its columns coded as numbers, its target columns as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from streamrf.data.columns.arrow import as_numbers, whole
from streamrf.data.columns.document import Columns
from streamrf.data.columns.encoding import Encoder
from streamrf.data.dtypes import TEXT
from streamrf.data.readers.frame import Frame
from streamrf.data.readers.matrix import Matrix, Rows
from streamrf.data.readers.parquet_columns import target_types
from streamrf.support.errors import DataError


class FrameMatrix(Matrix):
    """``missing`` says what happens to a value that is not there: ``error``, or ``keep`` it as NaN."""

    def __init__(self, frame: Frame, columns: Columns, targets: list[str], missing: str = "error") -> None:
        assert frame.n_rows is not None
        self._frame, self.columns, self._missing = frame, columns, missing
        self.location, self.n_rows = frame.location, frame.n_rows
        self.n_features, self.n_outputs = columns.width, len(targets)
        self.feature_names, self.target_names = columns.feature_names, tuple(targets) or None
        self.x_dtype = np.dtype(columns.dtype)
        types = target_types(frame.schema, targets, frame.location)
        self.y_dtype = np.result_type(*types.values()) if types else None
        self._encoder = Encoder(columns)

    def blocks(self, rows: int) -> Iterator[Rows]:
        names, done = [*self.columns.names, *(self.target_names or ())], 0  # type: ignore[union-attr]
        for batch in self._frame.batches(names):
            for start in range(0, len(batch), rows):
                part = batch.slice(start, rows)
                yield self._features(part, done), self._targets(part, done)
                done += len(part)

    def _features(self, batch: Any, first: int) -> np.ndarray:
        X = np.empty((len(batch), self.n_features), self.x_dtype)
        self._encoder.encode(batch, X)
        if self._missing == "error":
            self._refuse_missing(X, first)
        return X

    def _refuse_missing(self, X: np.ndarray, first: int) -> None:
        missing = np.isnan(X)
        if missing.any():
            row, place = np.argwhere(missing)[0]
            raise DataError(
                f"row {first + row:,} of {self.location} has no value for '{self.feature_names[place]}'"  # type: ignore[index]
                f" ({int(missing.any(axis=1).sum()):,} such rows near there): fill in medians with --missing median, or"
                " keep NaN with --missing keep"
            )

    def _targets(self, batch: Any, first: int) -> np.ndarray | None:
        if self.y_dtype is None:
            return None
        columns = [self._target(batch.column(name), name, first) for name in self.target_names or ()]
        return columns[0] if len(columns) == 1 else np.column_stack(columns)

    def _target(self, values: Any, name: str, first: int) -> np.ndarray:
        assert self.y_dtype is not None
        values = whole(values)
        if values.null_count and self.y_dtype.kind != "f":
            row = first + values.is_null().index(pa.scalar(True)).as_py()
            raise DataError(f"row {row:,} of {self.location} has no target '{name}': fill it in, or leave the row out")
        if self.y_dtype == TEXT:
            plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
            return plain.to_numpy(zero_copy_only=False).astype("U")
        return as_numbers(values).astype(self.y_dtype, copy=False)
