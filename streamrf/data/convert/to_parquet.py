"""A frame or a matrix as one parquet file; row groups are its chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamrf.data.readers.frame import Frame
from streamrf.data.readers.matrix import Matrix
from streamrf.support.errors import DataError


def write_frame(place: Path, frame: Frame, names: list[str], rows: int, told: Callable[[int], None]) -> int:
    """Columns as they are: how they become numbers is settled when a model is trained."""
    schema = pa.schema([_storable(frame.schema.field(name)) for name in names])
    return _write(place, schema, (pa.Table.from_batches([batch]) for batch in frame.batches(names)), rows, told)


def _storable(field: Any) -> Any:
    return field.with_type(pa.string()) if pa.types.is_null(field.type) else field.remove_metadata()


def write_matrix(place: Path, matrix: Matrix, rows: int, told: Callable[[int], None]) -> int:
    """A column for each input, x0, x1, ... where they have no names, and y (or y0, y1, ...)."""
    names = matrix.feature_names or tuple(f"x{j}" for j in range(matrix.n_features))
    outputs = matrix.target_names or _target_names(matrix.n_outputs)
    if set(names) & set(outputs):
        raise DataError(f"an input and a target of {matrix.location} would both be called {set(names) & set(outputs)}")
    types = [pa.from_numpy_dtype(matrix.x_dtype)] * matrix.n_features
    if matrix.y_dtype is not None:
        types += [pa.string() if matrix.y_dtype.kind == "U" else pa.from_numpy_dtype(matrix.y_dtype)] * len(outputs)
    schema = pa.schema(list(zip([*names, *outputs], types, strict=True)))
    return _write(place, schema, _tables(matrix, schema, rows), rows, told)


def _target_names(count: int) -> tuple[str, ...]:
    return ("y",) if count == 1 else tuple(f"y{k}" for k in range(count))


def _tables(matrix: Matrix, schema: Any, rows: int) -> Iterator[Any]:
    for X, y in matrix.blocks(rows):
        columns = [X[:, j] for j in range(X.shape[1])]
        if y is not None:
            columns += [y] if y.ndim == 1 else [y[:, k] for k in range(y.shape[1])]
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
        yield pa.Table.from_arrays(arrays, schema=schema)


def _write(place: Path, schema: Any, tables: Iterator[Any], rows: int, told: Callable[[int], None]) -> int:
    held: list[Any] = []
    done = count = 0
    with pq.ParquetWriter(place, schema) as writer:
        for table in tables:
            held.append(table.cast(schema))
            count += len(table)
            if count >= rows:
                whole = pa.concat_tables(held)
                full = count // rows * rows
                writer.write_table(whole.slice(0, full), row_group_size=rows)
                held, done, count = [whole.slice(full)], done + full, count - full
                told(done)
        if count:
            writer.write_table(pa.concat_tables(held), row_group_size=rows)
            told(done + count)
    return done + count
