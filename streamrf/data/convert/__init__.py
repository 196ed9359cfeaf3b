"""From a file of any format to chunked zarr or parquet, in bounded memory: read the input's metadata, choose names,
coding and chunks, then write in one pass.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from streamrf.data.cache import Reading
from streamrf.data.columns import JSON, Choice
from streamrf.data.columns.learning import check_shared, feature_names, learn_columns, target_names
from streamrf.data.convert.inputs import CodedMatrix, Conversion, open_input
from streamrf.data.convert.outputs import write_columns, write_matrix, write_zarr
from streamrf.data.locations import is_pattern
from streamrf.data.meanings import meanings
from streamrf.data.open import raw_columns, readable, with_own_names
from streamrf.data.readers.base import BatchReader, Progress
from streamrf.data.source import Matrix
from streamrf.data.writers.files import check_free, staged_directory, staged_file
from streamrf.data.writers.tables import GROUP_BYTES, TEXT_BYTES, storable, stored_bytes
from streamrf.support import memory
from streamrf.support.errors import BudgetError, InputError
from streamrf.support.progress import Reporter
from streamrf.support.units import format_bytes, size_of

ENDINGS = (".zarr", ".parquet")
SAY_EVERY = 10.0  # seconds between two notes about the first read
SMALLEST_CHUNK = 1 << 18
COPIES = 6  # of a chunk: being filled, joined, encoded, compressed, and what the allocator keeps
PARSING = 48 << 20  # blocks of text and batches on their way, what is made of them, and the library that writes


def convert(
    source: str, out: str, asked: Conversion | None = None, *, overwrite: bool = False, reporter: Reporter | None = None
) -> JSON:
    """Write ``out`` (.zarr or .parquet) from ``source``; a summary of what was made of it."""
    return _Run(source, out, asked or Conversion(), overwrite, reporter or Reporter()).run()


class _Run:
    def __init__(self, source: str, out: str, asked: Conversion, overwrite: bool, reporter: Reporter) -> None:
        self.source, self.asked, self.overwrite, self.reporter = source, asked, overwrite, reporter
        self.out, self.said = Path(out), time.monotonic()
        self.to_zarr = _ending(out) == ".zarr"
        check_free(self.out, overwrite)
        if os.path.realpath(source) == os.path.realpath(out):
            raise InputError(f"{source} cannot be converted onto itself: choose another name for the output")

    def run(self) -> JSON:
        place, kept = self.source, list[object]()  # folders that must live as long as what is in them is read
        if self.asked.form is None and (os.path.isdir(place) or is_pattern(place)):
            place, kept = readable(place, Reading(self.asked.options, cache=False), self.reporter)
        made = raw_columns(place) if kept else None
        found = open_input(self.source, self.asked, self._read_so_far) if made is None else made
        if isinstance(found, BatchReader) and not self.to_zarr:
            return self._columns_to_parquet(found)
        matrix = self._coded(found) if isinstance(found, BatchReader) else found
        return self._matrix(matrix)

    def _read_so_far(self, rows: int) -> None:
        """Types are found from all rows; how many there are is known at the end only, so this is no progress bar."""
        if time.monotonic() - self.said >= SAY_EVERY:
            self.said = time.monotonic()
            self.reporter.note(f"reading: {rows:,} rows so far")

    def _columns_to_parquet(self, table: BatchReader) -> JSON:
        chosen = {name for names in self._selected(table) for name in names}
        stored = storable(table.schema, self.reporter.note)
        names = [name for name in stored if name in chosen]
        check_shared(table.files(), names)
        width = sum(stored_bytes(table.schema.field(name).type) for name in names)
        rows = self._chunk(width)
        with self._progress(table.n_rows or 0) as progress, self._staged() as place:
            done = write_columns(place, table, names, rows, progress, meanings(self.asked.options))
        return self._report(done, len(names), rows, None)

    def _selected(self, table: BatchReader) -> tuple[list[str], list[str]]:
        """Names of features and of targets; there may be no target."""
        asked, known = self.asked, table.schema.names
        choice = Choice(
            y=asked.y, target=asked.target, features=asked.features, exclude=asked.exclude,
            need_targets=True if asked.target else None,
        )  # fmt: skip
        choice = with_own_names(choice, known, table.location)
        targets = target_names(known, table.location, choice)
        return feature_names(known, table.location, choice, targets), targets

    def _coded(self, table: BatchReader) -> Matrix:
        """The columns as numbers, by a coding that the output keeps."""
        names, targets = self._selected(table)
        if not targets:
            self.reporter.note(f"no `target`, and no column called '{self.asked.y}': inputs alone are written")
        columns = learn_columns(
            table, names, self.asked.handling.without_target(), say=self.reporter.note, asked=self.asked.features or ()
        )
        self.reporter.note(columns.describe())
        return CodedMatrix(table, columns, targets, keep_missing=self.asked.keep_missing)

    def _matrix(self, matrix: Matrix) -> JSON:
        dtype = np.dtype(self.asked.dtype) if self.asked.dtype else matrix.x_dtype
        y_bytes = 0 if matrix.y_dtype is None else matrix.n_outputs * (matrix.y_dtype.itemsize or TEXT_BYTES)
        rows = self._chunk(matrix.n_features * max(dtype.itemsize, matrix.x_dtype.itemsize) + y_bytes)
        rows = min(rows, matrix.n_rows)
        with self._progress(matrix.n_rows) as progress, self._staged() as place:
            if self.to_zarr:
                write_zarr(place, matrix, rows, dtype, progress, meanings(self.asked.options))
            else:
                write_matrix(place, matrix, rows, progress)
        return self._report(matrix.n_rows, matrix.n_features, rows, matrix)

    def _chunk(self, row_bytes: int) -> int:
        """Decided once the input is open: by then most of what the libraries need is in memory and counted."""
        reserved = memory.resident()
        budget = size_of("memory", self.asked.memory) or reserved + int(0.8 * memory.available())
        return chunk_rows(row_bytes, asked=self.asked.chunk_rows, budget=budget, reserved=reserved)

    def _staged(self) -> AbstractContextManager[Path]:
        return (staged_directory if self.to_zarr else staged_file)(self.out, self.overwrite)

    @contextmanager
    def _progress(self, rows: int) -> Iterator[Progress]:
        self.reporter.started("converting", rows, 0)
        yield lambda done: self.reporter.advanced(done, None)
        self.reporter.finished()

    def _report(self, rows: int, columns: int, chunk: int, matrix: Matrix | None) -> JSON:
        coding = matrix.columns if matrix else None
        return {
            "out": str(self.out), "rows": rows, "columns": columns, "chunk_rows": min(chunk, rows),
            "targets": matrix.n_outputs if matrix else None, "coding": coding.describe() if coding else None,
        }  # fmt: skip


def _ending(out: str) -> str:
    ending = os.path.splitext(out.rstrip("/"))[1].lower()
    if "://" in out:
        raise InputError(f"the output must be on a local disk, not at {out}: convert, then copy it")
    if ending not in ENDINGS:
        raise InputError(f"the ending of the output must be {' or '.join(ENDINGS)}, not '{ending}' ({out})")
    return ending


def chunk_rows(row_bytes: int, *, asked: int | None, budget: int, reserved: int) -> int:
    """Rows of a chunk: those asked for, or as many as make about 16 MB, fewer where the budget is small.

    ``reserved`` is what the process holds before it writes. What cannot fit is a BudgetError.
    """
    if asked is not None and asked < 1:
        raise InputError(f"`chunk_rows={asked}`: must be at least 1 row")
    room = (budget - reserved - PARSING) // COPIES
    rows = asked or max(1, min(GROUP_BYTES, max(room, SMALLEST_CHUNK)) // max(1, row_bytes))
    if rows * row_bytes > room:
        needed = reserved + PARSING + COPIES * rows * row_bytes
        raise BudgetError(
            f"converting in chunks of {rows:,} rows needs about {format_bytes(needed)}, and `memory` allows"
            f" {format_bytes(budget)}: allow more" + (", or fewer rows with `chunk_rows`" if asked else "")
        )
    return rows
