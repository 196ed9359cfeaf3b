"""Features kept between passes, where memory allows: made once, and the same bits as if they were made again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class KeptFeatures:
    """The features of every row of a source, by the row's number, as they come to be made.

    Threads put and take different rows, so nothing is locked. Memory is taken when rows are put.
    """

    def __init__(self, rows: int, width: int, dtype: np.dtype) -> None:
        self._features = np.empty((rows, width), dtype)
        self._there = np.zeros(rows, bool)

    def of(self, index: np.ndarray, room: np.ndarray, make: Callable[[np.ndarray], None]) -> np.ndarray:
        """The features of these rows: kept, or made now, in ``room``, and kept from now on."""
        kept = self.take(index, room)
        if kept is not None:
            return kept
        make(room)
        self.put(index, room)
        return room

    def take(self, index: np.ndarray, room: np.ndarray) -> np.ndarray | None:
        """The features of these rows, in ``room`` unless they lie side by side; None where some are not there yet."""
        if not self.holds(index):
            return None
        first, count = int(index[0]), len(index)
        if int(index[-1]) - first == count - 1 and (np.diff(index) == 1).all():
            return self._features[first : first + count]
        return np.take(self._features, index, axis=0, out=room[:count], mode="clip")

    def holds(self, index: np.ndarray) -> bool:
        """Whether the features of all of these rows are there."""
        return bool(self._there[index].all())

    def put(self, index: np.ndarray, features: np.ndarray) -> None:
        self._features[index] = features[: len(index)]
        self._there[index] = True

    @staticmethod
    def nbytes(rows: int, D: int, item: int) -> int:
        return rows * ((D + 64) * item + 1)
