"""A matrix as a zarr group with arrays X and y, chunked by rows; the names and the coding of columns go with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from streamrf.data.readers.matrix import Matrix, Rows
from streamrf.support.errors import DataError

ATTRIBUTE = "streamrf"


def write_zarr(place: Path, matrix: Matrix, rows: int, dtype: np.dtype, told: Callable[[int], None]) -> None:
    """Fill an empty directory; every chunk is written once."""
    group = zarr.open_group(str(place), mode="w", zarr_format=3)
    group.attrs[ATTRIBUTE] = described(matrix)
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
        told(done)
    if done != matrix.n_rows:
        raise DataError(f"{matrix.location} ends at row {done:,}, and it had {matrix.n_rows:,}")


def described(matrix: Matrix) -> dict[str, Any]:
    """What a reader of the group may want to know of where its columns came from."""
    return {
        "feature_names": None if matrix.feature_names is None else list(matrix.feature_names),
        "target_names": None if matrix.target_names is None else list(matrix.target_names),
        "columns": None if matrix.columns is None else matrix.columns.to_json(),
    }


def _array(group: Any, name: str, shape: tuple[int, ...], rows: int, dtype: Any) -> Any:
    return group.create_array(
        name,
        shape=shape,
        chunks=(min(rows, shape[0]), *shape[1:]),
        dtype=dtype,
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
