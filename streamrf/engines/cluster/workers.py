"""A pass and its Dask cluster: submit tasks, hear how they go, fetch a result. Dask decides which worker does what.

Workers that die, join, retire or pause are Dask's business. Two things are ours, because Dask waits for minutes there:
a worker that has gone silent (a frozen process) is taken off the scheduler's list, and a scheduler that does not answer
ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future as ThreadFuture
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

from distributed import Client, Future, KilledWorker, as_completed, span
from distributed.protocol import pickle

from streamrf.engines.cluster.groups import Group
from streamrf.engines.cluster.tasks import Shared, Sums, forget
from streamrf.support.errors import BudgetError, ClusterError, InputError, MissingDependencyError, StreamRFError
from streamrf.support.units import format_bytes

LOOK_EVERY = 0.5  # seconds between two looks at the list of workers, and more where there are many
FROZEN = 15.0  # seconds without a heartbeat before a worker counts as frozen; twice that for the next one
NO_ANSWER = 30.0  # seconds before a scheduler counts as gone
REPORTS = 100  # of all workers together in a second, at most


Fetch: TypeAlias = ThreadFuture[Sums]  # a result on its way here


@dataclass(frozen=True)
class WorkerInfo:
    address: str
    threads: int
    memory: int | None  # its limit, where it has one
    held: int  # bytes of results that Dask keeps there
    paused: bool  # its memory is almost full: it keeps what it has and takes nothing new
    used: int = 0  # bytes, of all it holds

    @classmethod
    def of(cls, address: str, info: dict[str, Any]) -> WorkerInfo:
        held, used = (info.get("metrics", {}).get(name, 0) for name in ("managed_bytes", "memory"))
        return cls(address, info["nthreads"], info["memory_limit"] or None, held, info.get("status") == "paused", used)


@dataclass(eq=False)
class Task:
    """Rows to do, with partial sums to add them to. Once finished, it is a sum on a worker."""

    number: int
    future: Future
    groups: tuple[Group, ...] = ()  # its own rows; once it is finished, all that are in its result
    inputs: tuple[Task, ...] = ()  # sums that go into its result, until it is finished
    called: float = 0.0  # since when the run wants its rows now, for a checkpoint or the end
    is_alone: bool = False  # no worker came to add it to others: it is to be fetched by itself
    submitted: float = 0.0
    home: str | None = None  # the worker, once the task has started
    started: float = 0.0  # when we heard of it
    progress: int = 0  # rows done so far
    seconds: float = 0.0  # what the task took, once it is finished
    unknown: Counter[str] = field(default_factory=Counter)  # values whose levels the coding of columns does not know

    @cached_property
    def rows(self) -> int:
        """Its own; once it is finished, all."""
        return sum(len(span) for group in self.groups for span in group)

    @property
    def place(self) -> str | None:
        """Where it is, or where Dask will have it done."""
        return self.home or (self.inputs[0].home if self.inputs else None)

    def take_inputs(self) -> None:
        """It is finished, and has the rows of its inputs as well."""
        self.rows += sum(part.rows for part in self.inputs)
        self.groups += tuple(chain.from_iterable(part.groups for part in self.inputs))
        self.unknown = sum((part.unknown for part in self.inputs), self.unknown)
        self.inputs = ()

    @property
    def is_lost(self) -> bool:
        """Whether the result, or one that it is made of, was there and is gone."""
        return self.future.status in ("lost", "cancelled") or any(part.is_lost for part in self.inputs)

    def failure(self) -> BaseException | None:
        """Why a finished task has no result; None where it has one."""
        return self.future.exception() if self.future.status == "error" else None


class Workers:
    """A client of a running cluster, and every task of one pass."""

    now = staticmethod(time.monotonic)  # the clock of the run

    def __init__(self, client: Client, name: str = "") -> None:
        if client.asynchronous:
            raise InputError("an asynchronous Client cannot be used here: make it without asynchronous=True")
        self.client, self.name, self.run = client, name, secrets.token_hex(4)
        self.alive: dict[str, WorkerInfo] = {}  # by address
        self.memory_limit: int | None = None  # the smallest among those that are alive, or were last
        self._numbers = itertools.count()
        self._open: dict[int, Task] = {}  # by number
        self._completed = as_completed(loop=client.loop)
        self._fetch: Fetch | None = None  # that nobody has been told of
        self._beats: dict[str, float] = {}  # the newest heartbeat of each worker
        self._silent: Counter[str] = Counter()  # looks since
        self._silence, self._looked = FROZEN, float("-inf")
        self.refresh()

    @classmethod
    @contextmanager
    def of_pass(cls, client: Client, name: str, shared: Shared) -> Iterator[Workers]:
        """Workers that all can ask for what is shared; at the end, tasks that are left are cancelled."""
        workers, topic = cls(client, name), f"streamrf-{client.id}"  # the scheduler keeps some news of every topic
        try:
            every = max(shared.every, len(workers.alive) / REPORTS)
            sent = pickle.dumps(replace(shared, topic=topic, every=every))
            workers._told(client.scheduler.set_metadata, keys=[workers.run], value=sent)
            client.subscribe_topic(topic, workers._hear)
            with span("streamrf", name):
                yield workers
        except Exception as error:
            if client.status == "running" or isinstance(error, StreamRFError):
                raise
            raise scheduler_gone(client) from error
        finally:
            for task in list(workers._open.values()):
                workers.release(task)
            if client.status == "running":
                client.unsubscribe_topic(topic)
                workers._ask(client.scheduler.set_metadata(keys=[workers.run], value=None))
                workers._ask(client.run(forget, workers.run, on_error="ignore", asynchronous=True))

    def _ask(self, question: Coroutine[Any, Any, Any]) -> ThreadFuture[Any]:
        """Something asked of the cluster in the background: it may not answer."""
        return asyncio.run_coroutine_threadsafe(question, self.client.loop.asyncio_loop)

    def _told(self, question: Callable[..., Any], **options: Any) -> Any:
        """The scheduler's answer to something that takes it no time."""
        try:
            return self.client.sync(question, callback_timeout=NO_ANSWER, **options)
        except TimeoutError as error:
            raise scheduler_gone(self.client) from error

    def refresh(self) -> bool:
        """Now and then, look at the list of workers: True where that was done. Ends the run without a scheduler."""
        if self.client.status != "running":
            raise scheduler_gone(self.client)
        pause = LOOK_EVERY * (1 + len(self.alive) / 100)
        if time.monotonic() < self._looked + pause:
            return False
        try:
            self._look(self._told(self.client.scheduler.identity, n_workers=-1)["workers"], pause)
        except OSError as error:  # a connection that broke is opened again
            if not self.alive:
                raise scheduler_gone(self.client) from error
        self._looked = time.monotonic()
        return True

    def _look(self, found: dict[str, dict[str, Any]], pause: float) -> None:
        """Who is there. Frozen workers are taken off the list, one at a time. Looks are counted, not seconds: it may be
        us, or the scheduler, who was frozen."""
        self.alive = {address: WorkerInfo.of(address, info) for address, info in found.items()}
        limits = [worker.memory for worker in self.alive.values() if worker.memory]
        self.memory_limit = min(limits, default=self.memory_limit)
        beats = {address: info["last_seen"] for address, info in found.items()}
        same = (address for address, beat in beats.items() if self._beats.get(address) == beat)
        self._silent = Counter({address: self._silent[address] + 1 for address in same})
        self._beats = beats
        working = {task.home for task in list(self._open.values())}
        frozen = (each for each, looks in self._silent.items() if looks * pause > self._silence and each in working)
        if address := next(frozen, None):
            self._silence *= 2  # should it be only very busy, it is given longer the next time
            self._told(self.client.scheduler.unregister, address=address, stimulus_id=f"streamrf-{self.run}")

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """A task has started, is so far, or has ended: news of it reach us before its result does."""
        _, news = event
        task = self._open.get(news["task"]) if news["run"] == self.run else None
        if task:
            task.started = task.started if task.home == news["home"] else time.monotonic()
            task.home, task.progress, task.seconds = news["home"], news["rows"], news.get("seconds", 0.0)
            task.unknown = Counter(news.get("unknown"))

    def submit(
        self, function: Callable[..., object], calls: Sequence[tuple[Any, ...]], name: str = "", rank: int = 0
    ) -> list[Task]:
        """Have workers run ``function(run, *args)`` for each of the ``calls`` and keep the results; those of a higher
        rank first. Futures among ``args`` become their values.

        Several at once take driver and scheduler half as long as one after the other.
        """
        if not calls:
            return []
        numbers = [next(self._numbers) for _ in calls]
        name = f"streamrf-{name or function.__name__.replace('_', '-')}-{self.name}-{self.run}"
        futures = self.client.map(
            function, [self.run] * len(calls), *map(list, zip(*calls, strict=True)), pure=False,
            key=[(name, number) for number in numbers], priority=1_000_000_000 * rank - numbers[0],
        )  # fmt: skip
        self._completed.update(futures)
        tasks = list(map(Task, numbers, futures))
        self._open |= zip(numbers, tasks, strict=True)
        return tasks

    def fetch(self, task: Task) -> Fetch:
        """Bring a result here, straight from its worker where that can be reached; nothing waits for it meanwhile."""
        self._fetch = self._ask(self.client.gather(task.future, direct=True, asynchronous=True))
        return self._fetch

    def finished(self, seconds: float) -> list[Task]:
        """Tasks that came to an end, good or bad; waits this long for the first, or for a fetch."""
        deadline = time.monotonic() + seconds
        while True:
            time.sleep(min(seconds, pause_for(len(self.alive))))
            numbers = [future.key[1] for future in self._completed.next_batch(block=False)]
            tasks = [self._open[number] for number in numbers if number in self._open]
            if self._fetch and self._fetch.done():
                self._fetch, deadline = None, 0.0
            if tasks or time.monotonic() >= deadline:
                return tasks

    def release(self, task: Task) -> None:
        """Nobody waits for this any longer: a running task stops at its next check, a result is freed."""
        task.future.release()
        self._open.pop(task.number, None)


