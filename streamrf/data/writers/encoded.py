"""Predictions as bytes written one block after the other: files of CSV, JSON lines or Arrow, and standard output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from streamrf.data.source import Span
from streamrf.data.writers.base import Columns, Sink
from streamrf.data.writers.encodings import ENCODINGS, Encoding


class EncodedSink(Sink):
    """A file; blocks come in row order and are written as they come."""

    ordered = True
    form: str
    _file: BinaryIO | None = None

    def _open(self, path: str) -> None:
        self._encoding: Encoding = ENCODINGS[self.form](self.columns)
        self._file = open(path, "wb")  # noqa: SIM115 (closed with the sink)
        self._file.write(self._encoding.head())

    def _write(self, span: Span, arrays: Columns) -> None:
        assert self._file is not None
        self._file.write(self._encoding.rows(arrays))

    def _close(self, complete: bool) -> None:
        if self._file is None:
            return
        with self._file as file:
            if complete:
                file.write(self._encoding.tail())


class CsvSink(EncodedSink):
    form = "csv"


class JsonLinesSink(EncodedSink):
    form = "jsonl"


class ArrowSink(EncodedSink):
    form = "arrow"


class StreamSink:
    """A stream that is open already, such as standard output; every block is flushed, so that a reader sees it."""

    def __init__(self, stream: Any, form: str, columns: Sequence[tuple[str, np.dtype]]) -> None:
        self._stream = stream
        self._encoding = ENCODINGS[form]({name: np.dtype(dtype) for name, dtype in columns})

    def __enter__(self) -> Self:
        self._send(self._encoding.head())
        return self

    def write(self, start: int, block: Mapping[str, np.ndarray]) -> None:
        """The next rows."""
        self._send(self._encoding.rows(block))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self._send(self._encoding.tail())

    def _send(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.flush()
