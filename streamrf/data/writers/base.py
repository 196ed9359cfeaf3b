"""The writer of predictions: blocks of rows in, one finished output at the end or none at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import numpy as np

from streamrf.data.source import Span
from streamrf.data.writers.staging import check_free, staged_directory, staged_file
from streamrf.support.errors import InputError
from streamrf.support.storage.files import storage_errors

Columns = Mapping[str, np.ndarray]
UNKNOWN = -1  # rows that are counted as they come


class Sink(ABC):
    """A context manager. Leaving it without an error finishes the output; leaving it with one leaves nothing behind."""

    ordered: bool  # whether blocks must come in row order
    is_directory = False

    def __init__(self, path: str, n_rows: int, columns: Sequence[tuple[str, np.dtype]], *, overwrite: bool) -> None:
        self.path, self.n_rows, self._overwrite = path, n_rows, overwrite
        self.columns = {name: np.dtype(dtype) for name, dtype in columns}
        if not columns or len(self.columns) != len(columns):
            raise InputError(f"an output needs columns with different names, not {[name for name, _ in columns]}")
        check_free(Path(path), overwrite)
        self._staged = ExitStack()
        self._written: list[Span] = []
        self._lock = Lock()

    def __enter__(self) -> Self:
        stage = staged_directory if self.is_directory else staged_file
        with ExitStack() as staged, storage_errors(f"write {self.path}", self.path):
            place = staged.enter_context(stage(Path(self.path), self._overwrite))
            try:
                self._open(str(place))
            except BaseException:
                self._abandon()
                raise
            self._staged = staged.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            self._abandon()
            self._staged.__exit__(kind, error, tb)
            return
        with self._staged, storage_errors(f"write {self.path}", self.path):
            try:
                self._close(complete=True)
                self._check_whole()
            except BaseException:
                self._abandon()
                raise

    def _abandon(self) -> None:
        """Close what is open; that this may fail on a full disk is no news."""
        with suppress(Exception):
            self._close(complete=False)

    def write(self, start: int, block: Columns) -> None:
        """Rows from ``start`` on, every column of the same length; the arrays may be reused once this returns."""
        with self._lock, storage_errors(f"write {self.path}", self.path):
            arrays = {name: self._column(name, block) for name in self.columns}
            span = self._check_block(start, arrays, block)
            self._write(span, arrays)
            self._note(span)

    def _note(self, span: Span) -> None:
        """Spans that follow one another are one: a stream may have no end."""
        if self._written and self._written[-1].stop == span.start:
            span = Span(self._written.pop().start, span.stop)
        self._written.append(span)

    @abstractmethod
    def _open(self, path: str) -> None:
        """Begin the output at this temporary path, which is an empty file or directory."""

    @abstractmethod
    def _write(self, span: Span, arrays: Columns) -> None:
        """Store a block of checked columns."""

    @abstractmethod
    def _close(self, complete: bool) -> None:
        """Write what is still held, unless the output is to be thrown away, and close."""

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
                f"{self.path} needs each of its {self.n_rows} rows once, but row {reached} is not there or twice"
            )


class RowBuffer:
    """Joins blocks that follow one another into runs that end at multiples of ``step``."""

    def __init__(self, step: int) -> None:
        self._step, self._start, self._rows = step, 0, 0
        self._pieces: list[Columns] = []

    def add(self, span: Span, arrays: Columns) -> Iterator[tuple[Span, Columns]]:
        """Take a block; gives the runs that are complete by now."""
        if self._rows and span.start != self._start + self._rows:
            yield from self.drain()
        if not self._rows:
            self._start = span.start
        self._pieces.append({name: values.copy() for name, values in arrays.items()})
        self._rows += len(span)
        border = span.stop // self._step * self._step
        if border > self._start:
            yield self._cut(border)

    def drain(self) -> Iterator[tuple[Span, Columns]]:
        """What is still held."""
        if self._rows:
            yield self._cut(self._start + self._rows)

    def _cut(self, stop: int) -> tuple[Span, Columns]:
        run, count = Span(self._start, stop), stop - self._start
        whole = {name: np.concatenate([piece[name] for piece in self._pieces]) for name in self._pieces[0]}
        self._start, self._rows = stop, self._rows - count
        self._pieces = [{name: values[count:].copy() for name, values in whole.items()}] if self._rows else []
        return run, {name: values[:count] for name, values in whole.items()}
