"""Formats: one module for each, named after it, and here the way from a location to the class that reads it.

A module is imported when a name asks for its format, so that reading zarr does not load parquet's library; when no
name tells, all are. A reader that is defined elsewhere is known as soon as its module is imported.
"""

# mypy: disable-error-code="type-abstract"
# A kind of reader is named by its abstract class.

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from streamrf.data.columns import Columns
from streamrf.data.locations import filesystem, is_url, reading, without_query
from streamrf.data.readers.base import Arrived, BatchReader, R, Reader, RowReader, SequentialReader, registered
from streamrf.support.errors import DataError, InputError, StorageError

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
MODULES = frozenset(module.name for module in pkgutil.iter_modules(__path__))
_ORDER = ("zarr", "parquet", "npy")  # where a directory could be several


def reader_of(kind: type[R], form: str) -> type[R] | None:
    """The reader of one kind for a format by its name."""
    return next((found[form] for found in _known(kind, [form]) if form in found), None)


def reader_by_ending(kind: type[R], location: str) -> type[R] | None:
    """The reader of one kind that the ending of a path or URL tells."""
    path = without_query(location).rstrip("/").lower()
    bare = next((path.removesuffix(ending) for ending in COMPRESSED if path.endswith(ending)), path)
    for found in _known(kind, [path, bare]):
        for reader in found.values():
            if (bare if reader.compressed else path).endswith(reader.endings):
                return reader
    return None


def row_reader_at(location: str) -> type[RowReader]:
    """What reads any span of the table at a path or URL; a DataError or StorageError where nothing does."""
    return _remote_reader(location) if is_url(location) else _local_reader(location)


def stream_format(location: str) -> str | None:
    """The format that the ending tells, where columns can be read in order only: rows are predicted as they come."""
    found = reader_by_ending(Reader, location)
    if found is None or found.format in registered(RowReader) or found.format not in registered(BatchReader):
        return None
    return found.format


def arriving_tables(
    location: str, form: str, columns: Columns | None, where: str, *, trained_reading: Mapping[str, Any], **options: Any
) -> Iterator[Arrived]:
    """Tables of a file or URL, or of standard input where the location is ``-``, each as soon as it is there.

    ``trained_reading`` are options that hold for formats that have such, unless others are given.
    """
    reader = reader_of(BatchReader, form)
    if reader is None:
        raise InputError(f"{form} cannot be read from a stream")
    stray = sorted(set(options) - reader.options - {"keeps"})
    if stray:
        raise InputError(f"`{stray[0]}` is about other files than {form}: leave it out")
    trained = {name: value for name, value in trained_reading.items() if name in reader.options}
    return reader.arriving_at(location, columns, where, **{**trained, **options})


def _local_reader(path: str) -> type[RowReader]:
    if not os.path.exists(path):
        raise StorageError(f"{path} does not exist")
    if os.path.isdir(path):
        names = os.listdir(path)
        found = _folder_reader([path, *names], names)
        if found is None:
            raise _unknown(path, "the directory holds no files of these formats")
        return found
    by_name = reader_by_ending(RowReader, path)
    if by_name is not None and not by_name.markers:  # before its bytes: a damaged file is then called damaged
        return by_name
    _refuse_sequential(path)
    with reading(path), open(path, "rb") as file:
        start = file.read(16)
    for reader in _in_order(_all(RowReader)):
        if reader.magic and start.startswith(reader.magic):
            return reader
    raise _unknown(path, "neither its ending nor its first bytes are of one of them")


def _remote_reader(url: str) -> type[RowReader]:
    """By the ending, else by what is there."""
    by_name = reader_by_ending(RowReader, url)
    if by_name is not None and not by_name.is_remote:
        raise InputError(
            f"{url}: .{by_name.format} files are read from local disks only; copy it, or store it as zarr or parquet"
        )
    fs, path = filesystem(url)
    if by_name is not None:
        return by_name
    _refuse_sequential(url)
    with reading(url):
        for reader in _in_order(_all(RowReader)):
            if any(fs.exists(f"{path}/{name}") for name in reader.markers):
                return reader
        found = _folder_reader([], [name.rstrip("/").rpartition("/")[2] for name in fs.ls(path, detail=False)])
    if found is None or not found.is_remote:
        raise _unknown(url, "nothing there is of these formats")
    return found


def _folder_reader(hints: list[str], names: list[str]) -> type[RowReader] | None:
    """What reads a directory with these files."""
    for found in _known(RowReader, hints):
        for reader in _in_order(found):
            ends = reader.endings if reader.reads_folders else ()
            if any(name in reader.markers or name.endswith(ends) for name in names):
                return reader
    return None


def _refuse_sequential(location: str) -> None:
    if reader_by_ending(SequentialReader, location) is None:
        return
    folder, name = os.path.split(location)
    made = os.path.join("" if is_url(location) else folder, name.partition(".")[0] + ".parquet")
    raise DataError(
        f"{location} cannot be read in parts as training does: convert it first, streamrf convert {location} {made}"
    )


def _unknown(location: str, why: str) -> DataError:
    known = ", ".join([*(reader.format for reader in _in_order(registered(RowReader))), "CSV, JSON lines and Arrow"])
    return DataError(f"{location} is in no format that can be read ({known}): {why}")


def _in_order(found: dict[str, type[RowReader]]) -> list[type[RowReader]]:
    return sorted(found.values(), key=lambda reader: (*_ORDER, reader.format).index(reader.format))


def _known(kind: type[R], hints: Iterable[str]) -> Iterator[dict[str, type[R]]]:
    """Readers by format: first those that these names hint at, then all there are."""
    words = {word for hint in hints for word in hint.rpartition("/")[2].split(".")}
    for module in sorted(words & MODULES):
        import_module(f"{__name__}.{module}")
    yield registered(kind)
    yield _all(kind)


def _all(kind: type[R]) -> dict[str, type[R]]:
    for module in sorted(MODULES):
        import_module(f"{__name__}.{module}")
    return registered(kind)
