"""A Statistic is a recipe for a sum over rows; its State is the sum so far.

States form a commutative group under ``+=`` and ``-=``, bit for bit:

- the sum over two sets of rows is the sum of their states, in any order and in any grouping;
- subtracting a state undoes adding it.

Engines rely on nothing else.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Generic, Self, TypeVar

import numpy as np

from streamrf.data.source import Block
from streamrf.support.threads import Threads

PIECE_ROWS = 8192


class State(ABC):
    """Plain arrays that add and subtract."""

    @abstractmethod
    def __iadd__(self, other: Self) -> Self: ...

    @abstractmethod
    def __isub__(self, other: Self) -> Self: ...

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """The state as named arrays, views where possible: what is written to disk, sent to a worker, digested."""

    def digest(self) -> str:
        """SHA-256 of names, types, shapes and bytes: equal digests mean equal bits."""
        sha = hashlib.sha256()
        for name, array in sorted(self.arrays().items()):
            sha.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()


class CountedState(State):
    """A state that knows how many rows are in it."""

    rows: int


S = TypeVar("S", bound=State)


class Statistic(ABC, Generic[S]):
    """How a block of rows enters a state."""

    @property
    def piece_rows(self) -> int:
        """Rows it is given at a time: between two of them the run can be saved or stopped."""
        return PIECE_ROWS

    @abstractmethod
    def zero(self) -> S:
        """The state of no rows."""

    @abstractmethod
    def update(self, state: S, block: Block, threads: Threads) -> None:
        """Add the rows of ``block`` to ``state`` in place."""

    @abstractmethod
    def load(self, arrays: dict[str, np.ndarray]) -> S:
        """The state that ``state.arrays()`` described; a wrong name, type or shape is a FileFormatError."""

    def nbytes(self) -> int:
        """Size of one state, known before there is one."""
        return sum(array.nbytes for array in self.zero().arrays().values())