def pause_for(workers: int) -> float:
    """Seconds of a pause after which it is worth seeing to whatever many workers have finished, all at once."""
    return 0.005 + 5e-5 * workers


def explain(failure: BaseException, task: Task, limit: int | None) -> BaseException:
    """What the error of a task means for the run; errors of ours say it themselves."""
    if isinstance(failure, KilledWorker):
        first, *_ = (group for each in (task, *task.inputs) for group in each.groups)
        return ClusterError(
            f"several workers were lost, one after the other, over rows {first[0].start:,} to {first[-1].stop - 1:,}:"
            f" most likely each ran out of memory ({limited(limit)}); give the workers more memory, use fewer"
            " workers on a machine, or lower `D`"
        )
    if isinstance(failure, ModuleNotFoundError) and (failure.name or "").partition(".")[0] == "streamrf":
        return MissingDependencyError("a worker has no streamrf: install the same version there")
    if isinstance(failure, MemoryError) and not isinstance(failure, BudgetError):
        return BudgetError(f"worker {task.home} ran out of memory ({failure}): give it more, or lower `D`")
    return failure


def limited(memory: int | None) -> str:
    return f"the limit of a worker is {format_bytes(memory)}" if memory else "they have no limit of their own"


def scheduler_gone(client: Client) -> ClusterError:
    address = client.scheduler.address if client.scheduler else "an unknown address"
    return ClusterError(
        f"the scheduler at {address} does not answer any more: start it and its workers again, then run the"
        " same command to resume from the last checkpoint"
    )
