"""Predictions as bytes, block after block: CSV, JSON lines or an Arrow stream, in files or on standard output."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from typing import BinaryIO, Protocol

import numpy as np

from streamrf.data.writers.base import Columns, ColumnTypes, Writer, ending_of
from streamrf.data.writers.files import FileWriter
from streamrf.data.writers.parquet import arrow_schema, arrow_table


class Encoding(ABC):
    """The bytes that begin an output, those of a block of rows, and those that end it."""

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
        import pyarrow.csv

        out = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
        pyarrow.csv.write_csv(arrow_table(block, self._schema), out, options)
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
        import pyarrow as pa

        super().__init__(columns)
        self._buffer = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._buffer, self._schema)

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


class ByteStream(Protocol):
    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...


class StreamWriter(Writer):
    """Writes to a stream that is open already, such as standard output; every block is flushed."""

    def __init__(self, stream: ByteStream, form: str, columns: ColumnTypes) -> None:
        self._stream = stream
        self._encoding = ENCODINGS[form]({name: np.dtype(dtype) for name, dtype in columns})

    def open(self) -> None:
        self._send(self._encoding.head())

    def write(self, first_row: int, block: Columns) -> None:
        self._send(self._encoding.rows(block))

    def commit(self) -> None:
        self._send(self._encoding.tail())

    def _send(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.flush()


class EncodedFile(StreamWriter):
    """A stream that is closed at the end."""

    _stream: BinaryIO

    def commit(self) -> None:
        super().commit()
        self._stream.close()

    def abort(self) -> None:
        self._stream.close()


class EncodedWriter(FileWriter):
    endings = tuple(f".{form}" for form in ENCODINGS)
    ordered = True

    def begin(self) -> EncodedFile:
        return EncodedFile(open(self.place, "wb"), ending_of(self.path)[1:], list(self.columns.items()))
