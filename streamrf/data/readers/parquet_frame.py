"""Parquet files with the same columns, one after the other, as one frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from streamrf.data.readers.frame import Frame
from streamrf.data.readers.parquet_files import ParquetFiles
from streamrf.data.source import Span

BATCH_ROWS = 32_768


class ParquetFrame(Frame):
    def __init__(self, location: str, paths: Sequence[str]) -> None:
        self.location = location
        self._files = ParquetFiles(paths)
        self.schema = self._files.schemas()[0]
        self.n_rows = sum(len(group.rows) for group in self._files.groups)

    def batches(self, names: list[str]) -> Iterator[Any]:
        assert self.n_rows is not None
        for _, batch in self._files.batches(Span(0, self.n_rows), names, BATCH_ROWS):
            yield batch
