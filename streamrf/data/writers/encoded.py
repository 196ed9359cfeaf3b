"""Predictions as bytes, block after block: CSV, JSON lines or an Arrow stream, in files or on standard output."""

from __future__ import annotations

import csv
import io
import json
from typing import Protocol

import numpy as np

from streamrf.data.writers.base import Columns, ColumnTypes, Writer, ending_of
from streamrf.data.writers.files import FileWriter
from streamrf.data.writers.parquet import arrow_schema, arrow_table


class ByteStream(Protocol):
    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class StreamWriter(Writer):
    """Sends the bytes of every block to a stream, such as standard output, and flushes it."""

    def __init__(self, stream: ByteStream, columns: ColumnTypes, *, closes: bool = False) -> None:
        self._stream, self._closes = stream, closes
        self.names = [name for name, _ in columns]
        self.schema = arrow_schema({name: np.dtype(dtype) for name, dtype in columns})

    def commit(self) -> None:
        if self._closes:
            self._stream.close()

    def abort(self) -> None:
        if self._closes:
            self._stream.close()

    def send(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.flush()


class CsvStream(StreamWriter):
    """A line of names, then a line for each row; floats in the shortest form that reads back equal."""

    def open(self) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(self.names)
        self.send(line.getvalue().encode())

    def write(self, first_row: int, block: Columns) -> None:
        import pyarrow.csv

        out = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
        pyarrow.csv.write_csv(arrow_table(block, self.schema), out, options)
        self.send(out.getvalue())


class JsonLinesStream(StreamWriter):
    """An object for each row."""

    def write(self, first_row: int, block: Columns) -> None:
        lists = [_json_values(np.asarray(block[name])) for name in self.names]
        objects = (dict(zip(self.names, row, strict=True)) for row in zip(*lists, strict=True))
        self.send("".join(json.dumps(one, allow_nan=False, ensure_ascii=False) + "\n" for one in objects).encode())


def _json_values(values: np.ndarray) -> list[object]:
    """What is not finite is null: JSON has no word for it."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values.tolist()
    return [value if np.isfinite(value) else None for value in values.tolist()]


class ArrowStream(StreamWriter):
    """A stream of record batches, one for each block."""

    def open(self) -> None:
        import pyarrow as pa

        self._buffer = io.BytesIO()
        self._batches = pa.ipc.new_stream(self._buffer, self.schema)
        self._send_buffer()

    def write(self, first_row: int, block: Columns) -> None:
        self._batches.write_table(arrow_table(block, self.schema))
        self._send_buffer()

    def commit(self) -> None:
        self._batches.close()
        self._send_buffer()
        super().commit()

    def _send_buffer(self) -> None:
        self.send(self._buffer.getvalue())
        self._buffer.seek(0)
        self._buffer.truncate()


STREAMS: dict[str, type[StreamWriter]] = {"csv": CsvStream, "jsonl": JsonLinesStream, "arrow": ArrowStream}


class EncodedWriter(FileWriter):
    endings = tuple(f".{form}" for form in STREAMS)
    ordered = True

    def begin(self) -> StreamWriter:
        return STREAMS[ending_of(self.path)[1:]](open(self.place, "wb"), list(self.columns.items()), closes=True)
