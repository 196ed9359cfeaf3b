"""Timing a piece of work that is short and runs the same every time."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds_of(work: Callable[[], object], repeats: int) -> list[float]:
    """How long each of some runs took, after one that compiles and packs."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times
