"""The normal equations of random binning as passes over rows: counts, Z'Y, and (Z'Z) V without forming Z'Z.

A table holds a value for each output, grid and bucket, (k, P, buckets). Conjugate gradients see the m occupied buckets
alone, (k, m). Directions are rounded to integers so small that a row's sum over grids fits 32 bits; sums over rows take
64: every pass is exact, and the same in any order and on any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from streamrf.features.binning.loops import add_to_buckets, count_buckets, gather, look_up, scatter, scatter_rounded
from streamrf.support.errors import DataError, MismatchError, NumericalError
from streamrf.support.threads import Threads

ROWS_A_BLOCK = 131_072  # rows indexed, looked up and summed at once: the more, the oftener a bucket is found in cache


def scores(indices: np.ndarray, table: np.ndarray, threads: Threads, dtype: type = np.float64) -> np.ndarray:
    """Z V: for each output and row the sum over grids of its buckets' values, (k, n)."""
    rows = indices.shape[1]
    out: np.ndarray = np.empty((len(table), rows), dtype)
    share = max(1, -(-rows // threads.count))  # one part a thread: long parts, for the sake of the cache

    def work(start: int) -> None:
        for values, sums in zip(table, out, strict=True):
            look_up(indices, values, start, min(start + share, rows), sums)

    threads.each(work, range(0, rows, share))
    return out


def add_values(indices: np.ndarray, values: np.ndarray, totals: np.ndarray, threads: Threads) -> None:
    """``totals += Z'values``: integers (k, n) into int64 (k, P, buckets). Threads take whole grids."""

    def work(grid: int) -> None:
        for row, sums in zip(values, totals, strict=True):
            add_to_buckets(indices, row, grid, sums)

    threads.each(work, range(len(indices)))


def add_counts(indices: np.ndarray, counts: np.ndarray, threads: Threads) -> None:
    """Add each row to the counts (P, buckets) of its buckets: the diagonal of Z'Z."""
    threads.each(lambda grid: count_buckets(indices, grid, counts), range(len(indices)))


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
            gather(entries, self.positions, values)
        return out

    def expand(self, V: np.ndarray, dtype: type) -> np.ndarray:
        """The table with V in its occupied buckets, and 0 elsewhere."""
        table: np.ndarray = np.zeros((len(V), self.grids * self.buckets), dtype)
        for values, entries in zip(V, table, strict=True):
            scatter(values, self.positions, entries)
        return table.reshape(len(V), self.grids, self.buckets)

    def exponents(self, V: np.ndarray, spare: int = 0) -> np.ndarray:
        """For each output, (k, 1), the largest e at which no row's sum of ``rint(V 2^e)`` can leave 32 bits."""
        bound = np.maximum.reduceat(np.abs(V), self.starts, axis=1).sum(axis=1, keepdims=True)
        if not np.isfinite(bound).all():
            raise NumericalError("conjugate gradients have left the finite numbers: raise lambda or scale the targets")
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
            scatter_rounded(values, factor, self.positions, entries)
        return table, scale


class BinningNormal:
    """Rows' bin indices held in memory, block by block, with the sums that conjugate gradients ask for."""

    def __init__(self, blocks: Iterable[np.ndarray], buckets: int, threads: Threads) -> None:
        self.blocks, self.threads = list(blocks), threads
        grids = len(self.blocks[0]) if self.blocks else 0
        self.counts = np.zeros((grids, buckets), np.int64)
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
        return self.occupied.compress(self.counts[None])[0]

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
