"""Options for a Dask cluster, and the engine they ask for. Nothing of Dask is loaded where they are not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from streamrf.support.progress import Reporter

if TYPE_CHECKING:
    from streamrf.engines.cluster import ClusterEngine

F = TypeVar("F", bound=Callable[..., object])

_OPTIONS = (
    click.option("--scheduler", metavar="ADDRESS", help="Use a Dask cluster: tcp://HOST:8786, tls://..., or the"
                                                        " scheduler's file."),
    click.option("--workers", type=click.IntRange(min=1), help="Use so many worker processes on this machine."),
    click.option("--tls-ca", metavar="FILE", help="Certificate of the authority, for tls:// schedulers."),
    click.option("--tls-cert", metavar="FILE", help="Our certificate, for tls:// schedulers."),
    click.option("--tls-key", metavar="FILE", help="The key of our certificate."),
)  # fmt: skip


class ClusterOptions(TypedDict):
    """The values of the options above."""

    scheduler: str | None
    workers: int | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None


def cluster_options(function: F) -> F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def pop_cluster(options: dict[str, Any]) -> ClusterOptions:
    """Take the cluster options out of the others."""
    return ClusterOptions(
        scheduler=options.pop("scheduler"), workers=options.pop("workers"), tls_ca=options.pop("tls_ca"),
        tls_cert=options.pop("tls_cert"), tls_key=options.pop("tls_key"),
    )  # fmt: skip


@contextmanager
def cluster_engine(
    cluster: ClusterOptions, reporter: Reporter, *, threads: int | None = None, memory: int | None = None
) -> Iterator[ClusterEngine | None]:
    """The engine of the cluster that was asked for; None where none was."""
    if not (cluster["scheduler"] or cluster["workers"]):
        _refuse_stray_certificates(cluster)
        yield None
        return
    from streamrf.engines.cluster import Address, ClusterEngine, connect

    with connect(Address(**cluster, threads=threads, memory=memory)) as client:
        engine = ClusterEngine(client)
        reporter.note(engine.describe())
        yield engine


def _refuse_stray_certificates(cluster: ClusterOptions) -> None:
    from streamrf.support.errors import InputError

    if any(cluster.values()):
        raise InputError("certificates are for a cluster: give --scheduler tls://HOST:PORT too")
