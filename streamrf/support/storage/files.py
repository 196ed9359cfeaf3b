"""Files and directories that appear whole or not at all, and storage errors in one sentence.

Everything is first made under a temporary name beside its target, ``.NAME.streamrf-HOST-PID-START-RANDOM.tmp``, and
renamed into place once it is on disk. What a process that was killed left under such a name is removed by the next one
that writes to the same directory, if both ran on the same host and the first is no longer alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

from streamrf.support.errors import (
    ExistsError,
    FileFormatError,
    MismatchError,
    MissingDependencyError,
    StorageError,
    StreamRFError,
)
from streamrf.support.units import format_bytes

AnyPath = str | os.PathLike[str]

_TEMPORARY = re.compile(
    r"\.(?P<target>.+)\.streamrf-(?P<host>[0-9a-f]{8})-(?P<pid>\d{1,10})-(?P<start>\d{1,12})-[0-9a-f]{8}\.(?P<kind>tmp|old)"
)
_directories_cleaned: set[str] = set()


def atomic_write(path: AnyPath, content: bytes | Callable[[BinaryIO], object], *, overwrite: bool = True) -> None:
    """Write a file that appears whole or not at all. ``content`` is bytes, or a function that writes them.

    Without ``overwrite`` an existing file is an ExistsError. A symbolic link is followed.
    """
    target = Path(os.path.realpath(path))
    if not overwrite:
        refuse_existing(target)
    writer = content if callable(content) else lambda stream: stream.write(content)
    with storage_errors(f"write {path}", target, len(content) if isinstance(content, bytes) else None):
        temporary = temporary_beside(target)
        try:
            write_durably(temporary, writer)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(target.parent)


@contextlib.contextmanager
def atomic_directory(path: AnyPath, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty sibling directory that takes the place of ``path`` if the block ends well, and vanishes if not.

    An existing target is an ExistsError, before the block and after. ``overwrite`` replaces it, whatever it is. On
    Linux file systems that can exchange two names (ext4, xfs, btrfs, tmpfs) a crash at any moment leaves the
    old or the new one in place. Elsewhere there is an instant, between two renames, at which ``path`` is missing and
    the old one lies beside it with the ending ``.old``; the next write to that directory puts it back.
    """
    target = Path(os.path.realpath(path))
    with storage_errors(f"write {path}", target):
        _prepare(target.parent)
        if not overwrite:
            refuse_existing(target)
        temporary = _temporary(target, "tmp")
        temporary.mkdir()
    try:
        yield temporary
        with storage_errors(f"write {path}", target):
            sync_directory(temporary)
            _move_into_place(temporary, target, overwrite)
            sync_directory(target.parent)
    finally:
        _remove(temporary)  # unfinished, or what an exchange left: the old one


def refuse_existing(path: Path) -> None:
    """ExistsError if there is anything at ``path``."""
    if os.path.lexists(path):
        raise ExistsError(f"{path} already exists: choose another name, or replace it with `overwrite=True`.")


