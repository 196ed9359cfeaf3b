"""What the cluster tests share; workers import this too, so everything here stays small and quick to load."""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import dask
import numpy as np
from distributed import Client, LocalCluster

from streamrf.data.source import Block
from streamrf.statistics.base import State, Statistic
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads

FAST = {
    "distributed.worker.multiprocessing-method": "forkserver",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.admin.tick.limit": "1h",  # a busy machine is not worth a warning
    "distributed.worker.profile.enabled": False,
    "distributed.deploy.lost-worker-timeout": "5 minutes",  # a busy machine restarts one later than Dask waits for it
}


@contextmanager
def local_cluster(
    workers: int, *, threads: int = 1, config: dict[str, Any] | None = None, **options: Any
) -> Iterator[Any]:
    """A cluster of processes and a client; quiet, without a dashboard."""
    with (
        quick_to_start(config),
        LocalCluster(
            n_workers=workers, threads_per_worker=threads, processes=True, dashboard_address=":0",
            silence_logs=60, **{"memory_limit": 0, **options},
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        client.wait_for_workers(workers)
        yield cluster, client


@contextmanager
def quick_to_start(config: dict[str, Any] | None = None) -> Iterator[None]:
    """Workers are forked from a process that has everything in memory, so that one starts in a moment."""
    with suppress(ImportError):  # older versions of distributed do as they like
        from distributed.utils import get_mp_context

        with dask.config.set(FAST):
            get_mp_context().set_forkserver_preload(["streamrf.engines.cluster", "streamrf.statistics.holdout"])
    with dask.config.set({**FAST, **(config or {})}):
        yield


@dataclass
class CountsState(State):
    counts: np.ndarray

    def __iadd__(self, other: CountsState) -> Self:
        self.counts += other.counts
        return self

    def __isub__(self, other: CountsState) -> Self:
        self.counts -= other.counts
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {"counts": self.counts}


@dataclass
class Counts(Statistic[CountsState]):
    """How often each row was counted: once is right. It can be slow, hungry, held, and leave traces."""

    rows: int
    seconds: float = 0.0  # for every thousand rows
    hunger: int = 0  # bytes kept for each block
    trace: str | None = None  # a folder
    hold: str | None = None  # a file that an update waits for, once it has eaten
    ballast: bytes = b""  # what makes it large

    def zero(self) -> CountsState:
        return CountsState(np.zeros(self.rows, np.int64))

    def load(self, arrays: dict[str, np.ndarray]) -> CountsState:
        return CountsState(arrays["counts"])

    def update(self, state: CountsState, block: Block, threads: Threads) -> None:
        self.note(f"update {os.getpid()} {threads.count} {len(block)}")
        if self.hunger:
            _eaten.append(np.ones(self.hunger, np.uint8))
        if self.hold:
            wait_until(Path(self.hold).exists)
        with _alone:
            time.sleep(self.seconds * len(block) / 1000)
            state.counts[block.index] += 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.note(f"arrived {os.getpid()}")

    def note(self, text: str) -> None:
        if self.trace:
            with open(Path(self.trace) / f"{os.getpid()}.txt", "a") as file:
                file.write(text + "\n")


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for what must come, however busy the machine is."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


_eaten: list[np.ndarray] = []


def devour(size: int) -> None:
    """Take memory and never give it back."""
    _eaten.append(np.ones(size, np.uint8))


class _Alone:
    """Fails where two updates run at once in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        assert self._lock.acquire(blocking=False), "two tasks at once"

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_alone = _Alone()


def traces(folder: Path) -> list[list[str]]:
    """The lines of all traces, in words."""
    return [line.split() for path in sorted(folder.glob("*.txt")) for line in path.read_text().splitlines()]


def heaps() -> int:
    """How many heaps the C library has made for the threads of this process."""
    with tempfile.TemporaryFile() as file:
        library = ctypes.CDLL(None)
        library.fdopen.restype = ctypes.c_void_p
        stream = ctypes.c_void_p(library.fdopen(os.dup(file.fileno()), b"w"))
        library.malloc_info(0, stream)
        library.fclose(stream)
        file.seek(0)
        return file.read().count(b"<heap nr=")


def heaps_of_many_threads() -> tuple[int, int]:
    """Heaps before and after thirty threads have asked for memory at the same time."""
    before, barrier = heaps(), threading.Barrier(30)

    def ask() -> None:
        barrier.wait()
        bytearray(10_000)
        barrier.wait()

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return before, heaps()


class Stops(Reporter):
    """Asks the run to stop once so many rows are done, as Ctrl-C would."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        if done >= self.rows:
            self.rows = 10**9
            os.kill(os.getpid(), signal.SIGINT)
