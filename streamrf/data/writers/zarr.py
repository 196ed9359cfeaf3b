"""Predictions as a zarr group (format 3) with one array for each column."""

from __future__ import annotations

from typing import Any

import zarr

from streamrf.data.source import Span
from streamrf.data.writers.base import Columns, RowBuffer, Sink

CHUNK_ROWS = 1 << 16


class ZarrSink(Sink):
    """Blocks may come in any order; those that follow one another are joined, so that each chunk is written once."""

    ordered = False
    is_directory = True

    def _open(self, path: str) -> None:
        group = zarr.create_group(path, zarr_format=3)
        self._arrays: dict[str, Any] = {
            name: group.create_array(
                name,
                shape=(self.n_rows,),
                chunks=(max(1, min(CHUNK_ROWS, self.n_rows)),),
                dtype=str if dtype.kind == "U" else dtype,  # fixed-width strings have no settled form in format 3
                config={"write_empty_chunks": True},  # a chunk of zeros must not look like a lost one
            )
            for name, dtype in self.columns.items()
        }
        self._buffer = RowBuffer(CHUNK_ROWS)

    def _write(self, span: Span, arrays: Columns) -> None:
        for run, values in self._buffer.add(span, arrays):
            self._store(run, values)

    def _close(self, complete: bool) -> None:
        for run, values in self._buffer.drain() if complete else ():
            self._store(run, values)

    def _store(self, run: Span, values: Columns) -> None:
        for name, array in self._arrays.items():
            array[run.start : run.stop] = values[name]
