"""Outputs that many processes write at once, each its own rows; they appear under their name once all rows are there.

The process that opens the output (``open_parts``) only prepares and finishes it. The others write straight to where it
is built (``write_part``), which must be a place that all of them see. A part that is written twice has the same bytes
twice, so it does not matter if a lost process turns out to be alive.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrf.data.source import Span
from streamrf.data.writers.base import Columns, RowBuffer, Sink
from streamrf.data.writers.npy import NpySink
from streamrf.support.errors import InputError
from streamrf.support.storage.backends import without_credentials
from streamrf.support.storage.files import storage_errors

Blocks = Iterable[tuple[int, Columns]]  # the first row of each block, and its columns; one follows the other
ENDINGS = (".zarr", ".parquet", ".npy")
UNFINISHED = ".tmp"

if TYPE_CHECKING:
    _Base = Sink
else:
    _Base = object


class Parts(_Base):
    """What a sink needs so that others can write to it."""

    kind: str
    step: int | None = None  # parts begin and end at multiples of this

    def _open(self, path: str) -> None:
        self._place = path
        super()._open(path)  # type: ignore[safe-super]

    def spec(self) -> dict[str, Any]:
        """JSON that tells another process where and what to write."""
        columns = {name: dtype.str for name, dtype in self.columns.items()}
        return {"kind": self.kind, "place": self._place, "path": self.path, "n_rows": self.n_rows, "columns": columns}

    def wrote(self, spans: Iterable[Span]) -> None:
        """These rows are written, by someone."""
        self._written += spans


class NpyParts(Parts, NpySink):
    kind = "npy"


class ParquetParts(Parts, Sink):
    """A directory with a file for each part; by their names the files are in row order."""

    kind = "parquet"
    ordered = False
    is_directory = True

    def _open(self, path: str) -> None:
        self._place = path

    def _write(self, span: Span, arrays: Columns) -> None:
        write_part(self.spec(), [span], [(span.start, arrays)])

    def _close(self, complete: bool) -> None:
        """Every part is closed by whoever wrote it; what a process did not finish, another has written since."""
        for unfinished in Path(self._place).glob(f"*{UNFINISHED}"):
            unfinished.unlink(missing_ok=True)


def open_parts(
    path: str | os.PathLike[str], n_rows: int, columns: Sequence[tuple[str, np.dtype]], *, overwrite: bool = False
) -> Any:
    """The output for a path, by its ending; a context manager like any sink."""
    location = os.fspath(path)
    ending = os.path.splitext(location.rstrip("/"))[1].lower()
    remote = "://" in location
    if ending not in ENDINGS or (remote and ending != ".parquet"):
        raise InputError(
            f"many workers can write at once to {', '.join(ENDINGS)} on a disk that all of them see, or to .parquet in"
            f" an object store, not to {without_credentials(location)}"
        )
    if remote:
        from streamrf.data.writers.remote_parts import RemoteParts

        return RemoteParts(location, n_rows, columns, overwrite=overwrite)
    if ending == ".zarr":
        from streamrf.data.writers.zarr_parts import ZarrParts

        return ZarrParts(location, n_rows, columns, overwrite=overwrite)
    kind = NpyParts if ending == ".npy" else ParquetParts
    return kind(location, n_rows, columns, overwrite=overwrite)


def write_part(spec: dict[str, Any], spans: Sequence[Span], blocks: Blocks) -> None:
    """Write the rows of neighbouring spans to an output that another process opened."""
    if spec["kind"] == "remote parquet":
        from streamrf.data.writers.remote_parts import write_remote_part

        write_remote_part(spec, Span(spans[0][0], spans[-1][1]), blocks)
        return
    write = {"zarr": _write_zarr, "parquet": _write_parquet, "npy": _write_npy}[spec["kind"]]
    with storage_errors(f"write {spec['path']}", spec["path"]):
        if not os.path.exists(spec["place"]):
            raise FileNotFoundError(2, "this machine does not see the output, or the run is over", spec["place"])
        write(spec, Span(spans[0][0], spans[-1][1]), blocks)


def _write_zarr(spec: dict[str, Any], region: Span, blocks: Blocks) -> None:
    from streamrf.data.writers.zarr_parts import store_blocks

    store_blocks(spec["place"], blocks)


def _write_parquet(spec: dict[str, Any], region: Span, blocks: Blocks) -> None:
    """Under another name until it is whole, so that a reader of the finished directory never sees half a file."""
    import pyarrow.parquet as pq

    from streamrf.data.writers.parquet import GROUP_ROWS, arrow_schema, arrow_table

    columns = {name: np.dtype(dtype) for name, dtype in spec["columns"].items()}
    schema, buffer = arrow_schema(columns), RowBuffer(GROUP_ROWS)
    digits = len(str(spec["n_rows"]))
    target = os.path.join(spec["place"], f"part-{region.start:0{digits}d}.parquet")
    unfinished = f"{target}.{secrets.token_hex(4)}{UNFINISHED}"
    try:
        with pq.ParquetWriter(unfinished, schema) as writer:
            for start, values in blocks:
                for _, run in buffer.add(_span(start, values), values):
                    writer.write_table(arrow_table(run, schema))
            for _, run in buffer.drain():
                writer.write_table(arrow_table(run, schema))
        os.replace(unfinished, target)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


def _write_npy(spec: dict[str, Any], region: Span, blocks: Blocks) -> None:
    with open(spec["place"], "r+b") as file:
        version = np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file) if version == (1, 0) else _unknown(version)
        first, row_bytes = file.tell(), dtype.itemsize * int(np.prod(shape[1:]))
        for start, values in blocks:
            rows = np.column_stack([values[name].astype(dtype) for name in spec["columns"]])
            file.seek(first + start * row_bytes)
            file.write(np.ascontiguousarray(rows).tobytes())


def _unknown(version: tuple[int, int]) -> Any:
    raise InputError(f"the output was prepared by another version (npy {version[0]}.{version[1]}, expected 1.0)")


def _span(start: int, values: Columns) -> Span:
    return Span(start, start + len(next(iter(values.values()))))
