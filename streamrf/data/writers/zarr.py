"""Predictions as a zarr group (format 3) with one array for each column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamrf.data.source import Span
from streamrf.data.writers.base import LOCAL, SHARED, Columns, PartSpec, RowBuffer, Writer, check_there
from streamrf.data.writers.files import FileWriter

if TYPE_CHECKING:
    from zarr.abc.codec import BytesBytesCodec

CHUNK_ROWS = 1 << 16


class ZarrRows(Writer):
    """The arrays of a group; blocks that follow one another are joined, so that each chunk is written once."""

    def __init__(self, place: str) -> None:
        import zarr

        self._place = check_there(place)
        with zarr.config.set({"array.write_empty_chunks": True}):  # a chunk of zeros must not look like a lost one
            self._arrays = dict(zarr.open_group(place, mode="r+").arrays())
        self.chunk_rows = int(next(iter(self._arrays.values())).chunks[0])
        self._buffer = RowBuffer(self.chunk_rows)

    def write(self, first_row: int, block: Columns) -> None:
        self._store(self._buffer.add(first_row, block))

    def commit(self) -> None:
        self._store(self._buffer.drain())

    def _store(self, runs: Iterable[tuple[Span, Columns]]) -> None:
        for run, values in runs:
            check_there(self._place)  # writing a chunk would bring back the output of a run that is over
            for name, array in self._arrays.items():
                array[run.start : run.stop] = values[name]


def checked_compressors() -> list[BytesBytesCodec]:
    """Compressed, then with a checksum: a flipped byte is an error on reading, not another number."""
    from zarr.codecs import Crc32cCodec, ZstdCodec

    return [ZstdCodec(), Crc32cCodec()]


class ZarrWriter(FileWriter):
    endings = (".zarr",)
    modes = (LOCAL, SHARED)
    ordered = False
    is_directory = True

    def begin(self) -> ZarrRows:
        import zarr

        group = zarr.create_group(self.place, zarr_format=3)
        for name, dtype in self.columns.items():
            group.create_array(
                name,
                shape=(self.n_rows,),
                chunks=(max(1, min(CHUNK_ROWS, self.n_rows)),),
                compressors=checked_compressors(),
                dtype=str if dtype.kind == "U" else dtype,  # fixed-width strings have no settled form in format 3
            )
        rows = ZarrRows(self.place)
        self._step = rows.chunk_rows
        return rows

    @property
    def step(self) -> int:
        """No two workers share a chunk."""
        return self._step

    @classmethod
    def begin_part(cls, spec: PartSpec, region: Span) -> ZarrRows:
        return ZarrRows(spec["place"])
