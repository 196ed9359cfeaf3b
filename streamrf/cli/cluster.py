"""Options for a Dask cluster, and the engine they ask for. Nothing of Dask is loaded where they are not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from streamrf.support.progress import Reporter

_OPTIONS = (
    click.option("--scheduler", metavar="ADDRESS", help="Use a Dask cluster: tcp://HOST:8786, tls://..., or the"
                                                        " scheduler's file."),
    click.option("--workers", type=click.IntRange(min=1), help="Use so many worker processes on this machine."),
    click.option("--tls-ca", metavar="FILE", help="Certificate of the authority, for tls:// schedulers."),
    click.option("--tls-cert", metavar="FILE", help="Our certificate, for tls:// schedulers."),
    click.option("--tls-key", metavar="FILE", help="The key of our certificate."),
)  # fmt: skip


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def pop_cluster(options: dict[str, Any]) -> dict[str, Any]:
    """Take the cluster options out of the others."""
    return {name: options.pop(name) for name in ("scheduler", "workers", "tls_ca", "tls_cert", "tls_key")}


@contextmanager
def cluster_engine(
    cluster: dict[str, Any], reporter: Reporter, *, threads: int | None = None, memory: int | None = None
) -> Iterator[Any]:
    """The engine of the cluster that was asked for; None where none was."""
    if not (cluster["scheduler"] or cluster["workers"]):
        _refuse_stray_certificates(cluster)
        yield None
        return
    from streamrf.engines.cluster import ClusterEngine, connect
    from streamrf.engines.cluster.addresses import Address

    with connect(Address(**cluster, threads=threads, memory=memory)) as client:
        engine = ClusterEngine(client)
        reporter.note(engine.describe())
        yield engine


def _refuse_stray_certificates(cluster: dict[str, Any]) -> None:
    from streamrf.support.errors import InputError

    if any(cluster.values()):
        raise InputError("certificates are for a cluster: give --scheduler tls://HOST:PORT too")
