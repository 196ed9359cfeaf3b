"""What a table of numbers looks like while it is converted: sizes and types known, rows from first to last."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from streamrf.data.columns.document import Columns
from streamrf.data.source import Source, Span

Rows = tuple[np.ndarray, np.ndarray | None]  # X (n, d), and y (n,) or (n, k) where there are targets


class Matrix(ABC):
    """Inputs X and perhaps targets y, read one after the other."""

    location: str
    n_rows: int
    n_features: int
    n_outputs: int = 0
    x_dtype: np.dtype
    y_dtype: np.dtype | None = None  # np.dtype("U") for text of whatever width
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    columns: Columns | None = None

    @abstractmethod
    def blocks(self, rows: int) -> Iterator[Rows]:
        """Rows in order, at most about so many at a time."""


class SourceMatrix(Matrix):
    """A source that is cut anew: zarr of other chunks, npy."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.location = getattr(source, "location", "the data")
        self.n_rows, self.n_features, self.n_outputs = source.n_rows, source.n_features, source.n_outputs
        self.x_dtype, self.y_dtype = source.x_dtype, source.y_dtype
        self.feature_names, self.target_names, self.columns = source.feature_names, source.target_names, source.columns

    def blocks(self, rows: int) -> Iterator[Rows]:
        for chunk in self._source.chunks():
            step = rows if self._source.has_partial_reads() else len(chunk)
            for start in range(chunk.start, chunk.stop, step):
                block = self._source.read(Span(start, min(start + step, chunk.stop)))
                yield block.X, block.y
