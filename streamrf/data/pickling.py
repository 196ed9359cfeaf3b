"""A source that stands in for another, row for row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamrf.data.source import Block, Source, Span


class StandIn(Source):
    """Whatever a subclass does not do in its own way, the source does that it stands in for.

    It is read in the spans of that source, so ``read_bytes`` is that of the source too unless more is read.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.n_rows, self.n_features, self.n_outputs = source.n_rows, source.n_features, source.n_outputs
        self.x_dtype, self.y_dtype, self.feature_names = source.x_dtype, source.y_dtype, source.feature_names
        self.columns, self.target_names, self.has_weights = source.columns, source.target_names, source.has_weights
        self.picks_columns = source.picks_columns
        self.location = getattr(source, "location", "the data")

    @property
    def unknown_levels(self) -> Mapping[str, int]:
        return self.source.unknown_levels

    def chunks(self) -> tuple[Span, ...]:
        return self.source.chunks()

    def read(self, span: Span) -> Block:
        return self.source.read(span)

    def read_targets(self, span: Span) -> np.ndarray:
        return self.source.read_targets(span)

    def read_weights(self, span: Span) -> np.ndarray:
        return self.source.read_weights(span)

    def read_bytes(self, span: Span) -> int:
        return self.source.read_bytes(span)

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    def spec(self) -> dict[str, Any]:
        return self.source.spec()

    def describe(self) -> str:
        return self.source.describe()

    def has_partial_reads(self) -> bool:
        return self.source.has_partial_reads()

    def shards(self) -> tuple[Span, ...]:
        return self.source.shards()

    def first_array(self) -> Source | None:
        return self.source.first_array()

    def members(self) -> tuple[Source, ...]:
        return self.source.members()
