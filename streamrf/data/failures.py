"""Turns what storage libraries raise into one sentence of ours, the original chained behind it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from streamrf.support.errors import DataError, StorageError, StreamRFError

# Exceptions of network libraries that are not OSErrors.
_NETWORK = ("aiohttp", "aiobotocore", "botocore", "gcsfs", "google", "requests")


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
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def no_such(kind: str, name: str, known: Iterable[str], where: str, hint: str = "") -> DataError:
    """A name that is not there: says what there is, and the nearest to what was asked for."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1) or [n for n in names if n.lower() == name.lower()]
    guess = f"; did you mean '{near[0]}'?" if near else ""
    return DataError(f"no {kind} '{name}' in {where}: {listed(names)}{guess}{hint}")


def listed(names: Sequence[str], limit: int = 12) -> str:
    """What there is, for a message."""
    if not names:
        return "there is none"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return "there is " + ", ".join(f"'{name}'" for name in names[:limit]) + more
