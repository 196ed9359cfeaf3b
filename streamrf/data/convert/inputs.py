"""What is converted: the table at a location, in the format that the user names, its ending or its first line tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from streamrf.data.columns import Columns, Handling
from streamrf.data.columns.encoding import Encoder, as_numbers, as_texts, whole
from streamrf.data.columns.learning import target_types
from streamrf.data.locations import absolute, is_pattern, is_url, opened
from streamrf.data.open import open_source
from streamrf.data.readers import reader_by_ending, reader_of, row_reader_at
from streamrf.data.readers.base import BatchReader, MatrixReader, Progress, Reader, SequentialReader, registered
from streamrf.data.source import Matrix, Rows
from streamrf.support.errors import DataError, InputError, StorageError


@dataclass
class Conversion:
    """What the user asks for; None leaves the choice to us."""

    target: list[str] | None = None
    features: list[str] | None = None
    exclude: list[str] = field(default_factory=list)
    x: str = "X"
    y: str = "y"
    form: str | None = None  # of the input, where its name does not tell
    chunk_rows: int | None = None
    dtype: str | None = None  # of X in zarr
    memory: int | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the reader: delimiter, header, null, n_features
    handling: Handling = field(default_factory=Handling)
    keep_missing: bool = False


def open_input(location: str, asked: Conversion, progress: Progress) -> BatchReader | Matrix:
    """The table at a location, as batches of named columns or as a matrix of numbers."""
    form = asked.form or detect(location)
    reader = reader_of(SequentialReader, form)
    _check_options(form, reader, asked)
    if reader is None:
        return open_source(location, x=asked.x, y=asked.y, need_targets=None)
    place = absolute(location)
    if not (is_url(place) or is_pattern(place) or os.path.exists(place)):
        raise StorageError(f"{place} does not exist")
    arrays = {name: value for name, value in (("x", asked.x), ("y", asked.y)) if name in reader.options}
    found = reader(place, progress=progress, **arrays, **asked.options)
    assert isinstance(found, BatchReader | MatrixReader)
    return found


def _check_options(form: str, reader: type[SequentialReader] | None, asked: Conversion) -> None:
    for name in set(asked.options) - (frozenset() if reader is None else reader.options):
        owner = next((form for form, each in registered(SequentialReader).items() if name in each.options), "other")
        raise InputError(f"`{name}` is about {owner} input, and the input is {form}")
    stray = _asked_of_columns(asked)
    if stray and not (reader is not None and issubclass(reader, BatchReader)):
        raise InputError(f"{stray[0]} is about tables with named columns, and the input is {form}")


def _asked_of_columns(asked: Conversion) -> list[str]:
    """Options that choose or code columns, of those that were given."""
    given, silent = asdict(asked.handling), asdict(Handling())
    given |= {"target": asked.target, "features": asked.features, "exclude": asked.exclude or None}
    return [f"`{name}`" for name, value in given.items() if value != silent.get(name)]


def detect(location: str) -> str:
    """The format of what is at a location; InputError where nothing tells."""
    if os.path.isdir(location):
        return row_reader_at(location).format
    reader = reader_by_ending(Reader, location)
    form = None if reader is None else reader.format
    if form in ("csv", None) and not (is_url(location) or is_pattern(location)):
        return _by_first_line(location, form)
    return form or "parquet"


def _by_first_line(location: str, by_name: str | None) -> str:
    """LIBSVM files have any ending or none."""
    from streamrf.data.readers.libsvm import looks_like_libsvm

    if not os.path.exists(location):
        raise StorageError(f"{location} does not exist")
    with opened(location) as stream:
        first = stream.readline(1 << 16)
    if looks_like_libsvm(first):
        return "libsvm"
    if by_name is None:
        known = ", ".join(sorted(registered(Reader)))
        raise InputError(f"the ending of {location} does not tell its format: name it with `form`: one of {known}")
    return by_name


class CodedMatrix(Matrix):
    """Batches as a matrix: features as a coding makes them, target columns as they are.

    A missing feature is an error, or with ``keep_missing`` NaN.
    """

    def __init__(self, table: BatchReader, columns: Columns, targets: list[str], *, keep_missing: bool = False) -> None:
        assert table.n_rows is not None
        self._table, self.columns, self._keep_missing = table, columns, keep_missing
        self.location, self.n_rows = table.location, table.n_rows
        self.n_features, self.n_outputs = columns.width, len(targets)
        self.feature_names, self.target_names = columns.feature_names, tuple(targets) or None
        self.x_dtype = np.dtype(columns.dtype)
        types = target_types(table.schema, targets, table.location)
        self.y_dtype = np.result_type(*types.values()) if types else None
        self._encoder = Encoder(columns)

    def blocks(self, rows: int) -> Iterator[Rows]:
        names, done = [*self._encoder.columns.names, *(self.target_names or ())], 0
        for batch in self._table.batches(names):
            for start in range(0, len(batch), rows):
                part = batch.slice(start, rows)
                yield self._features(part, done), self._targets(part, done)
                done += len(part)

    def _features(self, batch: pa.RecordBatch, first: int) -> np.ndarray:
        X = np.empty((len(batch), self.n_features), self.x_dtype)
        self._encoder.encode(batch, X)
        if not self._keep_missing:
            self._refuse_missing(X, first)
        return X

    def _refuse_missing(self, X: np.ndarray, first: int) -> None:
        missing = np.isnan(X)
        if missing.any():
            row, place = np.argwhere(missing)[0]
            name = self._encoder.columns.feature_names[place]
            raise DataError(
                f"row {first + row:,} of {self.location} has no value for '{name}'"
                f" ({int(missing.any(axis=1).sum()):,} such rows near there): fill in medians with"
                " `missing='median'`, or keep NaN with `missing='keep'`"
            )

    def _targets(self, batch: pa.RecordBatch, first: int) -> np.ndarray | None:
        if self.y_dtype is None:
            return None
        columns = [self._target(batch.column(name), name, first) for name in self.target_names or ()]
        return columns[0] if len(columns) == 1 else np.column_stack(columns)

    def _target(self, values: pa.Array, name: str, first: int) -> np.ndarray:
        assert self.y_dtype is not None
        values = whole(values)
        if values.null_count and self.y_dtype.kind != "f":
            row = first + values.is_null().index(pa.scalar(True)).as_py()
            raise DataError(f"row {row:,} of {self.location} has no target '{name}': fill it in, or leave the row out")
        if self.y_dtype.kind == "U":
            return as_texts(values).astype("U")
        return as_numbers(values).astype(self.y_dtype, copy=False)
