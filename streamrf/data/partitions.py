"""Partitions of dask collections, and where they are computed.

- In a process without a cluster: here, one at a time; the last one is kept.
- In a task of the cluster engine: on its worker, from the collection's own tasks, which were sent there once.
- For the driver of a cluster: on some worker, and only what was asked about the rows comes back.

Dask itself hands over a partition that a worker cannot make alone: one in the cluster's memory (persisted).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from streamrf.data.locations import explain, first_line
from streamrf.data.source import Block, Partition, Source, Span, Spec
from streamrf.support.errors import DataError, MismatchError, StreamRFError

if TYPE_CHECKING:
    from dask.delayed import Delayed

    from streamrf.data.columns import Choice

Names: TypeAlias = tuple[str, ...]
Key: TypeAlias = tuple[str, int, Names]  # the token of a collection, the number of a partition, some of its columns
Graph: TypeAlias = tuple[dict[Any, Any], list[Any]]  # tasks, and for each partition the key of its result
SHARED = 3  # times that a task is needed on average, at most, where each partition is computed by itself
MOST_SENT = 64 << 20  # bytes of tasks that every worker is sent; larger ones hold data
TOKEN, DIGEST = "dask", "digest"  # in the spec of a collection

_own: WeakValueDictionary[str, Collection] = WeakValueDictionary()  # of this process
_sent: WeakValueDictionary[str, Collection] = WeakValueDictionary()  # that another process sent here
_at_hand: dict[object, Mapping[Key, Any]] = {}  # partitions that tasks of this process were handed


class Collection(ABC):
    """A dask collection of known size. It is pickled without its tasks, unless it is a ``copy_with_tasks``."""

    location: str  # what messages call it

    def __init__(self, token: str, lengths: Sequence[int]) -> None:
        self.token, self.lengths = token, tuple(lengths)
        self.starts = (0, *accumulate(self.lengths))
        self._is_elsewhere = False
        self._sends: dict[Names, Graph] | None = None  # tasks that go with it to another process
        self._forget()
        _own[token] = self

    @abstractmethod
    def _delayed(self, names: Names) -> list[Delayed]:
        """These columns of every partition."""

    @abstractmethod
    def _ready(self, value: Any, names: Names) -> Any:
        """A computed partition in the form that it is read in: it has a length and slices."""

    @abstractmethod
    def opened(self, choice: Choice) -> Source:
        """The source of its rows."""

    def columns(self) -> Any:
        """Its columns as they are, where they have names; None for an array."""
        return None

    def reopened(self, spec: Spec, choice: Choice) -> Source:
        """The source that has this ``spec()["data"]``. Its digest is known: the tasks are those of the run."""
        source = self.opened(choice)
        source.__dict__["_fingerprint"] = spec[DIGEST]
        return source

    def _forget(self) -> None:
        self._parts: dict[Names, list[Delayed]] = {}
        self._graphs: dict[Names, Graph] = {}
        self._alone: dict[Names, bool] = {}
        self._last: dict[Names, tuple[int, Any]] = {}  # by columns: the partition that was read last
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        own = ("collection", "_parts", "_graphs", "_alone", "_last", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._forget()
        self._graphs, self._is_elsewhere = self._sends or {}, True
        if self._sends is not None:
            _sent[self.token] = self

    def copy_with_tasks(self, columns: Sequence[Names]) -> Collection:
        """For a process that opens it by its spec, and computes these columns by itself."""
        other = object.__new__(type(self))
        other.__dict__ |= self.__dict__
        other._sends = {names: self._graph(names) for names in columns}
        return other

    @property
    def is_remote(self) -> bool:
        """Whether its partitions are computed on a cluster that this process is the driver of."""
        return not self._is_elsewhere and current_client() is not None

    def parts(self, names: Names) -> list[Delayed]:
        """These columns of every partition, for Dask to compute."""
        if names not in self._parts:
            self._parts[names] = self._delayed(names)
        return self._parts[names]

    def _graph(self, names: Names) -> Graph:
        if self._is_elsewhere:
            found = (graph for columns, graph in self._graphs.items() if set(names) <= set(columns))
            if (graph := self._graphs.get(names) or next(found, None)) is None:
                raise MismatchError(f"{', '.join(names)} of {self.location} was not handed to this process")
            return graph
        if names not in self._graphs:
            from dask.utils import ensure_dict

            parts, tasks = self.parts(names), dict[Any, Any]()
            for graph in {id(part.dask): part.dask for part in parts}.values():
                tasks.update(ensure_dict(graph))
            self._graphs[names] = tasks, [part.key for part in parts]
        return self._graphs[names]

    def is_complete(self, names: Names) -> bool:
        """Whether nothing that its tasks need is in the memory of a cluster."""
        tasks, keys = self._graph(names)
        return tasks.keys() >= set(keys) and not any(_is_beyond(task, tasks) for task in tasks.values())

    def is_separate(self, names: Names) -> bool:
        """Whether hardly any of its tasks is needed by several partitions, as all are where rows are sorted."""
        tasks, keys = self._graph(names)
        return sum(len(self._tasks_of(names, number)) for number in range(len(keys))) <= SHARED * len(tasks)

    def stands_alone(self, names: Names) -> bool:
        """Whether a worker is to compute partitions by itself, from tasks that bring no data along."""
        if names not in self._alone:
            self._alone[names] = self.is_complete(names) and self.is_separate(names) and self._is_small(names)
        return self._alone[names]

    def _is_small(self, names: Names) -> bool:
        import cloudpickle

        return len(cloudpickle.dumps(self._tasks_of(names, 0))) * len(self.lengths) <= MOST_SENT

    def _tasks_of(self, names: Names, number: int) -> dict[Any, Any]:
        from dask.optimization import cull

        tasks, keys = self._graph(names)
        return cull(tasks, [keys[number]])[0]

    def rows(self, number: int) -> Span:
        return Span(self.starts[number], self.starts[number + 1])

    def numbers(self, span: Span) -> list[int]:
        """The partitions with some of these rows."""
        found, number = list[int](), max(0, bisect_right(self.starts, span.start) - 1)
        while number < len(self.lengths) and self.starts[number] < span.stop:
            if self.lengths[number] and self.starts[number + 1] > span.start:
                found.append(number)
            number += 1
        return found

    def pieces(self, span: Span, names: Names) -> Iterator[tuple[Span, Any]]:
        """The rows of a span by partition, each with its place in the span."""
        for number in self.numbers(span):
            rows = self.rows(number)
            start, stop = max(rows.start, span.start), min(rows.stop, span.stop)
            piece = self._load(number, names)[start - rows.start : stop - rows.start]
            yield Span(start - span.start, stop - span.start), piece

    def _load(self, number: int, names: Names) -> Any:
        with self._lock:
            last = self._last.get(names)
        if last is not None and last[0] == number:
            return last[1]
        with computing(f"partition {number} of {self.location}"):
            value = self._ready(self._computed(number, names), names)
        if len(value) != self.lengths[number]:
            raise DataError(
                f"partition {number} of {self.location} had {self.lengths[number]:,} rows and now has {len(value):,}:"
                " its tasks must give the same rows every time, or be computed once (persist)"
            )
        with self._lock:
            self._last[names] = number, value
        return value

    def _computed(self, number: int, names: Names) -> Any:
        for handed in list(_at_hand.values()):
            for (token, partition, columns), value in handed.items():
                if (token, partition) == (self.token, number) and set(names) <= set(columns):
                    return value
        import dask

        return dask.get(self._tasks_of(names, number), self._graph(names)[1][number])


def _is_beyond(task: Any, tasks: Mapping[Any, Any]) -> bool:
    """Whether a task is a result on a cluster, or needs one."""
    is_future = type(task).__module__.partition(".")[0] == "distributed"
    return is_future or any(key not in tasks for key in getattr(task, "dependencies", ()))


def library(data: object) -> str:
    return type(data).__module__.partition(".")[0]


def known_collection(token: str) -> Collection:
    """The collection that a spec names; another process must have sent it, or it is of this one."""
    found = _sent.get(token) or _own.get(token)
    if found is None:
        raise MismatchError("this dask collection belongs to a run that this process does not know, or no longer")
    return found


def is_dask(data: object) -> bool:
    return is_collection(data) or is_delayed(data)


def is_delayed(data: object) -> bool:
    return library(data) == "dask" and type(data).__name__ in ("Delayed", "DelayedLeaf", "DelayedAttr")


def is_collection(data: object) -> bool:
    """Whether this is an array, a series or a frame of dask."""
    return library(data) in ("dask", "dask_expr") and hasattr(data, "dtypes" if hasattr(data, "columns") else "dtype")


def current_client() -> Any:
    """The ``distributed.Client`` that Dask would compute with; None without a cluster."""
    from dask.base import get_scheduler

    client = getattr(get_scheduler(), "__self__", None)
    return client if is_client(client) else None


def is_client(client: object) -> bool:
    return type(client).__module__.partition(".")[0] == "distributed" and hasattr(client, "scheduler_info")


@contextmanager
def computing(what: str) -> Iterator[None]:
    """While inside, whatever the tasks of a collection raise is one sentence."""
    try:
        yield
    except (StreamRFError, MemoryError):
        raise
    except OSError as error:
        raise explain(error, what) from error
    except Exception as error:
        raise DataError(f"{what} cannot be computed ({first_line(error)})") from error


@contextmanager
def large_graphs() -> Iterator[None]:
    """While inside, Dask does not warn of large tasks: they hold a model, or data of the driver, on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")
        yield


