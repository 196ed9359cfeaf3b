"""A table whose rows do not all count the same: the weights are another array, or another column, of the same rows."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from streamrf.data.pickling import StandIn
from streamrf.data.source import Block, Source, Span
from streamrf.support.errors import DataError


class Weighted(StandIn):
    """``table`` with weights read from ``weights``, a source of as many rows whose only target they are."""

    def __init__(self, table: Source, weights: Source, name: str) -> None:
        if weights.n_rows != table.n_rows:
            raise DataError(
                f"{weights.n_rows:,} weights do not go with {table.n_rows:,} rows: there must be one for each"
            )
        if weights.n_outputs != 1 or weights.y_dtype is None or weights.y_dtype.kind not in "biuf":
            raise DataError(f"weights are one number for each row, and '{name}' is not")
        super().__init__(table)
        self.has_weights, self.weights, self.name = True, weights, name

    def read_weights(self, span: Span) -> np.ndarray:
        weights = np.asarray(self.weights.read_targets(span), np.float64).reshape(len(span))
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(bad):
            raise DataError(
                f"row {span.start + int(bad[0])} has the weight {weights[bad[0]]} in '{self.name}': weights are numbers"
                " from 0 up, mend the data"
            )
        return weights

    def read(self, span: Span) -> Block:
        block = self.source.read(span)
        block.weights = self.read_weights(span)
        return block

    def read_bytes(self, span: Span) -> int:
        return self.source.read_bytes(span) + 16 * len(span)

    def block_bytes(self, span: Span) -> int:
        return self.source.block_bytes(span) + 8 * len(span)

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.source.fingerprint()}{self.weights.fingerprint()}".encode()).hexdigest()

    def spec(self) -> dict[str, Any]:
        return {"data": [self.source.spec()], "sample_weight": self.weights.spec()}

    def describe(self) -> str:
        return f"{self.source.describe()}, weighted by {self.name}"
