"""Predictions as parquet in an object store: a folder of parts, each uploaded in one go by the process that made it.

There is no rename there, so parts stand under their names from the start, and ``_SUCCESS`` says that all are there.
Parts of an earlier output stay until then; parts of a run that fails are taken away.
"""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from streamrf.data.source import Span
from streamrf.data.writers.base import Columns, RowBuffer, Sink
from streamrf.data.writers.parts import Blocks, Parts
from streamrf.support.errors import ExistsError
from streamrf.support.storage.backends import open_storage

DONE = "_SUCCESS"
_PART = re.compile(r"part-\d+-[0-9a-f]{8}\.parquet")


class RemoteParts(Parts, Sink):
    """The folder; it is written by ``write_remote_part`` in any process."""

    kind = "remote parquet"
    ordered = False

    def __init__(self, url: str, n_rows: int, columns: Sequence[tuple[str, np.dtype]], *, overwrite: bool) -> None:
        self._storage = open_storage(url)
        self.path, self.n_rows, self._place = self._storage.place, n_rows, url
        self.columns = {name: np.dtype(dtype) for name, dtype in columns}
        self._earlier, self._token = self._storage.names(), secrets.token_hex(4)
        self._written: list[Span] = []
        strangers = [name for name in self._earlier if name != DONE and not _PART.fullmatch(name)]
        if strangers:
            raise ExistsError(f"{self.path} holds {strangers[0]}, which is no output of ours: name another place")
        if self._earlier and not overwrite:
            raise ExistsError(f"{self.path} is there already: name another place, or replace it with --overwrite")

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "token": self._token}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            self._delete(name for name in self._storage.names() if self._token in name)
            return
        self._check_whole()
        self._delete(self._earlier)
        self._storage.write_small(DONE, b"")

    def _delete(self, names: Any) -> None:
        for name in list(names):
            self._storage.delete(name)

    def _open(self, path: str) -> None:
        """There is nothing to open."""

    def _write(self, span: Span, arrays: Columns) -> None:
        write_remote_part(self.spec(), span, [(span.start, arrays)])

    def _close(self, complete: bool) -> None:
        """Every part is closed by whoever wrote it."""


def write_remote_part(spec: dict[str, Any], region: Span, blocks: Blocks) -> None:
    """Make a part in memory, then upload it: an object is there whole or not at all."""
    import pyarrow.parquet as pq

    from streamrf.data.writers.parquet import GROUP_ROWS, arrow_schema, arrow_table

    schema = arrow_schema({name: np.dtype(dtype) for name, dtype in spec["columns"].items()})
    made, buffer = io.BytesIO(), RowBuffer(GROUP_ROWS)
    with pq.ParquetWriter(made, schema) as writer:
        for start, values in blocks:
            span = Span(start, start + len(next(iter(values.values()))))
            for _, run in buffer.add(span, values):
                writer.write_table(arrow_table(run, schema))
        for _, run in buffer.drain():
            writer.write_table(arrow_table(run, schema))
    name = f"part-{region.start:0{len(str(spec['n_rows']))}d}-{spec['token']}.parquet"
    open_storage(spec["place"]).write_small(name, made.getvalue())