@contextmanager
def at_hand(partitions: Mapping[Key, Any]) -> Iterator[None]:
    """While inside, these partitions are read as they are."""
    owner = object()
    _at_hand[owner] = partitions
    try:
        yield
    finally:
        del _at_hand[owner]


def keys_of(needs: Iterable[Partition]) -> dict[Key, Delayed]:
    """What reading needs, for Dask to compute."""
    return {(dask.token, number, names): dask.parts(names)[number] for dask, number, names in needs}


def kept(data: Any, client: Any, room: Callable[[], float]) -> Any:
    """A dask collection, or a pair of such, in the memory of a cluster that has ``room`` for so many bytes, if it fits:
    it is read several times."""
    parts = list(data) if isinstance(data, tuple) else [data]
    lazy = [part for part in parts if is_collection(part)]
    if not lazy or not sum(map(_size, lazy)) <= room():  # nor where rows are not counted
        return data
    with large_graphs():
        found = [client.persist(part) if is_collection(part) else part for part in parts]
    return tuple(found) if isinstance(data, tuple) else found[0]


def _size(collection: Any) -> float:
    """Bytes of a collection; of frames, by the first partition."""
    if not hasattr(collection, "to_dask_array"):
        return collection.nbytes
    first = each_part(_frame_size, collection.to_delayed()[:1])
    return sum(first) * collection.npartitions


