"""Paths and URLs: which is which, and what goes wrong on the way to their bytes.

Whatever a storage library raises becomes one sentence of ours, with the original chained behind it; a failure that may
pass is tried again.
"""

from __future__ import annotations

import csv
import difflib
import fnmatch
import glob
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, TypeVar, cast
from urllib.parse import unquote

from streamrf.support.errors import DataError, InputError, MissingDependencyError, StorageError, StreamRFError
from streamrf.support.redaction import holds_credentials, without_credentials

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from typing_extensions import Buffer

T = TypeVar("T")
A = TypeVar("A")

WAITS = (0.25, 1.0, 4.0)  # seconds before each further try
_FINAL = (FileNotFoundError, PermissionError)  # trying again does not help
_PACKAGES = {"s3": "'streamrf[s3]'", "s3a": "'streamrf[s3]'", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp"}
_PACKAGES |= {"https": "aiohttp", "abfs": "adlfs", "az": "adlfs"}
# Exceptions of network libraries that are not OSErrors.
_NETWORK = ("aiohttp", "aiobotocore", "botocore", "gcsfs", "google", "requests")


def is_url(location: str) -> bool:
    return "://" in location


def is_pattern(location: str) -> bool:
    """Whether this is a glob; a file whose name happens to hold a bracket is not, nor is an address with a query."""
    if _is_http(location):
        path = without_query(location).partition("://")[2].partition("/")[2]
        return any(mark in path for mark in "*[")
    return any(mark in location for mark in "*?[") and (is_url(location) or not os.path.exists(location))


def matches(pattern: str) -> list[str]:
    """The locations that a pattern stands for, in order."""
    if not is_url(pattern):
        return sorted(glob.glob(pattern, recursive=True))
    fs, path = filesystem(pattern)
    with reading(pattern):
        return sorted(map(fs.unstrip_protocol, fs.glob(path)))


def without_query(location: str) -> str:
    """A location without its query: the name and the ending are in what is left."""
    return location.partition("?")[0] if _is_http(location) else location


def _is_http(location: str) -> bool:
    return location.lower().startswith(("http://", "https://"))


def absolute(location: str) -> str:
    """A location that means the same in another process; ``file://`` is a plain path."""
    if location.startswith("file://"):
        location = unquote(location.removeprefix("file://"))
    if not is_url(location):
        return os.path.abspath(os.path.expanduser(location))
    _refuse_secrets(location)
    return location.rstrip("/")


def _refuse_secrets(url: str) -> None:
    if holds_credentials(url):
        scheme = url.partition("://")[0]
        raise InputError(
            f"the {scheme}:// address holds a credential, and addresses are written into checkpoints and models:"
            " give credentials through the environment (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )


def filesystem(url: str) -> tuple[AbstractFileSystem, str]:
    """The fsspec file system of a URL and the path within it."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise missing_package(url) from error
    except ValueError as error:
        raise InputError(f"{url} cannot be opened: {error}") from error


def missing_package(url: str) -> MissingDependencyError:
    """What to install for this kind of address."""
    scheme = url.partition("://")[0]
    package = _PACKAGES.get(scheme, f"the fsspec package for {scheme}")
    return MissingDependencyError(
        f"reading {scheme}:// addresses needs a package that is missing: pip install {package}"
    )


def drop_pages(path: str, start: int = 0, length: int = 0) -> None:
    """Give back the memory in which the operating system keeps these bytes of a file (0: all that follow).

    A pass over a large file would push out what other programs read again, and be no faster for it.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # a hint: what cannot be given is left
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, start, length, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


@contextmanager
def opened(location: str) -> Iterator[IO[bytes]]:
    """The bytes of a file or URL, unpacked where they are compressed (gz, bz2, xz, zst)."""
    with reading(location):
        raw = _open_raw(location)
        try:
            yield _unpacked(raw)
        finally:
            raw.close()


def _open_raw(location: str) -> IO[bytes]:
    if is_url(location):
        system, path = filesystem(location)
        return system.open(path, "rb")
    return open(location, "rb")


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    import bz2
    import gzip
    import lzma

    start = raw.read(6)
    raw.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw, mode="rb"))
    if start.startswith(b"BZh"):
        return bz2.BZ2File(raw, mode="rb")
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return io.BufferedReader(_Zstandard(raw))
    return lzma.LZMAFile(raw, mode="rb") if start.startswith(b"\xfd7zXZ") else raw


class _Zstandard(io.RawIOBase):
    """Unpacked by arrow: Python's own library has it from 3.14 on."""

    def __init__(self, raw: IO[bytes]) -> None:
        import pyarrow as pa

        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer)
        data = self._stream.read(len(view))
        view[: len(data)] = data
        return len(data)


@contextmanager
def reading(what: str) -> Iterator[None]:
    """While inside, a failure to reach the bytes is a StorageError and a failure to decode them is a DataError."""
    try:
        yield
    except (StreamRFError, MemoryError):
        raise
    except Exception as error:
        raise explain(error, what) from error


def explain(error: Exception, what: str) -> StreamRFError:
    """The error of ours that says what ``error`` means for ``what``."""
    reason = first_line(error)
    if isinstance(error, FileNotFoundError):
        return StorageError(f"{what} does not exist ({reason})")
    if isinstance(error, PermissionError):
        return StorageError(f"{what} cannot be read: permission denied ({reason})")
    if _is_storage(error):
        return StorageError(f"{what} cannot be read ({reason})")
    return DataError(f"{what} is truncated or corrupt ({reason})")


def _is_storage(error: Exception) -> bool:
    # pyarrow raises OSErrors without a number for damaged pages; the operating system always gives one.
    if isinstance(error, OSError):
        return error.errno is not None or isinstance(error, ConnectionError | TimeoutError)
    return type(error).__module__.partition(".")[0] in _NETWORK


def first_line(error: BaseException) -> str:
    """Type and first line of an exception, short enough for one sentence."""
    text = without_credentials(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def no_such(kind: str, name: str, known: Iterable[str], where: str, hint: str = "") -> DataError:
    """A name that is not there: says what there is, and the nearest to what was asked for."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower() == name.lower()]
    guess = f"; did you mean '{near[0]}'?" if near else ""
    return DataError(f"no {kind} '{name}' in {where}: {listed(names)}{guess}{hint}")


def names_in(text: str, known: Sequence[str], where: str) -> list[str]:
    """A name as it is, else the parts of a list with commas (a part with a comma in quotes), each perhaps a pattern."""
    if text in known:
        return [text]
    found: list[str] = []
    for part in next(csv.reader([text], skipinitialspace=True), []):
        part = part.strip()
        matched = [part] if part in known else fnmatch.filter(known, part) if any(m in part for m in "*?") else [part]
        if not matched:
            raise no_such("column", part, known, where, " (no name fits the pattern)")
        found += [name for name in matched if name]
    return found


def listed(names: Sequence[str], limit: int = 12) -> str:
    """What there is, for a message."""
    if not names:
        return "there is none"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return "there is " + ", ".join(f"'{name}'" for name in names[:limit]) + more


def persistently(read: Callable[[A], T], what: A) -> T:
    """``read(what)``; a storage failure is tried again a few times, anything else is raised at once."""
    for pause in WAITS:
        try:
            return read(what)
        except StorageError as error:
            if isinstance(error.__cause__, _FINAL):
                raise
        time.sleep(pause)
    try:
        return read(what)
    except StorageError as error:
        raise StorageError(f"{error}, not even at the {len(WAITS) + 1}th try in {sum(WAITS):g} s") from error.__cause__
