"""Arrow IPC: files (Feather) and streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from streamrf.data.failures import reading
from streamrf.data.readers.frame import Frame
from streamrf.support.errors import DataError

FILE_MAGIC, OLD_MAGIC = b"ARROW1", b"FEA1"
BATCH_ROWS = 32_768


class ArrowFrame(Frame):
    """A Feather file or any Arrow IPC file or stream; it is mapped, so that only what is decoded takes memory."""

    def __init__(self, location: str) -> None:
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
    def _opened(self, names: list[str] | None = None) -> Iterator[Any]:
        with reading(self.location), pa.memory_map(self.location) as file:
            opener = pa.ipc.open_file if self._is_file else pa.ipc.open_stream
            fields = None if names is None else [self.schema.get_field_index(name) for name in names]
            with opener(file, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)) as reader:
                yield reader

    def batches(self, names: list[str]) -> Iterator[Any]:
        with self._opened(names) as reader:
            for batch in _record_batches(reader):
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS).select(names)


def _record_batches(reader: Any) -> Iterator[Any]:
    if hasattr(reader, "num_record_batches"):
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return iter(reader)
