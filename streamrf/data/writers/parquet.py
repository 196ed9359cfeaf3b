"""Predictions as parquet: one file, a folder of parts on a shared disk, or a folder of parts in an object store.

An object store has no rename. Parts stand there under their names from the start, and ``_SUCCESS`` says that all are
there and names them (``data.parts``). The ``_SUCCESS`` of an earlier output goes before the first new part, so that no
reader takes the parts of both for one table; its parts go last. A run that fails deletes its parts and puts it back.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from streamrf.data.parts import DONE, PART, marker
from streamrf.data.source import Span
from streamrf.data.writers.base import (
    REMOTE,
    SHARED,
    Columns,
    ColumnTypes,
    PartSpec,
    PartWriter,
    RowBuffer,
    TableWriter,
    Writer,
    check_there,
    column_types,
)
from streamrf.data.writers.files import FileWriter
from streamrf.support.errors import ExistsError
from streamrf.support.storage.backends import open_storage

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ROWS = 1 << 17
UNFINISHED = ".tmp"


def arrow_schema(columns: dict[str, np.dtype]) -> pa.Schema:
    import pyarrow as pa

    types = {name: pa.string() if d.kind == "U" else pa.from_numpy_dtype(d) for name, d in columns.items()}
    return pa.schema(list(types.items()))


def arrow_table(values: Columns, schema: pa.Schema) -> pa.Table:
    """NaN becomes null: a gap in a column that is kept."""
    import pyarrow as pa

    arrays = [pa.array(values[field.name], type=field.type, from_pandas=True) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


class ParquetRows(Writer):
    """One file; blocks that follow one another are joined into row groups."""

    def __init__(self, target: str | BinaryIO, columns: dict[str, np.dtype]) -> None:
        import pyarrow.parquet as pq

        self._schema, self._buffer = arrow_schema(columns), RowBuffer(GROUP_ROWS)
        self._writer = pq.ParquetWriter(target, self._schema, write_page_checksum=True)

    def write(self, first_row: int, block: Columns) -> None:
        self._store(self._buffer.add(first_row, block))

    def commit(self) -> None:
        self._store(self._buffer.drain())
        self._writer.close()

    def abort(self) -> None:
        self._writer.close()

    def _store(self, runs: Iterable[tuple[Span, Columns]]) -> None:
        for _, values in runs:
            self._writer.write_table(arrow_table(values, self._schema))


class ParquetWriter(FileWriter):
    endings = (".parquet",)
    ordered = True

    def begin(self) -> ParquetRows:
        return ParquetRows(self.place, self.columns)


class _PartFile(ParquetRows):
    """A part under another name until it is whole, so that no reader ever sees half a file."""

    def __init__(self, target: str, columns: dict[str, np.dtype]) -> None:
        self._target, self._unfinished = target, f"{target}.{secrets.token_hex(4)}{UNFINISHED}"
        super().__init__(self._unfinished, columns)

    def commit(self) -> None:
        super().commit()
        os.replace(self._unfinished, self._target)

    def abort(self) -> None:
        try:
            super().abort()
        finally:
            Path(self._unfinished).unlink(missing_ok=True)


class _PartUpload(ParquetRows):
    """A part made in memory, then uploaded: an object is there whole or not at all."""

    def __init__(self, url: str, name: str, columns: dict[str, np.dtype]) -> None:
        self._url, self._name, self._made = url, name, io.BytesIO()
        super().__init__(self._made, columns)

    def commit(self) -> None:
        super().commit()
        open_storage(self._url).write_small(self._name, self._made.getvalue())


class _Parts(Writer):
    """A folder in which every block is a part of its own, if the process that opened it writes."""

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer

    def write(self, first_row: int, block: Columns) -> None:
        with PartWriter(self._writer.spec(), Span(first_row, first_row + len(next(iter(block.values()))))) as part:
            part.write(first_row, block)


class ParquetFolder(FileWriter):
    """A directory with a file for each part; in the order of their names they are in row order."""

    endings = (".parquet",)
    modes = (SHARED,)
    ordered = False
    is_directory = True

    def begin(self) -> _Parts:
        return _Parts(self)

    def commit(self) -> None:
        for unfinished in Path(self.place).glob(f"*{UNFINISHED}"):  # by a lost worker; another has written it since
            unfinished.unlink(missing_ok=True)
        super().commit()

    @classmethod
    def begin_part(cls, spec: PartSpec, region: Span) -> _PartFile:
        name = f"part-{_row(spec, region)}.parquet"
        return _PartFile(os.path.join(check_there(spec["place"]), name), column_types(spec))


class RemoteParquet(TableWriter):
    """A folder of parts in an object store."""

    endings = (".parquet",)
    modes = (REMOTE,)
    ordered = False

    def __init__(self, url: str, n_rows: int, columns: ColumnTypes, *, overwrite: bool) -> None:
        self._storage = open_storage(url)
        super().__init__(self._storage.place, n_rows, columns, overwrite=overwrite)
        self.place, self._earlier, self._whole = url, self._storage.names(), False
        self._earlier_marker: bytes | None = None
        strangers = [name for name in self._earlier if name != DONE and not PART.fullmatch(name)]
        if strangers:
            raise ExistsError(f"{self.path} holds {strangers[0]}, which is no output of ours: name another place")
        if self._earlier and not overwrite:
            raise ExistsError(f"{self.path} is there already: name another place, or replace it with `overwrite=True`")

    def begin(self) -> _Parts:
        if DONE in self._earlier:
            self._earlier_marker = self._storage.read_small(DONE)
            self._storage.delete(DONE)
        return _Parts(self)

    @classmethod
    def begin_part(cls, spec: PartSpec, region: Span) -> _PartUpload:
        name = f"part-{_row(spec, region)}-{spec['run']}.parquet"
        return _PartUpload(spec["place"], name, column_types(spec))

    def commit(self) -> None:
        super().commit()
        self._whole = True
        self._delete(self._earlier)
        self._storage.write_small(DONE, marker(self._own_parts()))

    def abort(self) -> None:
        if self._whole:  # the parts stay: the earlier output may be gone already
            return
        self._delete(self._own_parts())
        if self._earlier_marker is not None:
            self._storage.write_small(DONE, self._earlier_marker)

    def _own_parts(self) -> list[str]:
        return [name for name in self._storage.names() if self._run in name]

    def _delete(self, names: list[str]) -> None:
        for name in names:
            self._storage.delete(name)


def _row(spec: PartSpec, region: Span) -> str:
    """The first row, with as many digits for every part."""
    return f"{region.start:0{len(str(spec['n_rows']))}d}"
