"""A table whose rows are held out by a column: groups of it stay together, or its order decides.

The column may be one of the features or beside them. For an order, what its last rows are is found by reading the
column once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from streamrf.data.locations import persistently
from streamrf.data.partitions import is_collection
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Partition, Source, Span, Spec, work_spans
from streamrf.data.split import GROUP, ORDER, Split, from_ordered, group_keys, ordered
from streamrf.data.wrappers import SourceWrapper
from streamrf.support.errors import DataError, InputError

READ_ROWS, READ_BYTES = 1 << 20, 1 << 28


class Keyed(SourceWrapper):
    """``table`` with the key of each row, from a column: a source whose only target it is, or a column of X by number.

    ``after``: rows with a larger value judge, where the column is an order.
    """

    def __init__(
        self, table: Source, column: Source | int, name: str, key: str = GROUP, after: float | None = None
    ) -> None:
        super().__init__(table)
        self.column, self.name, self.holdout_key, self.after = column, name, key, after
        if isinstance(column, int):
            if not 0 <= column < table.n_features:
                raise InputError(f"column {column} to hold rows out by must be from 0 to {table.n_features - 1}")
            return
        if column.n_rows != table.n_rows:
            raise DataError(f"'{name}' has {column.n_rows:,} rows and the table {table.n_rows:,}: both must be equal")
        if column.n_outputs != 1:
            raise InputError(f"'{name}' must be one column to hold rows out by, and has {column.n_outputs}")

    def read(self, span: Span) -> Block:
        block = self.source.read(span)
        values = block.X[:, self.column] if isinstance(self.column, int) else self.column.read_targets(span)
        return replace(block, key=self._keys(np.asarray(values), span))

    def _keys(self, values: np.ndarray, span: Span) -> np.ndarray:
        if self.holdout_key == GROUP:
            return group_keys(values)
        if values.dtype.kind not in "biuf":
            raise DataError(f"'{self.name}' must hold numbers or dates to hold out its last rows, and holds text")
        bad = np.flatnonzero(~np.isfinite(values.astype(np.float64)))
        if len(bad):
            raise DataError(
                f"row {span.start + int(bad[0])} has no '{self.name}': every row must have one, fix the data"
            )
        return ordered(values)

    def partitions(self, span: Span, *, targets_only: bool = False) -> Iterable[Partition]:
        beside = () if isinstance(self.column, int) else self.column.partitions(span, targets_only=True)
        return (*self.source.partitions(span, targets_only=targets_only), *beside)

    def read_bytes(self, span: Span) -> int:
        return self.source.read_bytes(span) + 24 * len(span)

    def block_bytes(self, span: Span) -> int:
        return self.source.block_bytes(span) + 8 * len(span)

    def fingerprint(self) -> str:
        column = str(self.column) if isinstance(self.column, int) else self.column.fingerprint()
        return hashlib.sha256(f"{self.source.fingerprint()}{column}{self.holdout_key}{self.after}".encode()).hexdigest()

    def spec(self) -> Spec:
        column = self.column if isinstance(self.column, int) else self.column.spec()
        if self.holdout_key == GROUP:
            return {"data": [self.source.spec()], "holdout_by": column}
        return {"data": [self.source.spec()], "holdout_after": [column, self.after]}

    def bounds(self, split: Split) -> tuple[Split, int]:
        """The split with the values from which on rows judge and choose, and how many rows do either. Rows of one value
        stay together."""
        keys = np.empty(self.n_rows, np.uint64)
        for span in work_spans(self, READ_ROWS, READ_BYTES):
            keys[span.start : span.stop] = self._column_keys(span)
        keys.sort()  # in place: the plan has room for one copy
        n = len(keys)
        if self.after is not None:
            judges = n - int(np.searchsorted(keys, ordered(np.array([self.after]))[0], "right"))
            if not judges:
                raise InputError(f"no row has '{self.name}' after {self.after:g}: give a smaller value")
        else:
            judges = n - int(np.searchsorted(keys, keys[n - max(1, math.ceil(split.judge * n))], "left"))
        chosen = min(n, judges + max(1, math.ceil(split.choose * n)))
        held = n - int(np.searchsorted(keys, keys[n - chosen], "left"))
        if n - held < 2:
            raise InputError(
                f"{held:,} of {n:,} rows would be held out by '{self.name}': at least two must be left to fit, so give"
                " a larger value or a column with more distinct values"
            )
        first = from_ordered(int(keys[n - judges]))
        return replace(split, key=ORDER, judge_from=first, choose_from=from_ordered(int(keys[n - held]))), held

    def _column_keys(self, span: Span) -> np.ndarray:
        if isinstance(self.column, int):
            key = persistently(self.read, span).key
            assert key is not None
            return key
        return self._keys(np.asarray(persistently(self.column.read_targets, span)), span)


def array_column(values: object, table: Source) -> Source:
    """A column in memory, as a source; beside a dask collection, or of dask itself, as another one."""
    if is_collection(values) or any(True for _ in table.partitions(Span(0, table.n_rows))):
        from streamrf.data.readers.collections import column_of

        return column_of(values)
    values = np.asarray(values)
    return ArraySource(np.zeros((len(values), 1), np.float32), values)


def as_number(value: object) -> float:
    """A number, or the days since 1970 of a date."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    try:
        return float(np.datetime64(str(value), "us").astype(np.int64)) / 86_400e6
    except ValueError:
        raise InputError(f"the value to hold rows out after must be a number or a date, not {value!r}") from None
