"""A pass and its Dask cluster: submit a task, hear how it goes, fetch a result. Dask decides which worker does it.

Workers that die, join, retire or pause are Dask's business. Two things are ours, because Dask waits for minutes there:
a worker that has gone silent (a frozen process) is taken off the scheduler's list, and a scheduler that does not answer
ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future as ThreadFuture
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, span
from distributed.protocol import pickle

from streamrf.engines.cluster.tasks import Report, Shared, Sums
from streamrf.support.errors import BudgetError, ClusterError, InputError, MissingDependencyError, StreamRFError

LOOK_EVERY = 0.5  # seconds between two looks at the list of workers, and more where there are many
FROZEN = 15.0  # seconds without a heartbeat before a worker counts as frozen; twice that for the next one
NO_ANSWER = 30.0  # seconds before a scheduler counts as gone


@dataclass(frozen=True)
class WorkerInfo:
    address: str
    threads: int
    memory: int | None  # its limit, where it has one
    paused: bool  # its memory is almost full: it keeps what it has and takes nothing new


class TaskFuture:
    """The promise of a result: of a task, which stays on its worker, or of a fetch, which brings it here."""

    def __init__(self, number: int, future: Future | ThreadFuture[Sums]) -> None:
        self.number, self.future = number, future
        self.home: str | None = None  # the worker, once the task has started
        self.started = 0.0  # when we heard of it
        self.rows, self.seconds = 0, 0.0  # done so far; what the task took, once it is finished

    @property
    def is_lost(self) -> bool:
        """Whether the result was there and is gone."""
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

    def __init__(self, client: Client, name: str = "") -> None:
        if client.asynchronous:
            raise InputError("an asynchronous Client cannot be used here: make it without asynchronous=True")
        self.client, self.name = client, name
        self.alive: dict[str, WorkerInfo] = {}  # by address
        self.memory_limit: int | None = None  # the smallest among those that are alive, or were last
        self.topic = f"streamrf-{client.id}"
        self.run = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._open: dict[int, TaskFuture] = {}
        self._finished: queue.SimpleQueue[TaskFuture] = queue.SimpleQueue()
        self._look: ThreadFuture[Any] | None = None
        self._looked = 0.0
        self._heartbeats: dict[str, tuple[float, int]] = {}  # the newest of each worker, and looks since
        self._silence = FROZEN
        self._sharing: ThreadFuture[Any] | None = None

    @classmethod
    @contextmanager
    def of_pass(cls, client: Client, name: str, value: object) -> Iterator[Workers]:
        """Workers that all have this value; at the end, tasks that are left are cancelled."""
        workers = cls(client, name)
        try:
            client.subscribe_topic(workers.topic, workers._hear)
            workers.refresh(wait=True)
            shared = pickle.dumps(Shared(workers.run, value))  # kept by the scheduler for workers that join late
            plugin = {"plugin": shared, "name": workers.topic, "idempotent": False}
            workers._sharing = workers._ask(client.scheduler.register_worker_plugin(**plugin))
            with span("streamrf", name):
                yield workers
        except Exception as error:
            if client.status == "running" or isinstance(error, StreamRFError):
                raise
            raise scheduler_gone(client) from error
        finally:
            for future in list(workers._open.values()):
                workers.release(future)
            if client.status == "running":
                client.unsubscribe_topic(workers.topic)
                workers._ask(client.scheduler.unregister_worker_plugin(name=workers.topic))

    def _ask(self, question: Awaitable[Any]) -> ThreadFuture[Any]:
        """Something asked of the scheduler, in the background: it may not answer."""

        async def answered() -> Any:
            return await question

        return asyncio.run_coroutine_threadsafe(answered(), self.client.loop.asyncio_loop)

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """A task has started, is so far, or has ended: news of it reach us before its result does."""
        _, news = event
        future = self._open.get(news["task"]) if news["run"] == self.run else None
        if future:
            future.started = future.started if future.home == news["home"] else time.monotonic()
            future.home, future.rows, future.seconds = news["home"], news["rows"], news["seconds"]

    def refresh(self, wait: bool = False) -> None:
        """Look now and then which workers there are, without waiting for the answer."""
        if self.client.status != "running":
            raise scheduler_gone(self.client)
        pause = LOOK_EVERY * (1 + len(self.alive) / 100)
        if self._look is None and time.monotonic() >= self._looked + pause:
            self._looked = time.monotonic()
            self._look = self._ask(self.client.scheduler.identity(n_workers=-1))
        if self._look and (wait or self._look.done()):
            with suppress(OSError):  # a connection that broke is opened again; a timeout is one too
                self._note_workers(self._look.result(NO_ANSWER)["workers"], pause)
            self._look = None if self._look.done() else self._look
        if self._look and time.monotonic() > self._looked + NO_ANSWER:
            raise scheduler_gone(self.client)
        if self._sharing and self._sharing.done():  # a worker may be lost meanwhile, but must have streamrf
            sharing, self._sharing = self._sharing, None
            if isinstance(error := sharing.exception(), ModuleNotFoundError):
                raise explain(error, "of this cluster")

    def _note_workers(self, found: dict[str, dict[str, Any]], pause: float) -> None:
        self.alive = {
            address: WorkerInfo(address, info["nthreads"], info["memory_limit"] or None, info.get("status") == "paused")
            for address, info in found.items()
        }
        limits = [worker.memory for worker in self.alive.values() if worker.memory]
        self.memory_limit = min(limits, default=self.memory_limit)
        last, self._heartbeats = self._heartbeats, {}
        for address, info in found.items():
            beat, looks = last.get(address, (0.0, 0))
            self._heartbeats[address] = (info["last_seen"], looks + 1 if info["last_seen"] == beat else 0)
        for address, (_, looks) in self._heartbeats.items():
            if looks * pause > self._silence and any(future.home == address for future in self._open.values()):
                self._silence *= 2  # should it be only very busy, it is given longer the next time
                self._ask(self.client.scheduler.unregister(address=address, stimulus_id=f"streamrf-frozen-{self.run}"))
                return

    def submit(self, function: Callable[..., object], *args: object, first: bool = False) -> TaskFuture:
        """Have a worker run ``function(report, *args)`` and keep the result; ``first`` before those that wait.

        Futures among ``args`` become their values.
        """
        number = next(self._numbers)
        key = (f"streamrf-{function.__name__.replace('_', '-')}-{self.name}-{self.run}", number)
        # about a hundred reports a second from all workers together
        report = Report(self.topic, self.run, number, max(0.5, len(self.alive) / 100))
        priority = 1_000_000_000 if first else -number
        return self._expect(number, self.client.submit(function, report, *args, key=key, pure=False, priority=priority))

    def fetch(self, future: TaskFuture) -> TaskFuture:
        """Bring a result here, straight from its worker where that can be reached; nothing waits for it meanwhile."""
        gathered = self.client.gather(future.future, direct=True, asynchronous=True)
        return self._expect(next(self._numbers), self._ask(gathered))

    def _expect(self, number: int, future: Future | ThreadFuture[Sums]) -> TaskFuture:
        expected = self._open[number] = TaskFuture(number, future)
        future.add_done_callback(lambda _: self._finished.put(expected))
        return expected

    def finished(self, seconds: float) -> list[TaskFuture]:
        """Futures that came to an end, good or bad; waits this long for the first."""
        futures = []
        with suppress(queue.Empty):
            futures.append(self._finished.get(timeout=seconds))
            while True:
                futures.append(self._finished.get_nowait())
        return futures

    def release(self, future: TaskFuture) -> None:
        """Nobody waits for this any longer: a running task stops at its next check, a result is freed."""
        if isinstance(future.future, Future):
            future.future.release()
        else:
            future.future.cancel()
        self._open.pop(future.number, None)


def explain(failure: BaseException, home: str | None) -> BaseException:
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
