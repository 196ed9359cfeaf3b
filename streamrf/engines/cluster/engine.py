"""The Dask engine: the verb of the local one, carried out by the workers of a cluster."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from distributed import Client

from streamrf.data.elsewhere import identity_of
from streamrf.data.partitions import kept
from streamrf.data.source import Source, Span, work_spans
from streamrf.data.writers import TableWriter
from streamrf.engines.base import PAUSED_AT, SPAN_BYTES, SPAN_ROWS, Engine, Order, Pass, Watcher, WorkerNeeds, unwatched
from streamrf.engines.cluster.collections import Handing
from streamrf.engines.cluster.groups import Groups, by_partition, units_of
from streamrf.engines.cluster.passes import PATIENCE, STUCK, Limits, Summing, Writing
from streamrf.engines.cluster.tasks import ColumnsOf, Shared
from streamrf.engines.cluster.workers import NO_ANSWER, WorkerInfo, Workers
from streamrf.engines.local import remaining_spans
from streamrf.statistics.base import S
from streamrf.support.units import format_bytes

GROUP_SECONDS = 10.0  # a group that takes so long is worth its trip
ADDING_RATE = 1e9  # bytes of states a worker adds in a second, at least
SLOW_NETWORK = 20e6  # bytes a second, at least, in which a state comes to where it is added
KEPT = 1 / 3  # of the memory that workers have free, which a collection may take
SHARES = 64  # units of work for each worker, at least, so that the last one does not keep all others waiting


class ClusterEngine(Engine):
    """Sums and writes on the workers of any Dask cluster: give it a ``dask.distributed.Client``.

    Nothing here changes a bit of a result: ``group_seconds`` is how long a worker works on one group, ``order``
    permutes the units of work, ``patience`` is how many seconds a run waits for workers when there are none.
    """

    def __init__(
        self, client: Client, *, group_seconds: float = GROUP_SECONDS, order: Order | None = None,
        patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self.client, self._seconds, self._order, self._patience = client, group_seconds, order, patience
        self._session = secrets.token_hex(4)

    def run(self, job: Pass[S], watch: Watcher[S] = unwatched) -> S:
        handing = Handing(self.client, job.source.n_rows, [job.source, job.statistic])
        shared = Shared(handing.sent, job.statistic, identity_of(job.source, self._session), job.nan)
        with Workers.of_pass(self.client, type(job.statistic).__name__, shared) as workers:
            units = replace(job, span_rows=self._unit_rows(workers, job.span_rows, job.rows_left))
            groups = Groups(by_partition(units_of(remaining_spans(units)), job.source), self._order)
            limits = self._limits(job.source, job.span_rows, job.span_bytes, job.statistic.nbytes())
            return Summing(job, workers, groups, handing.limited(limits, job.source)).run(watch)

    def write(self, columns: ColumnsOf, source: Source, parts: TableWriter, watch: Callable[[int], None]) -> None:
        """Have ``columns(block, threads)`` of every block of the source written to ``parts`` by the workers."""
        handing = Handing(self.client, source.n_rows, [source, columns])
        shared = Shared(handing.sent, columns, identity_of(source, self._session), output=parts.spec())
        with Workers.of_pass(self.client, "predictions", shared) as workers:
            spans = work_spans(source, self._unit_rows(workers, SPAN_ROWS, source.n_rows), SPAN_BYTES)
            limits = handing.limited(self._limits(source, SPAN_ROWS, SPAN_BYTES), source)
            Writing(source, parts, workers, Groups(units_of(spans, parts.step), fixed=True), limits).run(watch)

    def _limits(self, source: Source, rows: int, most: int, state_bytes: int = 0) -> Limits:
        """Adding a state to another may take two hundredths of a group's time at most."""

        def fits(span: Span) -> bool:
            return len(span) <= rows and source.read_bytes(span) <= most

        seconds = max(self._seconds, 50 * state_bytes / ADDING_RATE) if self._seconds else 0.0
        return Limits(seconds, fits, self._patience, stuck=STUCK + state_bytes / SLOW_NETWORK)

    def _unit_rows(self, workers: Workers, rows: int, rows_left: int) -> int:
        return max(1, min(rows, rows_left // (SHARES * max(1, len(workers.alive)))))

    def kept(self, data: Any) -> Any:
        """Dask collections are kept in the memory of the cluster, if they fit."""
        return kept(data, self.client, lambda: KEPT * self.free_memory())

    def free_memory(self) -> float:
        """Bytes that all workers together have left before Dask pauses them; 0 where one has no limit to go by."""
        workers = self.workers()
        if not all(worker.memory for worker in workers):
            return 0.0
        return sum(max(0.0, PAUSED_AT * (worker.memory or 0) - worker.used) for worker in workers)

    def __deepcopy__(self, memo: dict[int, Any]) -> ClusterEngine:
        """A copy of an estimator uses the same cluster."""
        return self

    def everywhere(self, work: Callable[[], object]) -> None:
        work()
        if self.client.status == "running":
            with suppress(TimeoutError):  # a frozen worker
                self.client.run(work, on_error="ignore", callback_timeout=NO_ANSWER)

    def needs(self, parts: dict[str, int]) -> WorkerNeeds | None:
        workers = self.workers()
        limits = [worker.memory and max(1, worker.memory - worker.held) for worker in workers]
        return WorkerNeeds.of(parts, limits) if workers else None

    def workers(self) -> list[WorkerInfo]:
        """The workers that are there now."""
        return list(Workers(self.client).alive.values())

    def describe(self) -> str:
        """One line about the cluster, with the address of its dashboard."""
        workers = self.workers()
        limit = min((worker.memory for worker in workers if worker.memory), default=0)
        memory = f", {format_bytes(limit)} each" if limit else ""
        link = f"; dashboard at {self.client.dashboard_link}" if self.client.dashboard_link else ""
        threads = sum(worker.threads for worker in workers)
        return f"cluster at {self.client.scheduler.address}: {len(workers)} workers, {threads} threads{memory}{link}"
