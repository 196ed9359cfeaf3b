"""Marks: sums of hashes of rows, one a shard. What leaves must have the mark of what came, or it is not the same data.

A fingerprint looks at the ends of a shard, because it must be quick; a mark is made on the way, of every row that is
summed. Marks add and subtract modulo 2^64 in any order, as sums do.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from streamrf.data.source import Block
from streamrf.statistics.sample import hash_rows
from streamrf.support.errors import FileFormatError
from streamrf.support.exact_sum import as_floats
from streamrf.support.threads import Threads

PIECE = 1024  # rows hashed by a thread at a time


def no_marks() -> np.ndarray:
    return zero_marks(())


def zero_marks(starts: tuple[int, ...]) -> np.ndarray:
    return np.zeros(len(starts), np.uint64)


def load_counts(arrays: dict[str, np.ndarray], starts: tuple[int, ...]) -> tuple[int, np.ndarray]:
    """Rows dropped, and marks, of a state that was stored."""
    dropped, marks = arrays.get("dropped"), arrays.get("marks")
    if dropped is None or dropped.shape != (1,) or dropped.dtype.kind != "i":
        raise FileFormatError("these are not the statistics of a training pass")
    if marks is None or marks.shape != (len(starts),) or marks.dtype != np.uint64:
        raise FileFormatError(f"these are not the statistics of a pass over {len(starts)} shards")
    return int(dropped[0]), marks


def add_marks(marks: np.ndarray, starts: tuple[int, ...], block: Block, targets: np.ndarray, threads: Threads) -> None:
    """Add the rows of a block to the marks of the shards that begin at ``starts``; ``targets`` are coded, (n, k)."""
    if not len(marks):
        return
    X, targets = as_floats(block.X), np.ascontiguousarray(targets, np.float64)
    hashes, factors = np.empty(len(block), np.uint64), _factors(X.shape[1] + targets.shape[1])

    def piece(first: int) -> None:
        rows = slice(first, first + PIECE)
        _hash_rows(X[rows], targets[rows], factors, hashes[rows])

    threads.each(piece, range(0, len(block), PIECE))
    shards = np.searchsorted(np.asarray(starts), block.index, side="right") - 1
    np.add.at(marks, shards, hashes)


@cache
def _factors(count: int) -> np.ndarray:
    """(2, count) odd numbers, for the lower and the upper half of the bits of each column's value."""
    return (hash_rows(np.arange(2 * count), seed=0) >> np.uint64(32)).astype(np.uint32).reshape(2, count) | np.uint32(1)


@njit(cache=True, nogil=True)
def _hash_rows(X: np.ndarray, Y: np.ndarray, factors: np.ndarray, out: np.ndarray) -> None:
    """Two products of 32 bits for each value, which run in SIMD, and one finaliser of splitmix64 for each row."""
    d = X.shape[1]
    for i in range(X.shape[0]):
        h = np.uint64(0)
        for j in range(d):
            h += _product(X[i, j], factors[0, j], factors[1, j])
        for k in range(Y.shape[1]):
            h += _product(Y[i, k], factors[0, d + k], factors[1, d + k])
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = h ^ (h >> np.uint64(31))


@njit(cache=True, nogil=True)
def _product(value: float, lower: np.uint32, upper: np.uint32) -> np.uint64:
    """Of the value as a float64, so that equal numbers of any type are equal."""
    bits = np.uint64(np.float64(value).view(np.int64))
    return (bits & np.uint64(0xFFFFFFFF)) * np.uint64(lower) + (bits >> np.uint64(32)) * np.uint64(upper)
