"""Outputs on a local disk: built beside their name, and renamed once they are whole and on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from streamrf.data.writers.base import ColumnTypes, TableWriter
from streamrf.support.errors import ExistsError
from streamrf.support.storage.files import (
    atomic_directory,
    refuse_existing,
    storage_errors,
    sync_directory,
    temporary_beside,
)

_PART = re.compile(r"part-\d+\.parquet")
_ZARR_FILES = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


class FileWriter(TableWriter):
    """A file or a directory."""

    is_directory: ClassVar[bool] = False

    def __init__(self, path: str, n_rows: int, columns: ColumnTypes, *, overwrite: bool) -> None:
        super().__init__(path, n_rows, columns, overwrite=overwrite)
        check_free(Path(path), overwrite)
        self._staging = ExitStack()

    def open(self) -> None:
        stage = staged_directory if self.is_directory else staged_file
        self.place = str(self._staging.enter_context(stage(Path(self.path), self.overwrite)))
        super().open()

    def commit(self) -> None:
        super().commit()
        self._staging.close()

    def abort(self) -> None:
        super().abort()
        with suppress(_Aborted), self._staging:
            raise _Aborted


class _Aborted(Exception):
    """Tells the staging of an output to throw it away."""


def check_free(path: Path, overwrite: bool) -> None:
    """Raise an ExistsError where something is in the way that may not be replaced."""
    if not overwrite:
        refuse_existing(path)
    if path.is_dir() and not _is_replaceable(path):
        raise ExistsError(
            f"{path} is a directory that is not a zarr store (or parts of parquet), and is not replaced even with"
            " `overwrite=True`"
        )


def _is_replaceable(folder: Path) -> bool:
    names = os.listdir(folder)
    return any(name in names for name in _ZARR_FILES) or all(_PART.fullmatch(name) for name in names)


@contextmanager
def staged_directory(path: Path, overwrite: bool) -> Iterator[Path]:
    """An empty directory that takes the place of ``path`` if the block ends well, with all its files on disk."""
    with atomic_directory(path, overwrite=overwrite) as temporary:
        yield temporary
        with storage_errors(f"write {path}", path):
            for folder, _, names in os.walk(temporary):
                for name in names:
                    _sync_file(Path(folder, name))
                sync_directory(Path(folder))


@contextmanager
def staged_file(path: Path, overwrite: bool) -> Iterator[Path]:
    """An empty file that takes the place of ``path`` if the block ends well, and vanishes if not."""
    target = Path(os.path.realpath(path))
    with storage_errors(f"write {path}", target):
        temporary = temporary_beside(target)
        temporary.touch(exist_ok=False)
    try:
        yield temporary
        with storage_errors(f"write {path}", target):
            _sync_file(temporary)
            check_free(target, overwrite)
            os.replace(temporary, target)
            sync_directory(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_file(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
