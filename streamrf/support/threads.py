"""One small thread pool whose size is ours to set, so that BLAS and our kernels never fight over cores; and timing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import TracebackType
from typing import Self, TypeVar

import threadpoolctl

LARGE = 2000  # rows of a matrix from which a factorisation is worth all threads

T = TypeVar("T")
R = TypeVar("R")
Work = Callable[[], object]


def available_cores() -> int:
    """Cores this process may run on (a container or taskset may allow fewer than the machine has)."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on this platform
        return max(1, os.cpu_count() or 1)


@cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    """The BLAS libraries of this process. Finding them is slow, so it is done once, after scipy is loaded."""
    import scipy.linalg  # noqa: F401 (it brings a BLAS of its own)

    return threadpoolctl.ThreadpoolController()


class Threads:
    """Runs nogil work on ``count`` threads; BLAS gets one thread in each of them, and all of them in ``blas()``."""

    def __init__(self, count: int | None = None, *, limit_blas: bool = True) -> None:
        self.count = count or available_cores()
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="streamrf") if self.count > 1 else None
        self._limits = _libraries().limit(limits=1) if limit_blas else None

    def each(self, work: Callable[[T], object], items: Iterable[T]) -> None:
        """Call ``work`` for every item. Returns when all are done, and raises the first error."""
        for _ in self.map(work, items):
            pass

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """The results of ``work`` for every item, in order. One item alone is done here."""
        items = list(items)
        return map(work, items) if self._pool is None or len(items) < 2 else self._pool.map(work, items)

    @contextmanager
    def blas(self) -> Iterator[None]:
        """Lend every thread to BLAS and LAPACK, for one large factorisation or product."""
        with _libraries().limit(limits=self.count):
            yield

    def blas_for(self, size: int) -> AbstractContextManager[None]:
        """Every thread for a large matrix; one for a small one, where threads would mostly wait."""
        return self.blas() if size >= LARGE and self.count > 1 else nullcontext()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if self._limits is not None:
            self._limits.restore_original_limits()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


ALONE = Threads(1, limit_blas=False)  # for work inside a thread of another pool


# -- timing


def timed(work: Work) -> float:
    """Seconds that one run takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def seconds_of(work: Work, repeats: int) -> list[float]:
    """Seconds of each of ``repeats`` runs, after a first one that compiles and packs."""
    work()
    return [timed(work) for _ in range(repeats)]


def in_turn(works: dict[str, Work], repeats: int) -> dict[str, float]:
    """The fastest run of each. They run in turn, so that a slow moment of the machine is shared by all."""
    for work in works.values():
        work()
    rounds = [{name: timed(work) for name, work in works.items()} for _ in range(repeats)]
    return {name: min(found[name] for found in rounds) for name in works}
