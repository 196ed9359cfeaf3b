"""A source of nothing but row numbers: work that is counted, and not read."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.data.readers.memory import ArraySource


class CountingSource(ArraySource):
    """Rows 0, 1, 2, ... whose only feature is their number; each is a chunk of its own."""

    location = "numbered parts"

    def __init__(self, rows: int) -> None:
        numbers = np.arange(rows, dtype=np.float32)
        super().__init__(numbers[:, None], numbers, chunk_rows=1)

    def spec(self) -> dict[str, Any]:
        return {"data": self.n_rows}
