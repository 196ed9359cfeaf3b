"""Rows whose inputs are needed no more: their targets, weights and numbers come from memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streamrf.data.pickling import StandIn
from streamrf.data.screening import screen
from streamrf.data.source import Block, Source, Span

WEIGHT_BYTES = 8


class Remembered(StandIn):
    """The rows of a source that can be used. A span is remembered when it is read; once inputs are ``needless``, rows
    come without any, and from memory where their span was read before.
    """

    def __init__(self, source: Source, nan: str, needless: Callable[[], bool]) -> None:
        super().__init__(source)
        self._nan, self._needless = nan, needless
        self._rows: dict[Span, Block] = {}

    def read(self, span: Span) -> Block:
        needless = self._needless()
        if not needless or span not in self._rows:
            block, _ = screen(self.source.read(span), self._nan, self.source)
            self._rows[span] = _without_inputs(block)
        return self._rows[span] if needless else block

    @staticmethod
    def nbytes(source: Source) -> int:
        """What is remembered of all rows, in two ways to cut them into spans: that of passes and that of shuffling."""
        rows = Span(0, source.n_rows)
        inputs = source.n_rows * source.n_features * source.x_dtype.itemsize
        return 2 * (source.block_bytes(rows) - inputs + source.n_rows * WEIGHT_BYTES)


def _without_inputs(block: Block) -> Block:
    y, weights = (None if array is None else array.copy() for array in (block.y, block.weights))
    return Block(np.empty((len(block), 0), block.X.dtype), y, block.index.copy(), weights)
