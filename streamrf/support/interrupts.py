"""Ctrl-C and SIGTERM stop a pass between two blocks, where the sums are whole; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from streamrf.support.errors import StreamRFError


class Interrupted(StreamRFError, KeyboardInterrupt):
    """The run was asked to stop, and did so with everything saved."""

    exit_code = 130


@contextmanager
def deferred_interrupts() -> Iterator[threading.Event]:
    """An event that is set by the first signal; outside the main thread it stays unset."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
