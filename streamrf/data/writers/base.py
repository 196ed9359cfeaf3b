"""The interface of everything that takes predictions: open, write blocks of rows, then commit or abort.

A format is a Writer of rows, and a ``FileWriter`` (in ``files``) that makes one and declares its ``endings``. Defining
that class registers it.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import ClassVar, Self, TypedDict

import numpy as np

from streamrf.data.source import Block, Span
from streamrf.support.errors import InputError
from streamrf.support.storage.files import storage_errors
from streamrf.support.threads import Threads

Columns = Mapping[str, np.ndarray]
ColumnTypes = Sequence[tuple[str, np.dtype]]
UNKNOWN = -1  # rows that are counted as they come

LOCAL = "local"  # one process writes to a local disk
SHARED = "shared"  # many processes write at once to a disk that all of them see
REMOTE = "remote"  # many processes upload to an object store
REGISTRY: dict[tuple[str, str], type[TableWriter]] = {}  # by mode and ending


class Writer(ABC):
    """Takes blocks of rows. As a context manager it commits, or aborts after an error."""

    def open(self) -> None:  # noqa: B027 (optional)
        """Prepare the output; nothing stands under its name yet."""

    @abstractmethod
    def write(self, first_row: int, block: Columns) -> None:
        """Take the rows from ``first_row`` on; the arrays may be reused once this returns."""

    def commit(self) -> None:  # noqa: B027
        """Finish the output and give it its name."""

    def abort(self) -> None:  # noqa: B027
        """Leave nothing behind."""

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.abort()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            self.abort()
            return
        try:
            self.commit()
        except BaseException:
            self.abort()
            raise


def write_blocks(
    make: Callable[[Block, Threads], Columns],
    blocks: Iterable[Block],
    writer: Writer,
    threads: Threads,
    watch: Callable[[int], None] = lambda rows: None,
) -> int:
    """Write what ``make`` returns for each block of consecutive rows; return the number of rows.

    This is the one loop of all predictions: from a source, a stream or a worker's share, to an array, a file or a part.
    """
    rows = 0
    for block in blocks:
        if len(block):
            writer.write(int(block.index[0]), make(block, threads))
        rows += len(block)
        watch(rows)
    return rows


class ArrayWriter(Writer):
    """Writes into arrays in memory."""

    def __init__(self, arrays: Columns) -> None:
        self._arrays = arrays

    def write(self, first_row: int, block: Columns) -> None:
        for name, values in block.items():
            self._arrays[name][first_row : first_row + len(values)] = values


class NamedWriter(Writer):
    """Passes everything on to a writer that it makes on opening; its errors name the output, ``path``."""

    path: str
    _rows: Writer | None = None

    @abstractmethod
    def begin(self) -> Writer:
        """The writer of the rows themselves."""

    def open(self) -> None:
        with storage_errors(f"write {self.path}", self.path):
            self._rows = self.begin()
            self._rows.open()

    def write(self, first_row: int, block: Columns) -> None:
        assert self._rows is not None, "not open"
        with storage_errors(f"write {self.path}", self.path):
            self._rows.write(first_row, block)

    def commit(self) -> None:
        assert self._rows is not None, "not open"
        with storage_errors(f"write {self.path}", self.path):
            self._rows.commit()

    def abort(self) -> None:
        if self._rows is not None:
            with suppress(Exception):  # a full disk, which is reported already
                self._rows.abort()


class PartSpec(TypedDict):
    """What a worker must know to write a part of an output: JSON."""

    mode: str
    ending: str
    place: str  # where the output is built
    path: str  # what people call it
    n_rows: int
    columns: dict[str, str]
    run: str  # names the run, where parts of two runs lie side by side


class TableWriter(NamedWriter):
    """An output with a name, typed columns and, mostly, a known number of rows.

    Checks every block, and on commit that each row was written once.
    """

    endings: ClassVar[tuple[str, ...]] = ()
    modes: ClassVar[tuple[str, ...]] = (LOCAL,)
    ordered: ClassVar[bool]  # whether blocks must come in row order

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        REGISTRY.update({(mode, ending): cls for mode in cls.modes for ending in cls.__dict__.get("endings", ())})

    def __init__(self, path: str, n_rows: int, columns: ColumnTypes, *, overwrite: bool) -> None:
        self.path, self.place, self.n_rows, self.overwrite = path, path, n_rows, overwrite
        self.columns = {name: np.dtype(dtype) for name, dtype in columns}
        if not columns or len(self.columns) != len(columns):
            raise InputError(f"an output needs columns with different names, not {[name for name, _ in columns]}")
        self._run = secrets.token_hex(4)
        self._written: list[Span] = []
        self._lock = Lock()

    def write(self, first_row: int, block: Columns) -> None:
        with self._lock:
            arrays = {name: self._column(name, block) for name in self.columns}
            span = self._check_block(first_row, arrays, block)
            super().write(first_row, arrays)
            self._note(span)

    def commit(self) -> None:
        super().commit()
        self._check_whole()

    # -- outputs that many processes write: modes SHARED and REMOTE

    @property
    def step(self) -> int | None:
        """Parts must begin and end at multiples of this."""
        return None

    @classmethod
    def begin_part(cls, spec: PartSpec, region: Span) -> Writer:
        """The writer, on a worker, of the part with these rows."""
        raise NotImplementedError(f"{cls.__name__} is written by one process")

    def spec(self) -> PartSpec:
        mode = next(mode for mode in self.modes if mode != LOCAL)
        columns = {name: dtype.str for name, dtype in self.columns.items()}
        return {
            "mode": mode, "ending": self.endings[0], "place": self.place, "path": self.path, "n_rows": self.n_rows,
            "columns": columns, "run": self._run,
        }  # fmt: skip

    def wrote(self, spans: Iterable[Span]) -> None:
        """A worker has written these rows."""
        self._written += spans

    # -- checks

    def _note(self, span: Span) -> None:
        """Join a span to the one before it: a stream may have no end."""
        if self._written and self._written[-1].stop == span.start:
            span = Span(self._written.pop().start, span.stop)
        self._written.append(span)

    def _column(self, name: str, block: Columns) -> np.ndarray:
        if name not in block:
            raise InputError(f"a block for {self.path} lacks column '{name}': it has {', '.join(block)}")
        values = np.asarray(block[name])
        if values.ndim != 1 or not np.can_cast(values.dtype, self.columns[name], "same_kind"):
            raise InputError(
                f"column '{name}' of {self.path} is one of {self.columns[name]}, not {values.dtype} {values.shape}"
            )
        return values.astype(self.columns[name], copy=False)

    def _check_block(self, start: int, arrays: Columns, block: Columns) -> Span:
        lengths = {len(values) for values in arrays.values()}
        span = Span(start, start + max(lengths))
        if len(lengths) > 1 or len(block) != len(arrays):
            raise InputError(f"a block for {self.path} needs the columns {', '.join(arrays)}, all of one length")
        if start < 0 or span.stop > self.n_rows != UNKNOWN:
            raise InputError(f"rows {span.start}:{span.stop} are not within the {self.n_rows} rows of {self.path}")
        expected = self._written[-1].stop if self._written else 0
        if self.ordered and start != expected:
            raise InputError(f"{self.path} is written in row order: row {expected} comes next, not {start}")
        return span

    def _check_whole(self) -> None:
        if self.n_rows == UNKNOWN:
            return
        reached = 0
        for span in sorted(span for span in self._written if len(span)):
            if span.start != reached:
                break
            reached = span.stop
        if reached != self.n_rows or sum(map(len, self._written)) != self.n_rows:
            raise InputError(
                f"{self.path} needs each of its {self.n_rows} rows once, but row {reached} is missing or there twice"
            )


class PartWriter(NamedWriter):
    """Writes neighbouring rows of an output that another process opened.

    A part that is written twice has the same bytes, so it does not matter if a lost worker turns out to be alive.
    """

    def __init__(self, spec: PartSpec, region: Span) -> None:
        self._spec, self._region, self.path = spec, region, spec["path"]

    def begin(self) -> Writer:
        return REGISTRY[self._spec["mode"], self._spec["ending"]].begin_part(self._spec, self._region)


def ending_of(location: str) -> str:
    return os.path.splitext(location.rstrip("/"))[1].lower()


def column_types(spec: PartSpec) -> dict[str, np.dtype]:
    return {name: np.dtype(dtype) for name, dtype in spec["columns"].items()}


def check_there(place: str) -> str:
    """The place of an output, unless this machine does not see it or the run is over: a FileNotFoundError."""
    if not os.path.exists(place):
        raise FileNotFoundError(2, "the output is not there", place)
    return place


class RowBuffer:
    """Joins blocks that follow one another into runs that end at multiples of ``step``."""

    def __init__(self, step: int) -> None:
        self._step, self._start, self._rows = step, 0, 0
        self._pieces: list[Columns] = []

    def add(self, first_row: int, block: Columns) -> Iterator[tuple[Span, Columns]]:
        """Take a block; yield the runs that are complete by now."""
        if self._rows and first_row != self._start + self._rows:
            yield from self.drain()
        if not self._rows:
            self._start = first_row
        self._pieces.append({name: values.copy() for name, values in block.items()})
        self._rows += len(next(iter(block.values())))
        border = (self._start + self._rows) // self._step * self._step
        if border > self._start:
            yield self._cut(border)

    def drain(self) -> Iterator[tuple[Span, Columns]]:
        """Yield what is still held."""
        if self._rows:
            yield self._cut(self._start + self._rows)

    def _cut(self, stop: int) -> tuple[Span, Columns]:
        run, count = Span(self._start, stop), stop - self._start
        whole = {name: np.concatenate([piece[name] for piece in self._pieces]) for name in self._pieces[0]}
        self._start, self._rows = stop, self._rows - count
        self._pieces = [{name: values[count:].copy() for name, values in whole.items()}] if self._rows else []
        return run, {name: values[:count] for name, values in whole.items()}
