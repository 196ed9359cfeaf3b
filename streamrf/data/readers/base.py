"""What a reader is. There are three kinds, by how much of a table they can find without reading the rest:

- a ``RowReader`` reads any span of rows: training reads it chunk by chunk, in any order (zarr, parquet, npy);
- a ``BatchReader`` reads named columns of any type from first row to last, as arrow batches (csv, jsonl, arrow);
- a ``MatrixReader`` reads numbers from first row to last (npz, hdf5, libsvm).

The last two are converted to zarr or parquet, and the columns of a ``BatchReader`` can be predicted on as they arrive.

A new format is one module with a class that names its ``format`` and ``endings``. Defining the class registers it:
``open_source`` then finds it by the ending of a path. Its test is a subclass of ``SourceConformance``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from streamrf.data.columns import Choice, Columns, RawTable
from streamrf.data.locations import absolute, opened
from streamrf.data.source import Block, Matrix, Source, Span, check_reading, largest_chunks
from streamrf.data.stored import base_name, file_marks
from streamrf.support.errors import DataError, InputError
from streamrf.support.threads import available_cores

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BLOCK = 1 << 20  # bytes of text that are parsed at a time
STREAM_BLOCK = 1 << 18  # of a stream, or less where less is there
MOST_PARSERS = 4
A = TypeVar("A")
B = TypeVar("B")
LONGEST = 64 << 20  # a record longer than this is a quote that nobody closed
_BOM = b"\xef\xbb\xbf"


class Lines(NamedTuple):
    """Whole lines of a text, and the number of the first of them, from 1."""

    first: int
    text: bytes


def line_blocks(stream: IO[bytes], *, quotes: bool, size: int = FILE_BLOCK) -> Iterator[Lines]:
    """The stream in blocks of whole lines of about ``size`` bytes, or of what is there if that is less.

    With ``quotes`` a line break between two quotes does not end a record.
    """
    read = getattr(stream, "read1", stream.read)
    held, line, begun = b"", 1, False
    while data := read(size):
        held, begun = (data.removeprefix(_BOM) if not begun else held + data), True
        end = _last_end(held, quotes)
        if end:
            yield Lines(line, held[:end])
            line += held.count(b"\n", 0, end)
            held = held[end:]
        elif len(held) > LONGEST:
            raise DataError(f"line {line:,} does not end within {LONGEST >> 20} MB: is a quote in it never closed?")
    if held:
        yield Lines(line, held)


def _last_end(text: bytes, quotes: bool) -> int:
    """Where the last whole record ends; 0 where there is none."""
    end = text.rfind(b"\n") + 1
    while quotes and end and text.count(b'"', 0, end) % 2:  # inside quotes: look before the one that opened them
        end = text.rfind(b"\n", 0, text.rfind(b'"', 0, end)) + 1
    return end


def in_order(make: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
    """``map(make, items)`` by a few threads that work ahead; arrow parses without holding Python's lock."""
    workers = min(MOST_PARSERS, available_cores())
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[B]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(make, item))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


FINGERPRINT_ROWS = 64

Progress = Callable[[int], None]  # hears how many rows have been read


def silent(rows: int) -> None:
    """No progress is shown."""


class Reader:
    """What a class says about the format it reads. A class with a ``format`` is registered when it is defined."""

    format: ClassVar[str] = ""  # zarr, csv, ...
    endings: ClassVar[tuple[str, ...]] = ()  # of paths, in lower case
    compressed: ClassVar[bool] = False  # whether .gz, .bz2 or .xz may follow the ending

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__dict__.get("format"):
            _registered.append(cls)


_registered: list[type[Reader]] = []
R = TypeVar("R", bound=Reader)


def registered(kind: type[R]) -> dict[str, type[R]]:
    """Readers of one kind by their format; of two for the same format, the one defined last."""
    return {reader.format: reader for reader in _registered if issubclass(reader, kind)}


class RowReader(Reader, Source):
    """A stored table of which any span can be read. A subclass says how to read features and targets of a span."""

    magic: ClassVar[bytes] = b""  # first bytes of a file, for names without a known ending
    markers: ClassVar[tuple[str, ...]] = ()  # files that tell a directory of this format
    reads_folders: ClassVar[bool] = False  # whether a directory of files with these endings is a table too
    joins_files: ClassVar[bool] = False  # whether the files that match a pattern are one table, and not a shard each
    is_remote: ClassVar[bool] = False  # whether URLs can be read

    def __init__(self, location: str, choice: Choice) -> None:
        raise NotImplementedError("a reader that is registered is opened as reader(location, choice)")

    @abstractmethod
    def _features(self, span: Span) -> np.ndarray:
        """X of these rows in its plain form (see arrays)."""

    @abstractmethod
    def _targets(self, span: Span) -> np.ndarray:
        """y of these rows in its plain form (see arrays)."""

    def read(self, span: Span) -> Block:
        self._check(span)
        targets = self._targets(span) if self.has_targets else None
        return Block(self._features(span), targets, row_numbers(span))

    def read_targets(self, span: Span) -> np.ndarray:
        if not self.has_targets:
            raise DataError(f"{self.location} was opened without targets")
        self._check(span)
        return self._targets(span)

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return content_digest(self)

    def stored(self) -> dict[str, str]:
        """Of a format that says nothing else: one file."""
        return file_marks({base_name(self.location): self.location}) if self.format else {}

    def describe(self) -> str:
        return f"{self._format()} {self.location}: {describe_size(self)}"

    def _format(self) -> str:
        """The storage format in a word or two."""
        return self.format

    def _check(self, span: Span) -> None:
        if not 0 <= span.start <= span.stop <= self.n_rows:
            raise InputError(f"rows {span.start}:{span.stop} are not within the {self.n_rows} rows of {self.location}")


