"""Features kept between passes, where memory allows: made once, and the same bits as if they were made again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

NO_ROWS = np.zeros(0, np.int64)


class KeptFeatures:
    """The features of every row of a source, by the row's number, as they come to be made.

    Rows that are never summed with the others (``apart``, their numbers in order) lie behind them, so that those of a
    pass lie side by side. Threads put and take different rows: nothing is locked. Memory is taken when rows are put.
    """

    def __init__(self, rows: int, width: int, dtype: np.dtype, apart: np.ndarray = NO_ROWS) -> None:
        self._features = np.empty((rows, width), dtype)
        self._there = np.zeros(rows, bool)
        self._apart, self._first_apart = apart, rows - len(apart)

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
        places = self._places(index)
        if not self._there[places].all():
            return None
        whole = self._run(places)
        return np.take(self._features, places, axis=0, out=room[: len(index)], mode="clip") if whole is None else whole

    def side_by_side(self, index: np.ndarray) -> np.ndarray | None:
        """The features of these rows where they lie; None where they do not lie in this order, or are not there."""
        places = self._places(index)
        whole = self._run(places)
        return whole if whole is not None and self._there[places[0] : places[-1] + 1].all() else None

    def _run(self, places: np.ndarray) -> np.ndarray | None:
        first, last = int(places[0]), int(places[-1])
        if last - first != len(places) - 1 or (np.diff(places) != 1).any():
            return None
        return self._features[first : last + 1]

    def holds(self, index: np.ndarray) -> bool:
        """Whether the features of all of these rows are there."""
        return bool(self._there[self._places(index)].all())

    @property
    def summed(self) -> int:
        """How many rows are there, without those apart."""
        return int(np.count_nonzero(self._there[: self._first_apart]))

    def put(self, index: np.ndarray, features: np.ndarray) -> None:
        places = self._places(index)
        self._features[places] = features[: len(index)]
        self._there[places] = True

    def _places(self, index: np.ndarray) -> np.ndarray:
        if not len(self._apart):
            return index
        before = np.searchsorted(self._apart, index)  # rows apart with a lower number
        is_apart = self._apart[np.minimum(before, len(self._apart) - 1)] == index
        return np.where(is_apart, self._first_apart + before, index - before)

    @staticmethod
    def nbytes(rows: int, D: int, item: int) -> int:
        numbers = 8  # of rows apart: all of them, at most
        return rows * ((D + 64) * item + 1 + numbers)
