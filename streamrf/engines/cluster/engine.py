"""The Dask engine: the verb of the local one, carried out by the workers of a cluster; and how to connect to one."""

from __future__ import annotations

import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import dask
from distributed import Client, LocalCluster, Security, Worker, WorkerPlugin

from streamrf.data.source import Source, Span, work_spans
from streamrf.data.writers import TableWriter
from streamrf.engines.base import SPAN_BYTES, SPAN_ROWS, Engine, Order, Pass, Watcher, WorkerNeeds, unwatched
from streamrf.engines.cluster.groups import Groups, units_of
from streamrf.engines.cluster.passes import PATIENCE, Limits, Summing, Writing
from streamrf.engines.cluster.tasks import ColumnsOf, RowsToRead
from streamrf.engines.cluster.workers import NO_ANSWER, WorkerInfo, Workers
from streamrf.engines.local import remaining_spans
from streamrf.statistics.base import S
from streamrf.support.errors import ClusterError, InputError
from streamrf.support.threads import available_cores
from streamrf.support.units import format_bytes

GROUP_SECONDS = 10.0  # a group that takes so long is worth its trip
ADDING_RATE = 1e9  # bytes of states a worker adds in a second, at least
SHARES = 64  # units of work for each worker, at least, so that the last one does not keep all others waiting
CONNECT_SECONDS = 15
LOOPBACK = "127.0.0.1"  # whoever reaches a port of Dask runs code as its owner: new workers listen here alone
SCHEMES = ("tcp://", "tls://", "ws://", "wss://", "ucx://", "inproc://")


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
        with Workers.of_pass(self.client, type(job.statistic).__name__, job.statistic) as workers:
            units = replace(job, span_rows=self._unit_rows(workers, job.span_rows, job.rows_left))
            groups = Groups(units_of(remaining_spans(units)), self._order)
            limits = self._limits(job.source, job.span_rows, job.span_bytes, job.statistic.nbytes())
            rows = RowsToRead.of(job.source, job.nan, self._session)
            return Summing(job, workers, groups, rows, limits).run(watch)

    def write(self, columns: ColumnsOf, source: Source, parts: TableWriter, watch: Callable[[int], None]) -> None:
        """Have ``columns(block, threads)`` of every block of the source written to ``parts`` by the workers."""
        with Workers.of_pass(self.client, "predictions", columns) as workers:
            spans = work_spans(source, self._unit_rows(workers, SPAN_ROWS, source.n_rows), SPAN_BYTES)
            groups = Groups(units_of(spans, parts.step))
            rows = RowsToRead.of(source, "error", self._session)
            Writing(parts, workers, groups, rows, self._limits(source, SPAN_ROWS, SPAN_BYTES)).run(watch)

    def _limits(self, source: Source, rows: int, most: int, state_bytes: int = 0) -> Limits:
        """Adding a state to another may take two hundredths of a group's time at most."""

        def fits(span: Span) -> bool:
            return len(span) <= rows and source.read_bytes(span) <= most

        seconds = max(self._seconds, 50 * state_bytes / ADDING_RATE) if self._seconds else 0.0
        return Limits(seconds, fits, self._patience)

    def _unit_rows(self, workers: Workers, rows: int, rows_left: int) -> int:
        return max(1, min(rows, rows_left // (SHARES * max(1, len(workers.alive)))))

    def everywhere(self, work: Callable[[], object]) -> None:
        work()
        if self.client.status == "running":
            with suppress(TimeoutError):  # a frozen worker
                self.client.run(work, on_error="ignore", callback_timeout=NO_ANSWER)

    def needs(self, reserved: int, parts: dict[str, int]) -> WorkerNeeds | None:
        workers = self.workers()
        return WorkerNeeds.of(reserved, parts, [worker.memory for worker in workers]) if workers else None

    def workers(self) -> list[WorkerInfo]:
        """The workers that are there now."""
        workers = Workers(self.client)
        workers.refresh(wait=True)
        return list(workers.alive.values())

    def describe(self) -> str:
        """One line about the cluster, with the address of its dashboard."""
        workers = self.workers()
        limit = min((worker.memory for worker in workers if worker.memory), default=0)
        memory = f", {format_bytes(limit)} each" if limit else ""
        link = f"; dashboard at {self.client.dashboard_link}" if self.client.dashboard_link else ""
        threads = sum(worker.threads for worker in workers)
        return f"cluster at {self.client.scheduler.address}: {len(workers)} workers, {threads} threads{memory}{link}"


@dataclass
class Address:
    """Where the workers are: at a scheduler (an address, or the file it wrote), or new ones on this machine."""

    scheduler: str | None = None
    workers: int | None = None
    threads: int | None = None  # of all new workers together
    memory: int | None = None  # of all new workers together
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if self.scheduler and self.workers:
            raise InputError("`scheduler` uses running workers and `workers` starts new ones: give one of them")

    def security(self) -> Security | None:
        """The certificates, where some are named."""
        files = {"tls_ca_file": self.tls_ca, "tls_client_cert": self.tls_cert, "tls_client_key": self.tls_key}
        for path in filter(None, files.values()):
            if not os.path.isfile(path):
                raise InputError(f"there is no certificate or key at {path}")
        return Security(require_encryption=True, **files) if any(files.values()) else None


@contextmanager
def connect(address: Address) -> Iterator[Client]:
    """A client, closed in the end together with the workers that were started for it."""
    if address.scheduler:
        with _client(address.scheduler, address.security()) as client:
            yield client
        return
    with _local_cluster(address) as cluster, Client(cluster) as client:
        client.register_plugin(IgnoreCtrlC())
        yield client


def _client(scheduler: str, security: Security | None) -> Client:
    where = "address" if scheduler.startswith(SCHEMES) else "scheduler_file"
    if where == "scheduler_file" and not os.path.isfile(scheduler):
        raise InputError(
            f"`scheduler={scheduler!r}`: neither an address such as tcp://host:8786 nor the"
            " scheduler file that a Dask scheduler writes"
        )
    try:
        return Client(**{where: scheduler}, security=security, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ClusterError(f"no scheduler answers at {scheduler} ({reason[:200]})") from error


def _local_cluster(address: Address) -> LocalCluster:
    """Processes of this machine that share its cores and the memory budget; no spilling to disk, no profiling."""
    count = address.workers or 1
    threads = max(1, (address.threads or available_cores()) // count)
    limits = {} if address.memory is None else {"memory_limit": address.memory // count}
    off = {f"distributed.worker.{name}": False for name in ("memory.target", "memory.spill", "profile.enabled")}
    with dask.config.set(off):
        return LocalCluster(
            n_workers=count, threads_per_worker=threads, processes=True, host=LOOPBACK,
            dashboard_address=f"{LOOPBACK}:0", worker_dashboard_address=f"{LOOPBACK}:0", silence_logs=logging.ERROR,
            **limits,
        )  # fmt: skip


class IgnoreCtrlC(WorkerPlugin):
    """Ctrl-C in a terminal reaches every process started from it. The run stops in good order, so workers ignore it."""

    def setup(self, worker: Worker) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
