"""Predictions of rows as they come, a block at a time, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from streamrf.data.columns import Columns
from streamrf.data.columns.encoding import Encoder
from streamrf.data.readers.base import Arrived
from streamrf.data.source import Block
from streamrf.models.model import Model
from streamrf.models.predict import predictions
from streamrf.support.errors import DataError
from streamrf.support.threads import Threads


class Rows(Protocol):
    """Where predictions go."""

    def write(self, start: int, block: dict[str, np.ndarray]) -> None: ...


def stream_columns(model: Model) -> Columns | None:
    """What a stream must have, by name; None where the model knows no names and takes columns by place."""
    if model.columns is not None:
        return model.columns
    return None if model.feature_names is None else Columns.of_numbers(list(model.feature_names))


class StreamPredictor:
    """Turns tables into predictions; ``unknown`` counts levels that training had not seen."""

    def __init__(self, model: Model, threads: Threads, *, proba: bool, where: str) -> None:
        self._model, self._threads, self._proba, self._where = model, threads, proba, where
        columns = stream_columns(model)
        self._encoder = None if columns is None else Encoder(columns)

    @property
    def unknown(self) -> dict[str, int]:
        return {} if self._encoder is None else dict(self._encoder.unknown)

    def run(self, tables: Iterable[Arrived], out: Rows) -> int:
        """Predict for all that comes; the number of rows."""
        done = 0
        for arrived in tables:
            X = self._features(arrived)
            block = Block(X, None, np.arange(done, done + len(X)))
            out.write(done, predictions(self._model, block, self._threads, self._proba))
            done += len(X)
        return done

    def _features(self, arrived: Arrived) -> np.ndarray:
        table = arrived.table
        if self._encoder is None:
            self._encoder = Encoder(self._by_place(table.column_names))
        self._encoder.check(table.schema, self._where)
        X = np.empty((len(table), self._encoder.columns.width), self._encoder.columns.dtype)
        self._encoder.encode(table, X)
        self._refuse_missing(X, arrived)
        return X

    def _by_place(self, names: list[str]) -> Columns:
        if len(names) != self._model.n_inputs:
            raise DataError(
                f"{self._where} has {len(names)} columns, and the model was trained on {self._model.n_inputs}, which"
                " have no names: give exactly these, in their order"
            )
        return Columns.of_numbers(names)

    def _refuse_missing(self, X: np.ndarray, arrived: Arrived) -> None:
        bad = ~np.isfinite(X)
        if bad.any():
            row, place = np.argwhere(bad)[0]
            name = self._encoder.columns.feature_names[place]  # type: ignore[union-attr]
            raise DataError(
                f"{arrived.unit} {arrived.first + row:,} of {self._where} has {X[row, place]} for '{name}':"
                " every prediction needs all of its inputs"
            )