def check_place(path: AnyPath) -> None:
    """StorageError unless the nearest existing folder above ``path`` can be written to."""
    place = Path(os.path.realpath(path)).parent
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise StorageError(f"Could not write {path}: {place} is not a directory; choose another location.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise storage_error(f"write {path}", path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def write_durably(path: Path, writer: Callable[[BinaryIO], object]) -> None:
    """Make a new file and return once its bytes are on disk."""
    with open(path, "xb") as stream:
        writer(stream)
        stream.flush()
        os.fsync(stream.fileno())


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, and make their names durable: a file is lost with its directory."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make renames in a directory durable, where the system can."""
    if sys.platform == "win32":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such call
            raise
    finally:
        os.close(handle)


def _move_into_place(temporary: Path, target: Path, overwrite: bool) -> None:
    if not (overwrite and os.path.lexists(target)):
        _rename_new(temporary, target)
    elif not exchange(temporary, target):
        aside = _temporary(target, "old")
        os.rename(target, aside)
        os.rename(temporary, target)
        _remove(aside)


def _rename_new(temporary: Path, target: Path) -> None:
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            refuse_existing(target)  # another process made it meanwhile
        raise


def exchange(first: Path, second: Path) -> bool:
    """Swap two names in one atomic step; False, and nothing done, where system or file system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_current_directory, exchange_flag = -100, 2
    arguments = (at_current_directory, os.fsencode(first), at_current_directory, os.fsencode(second), exchange_flag)
    return bool(renameat2(*arguments) == 0)


def temporary_beside(target: Path) -> Path:
    """A name for ``target`` until it is whole, in a directory that exists and is clear of leftovers."""
    _prepare(target.parent)
    return _temporary(target, "tmp")


def _temporary(target: Path, kind: str) -> Path:
    pid, start = os.getpid(), int(_started(os.getpid()) or 0)
    return target.with_name(f".{target.name}.streamrf-{_host()}-{pid}-{start}-{secrets.token_hex(4)}.{kind}")


@cache
def _host() -> str:
    """Names this host and, on Linux, this space of process numbers: containers may share a host name and a volume."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:8]
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _started(pid: int) -> float | None:
    """When a process began, or None where there is no such process."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def _is_alive(pid: int, start: int) -> bool:
    """A process of that number that began at that time: numbers are used again, above all in containers."""
    started = _started(pid)
    clock_drift = 10
    return started is not None and abs(started - start) < clock_drift


def _prepare(directory: Path) -> None:
    make_directory(directory)
    if str(directory) not in _directories_cleaned:
        _directories_cleaned.add(str(directory))
        clean_leftovers(directory)


def clean_leftovers(directory: Path) -> None:
    """Remove what killed processes of this host left unfinished; put back a directory they had moved aside."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        match = _TEMPORARY.fullmatch(name)
        if match and match["host"] == _host() and not _is_alive(int(match["pid"]), int(match["start"])):
            _settle(directory / name, directory / match["target"], match["kind"])


def _settle(leftover: Path, target: Path, kind: str) -> None:
    if kind == "old" and not os.path.lexists(target):
        with contextlib.suppress(OSError):
            os.rename(leftover, target)
    _remove(leftover)


def _remove(path: Path) -> None:
    """Remove a file or directory of ours. One that cannot be removed is no reason to fail."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def storage_errors(action: str, path: AnyPath, n_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError that says what failed, why, and how many bytes are free."""
    try:
        yield
    except (StorageError, ExistsError):
        raise
    except OSError as error:
        raise storage_error(action, path, error, n_bytes) from error


@contextlib.contextmanager
def content_errors(where: AnyPath, *keep: type[StreamRFError]) -> Iterator[None]:
    """Turn whatever malformed content leads to into one FileFormatError; errors about other things stay, as ``keep``.

    Digests find damage. This is for content that was written wrong: a part that is missing, of the wrong kind or size.
    """
    others: tuple[type[Exception], ...] = (FileFormatError, MismatchError, StorageError, MissingDependencyError)
    others += (MemoryError, *keep)
    try:
        yield
    except Exception as error:
        if isinstance(error, others):
            raise
        reason = next(iter(str(error).splitlines()), "")[:200]
        told = reason if isinstance(error, StreamRFError) else f"{type(error).__name__}: {reason}"
        raise FileFormatError(f"{where} lacks a part or has one of the wrong kind ({told}).") from error


def storage_error(action: str, path: AnyPath, cause: OSError, n_bytes: int | None = None) -> StorageError:
    """The sentence for one failed ``action`` on ``path``."""
    result = StorageError(f"Could not {action}{_sizes(path, cause, n_bytes)}: {_reason(cause)}.")
    result.errno = cause.errno
    return result


def _sizes(path: AnyPath, cause: OSError, n_bytes: int | None) -> str:
    parts = [f"{format_bytes(n_bytes)} in all"] if n_bytes is not None else []
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        parts.append(f"{format_bytes(free_bytes(path))} free there")
    return f" ({', '.join(parts)})" if parts else ""


def _reason(cause: OSError) -> str:
    return {
        errno.ENOSPC: "no space is left on the device; free some or choose another location",
        errno.EDQUOT: "your disk quota is used up; free some space or choose another location",
        errno.EACCES: "permission denied; choose a location you can write to, or ask for access",
        errno.EPERM: "permission denied; choose a location you can write to, or ask for access",
        errno.EROFS: "the file system is read-only; choose another location",
        errno.ENOENT: "no such file or directory",
    }.get(cause.errno or 0, (cause.strerror or str(cause) or type(cause).__name__).rstrip("."))


def free_bytes(path: AnyPath) -> int:
    """Bytes this user may still write where ``path`` is or would be."""
    place = Path(os.path.realpath(path))
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def check_free_space(path: AnyPath, needed_bytes: int) -> None:
    """StorageError, with both numbers, unless ``needed_bytes`` can be written at ``path``."""
    with storage_errors(f"read the free space of {path}", path):
        free = free_bytes(path)
    if needed_bytes > free:
        raise StorageError(
            f"{path} needs {format_bytes(needed_bytes)} and {format_bytes(free)} are free there; "
            "free some space or choose another location."
        )
