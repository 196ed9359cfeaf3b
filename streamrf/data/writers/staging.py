"""Where an output is built until it is whole: a directory or a file as all of ours are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def check_free(path: Path, overwrite: bool) -> None:
    """Raise an ExistsError where something is in the way that may not be replaced."""
    if not overwrite:
        refuse_existing(path)
    if path.is_dir() and not _is_replaceable(path):
        raise ExistsError(
            f"{path} is a directory that is not a zarr store (or parts of parquet), and is not replaced even with"
            " --overwrite"
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
                    sync_file(Path(folder, name))
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
            sync_file(temporary)
            check_free(target, overwrite)
            os.replace(temporary, target)
            sync_directory(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Have the system write a file to disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
