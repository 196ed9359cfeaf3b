"""Predictions as a parquet file with a column each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamrf.data.source import Span
from streamrf.data.writers.base import Columns, RowBuffer, Sink

GROUP_ROWS = 1 << 17


class ParquetSink(Sink):
    """Blocks come in row order and are joined into row groups."""

    ordered = True
    _writer: Any = None

    def _open(self, path: str) -> None:
        self._schema = arrow_schema(self.columns)
        self._writer = pq.ParquetWriter(path, self._schema)
        self._buffer = RowBuffer(GROUP_ROWS)

    def _write(self, span: Span, arrays: Columns) -> None:
        for _, values in self._buffer.add(span, arrays):
            self._writer.write_table(arrow_table(values, self._schema))

    def _close(self, complete: bool) -> None:
        if self._writer is None:
            return
        try:
            for _, values in self._buffer.drain() if complete else ():
                self._writer.write_table(arrow_table(values, self._schema))
        finally:
            self._writer.close()


def arrow_schema(columns: dict[str, np.dtype]) -> Any:
    types = {name: pa.string() if d.kind == "U" else pa.from_numpy_dtype(d) for name, d in columns.items()}
    return pa.schema(list(types.items()))


def arrow_table(values: Columns, schema: Any) -> Any:
    arrays = [pa.array(values[field.name], type=field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
