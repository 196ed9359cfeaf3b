"""A batch of ``partial_fit``: rows that count as new, even if equal rows have come before."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from streamrf.data.source import Block, Source, Span


class Batch(Source):
    """A source under a fingerprint of its own, so that the ledger takes two equal batches for two."""

    def __init__(self, source: Source, number: int) -> None:
        self._source, self._number = source, number
        self.n_rows, self.n_features, self.n_outputs = source.n_rows, source.n_features, source.n_outputs
        self.x_dtype, self.y_dtype, self.feature_names = source.x_dtype, source.y_dtype, source.feature_names
        self.columns, self.target_names = source.columns, source.target_names
        self.columns, self.target_names = source.columns, source.target_names

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self._source.fingerprint()} in batch {self._number}".encode()).hexdigest()

    def members(self) -> tuple[Source, ...]:
        parts = self._source.members()
        return (self,) if len(parts) == 1 else tuple(Batch(part, self._number) for part in parts)

    def chunks(self) -> tuple[Span, ...]:
        return self._source.chunks()

    def shards(self) -> tuple[Span, ...]:
        return self._source.shards()

    def read(self, span: Span) -> Block:
        return self._source.read(span)

    def read_targets(self, span: Span) -> np.ndarray:
        return self._source.read_targets(span)

    def read_bytes(self, span: Span) -> int:
        return self._source.read_bytes(span)

    def has_partial_reads(self) -> bool:
        return self._source.has_partial_reads()

    def spec(self) -> dict[str, Any]:
        return self._source.spec()

    def describe(self) -> str:
        return f"batch {self._number} of {self._source.describe()}"
