"""Dask collections on a cluster: how the task that sums rows comes by its partitions.

A worker computes a partition itself where it can: it is sent the tasks of the collection once, and reads as it would
read a file, one partition at a time. What it cannot make alone (results in the cluster's memory, tasks that many
partitions share, data of the driver) Dask computes first and hands over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from distributed import Client, Future

from streamrf.data.partitions import Collection, Key, Names, keys_of, large_graphs
from streamrf.data.source import Partition, Source, Span
from streamrf.engines.base import SPAN_BYTES
from streamrf.engines.cluster.passes import Limits

STUCK = 60.0  # seconds that tasks may wait for partitions although workers are free


class Reads(Protocol):
    """A source, or whatever else reads partitions."""

    def partitions(self, span: Span) -> Iterable[Partition]: ...


class Handing:
    """The collections of a pass, ``sent`` to every worker: with their tasks, or to be handed over by partition."""

    def __init__(self, client: Client, rows: int, work: Sequence[Any]) -> None:
        self._client = client
        self._readers: list[Reads] = [each for each in work if hasattr(each, "partitions")]
        found: dict[str, Collection] = {}  # by token
        columns: dict[str, dict[Names, None]] = {}
        for collection, _, names in self._partitions([Span(0, rows)]):
            found.setdefault(collection.token, collection)
            columns.setdefault(collection.token, {})[names] = None
        alone = {token for token in found if min(map(found[token].stands_alone, columns[token]))}  # all are asked now
        self.handed = found.keys() - alone
        self.sent = [found[token].copy_with_tasks(list(columns[token]) if token in alone else []) for token in found]

    def _partitions(self, spans: Iterable[Span]) -> Iterator[Partition]:
        return (each for span in spans for reader in self._readers for each in reader.partitions(span))

    def futures(self, spans: Iterable[Span]) -> dict[Key, Future]:
        """What a task that reads these spans is handed, as soon as it is computed."""
        if not self.handed:
            return {}
        needs = keys_of(each for each in self._partitions(spans) if each[0].token in self.handed)
        with large_graphs():
            return dict(zip(needs, self._client.compute(list(needs.values())), strict=True))

    def limited(self, limits: Limits, source: Source) -> Limits:
        """Partitions that a task is handed are all in memory at once, and tasks may wait for them for a while."""
        if not self.handed:
            return limits
        some = min(1000, source.n_rows)
        rows = SPAN_BYTES * some / source.block_bytes(Span(0, some))
        return replace(limits, rows=rows, handed=self.futures, stuck=limits.stuck + STUCK)
