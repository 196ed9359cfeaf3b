"""Which engine a run has: the one it is given, that of a client, or for dask collections that of the current one."""

from __future__ import annotations

from typing import Any

from streamrf.data.partitions import current_client, is_client, is_dask
from streamrf.data.source import Source, Span
from streamrf.engines.base import Engine


def engine_for(given: Any, data: Any = None) -> Engine | None:
    """The engine for this data; None where the summing happens in this process."""
    if given is None and _is_of_dask(data):
        given = current_client()
    if not is_client(given):
        return given
    from streamrf.engines.cluster import ClusterEngine

    return ClusterEngine(given)


def _is_of_dask(data: Any) -> bool:
    """Whether data is a dask collection, a source of one, or has one in it."""
    if isinstance(data, Source):
        return any(True for _ in data.partitions(Span(0, data.n_rows)))
    return is_dask(data) or (isinstance(data, list | tuple) and any(map(_is_of_dask, data)))
