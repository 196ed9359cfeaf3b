"""What ``--scheduler`` and ``--workers`` mean: a client of a running scheduler, or of new workers on this machine."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dask
from distributed import Client, LocalCluster, Security, Worker, WorkerPlugin

from streamrf.support.errors import ClusterError, InputError
from streamrf.support.threads import available_cores

CONNECT_SECONDS = 15
RESTART = "5 minutes"  # for a worker that was killed; after 15 s, which a busy machine may need, Dask would not wait
LOOPBACK = "127.0.0.1"  # whoever reaches a port of Dask runs code as its owner: new workers listen here alone
SCHEMES = ("tcp://", "tls://", "ws://", "wss://", "ucx://", "inproc://")


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
    patient = {"distributed.deploy.lost-worker-timeout": RESTART}
    with dask.config.set(patient), _local_cluster(address) as cluster, Client(cluster) as client:
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
