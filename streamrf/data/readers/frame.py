"""What a table with named columns looks like: a schema, and batches in row order as often as one asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any


class Frame(ABC):
    """A table whose columns may be of any type. Reading is from first row to last; each ``batches`` starts anew."""

    location: str  # what messages call it
    schema: Any  # of arrow
    n_rows: int | None = None  # None where only reading to the end would tell

    @abstractmethod
    def batches(self, names: list[str]) -> Iterator[Any]:
        """Arrow batches of these columns, a few megabytes each."""

    def origin(self, name: str) -> str:
        """What else is known about a column, for messages about it: a half sentence, or nothing."""
        return ""


class FirstRows(Frame):
    """The first rows of another frame, in whole batches."""

    def __init__(self, frame: Frame, rows: int) -> None:
        self._frame, self._rows = frame, rows
        self.location, self.schema = frame.location, frame.schema
        self.n_rows = rows if frame.n_rows is None else min(rows, frame.n_rows)

    def batches(self, names: list[str]) -> Iterator[Any]:
        done = 0
        for batch in self._frame.batches(names):
            yield batch
            done += len(batch)
            if done >= self._rows:
                return

    def origin(self, name: str) -> str:
        return self._frame.origin(name)
