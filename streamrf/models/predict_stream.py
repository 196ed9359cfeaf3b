"""The rows of a stream, block by block as they come, in constant memory.

Apart from ``predict`` because it needs pyarrow, which is slow to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from streamrf.data.columns import Columns
from streamrf.data.columns.encoding import Encoder
from streamrf.data.readers.base import Arrived
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

    def __init__(self, model: Model, tables: Iterable[Arrived], where: str) -> None:
        self._model, self._tables, self._where = model, tables, where
        columns = stream_columns(model)
        self._encoder = None if columns is None else Encoder(columns)

    @property
    def unknown(self) -> dict[str, int]:
        return {} if self._encoder is None else dict(self._encoder.unknown)

    def __iter__(self) -> Iterator[Block]:
        rows = 0
        for arrived in self._tables:
            X = self._features(arrived)
            yield Block(X, None, np.arange(rows, rows + len(X)))
            rows += len(X)

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
