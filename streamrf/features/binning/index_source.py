"""A source of slots that stands in for the data, row for row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamrf.data.screening import screen
from streamrf.data.source import Block, Source, Span
from streamrf.data.wrappers import SourceWrapper
from streamrf.features.binning.index_cache import Kept
from streamrf.features.binning.indexer import SlotMaker, maker_of
from streamrf.support.errors import InputError


class SlotSource(SourceWrapper):
    """The rows of a source with their slots (n, P) in place of inputs, and no targets. Rows that cannot be used are
    left out already. A block's X is the transposed of an array (P, n), which is what the sums want."""

    def __init__(self, source: Source, maker: SlotMaker) -> None:
        super().__init__(source)
        self.maker, self.n_features, self.n_outputs, self.has_weights = maker, maker.map.grids, 0, False
        self.x_dtype, self.y_dtype, self.feature_names = np.dtype(np.uint32), None, None

    def read(self, span: Span) -> Block:
        parts = [self._part(part, kept) for part, kept in self.maker.cache.parts(span)]
        slots, index = parts[0] if len(parts) == 1 else (np.concatenate(each, -1) for each in zip(*parts, strict=True))
        return Block(slots.T, None, index)

    def _part(self, span: Span, kept: Kept | None) -> tuple[np.ndarray, np.ndarray]:
        if kept is not None:
            return kept.part(span)
        block, dropped = screen(self.source.read(span), self.maker.nan, self.source)
        slots = self.maker.make(block.X)
        self.maker.cache.put(span, slots, block.index if dropped else None)
        return slots, block.index

    def read_targets(self, span: Span) -> np.ndarray:
        raise InputError("slots have no targets")

    def spec(self) -> dict[str, Any]:
        return {"data": {"slots": self.maker.key, "of": self.source.spec()}}

    def describe(self) -> str:
        return f"slots of {self.source.describe()}"


def reopen(spec: Mapping[str, Any]) -> SlotSource:
    """The source that ``spec()["data"]`` described, in a process that has met a statistic of the same run."""
    from streamrf.data.open import open_source

    return SlotSource(open_source(**spec["of"]), maker_of(spec["slots"]))
