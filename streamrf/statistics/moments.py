"""Mean, variance and range of every column in one pass, without rounding and in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from streamrf.data.source import Block
from streamrf.statistics.base import State, Statistic
from streamrf.support import exact_sum
from streamrf.support.errors import DataError, FileFormatError
from streamrf.support.threads import Threads

_ROWS_PER_TASK = 4096  # fewer are not worth a thread


@dataclass
class ColumnSums(State):
    """How many rows there are, and the exact sums of each column and of its squares."""

    rows: int
    sums: np.ndarray  # (d, limbs) int64
    squares: np.ndarray

    def __iadd__(self, other: ColumnSums) -> Self:
        self.rows += other.rows
        self.sums += other.sums
        self.squares += other.squares
        return self._carried()

    def __isub__(self, other: ColumnSums) -> Self:
        self.rows -= other.rows
        self.sums -= other.sums
        self.squares -= other.squares
        return self._carried()

    def _carried(self) -> Self:
        exact_sum.carry(self.sums)
        exact_sum.carry(self.squares)
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "moments.rows": np.array([self.rows], dtype=np.int64),
            "moments.sums": self.sums,
            "moments.squares": self.squares,
        }


@dataclass
class MomentsState(State):
    """Exact sums, which add and subtract, and the range of each column, which only adds.

    A maximum cannot be taken back: after ``-=`` the minimum, the maximum and ``binary`` are those of all rows ever
    seen, bounds for the rows that remain. The digest is that of the sums alone, where subtraction undoes addition.
    """

    exact: ColumnSums
    minimum: np.ndarray  # (d,) float64, +inf of no rows
    maximum: np.ndarray  # (d,) float64, -inf of no rows
    binary: np.ndarray  # (d,) bool: nothing but 0 and 1 was seen

    def __iadd__(self, other: MomentsState) -> Self:
        self.exact += other.exact
        np.minimum(self.minimum, other.minimum, out=self.minimum)
        np.maximum(self.maximum, other.maximum, out=self.maximum)
        self.binary &= other.binary
        return self

    def __isub__(self, other: MomentsState) -> Self:
        self.exact -= other.exact
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return self.exact.arrays() | {
            "moments.minimum": self.minimum,
            "moments.maximum": self.maximum,
            "moments.binary": self.binary,
        }

    def digest(self) -> str:
        return self.exact.digest()

    @property
    def rows(self) -> int:
        return self.exact.rows

    @property
    def mean(self) -> np.ndarray:
        """The mean of each column, correctly rounded."""
        self._need_rows()
        return exact_sum.column_means(self.exact.sums, self.rows)

    @property
    def variance(self) -> np.ndarray:
        """The mean squared deviation of each column, correctly rounded; 0 exactly where all values are equal."""
        self._need_rows()
        return exact_sum.column_variances(self.exact.sums, self.exact.squares, self.rows)

    @property
    def std(self) -> np.ndarray:
        """The root of the variance, also where the variance itself is out of float64's range."""
        self._need_rows()
        return exact_sum.column_deviations(self.exact.sums, self.exact.squares, self.rows)

    def _need_rows(self) -> None:
        if self.rows <= 0:
            raise DataError(f"moments need at least 1 row; there are {self.rows}")


@dataclass
class Moments(Statistic[MomentsState]):
    """How rows enter the moments of their columns."""

    n_features: int

    def zero(self) -> MomentsState:
        d = self.n_features
        exact = ColumnSums(0, exact_sum.zero_sums(d), exact_sum.zero_squares(d))
        return MomentsState(exact, np.full(d, np.inf), np.full(d, -np.inf), np.ones(d, dtype=bool))

    def update(self, state: MomentsState, block: Block, threads: Threads) -> None:
        if block.weights is not None:  # rows that weigh nothing are not there
            block = block.take(block.weights > 0)
        pieces = [piece for piece in np.array_split(block.X, self._tasks(len(block), threads)) if len(piece)]
        partials = [self.zero() for _ in pieces]
        threads.each(lambda k: _add_rows(partials[k], pieces[k]), range(len(pieces)))
        for partial in partials:
            state += partial

    def _tasks(self, rows: int, threads: Threads) -> int:
        return max(1, min(threads.count, rows // _ROWS_PER_TASK))

    def load(self, arrays: dict[str, np.ndarray]) -> MomentsState:
        wanted = self.zero().arrays()
        for name, like in wanted.items():
            found = arrays.get(name)
            if found is None or found.shape != like.shape or found.dtype != like.dtype:
                what = "nothing" if found is None else f"{found.dtype} {found.shape}"
                raise FileFormatError(f"damaged moments: {name} should be {like.dtype} {like.shape}, and is {what}")
        rows, sums, squares, minimum, maximum, binary = (arrays[name].copy() for name in wanted)
        return MomentsState(ColumnSums(int(rows[0]), sums, squares), minimum, maximum, binary)


def moments_of(X: np.ndarray) -> MomentsState:
    """The moments of an array in memory."""
    state = Moments(X.shape[1]).zero()
    if len(X):
        _add_rows(state, X)
    return state


def _add_rows(state: MomentsState, X: np.ndarray) -> None:
    """Add at least one row to a state of none."""
    X = exact_sum.as_floats(X)
    exact_sum.add_columns(state.exact.sums, X)
    exact_sum.add_column_squares(state.exact.squares, X)
    state.exact.rows = len(X)
    state.minimum[:], state.maximum[:], state.binary[:] = exact_sum.column_ranges(X)