class SequentialReader(Reader):
    """A table that is read from first row to last. It is opened as reader(location, progress=progress, **options)."""

    options: ClassVar[frozenset[str]] = frozenset()  # those it takes, by the names they have on the command line

    def __init__(self, location: str, *, progress: Progress, **options: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} says how it is opened")


class BatchReader(SequentialReader, RawTable):
    """A table with named columns of any type."""

    @classmethod
    def arriving(cls, stream: IO[bytes], columns: Columns | None, where: str, **options: Any) -> Iterator[Arrived]:
        """Tables of rows as a stream brings them: the columns of a coding, or without one all, as numbers.

        ``options`` are those of the reader, and ``keeps``: whether the tables must have all other columns too.
        """
        raise InputError(f"{cls.format} cannot be read from a stream")

    @classmethod
    def arriving_at(cls, location: str, columns: Columns | None, where: str, **options: Any) -> Iterator[Arrived]:
        """The same of what is at a path or URL, or of standard input where that is ``-``."""
        if location == "-":
            yield from cls.arriving(sys.stdin.buffer, columns, where, **options)
            return
        with opened(absolute(location)) as stream:
            yield from cls.arriving(stream, columns, where, **options)

    def gaps(self, name: str) -> int | None:
        """How many values of a column are missing, where that is known without reading them."""
        return None

    def notes(self) -> list[str]:
        """What the user should know of how columns were read: a sentence each."""
        return []


class Unfit(DataError):
    """A value that is not of the type of its column."""


class TextReader(BatchReader):
    """Text whose types only all rows tell. It is opened with ``schema`` where that is known already, and with
    ``blocks`` to look at so many blocks only; a value that does not fit the types is then an ``Unfit``."""

    version: ClassVar[int]  # another number where the same file is read in another way
    expected_rows: int = 0  # about how many there are, guessed from the first block; 0: nothing is known

    def expect(self, rows: int, size: int) -> None:
        """The first block has so many rows in so many bytes."""
        if os.path.exists(self.location) and self.location.lower().endswith(self.endings):  # not compressed
            self.expected_rows = rows * os.path.getsize(self.location) // max(1, size)


class Arrived(NamedTuple):
    """Rows that have come, and the place of the first of them."""

    table: pa.Table
    first: int
    unit: str  # what ``first`` counts: lines or rows
    raw: pa.Table | None = None  # all columns as they are written, where that was asked for and is another table


class Chained(BatchReader):
    """Tables with the same columns, one after the other."""

    def __init__(self, tables: Sequence[BatchReader]) -> None:
        self._tables, self.schema = tables, tables[0].schema
        self.location = f"{len(tables)} tables from {tables[0].location} on"
        counts = [table.n_rows for table in tables if table.n_rows is not None]
        self.n_rows = sum(counts) if len(counts) == len(tables) else None

    def files(self) -> list[tuple[str, list[str]]]:
        return [file for table in self._tables for file in table.files()]

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        return chain.from_iterable(table.batches(names) for table in self._tables)


class MatrixReader(SequentialReader, Matrix):
    """Inputs X and perhaps targets y, read from first row to last."""


# -- what a table says about itself


def row_numbers(span: Span) -> np.ndarray:
    return np.arange(span.start, span.stop, dtype=np.int64)


def type_name(dtype: np.dtype) -> str:
    return "string" if dtype.kind == "U" else dtype.name


def describe_size(source: Source) -> str:
    """Rows, columns, types and chunks, for people."""
    y = f", y {source.n_outputs} x {type_name(source.y_dtype)}" if source.y_dtype is not None else ", no targets"
    size = f"{source.n_rows:,} rows x {source.n_features:,} {type_name(source.x_dtype)}"
    chunks = source.chunks()
    count = "1 chunk of" if len(chunks) == 1 else f"{len(chunks):,} chunks of up to"
    return f"{size}{y}, {count} {max(map(len, largest_chunks(source))):,} rows"


def content_digest(source: Source) -> str:
    """SHA-256 of shape, types, names and the first and last rows: nothing of where or in what chunks they lie."""
    y_type, n_rows = None if source.y_dtype is None else source.y_dtype.str, source.n_rows
    header = {
        "rows": n_rows, "features": source.n_features, "outputs": source.n_outputs, "x": source.x_dtype.str,
        "y": y_type, "names": source.feature_names,
    }  # fmt: skip
    check_reading(source, None)
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    ends = (Span(0, FINGERPRINT_ROWS), Span(n_rows - FINGERPRINT_ROWS, n_rows))
    for span in ends if n_rows > 2 * FINGERPRINT_ROWS else (Span(0, n_rows),):
        block = source.read(span)
        sha.update(np.ascontiguousarray(block.X).tobytes())
        if block.y is not None:
            sha.update(_target_bytes(block.y))
    return sha.hexdigest()


def _target_bytes(y: np.ndarray) -> bytes:
    if y.dtype.kind in "UO":  # the width of "U" is the block's, not the data's
        return json.dumps(y.tolist()).encode()
    return np.ascontiguousarray(y).tobytes()
