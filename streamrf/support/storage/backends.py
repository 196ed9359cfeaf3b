"""A flat folder of small and large objects, on a local disk or behind any fsspec URL: all that a checkpoint needs.

A name is never written twice, so nothing that is whole is ever put at risk. ``write_small`` makes an object that is
there whole or not at all: a rename does it on a disk, and a single upload in an object store, which has no rename.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from streamrf.support.errors import MissingDependencyError, StorageError, StreamRFError
from streamrf.support.redaction import without_credentials
from streamrf.support.storage.files import (
    AnyPath,
    atomic_write,
    check_free_space,
    clean_leftovers,
    make_directory,
    storage_errors,
    sync_directory,
    write_durably,
)
from streamrf.support.storage.tensors import HashingReader, Readable, Writer

_BUCKET_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"})


class Storage(ABC):
    """One folder. ``place`` names it in messages, without any credentials."""

    place: str

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all objects; none if the folder does not exist."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of an object, or None if there is none."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[Readable]:
        """A stream to read from."""

    def read_small(self, name: str) -> bytes:
        """All bytes of an object that fits in memory many times."""
        with self.open(name) as stream:
            return HashingReader(stream, f"{self.place}/{name}").take(self.size(name) or 0)

    @abstractmethod
    def write_large(self, name: str, writer: Writer, n_bytes: int) -> None:
        """Write a new object of about ``n_bytes``. A failure may leave a part of it."""

    @abstractmethod
    def write_small(self, name: str, data: bytes) -> None:
        """Write a new object that appears whole or not at all."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object if it exists."""

    @abstractmethod
    def remove_if_empty(self) -> None:
        """Remove the folder if nothing is in it."""


def open_storage(place: AnyPath) -> Storage:
    """A local folder, or a remote one where ``place`` is a URL."""
    text = os.fspath(place)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return LocalStorage(text)
    return LocalStorage(rest) if scheme in ("file", "local") else FsspecStorage(text)


class LocalStorage(Storage):
    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self.place = str(directory)

    def names(self) -> list[str]:
        with storage_errors(f"read {self.place}", self._directory):
            return sorted(os.listdir(self._directory)) if self._directory.exists() else []

    def size(self, name: str) -> int | None:
        path = self._directory / name
        with storage_errors(f"read {path}", path):
            return path.stat().st_size if path.is_file() else None

    @contextmanager
    def open(self, name: str) -> Iterator[Readable]:
        path = self._directory / name
        with storage_errors(f"read {path}", path), open(path, "rb", buffering=0) as stream:
            yield stream

    def write_large(self, name: str, writer: Writer, n_bytes: int) -> None:
        check_free_space(self._directory, n_bytes)
        path = self._directory / name
        with storage_errors(f"write {path}", path, n_bytes):
            make_directory(self._directory)
            try:
                write_durably(path, writer)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            sync_directory(self._directory)

    def write_small(self, name: str, data: bytes) -> None:
        atomic_write(self._directory / name, data)

    def delete(self, name: str) -> None:
        path = self._directory / name
        with storage_errors(f"remove {path}", path):
            path.unlink(missing_ok=True)

    def remove_if_empty(self) -> None:
        with suppress(OSError):  # not empty, or not there
            clean_leftovers(self._directory)
            self._directory.rmdir()


class FsspecStorage(Storage):
    """An object store: writing an object is atomic there, and there is no rename."""

    def __init__(self, url: str) -> None:
        self.place = without_credentials(url)
        with remote_errors(f"open {self.place}"):
            import fsspec

            self._system, root = fsspec.core.url_to_fs(url)
            self._root = root.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def names(self) -> list[str]:
        with remote_errors(f"list {self.place}"):
            self._system.invalidate_cache()  # another process may have written since
            try:
                paths = self._system.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in paths)

    def size(self, name: str) -> int | None:
        with remote_errors(f"read {self.place}/{name}"):
            try:
                return int(self._system.size(self._path(name)))
            except FileNotFoundError:
                return None

    @contextmanager
    def open(self, name: str) -> Iterator[Readable]:
        with remote_errors(f"read {self.place}/{name}"), self._system.open(self._path(name), "rb") as stream:
            yield stream

    def write_large(self, name: str, writer: Writer, n_bytes: int) -> None:
        with remote_errors(f"write {self.place}/{name}"):
            if not self._has_buckets():  # a typo must not create a bucket
                self._system.makedirs(self._root, exist_ok=True)
            with self._system.open(self._path(name), "wb") as stream:
                writer(stream)

    def _has_buckets(self) -> bool:
        protocols = self._system.protocol
        return not _BUCKET_STORES.isdisjoint([protocols] if isinstance(protocols, str) else protocols)

    def write_small(self, name: str, data: bytes) -> None:
        with remote_errors(f"write {self.place}/{name}"):
            self._system.pipe_file(self._path(name), data)

    def delete(self, name: str) -> None:
        with remote_errors(f"remove {self.place}/{name}"), suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    def remove_if_empty(self) -> None:
        if not self._has_buckets():  # no folders there, and a bucket is not ours to remove
            with suppress(Exception):  # not empty, or not there
                self._system.rmdir(self._root)


@contextmanager
def remote_errors(action: str) -> Iterator[None]:
    """One kind of error for all stores: each client library has its own, and few are OSErrors."""
    try:
        yield
    except (StreamRFError, MemoryError):
        raise
    except ImportError as error:
        raise MissingDependencyError(f"Could not {action}: {error}.") from error
    except Exception as error:
        reason = without_credentials(str(error)) or type(error).__name__
        raise StorageError(f"Could not {action}: {reason.rstrip('.')}.") from error
