"""Data frames of any library as arrow tables, or on disk where they come as a stream or in parts.

Known by what they can do and by their module's name, so that no library is imported that the user does not use.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrf.support.errors import DataError
from streamrf.support.progress import Reporter

if TYPE_CHECKING:
    import pyarrow as pa

    from streamrf.data.readers.table import MemoryTable


def library(data: object) -> str:
    return type(data).__module__.partition(".")[0]


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


def frame_table(data: Any, reporter: Reporter) -> tuple[MemoryTable | str, list[object]]:
    """A table in memory, or the path of parquet files that a stream was spilled to; and what must live as long."""
    import pyarrow as pa

    from streamrf.data.readers.table import MemoryTable

    kind = library(data)
    if kind in ("dask", "dask_expr"):
        return _spilled_parts(data, reporter)
    if kind == "polars" and hasattr(data, "sink_parquet"):  # lazy
        return _spilled("the lazy frame", reporter, lambda folder: data.sink_parquet(folder / "rows.parquet"))
    if kind == "pandas":
        return MemoryTable(pandas_table(data, reporter), "the pandas frame"), []
    if kind == "polars":
        return MemoryTable(data.to_arrow(), "the polars frame"), []
    if isinstance(data, pa.RecordBatch):
        return MemoryTable(pa.Table.from_batches([data]), "the arrow table"), []
    if isinstance(data, pa.Table):
        return MemoryTable(data, "the arrow table"), []
    stream = _stream(data)
    return _spilled("the stream of rows", reporter, lambda folder: _write_stream(stream, folder / "rows.parquet"))


def _stream(data: Any) -> pa.RecordBatchReader:
    import pyarrow as pa

    if isinstance(data, pa.RecordBatchReader):
        return data
    if hasattr(data, "scanner"):  # a pyarrow dataset
        return data.scanner().to_reader()
    return pa.RecordBatchReader.from_stream(data)


def _write_stream(stream: pa.RecordBatchReader, place: Path) -> None:
    import pyarrow as pa

    from streamrf.data.writers.tables import group_rows, write_tables

    tables = (pa.Table.from_batches([batch]) for batch in stream)
    write_tables(place, stream.schema, tables, group_rows(stream.schema), lambda rows: None)


def _spilled(what: str, reporter: Reporter, write: Callable[[Path], object]) -> tuple[str, list[object]]:
    folder = tempfile.TemporaryDirectory(prefix="streamrf-")
    reporter.note(f"{what} is written to {folder.name} first, as it is read more than once")
    write(Path(folder.name))
    return folder.name, [folder]


def _spilled_parts(data: Any, reporter: Reporter) -> tuple[str, list[object]]:
    """A dask frame, one parquet file for each partition, one partition in memory at a time."""
    return _spilled("the dask frame", reporter, lambda folder: _write_parts(data, folder, reporter))


def _write_parts(data: Any, folder: Path, reporter: Reporter) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema: pa.Schema | None = None
    for number, part in enumerate(_parts(data)):
        table = pandas_table(part, reporter)
        if schema is not None and table.schema != schema:
            schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
            table = table.cast(schema)
        schema = schema or table.schema
        if len(table):
            pq.write_table(table, folder / f"part-{number:05}.parquet")


def _parts(data: Any) -> Iterator[Any]:
    for number in range(data.npartitions):
        yield data.get_partition(number).compute()


def pandas_table(frame: Any, reporter: Reporter) -> pa.Table:
    """A pandas frame as arrow, without its index; a column of objects of several types as text."""
    import pyarrow as pa

    names = [str(name) for name in frame.columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"the pandas frame has more than one column called '{twice}': names must be unique")
    columns = {}
    for place, name in enumerate(names):
        values = frame.iloc[:, place]
        try:
            columns[name] = pa.Array.from_pandas(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            texts = [None if missing else str(value) for value, missing in zip(values, values.isna(), strict=True)]
            columns[name] = pa.array(texts, pa.string())
            reporter.note(f"column '{name}' is read as text: its values are of several types")
    return pa.table(columns)
