"""Columns as bytes that can be written one block after the other: CSV, JSON lines, an Arrow stream."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from streamrf.data.writers.base import Columns
from streamrf.data.writers.parquet import arrow_schema, arrow_table


class Encoding(ABC):
    """What begins an output, what a block of rows is in it, and what ends it."""

    def __init__(self, columns: dict[str, np.dtype]) -> None:
        self.columns, self._schema = columns, arrow_schema(columns)

    def head(self) -> bytes:
        return b""

    @abstractmethod
    def rows(self, block: Columns) -> bytes:
        """The rows of one block."""

    def tail(self) -> bytes:
        return b""


class CsvText(Encoding):
    """A line of names, then a line for each row; floats in the shortest form that reads back equal."""

    def head(self) -> bytes:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(self.columns)
        return line.getvalue().encode()

    def rows(self, block: Columns) -> bytes:
        out = io.BytesIO()
        options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
        pa.csv.write_csv(arrow_table(block, self._schema), out, options)
        return out.getvalue()


class JsonLinesText(Encoding):
    """An object for each row."""

    def rows(self, block: Columns) -> bytes:
        lists = [np.asarray(block[name]).tolist() for name in self.columns]
        objects = (dict(zip(self.columns, row, strict=True)) for row in zip(*lists, strict=True))
        return "".join(json.dumps(one, allow_nan=False, ensure_ascii=False) + "\n" for one in objects).encode()


class ArrowBytes(Encoding):
    """A stream of record batches, one for each block."""

    def __init__(self, columns: dict[str, np.dtype]) -> None:
        super().__init__(columns)
        self._buffer = io.BytesIO()
        self._writer: Any = pa.ipc.new_stream(self._buffer, self._schema)

    def head(self) -> bytes:
        return self._drained()

    def rows(self, block: Columns) -> bytes:
        self._writer.write_table(arrow_table(block, self._schema))
        return self._drained()

    def tail(self) -> bytes:
        self._writer.close()
        return self._drained()

    def _drained(self) -> bytes:
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return data


ENCODINGS: dict[str, type[Encoding]] = {"csv": CsvText, "jsonl": JsonLinesText, "arrow": ArrowBytes}
