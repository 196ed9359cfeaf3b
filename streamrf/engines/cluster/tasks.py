"""What runs on a worker: sums of rows, sums of sums, and predictions written where they belong.

Every task is a pure function that never changes its arguments. So a task that runs again, late or twice gives the same
result, and a result counts once because the dispatcher uses it once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from distributed import get_worker

from streamrf.data.open import open_source
from streamrf.data.source import Block, Source, Span
from streamrf.data.wrappers import TargetsOnly
from streamrf.data.writers import Columns, PartSpec, open_part, write_blocks
from streamrf.engines.cluster.workers import ReportTo, Sums, TaskCancelled
from streamrf.engines.local import PIECE, pieces, read_ahead
from streamrf.statistics.base import S, Statistic
from streamrf.support import __version__, memory
from streamrf.support.errors import MismatchError, StorageError
from streamrf.support.threads import Threads

ColumnsOf = Callable[[Block, Threads], Columns]  # what is written for a block

# A task has the worker to itself: it uses all its threads, and buffers that belong to the statistic.
_alone = threading.Lock()
# Every task starts new threads, which must not bring new heaps.
_limit_heaps_once = lru_cache(maxsize=1)(memory.limit_heaps)


@dataclass(frozen=True)
class RowsToRead:
    """What a worker must know to read the same rows as we would; no row is among it."""

    source: str  # identity of the source, as JSON
    nan: str
    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, source: Source, nan: str, session: str) -> RowsToRead:
        """A worker opens a source once in each ``session``: a later one sees data that was stored again meanwhile."""
        identity = {"spec": source.spec(), "fingerprint": source.fingerprint(), "version": __version__}
        return cls(json.dumps({**identity, "session": session}, sort_keys=True), nan)


def sum_rows(statistic: Statistic[S], earlier: Sums | None, rows: RowsToRead, report: ReportTo) -> Sums:
    """The sum over some spans, on top of an earlier sum."""
    with _alone, _threads() as threads:
        state = _copied(statistic, earlier) if earlier else statistic.zero()
        dropped = earlier["dropped"] if earlier else 0
        for piece, missing in _read(rows, report, statistic.piece_rows):
            statistic.update(state, piece, threads)
            dropped += missing
        return {"arrays": state.arrays(), "dropped": dropped}


def add_sums(statistic: Statistic[S], first: Sums, second: Sums) -> Sums:
    """The sum of two sums, in new memory."""
    with _alone:
        state = _copied(statistic, first).__iadd__(statistic.load(second["arrays"]))
        return {"arrays": state.arrays(), "dropped": first["dropped"] + second["dropped"]}


def write_rows(columns: ColumnsOf, output: PartSpec, rows: RowsToRead, report: ReportTo) -> None:
    """Columns made of some spans, written to their place in an output."""
    with _alone, _threads() as threads:
        blocks = (piece for piece, _ in _read(rows, report))
        with open_part(output, rows.spans) as part:
            write_blocks(columns, blocks, part, threads)


def _copied(statistic: Statistic[S], sums: Sums) -> S:
    """A state of our own that starts from these sums."""
    return statistic.load({name: np.array(array) for name, array in sums["arrays"].items()})


def _threads() -> Threads:
    """As many threads as this worker was given, in a process that is as sparing with memory as a local run."""
    _limit_heaps_once()
    return Threads(get_worker().state.nthreads)


def _read(rows: RowsToRead, report: ReportTo, most: int = PIECE) -> Iterator[tuple[Block, int]]:
    """The rows of the task, piece by piece, and how many were dropped before each."""
    progress = _Progress(report)
    for block, dropped, span in read_ahead(_open(rows.source), [Span(*span) for span in rows.spans], rows.nan):
        for part, piece in pieces(block, span, most):
            progress.check()
            yield piece, dropped
            progress.add(len(part))
            dropped = 0


@lru_cache(maxsize=4)
def _open(identity: str) -> Source:
    """The source of a run, opened once in each worker; it must be the very data the run was planned for."""
    here, wanted = get_worker().address, json.loads(identity)
    if wanted["version"] != __version__:
        raise MismatchError(
            f"worker {here} has streamrf {__version__} and the run was started by {wanted['version']}:"
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
    """The data, its targets alone, or the bin indices of its rows, which are made by what comes with the statistic."""
    data = spec["data"]
    if isinstance(data, dict) and "targets_of" in data:
        return TargetsOnly(open_source(**data["targets_of"]))
    if not (isinstance(data, dict) and "bin_indices" in data):
        return open_source(**spec)
    from streamrf.features.binning.index_cache import reopen

    return reopen(data)


class _Progress:
    """Reports now and then how far a task is, and stops it when nobody waits for it."""

    def __init__(self, to: ReportTo) -> None:
        self._to, self._worker = to, get_worker()
        self._key = self._worker.get_current_task()
        self._next = time.monotonic()
        self.rows = 0

    def check(self) -> None:
        task = self._worker.state.tasks.get(self._key)
        if task is None or task.state == "cancelled":
            raise TaskCancelled

    def add(self, rows: int) -> None:
        self.rows += rows
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._to.every
            self._worker.log_event(self._to.topic, {"run": self._to.run, "task": self._to.task, "rows": self.rows})
