"""The workers of a Dask cluster as the rest of the engine sees them: who is there, give one an errand, fetch a result.

An errand is pinned to its worker and is never started elsewhere behind our back: which worker holds what is always
known, and what a lost worker held is given out anew by us, to all the others at once.
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
from typing import Any

from distributed import Client, Future, KilledWorker

from streamrf.support.errors import ClusterError, InputError

__all__ = ["CalledOff", "Crew", "Hand", "KilledWorker", "Ticket"]

LOOK_EVERY = 0.5  # seconds between two looks at who is there, and more where there are many
LOST = ("lost", "cancelled")


class CalledOff(Exception):
    """Raised on a worker that finds that nobody waits for its errand any longer."""


@dataclass(frozen=True)
class Hand:
    """One worker."""

    address: str
    threads: int
    memory: int | None  # its limit, where it has one
    paused: bool  # over its memory limit: it holds on to what it has and takes nothing new


class Ticket:
    """What was asked of a worker: the promise of a result that stays there, or of one that is fetched from there."""

    def __init__(self, number: int, home: str, future: Future | ThreadFuture) -> None:
        self.number, self.home, self.future = number, home, future
        self.begun = self.ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it took until we heard that it had ended, which may be before anyone had time to look."""
        return self.ended - self.begun

    @property
    def key(self) -> str:
        """What Dask calls it."""
        assert isinstance(self.future, Future)
        return str(self.future.key)

    @property
    def is_lost(self) -> bool:
        """Whether Dask knows that the result is gone."""
        return isinstance(self.future, Future) and self.future.status in LOST

    def failure(self) -> BaseException | None:
        """Why a finished errand has no result; None where it has one."""
        if isinstance(self.future, Future):
            return self.future.exception() if self.future.status == "error" else None
        return self.future.exception()

    @property
    def value(self) -> Any:
        """What a fetch brought."""
        return self.future.result()


class Crew:
    """A client of a running cluster, and everything that is asked of its workers during one pass."""

    def __init__(self, client: Client) -> None:
        if client.asynchronous:
            raise InputError("an asynchronous Client cannot be used here: make it without asynchronous=True")
        self.client = client
        self.hands: dict[str, Hand] = {}
        self.smallest: int | None = None  # memory limit among those that are there, or were last
        self.progress: dict[int, int] = {}  # rows done of each errand under way, by the number of its ticket
        self.topic = f"streamrf-{client.id}"
        self._run = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._finished: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._next_look = 0.0
        self._issued: dict[int, Ticket] = {}  # and not dropped yet

    @contextmanager
    def on_duty(self) -> Iterator[None]:
        """While inside, workers are heard; when it ends, whatever is still under way is called off."""
        self.client.subscribe_topic(self.topic, self._hear)
        self.look()
        try:
            yield
        finally:
            for ticket in list(self._issued.values()):
                self.drop(ticket)
            if self.client.status == "running":
                self.client.unsubscribe_topic(self.topic)

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        _, message = event
        if message["run"] == self._run:
            self.progress[message["errand"]] = message["rows"]

    def now(self) -> float:
        """Seconds on the clock of the run."""
        return time.monotonic()

    def look(self) -> None:
        """See who is there, now and then."""
        if self.client.status != "running":
            raise scheduler_gone(self.client)
        if time.monotonic() < self._next_look:
            return
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        self.hands = {address: _hand(address, info) for address, info in found.items()}
        limits = [hand.memory for hand in self.hands.values() if hand.memory]
        self.smallest = min(limits, default=self.smallest)
        self._next_look = time.monotonic() + LOOK_EVERY * (1 + len(found) / 100)

    def share(self, value: Any) -> Future:
        """A value every worker can have: it travels from worker to worker, once to each, and outlives any of them."""
        number = next(self._numbers)
        future = self.client.submit(_same, value, key=f"streamrf-share-{self._run}-{number}", pure=False)
        self._issued[number] = Ticket(number, "", future)
        return future

    def give(self, home: str, function: Callable[..., Any], *args: Any, orders: dict[str, Any] | None = None) -> Ticket:
        """Have ``function(*args)`` run by one worker, where its result stays; futures among ``args`` are replaced."""
        number = next(self._numbers)
        if orders is not None:
            orders = {**orders, "run": self._run, "errand": number, "topic": self.topic, "every": self._report_every}
            args = (*args, orders)
        future = self.client.submit(
            function, *args, key=f"streamrf-{function.__name__.replace('_', '-')}-{self._run}-{number}", pure=False,
            workers=[home], allow_other_workers=False,
        )  # fmt: skip
        return self._expect(Ticket(number, home, future))

    @property
    def _report_every(self) -> float:
        """Seconds between two reports of a worker: about a hundred a second from all of them together."""
        return max(0.5, len(self.hands) / 100)

    def fetch(self, ticket: Ticket) -> Ticket:
        """Bring a result here, straight from its worker where that can be reached; meanwhile everything goes on."""
        gathered = self.client.gather(ticket.future, direct=True, asynchronous=True)
        bringing = asyncio.run_coroutine_threadsafe(_result(gathered), self.client.loop.asyncio_loop)
        return self._expect(Ticket(next(self._numbers), ticket.home, bringing))

    def _expect(self, ticket: Ticket) -> Ticket:
        self._issued[ticket.number] = ticket
        ticket.future.add_done_callback(lambda _: self._hear_end(ticket))
        return ticket

    def _hear_end(self, ticket: Ticket) -> None:
        ticket.ended = time.monotonic()
        self._finished.put(ticket)

    def finished(self, seconds: float) -> list[Ticket]:
        """Tickets that came to an end, good or bad; waits for the first as long as this."""
        tickets = []
        try:
            tickets.append(self._finished.get(timeout=seconds))
            while True:
                tickets.append(self._finished.get_nowait())
        except queue.Empty:
            return tickets

    def drop(self, ticket: Ticket) -> None:
        """Nobody waits for this any longer: the worker stops at the next chance, and its result goes nowhere."""
        if isinstance(ticket.future, Future):
            ticket.future.release()
        else:
            ticket.future.cancel()
        self.progress.pop(ticket.number, None)
        self._issued.pop(ticket.number, None)

    def whereabouts(self, tickets: Iterable[Ticket]) -> dict[int, str]:
        """Where results are now, by the numbers of their tickets: a worker that leaves in good order hands them on."""
        by_key = {ticket.key: ticket.number for ticket in tickets}
        held = self.client.who_has(list(by_key)) if by_key else {}
        return {by_key[key]: homes[0] for key, homes in held.items() if homes and homes[0] in self.hands}


def address_of(client: Client) -> str:
    return client.scheduler.address if client.scheduler else "an unknown address"


def scheduler_gone(client: Client) -> ClusterError:
    return ClusterError(
        f"the scheduler at {address_of(client)} does not answer any more: start it and its workers again, then run the"
        " same command to go on from the last checkpoint"
    )


def _same(value: Any) -> Any:
    return value


async def _result(awaitable: Any) -> Any:
    return await awaitable


def _hand(address: str, info: dict[str, Any]) -> Hand:
    return Hand(address, info["nthreads"], info["memory_limit"] or None, info.get("status") == "paused")
