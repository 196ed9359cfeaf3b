"""The whole conversion: look at the input, settle names, coding and chunks, then write it in one go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamrf.data.columns.handling import Handling
from streamrf.data.convert.budget import chunk_rows
from streamrf.data.convert.inputs import open_input
from streamrf.data.readers.frame import Frame
from streamrf.data.readers.matrix import Matrix
from streamrf.data.writers.files import check_free, staged_directory, staged_file
from streamrf.support import memory
from streamrf.support.errors import InputError
from streamrf.support.progress import Reporter

ENDINGS = (".zarr", ".parquet")
TEXT_BYTES = 32  # a guess at a text value, for chunks
SAY_EVERY = 10.0  # seconds between two words about the first look


@dataclass
class Conversion:
    """What is asked for; None leaves the choice to us."""

    target: list[str] | None = None
    features: list[str] | None = None
    exclude: list[str] = field(default_factory=list)
    x: str = "X"
    y: str = "y"
    form: str | None = None  # of the input, where its name does not tell
    chunk_rows: int | None = None
    dtype: str | None = None  # of X in zarr
    memory: int | None = None
    n_features: int | None = None
    csv: dict[str, Any] = field(default_factory=dict)
    handling: Handling = field(default_factory=Handling)
    keep_missing: bool = False


def convert(
    source: str, out: str, asked: Conversion | None = None, *, overwrite: bool = False, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Write ``out`` (.zarr or .parquet) from ``source``; what was made of it, for `--json`."""
    return _Run(source, out, asked or Conversion(), overwrite, reporter or Reporter()).run()


class _Run:
    def __init__(self, source: str, out: str, asked: Conversion, overwrite: bool, reporter: Reporter) -> None:
        self.source, self.asked, self.overwrite, self.reporter = source, asked, overwrite, reporter
        self.out, self.said = Path(out), time.monotonic()
        self.to_zarr = _ending(out) == ".zarr"
        check_free(self.out, overwrite)
        if os.path.realpath(source) == os.path.realpath(out):
            raise InputError(f"{source} cannot be converted onto itself: choose another name for the output")

    def run(self) -> dict[str, Any]:
        found = open_input(self.source, self.asked, self._looked)
        if isinstance(found, Frame) and not self.to_zarr:
            return self._frame_to_parquet(found)
        matrix = self._coded(found) if isinstance(found, Frame) else found
        return self._matrix(matrix)

    def _looked(self, rows: int) -> None:
        """Types are told from all rows; how many there are is known at the end only, so this is no progress bar."""
        if time.monotonic() - self.said >= SAY_EVERY:
            self.said = time.monotonic()
            self.reporter.note(f"looking: {rows:,} rows so far")

    def _frame_to_parquet(self, frame: Frame) -> dict[str, Any]:
        chosen = {name for names in self._selected(frame) for name in names}
        names = [name for name in frame.schema.names if name in chosen]
        width = sum(_stored_bytes(frame.schema.field(name).type) for name in names)
        rows = self._chunk(width)
        from streamrf.data.convert.to_parquet import write_frame

        with self._progress(frame.n_rows or 0) as told, self._staged() as place:
            done = write_frame(place, frame, names, rows, told)
        return self._report(done, len(names), rows, None)

    def _selected(self, frame: Frame) -> tuple[list[str], list[str]]:
        """Names of features and of targets; there may be no target."""
        from streamrf.data.readers.parquet_columns import Choice, feature_names, target_names

        asked, known = self.asked, frame.schema.names
        choice = Choice(asked.target, asked.features, asked.exclude, asked.y, True if asked.target else None)
        targets = target_names(known, frame.location, choice)
        return feature_names(known, frame.location, choice, targets), targets

    def _coded(self, frame: Frame) -> Matrix:
        """The frame's columns as numbers, by a coding that the output keeps."""
        from streamrf.data.columns.learning import learn_columns
        from streamrf.data.convert.framed import FrameMatrix

        names, targets = self._selected(frame)
        if not targets:
            self.reporter.note(f"no --target, and no column called '{self.asked.y}': inputs alone are written")
        columns = learn_columns(frame, names, self.asked.handling)
        self.reporter.note(columns.describe())
        return FrameMatrix(frame, columns, targets, "keep" if self.asked.keep_missing else "error")

    def _matrix(self, matrix: Matrix) -> dict[str, Any]:
        dtype = np.dtype(self.asked.dtype) if self.asked.dtype else matrix.x_dtype
        y_bytes = 0 if matrix.y_dtype is None else matrix.n_outputs * (matrix.y_dtype.itemsize or TEXT_BYTES)
        rows = self._chunk(matrix.n_features * max(dtype.itemsize, matrix.x_dtype.itemsize) + y_bytes)
        rows = min(rows, matrix.n_rows)
        with self._progress(matrix.n_rows) as told, self._staged() as place:
            if self.to_zarr:
                from streamrf.data.convert.to_zarr import write_zarr

                write_zarr(place, matrix, rows, dtype, told)
            else:
                from streamrf.data.convert.to_parquet import write_matrix

                write_matrix(place, matrix, rows, told)
        return self._report(matrix.n_rows, matrix.n_features, rows, matrix)

    def _chunk(self, row_bytes: int) -> int:
        """Asked once the input has been looked at: by then most of what the libraries need is there to be counted."""
        reserved = memory.resident()
        budget = self.asked.memory or reserved + int(0.8 * memory.available())
        return chunk_rows(row_bytes, asked=self.asked.chunk_rows, budget=budget, reserved=reserved)

    def _staged(self) -> AbstractContextManager[Path]:
        return (staged_directory if self.to_zarr else staged_file)(self.out, self.overwrite)

    def _progress(self, rows: int) -> _Progress:
        return _Progress(self.reporter, rows)

    def _report(self, rows: int, columns: int, chunk: int, matrix: Matrix | None) -> dict[str, Any]:
        coding = matrix.columns if matrix else None
        return {
            "out": str(self.out), "rows": rows, "columns": columns, "chunk_rows": min(chunk, rows),
            "targets": matrix.n_outputs if matrix else None, "coding": coding.describe() if coding else None,
        }  # fmt: skip


class _Progress:
    """Tells the reporter when writing begins, how far it is, and when it ends."""

    def __init__(self, reporter: Reporter, rows: int) -> None:
        self._reporter, self._rows = reporter, rows

    def __enter__(self) -> Callable[[int], None]:
        self._reporter.started("converting", self._rows, 0)
        return lambda done: self._reporter.advanced(done, None)

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self._reporter.finished()


def _ending(out: str) -> str:
    ending = os.path.splitext(out.rstrip("/"))[1].lower()
    if "://" in out:
        raise InputError(f"the output is written to a local disk, not to {out}: convert, then copy it")
    if ending not in ENDINGS:
        raise InputError(f"the output's ending says its format: {' or '.join(ENDINGS)}, not '{ending}' ({out})")
    return ending


def _stored_bytes(kind: Any) -> int:
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return TEXT_BYTES
