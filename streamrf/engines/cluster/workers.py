"""The workers of a Dask cluster: which there are, run a task on one of them, fetch a result.

A task is pinned to its worker and Dask never starts it elsewhere. So we always know which worker holds what, and we
give the work of a lost worker to the others ourselves, to all of them at once.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future as ThreadFuture
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from distributed import Client, Future
from distributed.comm import CommClosedError

from streamrf.support.errors import BudgetError, ClusterError, InputError, MissingDependencyError, StreamRFError

REFRESH_EVERY = 0.5  # seconds between two looks at the list of workers, and more where there are many


class TaskCancelled(Exception):
    """Raised on a worker when nobody waits for its task any longer."""


class Sums(TypedDict):
    """The result of a task that sums: the arrays of a state, and how many rows were dropped."""

    arrays: dict[str, np.ndarray]
    dropped: int


@dataclass(frozen=True)
class WorkerInfo:
    address: str
    threads: int
    memory: int | None  # its limit, where it has one
    paused: bool  # its memory is almost full: it keeps what it has and takes nothing new


@dataclass(frozen=True)
class ReportTo:
    """Where and how often a task reports the rows it has done."""

    topic: str
    run: str
    task: int
    every: float  # seconds


class TaskFuture:
    """The promise of a result: of a task, which stays on its worker, or of a fetch, which brings it here."""

    def __init__(self, number: int, home: str, future: Future | ThreadFuture[Sums], key: str = "") -> None:
        self.number, self.home, self.future, self.key = number, home, future, key
        self.started = self.ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it took until its end was reported, which may be before anyone had time to look."""
        return self.ended - self.started

    @property
    def is_lost(self) -> bool:
        """Whether Dask knows that the result is gone."""
        return isinstance(self.future, Future) and self.future.status in ("lost", "cancelled")

    def failure(self) -> BaseException | None:
        """Why a finished task has no result; None where it has one."""
        succeeded = isinstance(self.future, Future) and self.future.status != "error"
        return None if succeeded else self.future.exception()

    @property
    def value(self) -> Sums:
        """What a fetch brought."""
        return self.future.result()