def _frame_size(frame: Any) -> int:
    used = frame.memory_usage(deep=True)
    return int(used.sum() if hasattr(used, "sum") else used)


# -- asked by the driver, answered on the workers


def each_part(function: Callable[..., Any], parts: Sequence[Delayed], *args: Sequence[Any]) -> list[Any]:
    """``function(partition, ...)`` of every partition, computed where Dask computes."""
    import dask

    call = dask.delayed(function, pure=False, traverse=False)
    with computing("a partition of the dask collection"), large_graphs():
        return list(dask.compute(*(call(*given) for given in zip(parts, *args, strict=True))))


def reads_remotely(source: Source) -> bool:
    """Whether the rows of a source are on a cluster, and only this process is not."""
    first = next(iter(source.partitions(Span(0, source.n_rows))), None)
    return first is not None and first[0].is_remote


def asked(function: Callable[..., Any], source: Source, calls: Sequence[tuple[Any, ...]], *common: Any) -> list[Any]:
    """``function(source, span, ..., *common)`` for each call, on a worker that has the partitions of the span."""
    import cloudpickle
    import dask

    there, call = dask.delayed(cloudpickle.dumps((source, common))), dask.delayed(_called, pure=False)
    answers = []
    for span, *rest in calls:
        needs = keys_of(source.partitions(span))
        answers.append(call(function, there, (span, *rest), list(needs), list(needs.values())))
    with computing(f"a partition of {source.location}"), large_graphs():
        return list(dask.compute(*answers))


def _called(
    function: Callable[..., Any], source: bytes, args: tuple[Any, ...], keys: list[Key], values: list[Any]
) -> Any:
    import cloudpickle

    span, *rest = args
    with at_hand(dict(zip(map(_as_key, keys), values, strict=True))):
        there, common = cloudpickle.loads(source)
        return function(there, Span(*span), *rest, *common)


def _as_key(key: Any) -> Key:
    token, number, names = key  # tuples may arrive as lists
    return token, number, tuple(names)


def read_there(source: Source, span: Span) -> Block:
    """The rows of a span."""
    return source.read(span)


def rows_there(source: Source, span: Span, positions: Any) -> Block:
    """Some rows of a span."""
    return source.read(span).take(positions)


def targets_there(source: Source, span: Span) -> Any:
    return source.read_targets(span)


def kept_there(source: Source, span: Span, types: Any) -> Any:
    return source.read_kept(span, types)
