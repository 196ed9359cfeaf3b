"""The normal equations of random binning as passes over rows: counts, Z'Y, and (Z'Z) V without forming Z'Z.

A table holds a value for each output, grid and bucket, (k, P, buckets). Conjugate gradients see the m occupied buckets
alone, (k, m). Directions are rounded to integers so small that a row's sum over grids fits 32 bits; sums over rows take
64: every pass is exact, and the same in any order and on any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from streamrf.features.binning.layout import Layout
from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.errors import DataError, MismatchError, NumericalError
from streamrf.support.threads import Threads

_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOWEST, _HIGHEST = np.float32(-(2.0**30)), np.float32(2.0**30)  # beyond them every cell is the same one
GRAIN = 1 << 17  # additions that are worth handing to another thread
ROWS_HASHED = 512  # rows hashed at once: their columns and hashes stay in the first caches


@inner_kernel
def _add_column(
    x: np.ndarray, shift: np.float32, inverse: np.float32, a: np.uint32, b: np.uint32, low: np.ndarray, high: np.ndarray
) -> None:
    """Mix the cells of one column into both halves of the hashes: one multiplication a half, eight rows at a time."""
    for r in range(low.shape[0]):
        cell = np.uint32(np.int32(min(max(np.floor((x[r] - shift) * inverse), _LOWEST), _HIGHEST)))
        low[r] += cell * a
        high[r] += cell * b


@inner_kernel
def _finish(low: np.ndarray, high: np.ndarray, bits: int, out: np.ndarray) -> None:
    """The top bits of the mixed 64-bit hashes."""
    drop = np.uint64(64 - bits)
    for r in range(low.shape[0]):
        out[r] = (((np.uint64(high[r]) << _HALF) | np.uint64(low[r])) * _MIX) >> drop


@kernel
def hash_rows(
    X: np.ndarray, start: int, stop: int, starts: np.ndarray, columns: np.ndarray, shifts: np.ndarray,
    inverses: np.ndarray, lows: np.ndarray, highs: np.ndarray, bits: int, turned: np.ndarray, sums: np.ndarray,
    out: np.ndarray,
) -> None:  # fmt: skip
    """Bin indices (or, with 64 bits, whole hashes) of rows ``start`` to ``stop`` in every grid, into ``out`` (P, n).

    So many rows at once as there is room in ``turned`` (d, rows), for columns, and in ``sums`` (2, rows), for hashes.
    """
    most = turned.shape[1]
    for first in range(start, stop, most):
        rows = min(most, stop - first)
        for r in range(rows):
            for j in range(X.shape[1]):
                turned[j, r] = X[first + r, j]
        low, high = sums[0, :rows], sums[1, :rows]
        for p in range(starts.shape[0] - 1):
            for r in range(rows):
                low[r] = 0
                high[r] = 0
            for k in range(starts[p], starts[p + 1]):
                _add_column(turned[columns[k], :rows], shifts[k], inverses[k], lows[k], highs[k], low, high)
            _finish(low, high, bits, out[p, first : first + rows])


@kernel
def look_up(
    indices: np.ndarray, table: np.ndarray, starts: np.ndarray, high: np.ndarray, start: int, stop: int, out: np.ndarray
) -> None:
    """``out[r] = sum over grids of table[starts[p] + indices[p, r]]``; grid after grid: one at a time is in cache."""
    out[start:stop] = 0
    for p in range(high.shape[0]):
        grid = table[starts[p] : starts[p + 1]]
        row, up, mask = high[p, 0], high[p, 1], high[p, 2]
        if row < 0:
            for r in range(start, stop):
                out[r] += grid[indices[p, r]]
        else:
            for r in range(start, stop):
                out[r] += grid[np.int64(indices[p, r]) | ((np.int64(indices[row, r]) << up) & mask)]


@kernel
def add_to_buckets(
    indices: np.ndarray, values: np.ndarray, p: int, starts: np.ndarray, high: np.ndarray, totals: np.ndarray
) -> None:
    """Add one integer a row to the buckets of grid p."""
    grid = totals[starts[p] : starts[p + 1]]
    row, up, mask = high[p, 0], high[p, 1], high[p, 2]
    if row < 0:
        for r in range(indices.shape[1]):
            grid[indices[p, r]] += values[r]
    else:
        for r in range(indices.shape[1]):
            grid[np.int64(indices[p, r]) | ((np.int64(indices[row, r]) << up) & mask)] += values[r]


@kernel
def count_buckets(indices: np.ndarray, p: int, starts: np.ndarray, high: np.ndarray, counts: np.ndarray) -> None:
    """Add one a row to the buckets of grid p."""
    grid = counts[starts[p] : starts[p + 1]]
    row, up, mask = high[p, 0], high[p, 1], high[p, 2]
    if row < 0:
        for r in range(indices.shape[1]):
            grid[indices[p, r]] += 1
    else:
        for r in range(indices.shape[1]):
            grid[np.int64(indices[p, r]) | ((np.int64(indices[row, r]) << up) & mask)] += 1


@kernel
def moved_scores(
    X: np.ndarray, moves: np.ndarray, starts: np.ndarray, columns: np.ndarray, shifts: np.ndarray,
    inverses: np.ndarray, lows: np.ndarray, highs: np.ndarray, bits: int, table: np.ndarray, change: np.ndarray,
    totals: np.ndarray,
) -> None:  # fmt: skip
    """Add to ``totals[j]`` the squared change of each row's scores as its column j alone moves to ``moves[r, j]``.
    ``change``, (d, k), is room for a row's.

    A hash is linear in the cells until its last step, so a moved column costs one look-up a grid, and none where the
    cell stays the same.
    """
    drop = np.uint64(64 - bits)
    for r in range(X.shape[0]):
        for j in range(X.shape[1]):
            for o in range(table.shape[0]):
                change[j, o] = 0.0
        for p in range(starts.shape[0] - 1):
            low, high = np.uint32(0), np.uint32(0)
            for k in range(starts[p], starts[p + 1]):
                cell = np.uint32(_cell(X[r, columns[k]], shifts[k], inverses[k]))
                low = np.uint32(low + cell * lows[k])
                high = np.uint32(high + cell * highs[k])
            here = (((np.uint64(high) << _HALF) | np.uint64(low)) * _MIX) >> drop
            for k in range(starts[p], starts[p + 1]):
                j = columns[k]
                step = _cell(moves[r, j], shifts[k], inverses[k]) - _cell(X[r, j], shifts[k], inverses[k])
                if step != 0:
                    a = np.uint32(low + np.uint32(step) * lows[k])
                    b = np.uint32(high + np.uint32(step) * highs[k])
                    there = (((np.uint64(b) << _HALF) | np.uint64(a)) * _MIX) >> drop
                    for o in range(table.shape[0]):
                        change[j, o] += table[o, p, there] - table[o, p, here]
        for j in range(X.shape[1]):
            for o in range(table.shape[0]):
                totals[j] += change[j, o] * change[j, o]


@inner_kernel
def _cell(x: np.float32, shift: np.float32, inverse: np.float32) -> np.int32:
    return np.int32(min(max(np.floor((x - shift) * inverse), _LOWEST), _HIGHEST))


ROWS_A_BLOCK = 131_072  # rows indexed, looked up and summed at once: the more, the oftener a bucket is found in cache


def flat(table: np.ndarray, layout: Layout | None) -> tuple[np.ndarray, Layout]:
    """A table (k, P, buckets), or one (k, all bins) of a layout, as the latter with its layout."""
    if layout is not None:
        return table, layout
    return table.reshape(len(table), -1), Layout.whole(*table.shape[1:])


def scores(
    indices: np.ndarray, table: np.ndarray, threads: Threads, dtype: type = np.float64, *, layout: Layout | None = None
) -> np.ndarray:
    """Z V: for each output and row the sum over grids of its buckets' values, (k, n)."""
    rows = indices.shape[1]
    table, layout = flat(table, layout)
    out: np.ndarray = np.empty((len(table), rows), dtype)
    least = GRAIN // max(1, len(indices) * len(table))
    share = max(1, least, -(-rows // threads.count))  # one part a thread: long parts, for the sake of the cache

    def work(start: int) -> None:
        for values, sums in zip(table, out, strict=True):
            look_up(indices, values, layout.starts, layout.high, start, min(start + share, rows), sums)

    threads.each(work, range(0, rows, share))
    return out


def add_values(
    indices: np.ndarray, values: np.ndarray, totals: np.ndarray, threads: Threads, *, layout: Layout | None = None
) -> None:
    """``totals += Z'values``: integers (k, n) into int64 (k, P, buckets). Threads take whole grids."""
    values, (totals, layout) = _narrow(values), flat(totals, layout)
    some = max(1, GRAIN // max(1, values.size))  # grids at a time: handing over small work costs more than doing it

    def work(first: int) -> None:
        for grid in range(first, min(first + some, layout.grids)):
            for row, sums in zip(values, totals, strict=True):
                add_to_buckets(indices, row, grid, layout.starts, layout.high, sums)

    threads.each(work, range(0, layout.grids, some))


def _narrow(values: np.ndarray) -> np.ndarray:
    """Integers as int32 where they fit: scores are, so that the loop is compiled for them anyway."""
    fits = values.dtype == np.int32 or not values.size or (values.min() >= -(2**31) and values.max() < 2**31)
    return np.ascontiguousarray(values, np.int32 if fits else np.int64)


def add_counts(indices: np.ndarray, counts: np.ndarray, threads: Threads, *, layout: Layout | None = None) -> None:
    """Add each row to the counts (P, buckets) of its buckets: the diagonal of Z'Z."""
    every, layout = counts.reshape(-1), layout or Layout.whole(*counts.shape)
    some = max(1, GRAIN // max(1, indices.shape[1]))

    def work(first: int) -> None:
        for grid in range(first, min(first + some, layout.grids)):
            count_buckets(indices, grid, layout.starts, layout.high, every)

    threads.each(work, range(0, layout.grids, some))


def add_product(indices: np.ndarray, table: np.ndarray, totals: np.ndarray, threads: Threads) -> None:
    """``totals += Z'(Z table)`` for an int32 table whose row sums fit 32 bits: one pass of conjugate gradients."""
    add_values(indices, scores(indices, table, threads, np.int32), totals, threads)


@dataclass(frozen=True, eq=False)
class OccupiedBuckets:
    """Which buckets have rows, and how values of these, (k, m), become tables of all, (k, P, buckets), and back."""

    grids: int
    buckets: int
    positions: np.ndarray  # (m,) int64, increasing: grid * buckets + bucket
    starts: np.ndarray  # (grids,) where each grid's positions begin; no grid is without any

    @classmethod
    def of(cls, counts: np.ndarray) -> OccupiedBuckets:
        """From the counts (P, buckets) of at least one row."""
        if not counts.any():
            raise DataError("random binning needs at least one row, and there is none")
        grids, buckets = counts.shape
        positions = np.flatnonzero(counts)
        return cls(grids, buckets, positions, np.searchsorted(positions, np.arange(grids) * buckets))

    def compress(self, table: np.ndarray) -> np.ndarray:
        """The occupied entries of a table, as (k, m) float64."""
        out = np.empty((len(table), len(self.positions)))
        for entries, values in zip(table.reshape(len(table), -1), out, strict=True):
            values[:] = entries[self.positions]
        return out

    def expand(self, V: np.ndarray, dtype: type) -> np.ndarray:
        """The table with V in its occupied buckets, and 0 elsewhere."""
        table: np.ndarray = np.zeros((len(V), self.grids * self.buckets), dtype)
        for values, entries in zip(V, table, strict=True):
            entries[self.positions] = values
        return table.reshape(len(V), self.grids, self.buckets)

    def exponents(self, V: np.ndarray, spare: int = 0) -> np.ndarray:
        """For each output, (k, 1), the largest e at which no row's sum of ``rint(V 2^e)`` can leave 32 bits."""
        bound = np.maximum.reduceat(np.abs(V), self.starts, axis=1).sum(axis=1, keepdims=True)
        if not np.isfinite(bound).all():
            raise NumericalError("the solver diverged (NaN or infinity): use a larger `ridge`, or scale the targets")
        room = 2.0**31 - 1 - self.grids - spare  # each grid's value may be rounded up by a half
        return np.frexp(room / np.where(bound > 0, bound, room))[1] - 1.0

    def rounded(self, V: np.ndarray) -> np.ndarray:
        """V at a precision in which products with it are exact: what rounding adds to a bound is spared beforehand."""
        scale = np.exp2(self.exponents(V, spare=self.grids))
        return np.rint(V * scale) / scale

    def integers(self, V: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The int32 table of V times the powers of two (k, 1) that come with it; ``out`` is 0 where nothing is."""
        scale = np.exp2(self.exponents(V))
        table = np.zeros((len(V), self.grids, self.buckets), np.int32) if out is None else out
        for values, factor, entries in zip(V, scale[:, 0], table.reshape(len(V), -1), strict=True):
            entries[self.positions] = np.rint(values * factor)
        return table, scale


class BinningNormal:
    """Rows' bin indices held in memory, block by block, with the sums that conjugate gradients ask for."""

    def __init__(self, blocks: Iterable[np.ndarray], buckets: int, threads: Threads) -> None:
        self.blocks, self.threads = list(blocks), threads
        grids = len(self.blocks[0]) if self.blocks else 0
        self.counts = np.zeros((grids, buckets), np.int32)  # as in a run, whose compiled loops are then the same
        for indices in self.blocks:
            add_counts(indices, self.counts, threads)
        self.occupied = OccupiedBuckets.of(self.counts)
        self._totals = np.empty((1, grids, buckets), np.int64)  # kept: new pages cost a third of a pass

    @property
    def rows(self) -> int:
        return sum(indices.shape[1] for indices in self.blocks)

    @property
    def diagonal(self) -> np.ndarray:
        """The diagonal of Z'Z, (m,)."""
        return self.counts.reshape(-1)[self.occupied.positions].astype(np.float64)

    def targets(self, Y: np.ndarray) -> np.ndarray:
        """Z'Y, (k, m), for integer targets (k, n) in the order of the rows."""
        if Y.shape[1] != self.rows:
            raise MismatchError(f"{Y.shape[1]} targets do not go with {self.rows} rows")
        stops = np.cumsum([indices.shape[1] for indices in self.blocks])
        return np.concatenate([self._sum(np.split(row[None], stops[:-1], axis=1)) for row in Y])

    def product(self, V: np.ndarray) -> np.ndarray:
        """(Z'Z) V for V as ``rounded`` gives it, (k, m); output by output, which saves memory and costs no time."""
        return np.concatenate([self._product(row[None]) for row in V])

    def _product(self, v: np.ndarray) -> np.ndarray:
        table, scale = self.occupied.integers(v)
        return self._sum(scores(indices, table, self.threads, np.int32) for indices in self.blocks) / scale

    def _sum(self, values: Iterable[np.ndarray]) -> np.ndarray:
        """Z'values of one output, (1, m), from values (1, n) of each block."""
        self._totals[:] = 0
        for indices, block in zip(self.blocks, values, strict=True):
            add_values(indices, block, self._totals, self.threads)
        return self.occupied.compress(self._totals)

    def rounded(self, V: np.ndarray) -> np.ndarray:
        return self.occupied.rounded(V)