class Workers:
    """A client of a running cluster, and every task of one pass."""

    now = staticmethod(time.monotonic)  # the clock of the run

    def __init__(self, client: Client) -> None:
        if client.asynchronous:
            raise InputError("an asynchronous Client cannot be used here: make it without asynchronous=True")
        self.client = client
        self.alive: dict[str, WorkerInfo] = {}  # by address
        self.memory_limit: int | None = None  # the smallest among those that are alive, or were last
        self.progress: dict[int, int] = {}  # rows done by each running task, by the number of its future
        self.topic = f"streamrf-{client.id}"
        self._run = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._finished: queue.SimpleQueue[TaskFuture] = queue.SimpleQueue()
        self._next_refresh = 0.0
        self._unreleased: dict[int, TaskFuture] = {}

    @classmethod
    @contextmanager
    def of_pass(cls, client: Client) -> Iterator[Workers]:
        """The workers of one pass; at its end, tasks that are left are cancelled. A lost scheduler is one sentence."""
        workers = cls(client)
        try:
            client.subscribe_topic(workers.topic, workers._note_progress)
            workers.refresh()
            yield workers
        except Exception as error:
            if client.status == "running" or isinstance(error, StreamRFError):
                raise
            raise scheduler_gone(client) from error
        finally:
            for future in list(workers._unreleased.values()):
                workers.release(future)
            if client.status == "running":
                client.unsubscribe_topic(workers.topic)

    def _note_progress(self, event: tuple[float, dict[str, Any]]) -> None:
        _, report = event
        if report["run"] == self._run:
            self.progress[report["task"]] = report["rows"]

    def refresh(self) -> None:
        """Ask the scheduler now and then which workers there are."""
        if self.client.status != "running":
            raise scheduler_gone(self.client)
        if time.monotonic() < self._next_refresh:
            return
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        self.alive = {
            address: WorkerInfo(address, info["nthreads"], info["memory_limit"] or None, info.get("status") == "paused")
            for address, info in found.items()
        }
        limits = [worker.memory for worker in self.alive.values() if worker.memory]
        self.memory_limit = min(limits, default=self.memory_limit)
        self._next_refresh = time.monotonic() + REFRESH_EVERY * (1 + len(found) / 100)

    def share(self, value: object) -> Future:
        """A value that every worker can have: it travels once to each, from worker to worker, and outlives any."""
        number = next(self._numbers)
        future = self.client.submit(_same, value, key=f"streamrf-share-{self._run}-{number}", pure=False)
        self._unreleased[number] = TaskFuture(number, "", future)
        return future

    def submit(self, home: str, function: Callable[..., object], *args: object, reports: bool = False) -> TaskFuture:
        """Have one worker run ``function(*args)`` and keep the result. Futures among ``args`` become their values.

        With ``reports``, the function gets a last argument that tells it where to report its progress.
        """
        number = next(self._numbers)
        if reports:  # about a hundred reports a second from all workers together
            args = (*args, ReportTo(self.topic, self._run, number, max(0.5, len(self.alive) / 100)))
        key = f"streamrf-{function.__name__.replace('_', '-')}-{self._run}-{number}"
        place = {"workers": [home], "allow_other_workers": False}
        future = self.client.submit(function, *args, key=key, pure=False, **place)
        return self._expect(TaskFuture(number, home, future, key))

    def fetch(self, future: TaskFuture) -> TaskFuture:
        """Bring a result here, straight from its worker where that can be reached; nothing waits for it meanwhile."""
        gathered = self.client.gather(future.future, direct=True, asynchronous=True)
        fetching = asyncio.run_coroutine_threadsafe(gathered, self.client.loop.asyncio_loop)
        return self._expect(TaskFuture(next(self._numbers), future.home, fetching))

    def _expect(self, future: TaskFuture) -> TaskFuture:
        self._unreleased[future.number] = future
        future.future.add_done_callback(lambda _: self._note_end(future))
        return future

    def _note_end(self, future: TaskFuture) -> None:
        future.ended = time.monotonic()
        self._finished.put(future)

    def finished(self, seconds: float) -> list[TaskFuture]:
        """Futures that came to an end, good or bad; waits this long for the first."""
        futures = []
        try:
            futures.append(self._finished.get(timeout=seconds))
            while True:
                futures.append(self._finished.get_nowait())
        except queue.Empty:
            return futures

    def release(self, future: TaskFuture) -> None:
        """Nobody waits for this any longer: a running task stops at its next check, a result is freed."""
        if isinstance(future.future, Future):
            future.future.release()
        else:
            future.future.cancel()
        self.progress.pop(future.number, None)
        self._unreleased.pop(future.number, None)

    def locate(self, futures: Iterable[TaskFuture]) -> dict[int, str]:
        """Which worker holds each result now, by number: a worker that retires gives its results to others."""
        by_key = {future.key: future.number for future in futures}
        try:
            held = self.client.who_has(list(by_key)) if by_key else {}
        except CommClosedError as error:  # before the client itself has noticed
            raise scheduler_gone(self.client) from error
        return {by_key[key]: homes[0] for key, homes in held.items() if homes and homes[0] in self.alive}


def explain(failure: BaseException, home: str) -> BaseException:
    """What an error on a worker means for the run; errors of ours say it themselves."""
    if isinstance(failure, ModuleNotFoundError) and (failure.name or "").partition(".")[0] == "streamrf":
        return MissingDependencyError(f"worker {home} has no streamrf: install the same version there")
    if isinstance(failure, MemoryError) and not isinstance(failure, BudgetError):
        return BudgetError(f"worker {home} ran out of memory ({failure}): give it more, or lower `D`")
    return failure


def scheduler_gone(client: Client) -> ClusterError:
    address = client.scheduler.address if client.scheduler else "an unknown address"
    return ClusterError(
        f"the scheduler at {address} does not answer any more: start it and its workers again, then run the"
        " same command to resume from the last checkpoint"
    )


def _same(value: object) -> object:
    return value
