"""Where predictions go: written block by block, and either complete under their name or not there at all.

Every module here that defines a ``TableWriter`` with ``endings`` adds a format; so does any such class elsewhere.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Sequence
from functools import cache

from streamrf.data.source import Span
from streamrf.data.writers.base import (
    LOCAL,
    REGISTRY,
    REMOTE,
    SHARED,
    UNKNOWN,
    ArrayWriter,
    Columns,
    ColumnTypes,
    PartSpec,
    PartWriter,
    TableWriter,
    Writer,
    ending_of,
    write_blocks,
)
from streamrf.data.writers.files import FileWriter
from streamrf.support.errors import InputError
from streamrf.support.redaction import without_credentials

__all__ = [
    "UNKNOWN", "ArrayWriter", "ColumnTypes", "Columns", "FileWriter", "PartSpec", "PartWriter", "TableWriter",
    "Writer", "endings", "open_part", "open_shared_writer", "open_writer", "write_blocks",
]  # fmt: skip


def open_writer(
    path: str | os.PathLike[str], n_rows: int, columns: ColumnTypes, *, overwrite: bool = False
) -> TableWriter:
    """The writer of a local output, by its ending; refuses at once what could not be finished.

    ``n_rows`` may be UNKNOWN for formats that are written in order: parquet, CSV, JSON lines, Arrow.
    """
    location = os.fspath(path)
    if "://" in location:
        raise InputError(f"predictions are written to local disks only, not to {location}: write a file, then copy it")
    ending = ending_of(location)
    if ending not in endings():
        raise InputError(
            f"the output's ending says its format: one of {', '.join(endings())}, not '{ending}' ({location})"
        )
    kind = REGISTRY[LOCAL, ending]
    if n_rows == UNKNOWN and not kind.ordered:
        raise InputError(
            f"{location} needs the number of rows beforehand, and a stream does not have it: write .parquet"
        )
    return kind(location, n_rows, columns, overwrite=overwrite)


def open_shared_writer(
    path: str | os.PathLike[str], n_rows: int, columns: ColumnTypes, *, overwrite: bool = False
) -> TableWriter:
    """The writer of an output that many processes write at once, each its own parts (``open_part``).

    The process that opens it only prepares and commits it. It must be at a place that all of them see.
    """
    location = os.fspath(path)
    mode, ending = _shared_mode(location), ending_of(location)
    if not is_shared(location):
        raise InputError(
            f"many workers can write at once to {', '.join(endings(SHARED))} on a disk that all of them see, or to"
            f" {', '.join(endings(REMOTE))} in an object store, not to {without_credentials(location)}"
        )
    return REGISTRY[mode, ending](location, n_rows, columns, overwrite=overwrite)


def is_shared(path: str | os.PathLike[str]) -> bool:
    """Whether many processes can write such an output at once."""
    location = os.fspath(path)
    return ending_of(location) in endings(_shared_mode(location))


def _shared_mode(location: str) -> str:
    return REMOTE if "://" in location else SHARED


def open_part(spec: PartSpec, spans: Sequence[tuple[int, int]]) -> PartWriter:
    """The writer of some neighbouring spans of an output that another process opened."""
    _import_formats()
    return PartWriter(spec, Span(spans[0][0], spans[-1][1]))


def endings(mode: str = LOCAL) -> tuple[str, ...]:
    """The endings that can be written in this mode."""
    _import_formats()
    return tuple(sorted(ending for of, ending in REGISTRY if of == mode))


@cache
def _import_formats() -> None:
    """Import the modules of this package. Storage libraries are imported only where an output is opened."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
