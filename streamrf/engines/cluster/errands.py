"""What runs on a worker: sums of rows, sums of sums, and predictions written where they belong.

Every errand is a pure function: it never changes what it is given, so doing one again, late or twice gives the same
result, and a result counts once because whoever asked for it uses it once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from distributed import get_worker

import streamrf
from streamrf.data.open import open_source
from streamrf.data.source import Block, Source, Span
from streamrf.data.writers import Columns, open_part, write_blocks
from streamrf.engines.cluster.crew import CalledOff
from streamrf.engines.local import PIECE, pieces, read_ahead
from streamrf.statistics.base import Statistic
from streamrf.support import memory
from streamrf.support.errors import MismatchError, StorageError
from streamrf.support.threads import Threads

Sums = dict[str, Any]  # "arrays" of a state, and how many rows were "dropped"
Orders = dict[str, Any]  # see ``orders_for``

# An errand has the worker to itself: it uses all its threads, and buffers that belong to the statistic.
_alone = threading.Lock()


def orders_for(source: Source, nan: str, session: str) -> Orders:
    """What a worker must know to read the same rows as we do; no row is among it.

    A worker opens a source once for each ``session``: later ones see data that was stored anew meanwhile.
    """
    identity = {"spec": source.spec(), "fingerprint": source.fingerprint(), "version": streamrf.__version__}
    return {"source": json.dumps({**identity, "session": session}, sort_keys=True), "nan": nan}


def sum_rows(statistic: Statistic[Any], earlier: Sums | None, orders: Orders) -> Sums:
    """The sum over some spans, on top of an earlier sum."""
    with _alone, _threads() as threads:
        state = _copied(statistic, earlier) if earlier else statistic.zero()
        dropped = earlier["dropped"] if earlier else 0
        for piece, missing in _read(orders, _Bell(orders), statistic.piece_rows):
            statistic.update(state, piece, threads)
            dropped += missing
        return {"arrays": state.arrays(), "dropped": dropped}


def add_sums(statistic: Statistic[Any], first: Sums, second: Sums) -> Sums:
    """The sum of two sums, in new memory."""
    with _alone:
        state = _copied(statistic, first)
        state += statistic.load(second["arrays"])
        return {"arrays": state.arrays(), "dropped": first["dropped"] + second["dropped"]}


def write_rows(columns: Callable[[Block, Threads], Columns], orders: Orders) -> None:
    """Columns made of some spans, written to their place in an output."""
    with _alone, _threads() as threads:
        blocks = (piece for piece, _ in _read(orders, _Bell(orders)))
        with open_part(orders["output"], orders["spans"]) as part:
            write_blocks(columns, blocks, part, threads)


def _copied(statistic: Statistic[Any], sums: Sums) -> Any:
    """A state of our own that starts from these sums."""
    return statistic.load({name: np.array(array) for name, array in sums["arrays"].items()})


@contextmanager
def _threads() -> Iterator[Threads]:
    """As many threads as this worker was given, in a process that is as sparing with memory as a local run."""
    _settle()
    with Threads(get_worker().state.nthreads) as threads:
        yield threads


@lru_cache(maxsize=1)
def _settle() -> None:
    """Once in each worker: every errand brings new threads, and they are not to bring new heaps."""
    memory.limit_heaps()


def _read(orders: Orders, bell: _Bell, most: int = PIECE) -> Iterator[tuple[Block, int]]:
    """The rows of the errand, piece by piece, and how many were left out before each."""
    spans = [Span(*span) for span in orders["spans"]]
    source = _open(orders["source"])
    for block, dropped, span in read_ahead(source, spans, orders["nan"]):
        for rows, piece in pieces(block, span, most):
            bell.check()
            yield piece, dropped
            bell.ring(len(rows))
            dropped = 0


@lru_cache(maxsize=4)
def _open(identity: str) -> Source:
    """The source of a run, opened once in each worker; it must be the very data the run was planned for."""
    here, wanted = get_worker().address, json.loads(identity)
    if wanted["version"] != streamrf.__version__:
        raise MismatchError(
            f"worker {here} has streamrf {streamrf.__version__} and the run was started by {wanted['version']}:"
            " install the same version on both sides"
        )
    try:
        source = _reopened(wanted["spec"])
    except StorageError as error:
        raise StorageError(f"on worker {here}, {error}: the data must be at the same place for every worker") from error
    if source.fingerprint() != wanted["fingerprint"]:
        raise MismatchError(
            f"worker {here} finds other data at that place (fingerprint {source.fingerprint()[:12]}, expected"
            f" {wanted['fingerprint'][:12]}): every worker must see the same files"
        )
    return source


def _reopened(spec: dict[str, Any]) -> Source:
    """The data, or the slots of its rows, which are made by what comes with the statistic."""
    data = spec["data"]
    if not (isinstance(data, dict) and "slots" in data):
        return open_source(**spec)
    from streamrf.features.binning.index_source import reopen

    return reopen(data)


class _Bell:
    """Tells how far an errand is, now and then, and stops it when nobody waits for it."""

    def __init__(self, orders: Orders) -> None:
        self._orders, self._worker = orders, get_worker()
        self._key = self._worker.get_current_task()
        self._next = time.monotonic()
        self.rows = 0

    def check(self) -> None:
        task = self._worker.state.tasks.get(self._key)
        if task is None or task.state == "cancelled":
            raise CalledOff

    def ring(self, rows: int) -> None:
        self.rows += rows
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._orders["every"]
            message = {"run": self._orders["run"], "errand": self._orders["errand"], "rows": self.rows}
            self._worker.log_event(self._orders["topic"], message)
