"""How a run talks to its caller: it reports progress, and it stops between two blocks when it is asked to.

The library prints nothing. A ``Reporter`` writes to the logger ``streamrf``; the command line shows more.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from streamrf.support.errors import StreamRFError

log = logging.getLogger("streamrf")


class PlanSummary(Protocol):
    """What a reporter needs to know of a plan."""

    @property
    def solver(self) -> str: ...
    @property
    def passes(self) -> int: ...
    @property
    def projected(self) -> int: ...
    @property
    def budget(self) -> int: ...


class Reporter:
    """Is told of everything a run does, and writes it to the logger ``streamrf``. Subclasses show what they like."""

    wants_progress_error = False  # whether a hundredth of the pass may be spent on progress errors

    def note(self, text: str) -> None:
        """One sentence about what was found or done."""
        log.info("%s", text)

    def detail(self, text: str) -> None:
        """A sentence for those who want to know how a choice was made."""
        log.info("%s", text)

    def planned(self, plan: PlanSummary) -> None:
        log.info("plan: %s, %d bytes projected of a budget of %d", plan.solver, plan.projected, plan.budget)

    def tried(self, trial: object) -> None:
        log.debug("pilot: %s", trial)

    def working(self, what: str, share: float | None) -> None:
        """A stage that is no pass has done this share of its work; 1 ends it, None where nothing can be counted."""

    def started(self, what: str, rows: int, done: int) -> None:
        """A pass over ``rows`` rows begins; ``done`` of them are done already."""
        log.info("%s: %d rows, %d of them done", what, rows, done)

    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        """``done`` rows are done. The last checkpoint, if there is one, is ``checkpoint_age`` seconds old."""

    def progress_error(self, error: float, what: str) -> None:
        """The progress error: the error on hold-out rows with the rows summed so far."""
        log.info("hold-out %s so far: %g", what, error)

    def finished(self) -> None:
        log.debug("the pass is over")

    def settled(self, chosen: dict[str, object]) -> None:
        log.info("settings: %s", chosen)


class Interrupted(StreamRFError, KeyboardInterrupt):
    """The run was asked to stop, and did so with everything saved."""

    exit_code = 130


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """SIGTERM is a Ctrl-C: batch systems send it some time before they kill, and what is done by then can be kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def deferred_interrupts() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets, so that a pass can stop where its sums are whole.

    A second signal stops at once. Outside the main thread the event stays unset.
    """
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
