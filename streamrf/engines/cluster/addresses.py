"""From what the command line says to a client of a running cluster."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask
from distributed import Client, LocalCluster, Security, Worker, WorkerPlugin

from streamrf.support.errors import ClusterError, InputError
from streamrf.support.threads import available_cores

CONNECT_SECONDS = 15
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
            raise InputError(
                "--scheduler uses the workers that are there and --workers starts new ones: give one of them"
            )

    def security(self) -> Security | None:
        """The certificates, where some are named."""
        if not (self.tls_ca or self.tls_cert or self.tls_key):
            return None
        for path in (self.tls_ca, self.tls_cert, self.tls_key):
            if path is not None and not os.path.isfile(path):
                raise InputError(f"there is no certificate or key at {path}")
        files = {"tls_ca_file": self.tls_ca, "tls_client_cert": self.tls_cert, "tls_client_key": self.tls_key}
        return Security(require_encryption=True, **files)


@contextmanager
def connect(address: Address) -> Iterator[Client]:
    """A client, closed in the end together with the workers that were started for it."""
    if address.scheduler:
        with _client(address) as client:
            yield client
        return
    with _local_cluster(address) as cluster, Client(cluster) as client:
        client.register_plugin(Undisturbed())
        yield client


def _client(address: Address) -> Client:
    assert address.scheduler is not None
    where: dict[str, Any] = {"address": address.scheduler}
    if not address.scheduler.startswith(SCHEMES):
        if not os.path.isfile(address.scheduler):
            raise InputError(
                f"--scheduler {address.scheduler}: neither an address such as tcp://host:8786 nor the file that a"
                " scheduler writes (dask scheduler --scheduler-file FILE)"
            )
        where = {"scheduler_file": address.scheduler}
    security = address.security()
    try:
        return Client(**where, security=security, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ClusterError(f"no scheduler answers at {address.scheduler} ({reason[:200]})") from error


def _local_cluster(address: Address) -> LocalCluster:
    """Processes of this machine that share its cores and the memory budget.

    States are never spilled to disk, and nobody looks at what a worker is doing a hundred times a second.
    """
    count = address.workers or 1
    threads = max(1, (address.threads or available_cores()) // count)
    limits: dict[str, Any] = {} if address.memory is None else {"memory_limit": address.memory // count}
    never = ("memory.target", "memory.spill", "profile.enabled")
    with dask.config.set({f"distributed.worker.{name}": False for name in never}):
        return LocalCluster(
            n_workers=count, threads_per_worker=threads, processes=True, dashboard_address=":0",
            silence_logs=logging.ERROR, **limits,
        )  # fmt: skip


class Undisturbed(WorkerPlugin):
    """Ctrl-C in a terminal reaches every process started from it: the run stops in good order, so workers stay calm."""

    name = "streamrf-undisturbed"

    def setup(self, worker: Worker) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
