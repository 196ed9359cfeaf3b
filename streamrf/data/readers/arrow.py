"""Arrow IPC: files (Feather) and streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa

from streamrf.data.columns import Columns
from streamrf.data.locations import absolute, reading
from streamrf.data.readers.base import Arrived, BatchReader, Progress, silent
from streamrf.support.errors import DataError

FILE_MAGIC, OLD_MAGIC = b"ARROW1", b"FEA1"
BATCH_ROWS = 32_768
STREAM_ROWS = 8192


class ArrowBatches(BatchReader):
    """A Feather file or any Arrow IPC file or stream; it is mapped, so that only what is decoded takes memory."""

    format, endings = "arrow", (".arrow", ".feather", ".ipc")

    def __init__(self, location: str, *, progress: Progress = silent) -> None:
        self.location = location
        with reading(location), open(location, "rb") as file:
            start = file.read(6)
        if start.startswith(OLD_MAGIC):
            raise DataError(f"{location} is Feather of version 1, which is no longer written: save it as version 2")
        self._is_file = start == FILE_MAGIC
        with self._opened() as reader:
            self.schema = reader.schema
            self.n_rows = sum(map(len, _record_batches(reader)))
        if not self.n_rows:
            raise DataError(f"{location} has no rows")

    @contextmanager
    def _opened(self, names: list[str] | None = None) -> Iterator[pa.RecordBatchReader]:
        with reading(self.location), pa.memory_map(self.location) as file:
            opener = pa.ipc.open_file if self._is_file else pa.ipc.open_stream
            fields = None if names is None else [self.schema.get_field_index(name) for name in names]
            with opener(file, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)) as reader:
                yield reader

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        with self._opened(names) as reader:
            for batch in _record_batches(reader):
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS).select(names)

    @classmethod
    def arriving(cls, stream: IO[bytes], columns: Columns | None, where: str, **options: Any) -> Iterator[Arrived]:
        try:
            with pa.ipc.open_stream(stream) as reader:
                yield from _in_parts(iter(reader))
        except pa.ArrowInvalid as error:
            raise DataError(f"{where} is not a stream of Arrow batches: {error}") from error

    @classmethod
    def arriving_at(cls, location: str, columns: Columns | None, where: str, **options: Any) -> Iterator[Arrived]:
        if location == "-":
            yield from super().arriving_at(location, columns, where, **options)
            return
        table = cls(absolute(location))
        yield from _in_parts(table.batches(table.schema.names))


def _record_batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    if hasattr(reader, "num_record_batches"):
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return iter(reader)


def _in_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[Arrived]:
    done = 0
    for batch in batches:
        for start in range(0, len(batch), STREAM_ROWS):
            part = batch.slice(start, STREAM_ROWS)
            yield Arrived(pa.Table.from_batches([part]), done, "row")
            done += len(part)
