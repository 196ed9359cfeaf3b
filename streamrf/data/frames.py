"""Data frames of any library as arrow tables, on disk where they come as a stream, or in the partitions of dask.

Known by what they can do and by their module's name, so that no library is imported that the user does not use.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrf.data.partitions import is_collection, is_delayed, library
from streamrf.support.errors import MissingDependencyError
from streamrf.support.progress import Reporter

if TYPE_CHECKING:
    import pyarrow as pa

    from streamrf.data.partitions import Collection
    from streamrf.data.readers.table import MemoryTable


def is_frame(data: object) -> bool:
    """Whether this has named columns of any type: a frame, a table, a relation or a stream of them."""
    if isinstance(data, np.ndarray | str):
        return False
    kind = library(data)
    if kind in ("pandas", "polars", "dask", "dask_expr"):
        return type(data).__name__ in ("DataFrame", "LazyFrame")  # and no series
    if kind == "duckdb":
        return hasattr(data, "columns") and hasattr(data, "types")
    if kind == "pyarrow":
        return hasattr(data, "schema") and any(hasattr(data, each) for each in ("to_batches", "columns", "read_all"))
    return hasattr(data, "__arrow_c_stream__")


def column_names(data: Any) -> list[str]:
    """Names of the columns of a frame."""
    if library(data) == "polars":
        return list(data.collect_schema().names())
    if hasattr(data, "schema") and hasattr(data.schema, "names"):
        return list(data.schema.names)
    return [str(name) for name in data.columns] if hasattr(data, "columns") else []


def has_only_numbers(data: Any) -> bool:
    """Whether a frame could be taken as an array of numbers; False where finding out would read it."""
    kind = library(data)
    if kind in ("pandas", "dask", "dask_expr"):
        return all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in data.dtypes)
    if kind == "polars" and hasattr(data, "to_numpy"):
        return all(dtype.is_numeric() or str(dtype) == "Boolean" for dtype in data.dtypes)
    if kind == "pyarrow" and hasattr(data, "columns"):
        import pyarrow as pa

        tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        return all(any(test(each) for test in tests) for each in data.schema.types)
    return False


def frame_table(data: Any, reporter: Reporter) -> tuple[MemoryTable | Collection | str, list[object]]:
    """A table in memory, a dask frame, or the path of parquet files that a stream was spilled to; and what must live as
    long."""
    import pyarrow as pa

    from streamrf.data.readers.table import MemoryTable, pandas_table

    kind = library(data)
    if kind in ("dask", "dask_expr"):
        from streamrf.data.readers.collections import DaskFrame

        frame = DaskFrame(data)
        if frame.is_remote or frame.is_separate(tuple(frame.schemas()[0].names)):
            return frame, []
        return _spilled("the dask frame", reporter, lambda folder: data.to_parquet(str(folder), write_index=False))
    if kind == "polars" and hasattr(data, "sink_parquet"):  # lazy
        return _spilled("the lazy frame", reporter, lambda folder: _narrow(data).sink_parquet(folder / "rows.parquet"))
    if kind == "pandas":
        return MemoryTable(pandas_table(data, reporter), "the pandas frame"), []
    if kind == "polars":
        return MemoryTable(_narrow(data).to_arrow(), "the polars frame"), []
    if isinstance(data, pa.RecordBatch):
        return MemoryTable(pa.Table.from_batches([data]), "the arrow table"), []
    if isinstance(data, pa.Table):
        return MemoryTable(data, "the arrow table"), []
    stream = _stream(data)
    return _spilled(
        "the stream of rows", reporter, lambda folder: _write_stream(stream, folder / "rows.parquet", reporter)
    )


def dask_collection(data: Any) -> Collection | None:
    """Dask arrays, a pair of such as X and y, or data frames that are delayed; None for anything else."""
    if isinstance(data, list | tuple) and data and all(is_delayed(part) for part in data):
        return _delayed_frames(data)
    X, y = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if not is_collection(X):
        return None
    from streamrf.data.readers.collections import DaskArrays

    return DaskArrays(X, y, [str(name) for name in X.columns] if hasattr(X, "columns") else None)


def _delayed_frames(parts: Any) -> Collection:
    try:
        import dask.dataframe as dd
    except ImportError as error:
        raise MissingDependencyError(
            "data frames that are delayed need dask.dataframe: pip install 'streamrf[dataframe]'"
        ) from error
    from streamrf.data.readers.collections import DaskFrame

    return DaskFrame(dd.from_delayed(list(parts)))


def _narrow(data: Any) -> Any:
    """A polars frame, eager or lazy, without whole numbers of 128 bits, which arrow has none of."""
    import polars as pl

    wide = [name for name, kind in data.collect_schema().items() if str(kind) in ("Int128", "UInt128")]
    return data.with_columns(pl.col(wide).cast(pl.Float64)) if wide else data


def _stream(data: Any) -> pa.RecordBatchReader:
    import pyarrow as pa

    if isinstance(data, pa.RecordBatchReader):
        return data
    if hasattr(data, "scanner"):  # a pyarrow dataset
        return data.scanner().to_reader()
    return pa.RecordBatchReader.from_stream(data)


def _write_stream(stream: pa.RecordBatchReader, place: Path, reporter: Reporter) -> None:
    import pyarrow as pa

    from streamrf.data.columns.learning import check_unique
    from streamrf.data.writers.tables import group_rows, storable, write_tables

    check_unique(stream.schema.names, "the stream of rows")
    names = storable(stream.schema, reporter.note)
    schema = pa.schema([stream.schema.field(name) for name in names])
    tables = (pa.Table.from_batches([batch]).select(names) for batch in stream)
    write_tables(place, schema, tables, group_rows(schema), lambda rows: None)


def _spilled(what: str, reporter: Reporter, write: Callable[[Path], object]) -> tuple[str, list[object]]:
    folder = tempfile.TemporaryDirectory(prefix="streamrf-")
    reporter.note(f"{what} is written to {folder.name} first, as it is read more than once")
    write(Path(folder.name))
    return folder.name, [folder]
