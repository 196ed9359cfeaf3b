"""The rows of a stream, block by block as they come, in constant memory.

Apart from ``predict`` because it needs pyarrow, which is slow to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from streamrf.data.columns import Columns
from streamrf.data.columns.encoding import Encoder
from streamrf.data.columns.learning import TEXT
from streamrf.data.readers.base import Arrived
from streamrf.data.readers.columns import kept_names, kept_values
from streamrf.data.source import Block
from streamrf.models.model import Model
from streamrf.support.errors import DataError


def stream_columns(model: Model) -> Columns | None:
    """The columns a stream must have, by name; None where the model knows no names and takes columns by position."""
    if model.columns is not None:
        return model.columns
    return None if model.feature_names is None else Columns.of_numbers(list(model.feature_names))


class StreamBlocks:
    """Turns the tables of a stream into blocks of rows; ``unknown`` counts levels that training had not seen."""

    def __init__(self, model: Model, tables: Iterable[Arrived], where: str, keep: Sequence[str] = ()) -> None:
        self._model, self._tables, self._where = model, iter(tables), where
        self._arrived: Arrived | None = None
        self.types: list[tuple[str, np.dtype]] = []
        if keep:  # the first rows tell which columns there are
            self._arrived = next(self._tables, None)
            known = [] if self._arrived is None else _raw(self._arrived).column_names
            self.types = [(name, TEXT) for name in kept_names(keep, known, where)]
        columns = stream_columns(model)
        self._encoder = None if columns is None else Encoder(columns)

    @property
    def unknown(self) -> dict[str, int]:
        return {} if self._encoder is None else dict(self._encoder.unknown)

    def __iter__(self) -> Iterator[Block]:
        rows = 0
        first = [] if self._arrived is None else [self._arrived]
        for arrived in chain(first, self._tables):
            self._arrived = arrived
            X = self._features(arrived)
            yield Block(X, None, np.arange(rows, rows + len(X)))
            rows += len(X)

    def rows(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """The columns to keep of the block that came last."""
        assert self._arrived is not None
        table = _raw(self._arrived)
        return {name: kept_values(table.column(name), dtype) for name, dtype in self.types}

    def _features(self, arrived: Arrived) -> np.ndarray:
        table = arrived.table
        if self._encoder is None:
            self._encoder = Encoder(self._by_position(table.column_names))
        self._encoder.check(table.schema, self._where)
        columns = self._encoder.columns
        X = np.empty((len(table), columns.width), columns.dtype)
        self._encoder.encode(table, X)
        bad = ~np.isfinite(X)
        if bad.any():
            row, place = np.argwhere(bad)[0]
            raise DataError(
                f"{arrived.unit} {arrived.first + row:,} of {self._where} has {X[row, place]} for"
                f" '{columns.feature_names[place]}': every prediction needs all of its inputs"
            )
        return X

    def _by_position(self, names: list[str]) -> Columns:
        if len(names) != self._model.n_inputs:
            raise DataError(
                f"{self._where} has {len(names)} columns, and the model was trained on {self._model.n_inputs}, which"
                " have no names: give exactly these, in their order"
            )
        return Columns.of_numbers(names)


def _raw(arrived: Arrived) -> pa.Table:
    return arrived.table if arrived.raw is None else arrived.raw
