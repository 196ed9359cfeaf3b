"""What conversion writes: a zarr group with arrays X and y, or one parquet file; chunks or row groups of even size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from streamrf.data.columns import JSON
from streamrf.data.meanings import IN_PARQUET, IN_ZARR
from streamrf.data.readers.base import BatchReader, Progress
from streamrf.data.source import Matrix, Rows
from streamrf.data.writers.tables import write_tables
from streamrf.data.writers.zarr import checked_compressors
from streamrf.support.errors import DataError

if TYPE_CHECKING:
    import zarr

ATTRIBUTE = "streamrf"


def write_zarr(
    place: Path, matrix: Matrix, rows: int, dtype: np.dtype, progress: Progress, reading: JSON | None = None
) -> None:
    """Fill an empty directory; every chunk is written once."""
    import zarr  # not for those who write parquet

    group = zarr.open_group(str(place), mode="w", zarr_format=3)
    group.attrs[ATTRIBUTE] = described(matrix, reading)
    X = _array(group, "X", (matrix.n_rows, matrix.n_features), rows, dtype)
    y = None
    if matrix.y_dtype is not None:
        shape = (matrix.n_rows,) if matrix.n_outputs == 1 else (matrix.n_rows, matrix.n_outputs)
        y = _array(group, "y", shape, rows, str if matrix.y_dtype.kind == "U" else matrix.y_dtype)
    done = 0
    for features, targets in gathered(matrix.blocks(rows), rows):
        span = slice(done, done + len(features))
        if span.stop > matrix.n_rows:
            raise DataError(f"{matrix.location} changed while it was read: it has more than {matrix.n_rows:,} rows")
        X[span] = features.astype(dtype, copy=False)
        if y is not None:
            y[span] = targets
        done = span.stop
        progress(done)
    if done != matrix.n_rows:
        raise DataError(f"{matrix.location} ends at row {done:,}, and it had {matrix.n_rows:,}")


def described(matrix: Matrix, reading: JSON | None = None) -> JSON:
    """What a reader of the group may want to know of where its columns came from; ``reading`` is of text."""
    return {
        "feature_names": None if matrix.feature_names is None else list(matrix.feature_names),
        "target_names": None if matrix.target_names is None else list(matrix.target_names),
        "columns": None if matrix.columns is None else matrix.columns.to_json(),
        **({IN_ZARR: reading} if reading else {}),
    }


def _array(group: zarr.Group, name: str, shape: tuple[int, ...], rows: int, dtype: np.dtype | type[str]) -> zarr.Array:
    return group.create_array(
        name,
        shape=shape,
        chunks=(min(rows, shape[0]), *shape[1:]),
        dtype=dtype,
        compressors=checked_compressors(),
        config={"write_empty_chunks": True},  # a chunk of zeros must not look like a lost one
    )


def gathered(blocks: Iterator[Rows], rows: int) -> Iterator[Rows]:
    """Blocks joined and cut to exactly ``rows`` rows, the last one shorter."""
    held: list[Rows] = []
    count = 0
    for X, y in blocks:
        start = 0
        while count + len(X) - start >= rows:
            stop = start + rows - count
            held.append((X[start:stop], None if y is None else y[start:stop]))
            yield _joined(held)
            held, count, start = [], 0, stop
        if start < len(X):
            held.append((X[start:], None if y is None else y[start:]))
            count += len(X) - start
    if held:
        yield _joined(held)


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    X = np.concatenate([X for X, _ in parts])
    return X, None if parts[0][1] is None else np.concatenate([y for _, y in parts if y is not None])


def write_columns(
    place: Path, table: BatchReader, names: list[str], rows: int, progress: Progress, reading: JSON
) -> int:
    """Columns as they are: how they become numbers is decided when a model is trained."""
    metadata = {IN_PARQUET: json.dumps(reading).encode()} if reading else None
    schema = pa.schema([_storable(table.schema.field(name)) for name in names], metadata)
    tables = (pa.Table.from_batches([batch]) for batch in table.batches(names))
    return write_tables(place, schema, tables, rows, progress)


def _storable(field: pa.Field) -> pa.Field:
    return field.with_type(pa.string()) if pa.types.is_null(field.type) else field.remove_metadata()


def write_matrix(place: Path, matrix: Matrix, rows: int, progress: Progress) -> int:
    """A column for each input, x0, x1, ... where they have no names, and y (or y0, y1, ...)."""
    names = matrix.feature_names or tuple(f"x{j}" for j in range(matrix.n_features))
    outputs = matrix.target_names or _target_names(matrix.n_outputs)
    if set(names) & set(outputs):
        raise DataError(f"an input and a target of {matrix.location} would both be called {set(names) & set(outputs)}")
    types = [pa.from_numpy_dtype(matrix.x_dtype)] * matrix.n_features
    if matrix.y_dtype is not None:
        types += [pa.string() if matrix.y_dtype.kind == "U" else pa.from_numpy_dtype(matrix.y_dtype)] * len(outputs)
    schema = pa.schema(list(zip([*names, *outputs], types, strict=True)))
    return write_tables(place, schema, _tables(matrix, schema, rows), rows, progress)


def _target_names(count: int) -> tuple[str, ...]:
    return ("y",) if count == 1 else tuple(f"y{k}" for k in range(count))


def _tables(matrix: Matrix, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    for X, y in matrix.blocks(rows):
        columns = [X[:, j] for j in range(X.shape[1])]
        if y is not None:
            columns += [y] if y.ndim == 1 else [y[:, k] for k in range(y.shape[1])]
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
        yield pa.Table.from_arrays(arrays, schema=schema)
