"""Predictions as text: a line of names, then a line for each row; floats in the shortest form that reads back equal."""

from __future__ import annotations

import csv
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv

from streamrf.sinks.base import Columns, Sink
from streamrf.sinks.parquet import arrow_schema, arrow_table
from streamrf.sources.base import Span


class CsvSink(Sink):
    """Blocks come in row order and are written as they come."""

    ordered = True
    _file: BinaryIO | None = None

    def _open(self, path: str) -> None:
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(self.columns)
        self._schema: Any = arrow_schema(self.columns)
        self._options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
        self._file = open(path, "ab")  # noqa: SIM115 (closed with the sink)

    def _write(self, span: Span, arrays: Columns) -> None:
        pa.csv.write_csv(arrow_table(arrays, self._schema), self._file, self._options)

    def _close(self, complete: bool) -> None:
        if self._file is not None:
            self._file.close()
