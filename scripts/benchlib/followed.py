"""A command of streamrf that writes down, as its pass goes on, how many rows are done and what the process holds.

``python -m benchlib.followed TRACE DIE ARGS``: lines of TRACE are rows and bytes. Where DIE is not 0, the process ends
as by kill -9 once so many rows are done and some of them are saved.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from streamrf.cli import main
from streamrf.support import memory
from streamrf.support.progress import Reporter

EVERY = 0.05  # seconds between two lines
PASS = "training"


def follow(trace: Path, die: int = 0) -> None:
    """From now on in this process, for commands that are ``--quiet``."""
    title, last, file = "", 0.0, trace.open("a", buffering=1)

    def started(reporter: Reporter, what: str, rows: int, done: int) -> None:
        nonlocal title
        title = what
        if title == PASS:
            file.write(f"{done} {memory.resident()}\n")

    def advanced(reporter: Reporter, done: int, checkpoint_age: float | None) -> None:
        nonlocal last
        if title == PASS and time.monotonic() - last >= EVERY:
            last = time.monotonic()
            file.write(f"{done} {memory.resident()}\n")
        if title == PASS and die and done >= die and checkpoint_age is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    Reporter.started, Reporter.advanced = started, advanced  # type: ignore[method-assign]


def points(trace: Path) -> list[tuple[int, int]]:
    """Rows that were done and bytes that were held, as far as they were written."""
    lines = [line.split() for line in trace.read_text().splitlines()]
    return [(int(line[0]), int(line[1])) for line in lines if len(line) == 2]


if __name__ == "__main__":
    follow(Path(sys.argv[1]), int(sys.argv[2]))
    main(sys.argv[3:])
