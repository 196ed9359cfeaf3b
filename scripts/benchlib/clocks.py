"""Timing work within one process."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best(work: Callable[[], object], repeats: int) -> float:
    """The fastest of some runs."""
    return min(seconds_of(work) for _ in range(repeats))


def in_turn(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The fastest of each, measured in turn, so that a slow minute of the machine is shared by all."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            found[name].append(seconds_of(work))
    return {name: min(times) for name, times in found.items()}
