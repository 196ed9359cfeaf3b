"""Reading again what could not be read: a network or a disk may fail for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from streamrf.support.errors import StorageError

T = TypeVar("T")
A = TypeVar("A")

WAITS = (0.25, 1.0, 4.0)  # seconds before each further try
_FINAL = (FileNotFoundError, PermissionError)  # these do not mend themselves


def persistently(read: Callable[[A], T], what: A) -> T:
    """``read(what)``; a failure of the storage is tried again a few times, anything else is raised at once."""
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
