"""The Dask engine: the same verb as the local one, carried out by the workers of a cluster."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from distributed import Client

from streamrf.data.source import Source, Span, work_spans
from streamrf.engines.base import Engine, Pass, S, Watcher, unwatched
from streamrf.engines.cluster.crew import Crew, Hand, address_of, scheduler_gone
from streamrf.engines.cluster.errands import orders_for
from streamrf.engines.cluster.foreman import PATIENCE
from streamrf.engines.cluster.groups import Groups, units_of
from streamrf.engines.cluster.needs import WorkerNeeds, worker_needs
from streamrf.engines.cluster.summing import Summing
from streamrf.engines.cluster.writing import Writing
from streamrf.engines.local import remaining_spans
from streamrf.support.errors import StreamRFError
from streamrf.support.units import format_bytes

GROUP_SECONDS = 10.0  # a group that takes so long is worth its trip
ADDING_RATE = 1e9  # bytes of states a worker adds in a second, at least
SHARES = 64  # units of work for each worker, at least, so that the last one does not keep all others waiting
SPAN_ROWS, SPAN_BYTES = 65_536, 256 * 2**20


class ClusterEngine(Engine):
    """Sums and writes on the workers of any Dask cluster: give it a ``dask.distributed.Client``.

    Nothing here changes a bit of a result: ``group_seconds`` is how long a worker works on one group, ``order``
    permutes the units of work, ``patience`` is how many seconds a run waits for workers when there are none.
    """

    def __init__(
        self, client: Client, *, group_seconds: float = GROUP_SECONDS, order: Callable[[int], Any] | None = None,
        patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self.client, self._seconds, self._order, self._patience = client, group_seconds, order, patience
        self._session = secrets.token_hex(4)

    def run(self, job: Pass[S], watch: Watcher = unwatched) -> S:
        with self._crew() as crew:
            units = replace(job, span_rows=self._unit_rows(crew, job.span_rows, job.rows_left))
            groups = Groups(units_of(remaining_spans(units)), self._order)
            seconds = self._group_seconds(job.statistic.nbytes())
            settings = self._settings(job.source, job.span_rows, job.span_bytes) | {"seconds": seconds}
            orders = orders_for(job.source, job.nan, self._session)
            return Summing(job, crew, groups, orders, **settings).run(watch)

    def write(self, columns: Any, source: Source, parts: Any, watch: Callable[[int], None]) -> None:
        """Have ``columns(block, threads)`` of every block of the source written to ``parts`` by the workers."""
        with self._crew() as crew:
            spans = work_spans(source, self._unit_rows(crew, SPAN_ROWS, source.n_rows), SPAN_BYTES)
            groups = Groups(units_of(spans, parts.step))
            orders = orders_for(source, "error", self._session)
            settings = self._settings(source, SPAN_ROWS, SPAN_BYTES)
            Writing(columns, parts, crew, groups, orders, **settings).run(watch)

    def _settings(self, source: Source, rows: int, most: int) -> dict[str, Any]:
        """What every foreman must know; ``fits`` says how much a worker may read at a time."""

        def fits(span: Span) -> bool:
            return len(span) <= rows and source.read_bytes(span) <= most

        return {"seconds": self._seconds, "patience": self._patience, "fits": fits}

    def _group_seconds(self, state_bytes: int) -> float:
        """Adding a state to another is to take two hundredths of a group's time at most."""
        return max(self._seconds, 50 * state_bytes / ADDING_RATE) if self._seconds else 0.0

    def _unit_rows(self, crew: Crew, rows: int, rows_left: int) -> int:
        return max(1, min(rows, rows_left // (SHARES * max(1, len(crew.hands)))))

    @contextmanager
    def _crew(self) -> Iterator[Crew]:
        """The workers during one pass; a lost scheduler is one sentence."""
        crew = Crew(self.client)
        try:
            with crew.on_duty():
                yield crew
        except Exception as error:
            if self.client.status == "running" or isinstance(error, StreamRFError):
                raise
            raise scheduler_gone(self.client) from error

    def everywhere(self, work: Callable[[], object]) -> None:
        work()
        if self.client.status == "running":
            self.client.run(work, on_error="ignore")

    def needs(self, reserved: int, parts: dict[str, int]) -> WorkerNeeds | None:
        hands = self.hands()
        return worker_needs(reserved, parts, [hand.memory for hand in hands]) if hands else None

    def hands(self) -> list[Hand]:
        """The workers that are there now."""
        crew = Crew(self.client)
        crew.look()
        return list(crew.hands.values())

    def describe(self) -> str:
        """One line about the cluster, with the address of its dashboard."""
        hands = self.hands()
        limits = [hand.memory for hand in hands if hand.memory]
        memory = f", {format_bytes(min(limits))} each" if limits else ""
        link = f"; dashboard at {self.client.dashboard_link}" if self.client.dashboard_link else ""
        threads = sum(hand.threads for hand in hands)
        return f"cluster at {address_of(self.client)}: {len(hands)} workers, {threads} threads{memory}{link}"
