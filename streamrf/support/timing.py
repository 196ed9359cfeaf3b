"""Timing pieces of work that are short and run the same every time."""

from __future__ import annotations

import time
from collections.abc import Callable

Work = Callable[[], object]


def timed(work: Work) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def seconds_of(work: Work, repeats: int) -> list[float]:
    """How long each of some runs took, after one that compiles and packs."""
    work()
    return [timed(work) for _ in range(repeats)]


def in_turn(works: dict[str, Work], repeats: int) -> dict[str, float]:
    """The fastest of each, in turn after a first run, so that a slow moment of the machine is shared by all."""
    for work in works.values():
        work()
    rounds = [{name: timed(work) for name, work in works.items()} for _ in range(repeats)]
    return {name: min(found[name] for found in rounds) for name in works}
