"""A table of this process: an arrow table whose columns are chosen by name and coded as those of parquet are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from streamrf.data.columns import Choice
from streamrf.data.columns.learning import check_unique
from streamrf.data.readers.arrays import as_targets
from streamrf.data.readers.base import BatchReader
from streamrf.data.readers.columns import ColumnSource, RowGroup
from streamrf.data.readers.parquet import BATCH_ROWS
from streamrf.data.source import Block, Span, Spec, even_spans
from streamrf.support.errors import InputError
from streamrf.support.progress import Reporter

GROUP_ROWS = 1 << 16


class MemoryTable:
    """An arrow table, and what messages call it. ``targets`` are the values of targets that are no column of it."""

    def __init__(self, table: pa.Table, name: str, targets: np.ndarray | None = None) -> None:
        self.table, self.names = table, [name]
        self.targets = targets
        spans = even_spans(len(table), GROUP_ROWS)
        self.groups = tuple(RowGroup(0, i, span) for i, span in enumerate(spans))

    def schemas(self) -> list[pa.Schema]:
        return [self.table.schema]

    def touched(self, span: Span) -> list[RowGroup]:
        return [group for group in self.groups if group.rows.start < span.stop and span.start < group.rows.stop]

    def batches(self, span: Span, names: list[str], batch_rows: int) -> Iterator[tuple[Span, pa.RecordBatch]]:
        done = 0
        for batch in self.table.select(names).slice(span.start, len(span)).to_batches(max_chunksize=batch_rows):
            yield Span(done, done + len(batch)), batch
            done += len(batch)

    def nullable(self, names: Collection[str]) -> set[str]:
        return {name for name in names if self.table.column(name).null_count}

    def stored_bytes(self, group: RowGroup, names: Collection[str]) -> int:
        return 0  # it is in memory already


class TableSource(ColumnSource):
    """An arrow table in memory; rows are coded as they are read."""

    def __init__(self, table: MemoryTable, choice: Choice) -> None:
        super().__init__(table.names[0], table, choice)
        self._given = table.targets
        if self._given is not None:
            self.n_outputs = 1 if self._given.ndim == 1 else self._given.shape[1]
            self.y_dtype = np.dtype("U") if self._given.dtype.kind in "OU" else self._given.dtype

    def read(self, span: Span) -> Block:
        block = super().read(span)
        return block if self._given is None else replace(block, y=self._targets(span))

    def _targets(self, span: Span) -> np.ndarray:
        if self._given is None:
            return super()._targets(span)
        assert self.y_dtype is not None
        return as_targets(self._given[span.start : span.stop], self.y_dtype, "y")

    def has_partial_reads(self) -> bool:
        return True

    def spec(self) -> Spec:
        raise InputError(f"{self.location} cannot be opened by another process: store it as parquet and give the path")

    def _format(self) -> str:
        return "table"


def pandas_table(frame: Any, reporter: Reporter) -> pa.Table:
    """A pandas frame as arrow, without its index; a column of objects of several types as text."""
    names = [str(name) for name in frame.columns]
    check_unique(names, "the pandas frame")
    columns = {}
    for place, name in enumerate(names):
        values = frame.iloc[:, place]
        try:
            columns[name] = pa.Array.from_pandas(values)
        except pa.ArrowNotImplementedError:
            reporter.note(f"left out: '{name}' is of type {values.dtype}, which is neither a number nor text")
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # of several types, or wider than 64 bits
            texts = [None if missing else str(value) for value, missing in zip(values, values.isna(), strict=True)]
            columns[name] = pa.array(texts, pa.string())
            reporter.note(f"column '{name}' is read as text: its values are of several types, or too large")
    return pa.table(columns)


class TableBatches(BatchReader):
    """The same table as batches of raw columns."""

    def __init__(self, table: MemoryTable) -> None:
        self._table, self.location = table.table, table.names[0]
        self.schema, self.n_rows = table.table.schema, len(table.table)

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        yield from self._table.select(names).to_batches(max_chunksize=BATCH_ROWS)
