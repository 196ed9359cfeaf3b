"""Z'c of a batch of rows: features times what each row pulls, summed over the rows.

Whole pulls are cut into pieces of int16, and pairs of rows multiplied and added into int32 lanes by one instruction, as
in the Gram product: exact, and several outputs share what it takes to lay two rows side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from streamrf.features.precision import LIMITS
from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.simd import (
    I16,
    I32,
    I64,
    add_widened,
    constant,
    counted_loop,
    dot_pairs,
    half_of,
    lanes,
    mixed,
    own_function,
    pinned,
    splat,
)

PULL_BITS = 30  # of a whole pull
MOST_ROWS = 512  # whose sums of pieces fit an int32
BYTE_PIECES, BYTE_BITS = 2, 16  # of a pull, where features are bytes
WORD_PIECES, WORD_BITS = 3, 11  # where they are int16
SUMS = 12  # vectors of them: what registers hold
FEATURES = 2 * lanes()  # of a tile
TILE = 1024  # features of floats whose sums stay in the first-level cache while the rows of a batch go by

assert max(LIMITS[7], LIMITS[8]) * 2 ** (BYTE_BITS - 1) * MOST_ROWS < 2**31
assert LIMITS[12] * 2 ** (WORD_BITS - 1) * MOST_ROWS < 2**31
assert min(BYTE_PIECES * BYTE_BITS, WORD_PIECES * WORD_BITS) - 1 > PULL_BITS


def _pulled(outputs: int) -> Callable[..., Any]:
    """Code that adds the sums over pairs of rows to a tile of each ``sums[output]``, lines ``apart`` bytes apart."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = context.get_value_type(signature.args[6])
        pieces, bits = (BYTE_PIECES, BYTE_BITS) if element.width == 8 else (WORD_PIECES, WORD_BITS)

        def body(inner: Any, z: Any, stride: Any, pulls: Any, pairs: Any, sums: Any, apart: Any) -> None:
            found = _sum_tile(inner, element, outputs * pieces, z, stride, pulls, pairs)
            for o in range(outputs):
                line = inner.add(sums, inner.mul(apart, ir.Constant(I64, o)))
                for part in range(2):
                    parts = found[2 * o * pieces + part : 2 * (o + 1) * pieces : 2]
                    add_widened(inner, inner.add(line, ir.Constant(I64, 8 * lanes() * part)), parts, bits)

        name = f"streamrf_pulled_{outputs}_{element.width}"
        return own_function(name, body)(context, builder, signature, args[:6])

    return codegen


def _sum_tile(builder: Any, element: Any, columns: int, z: Any, stride: Any, pulls: Any, pairs: Any) -> list[Any]:
    """The sums over pairs of rows of features times each of so many columns of pieces, in two vectors each."""
    width = lanes()
    words, halves = ir.VectorType(I32, width), ir.VectorType(I16, 2 * width)
    line = ir.VectorType(element, FEATURES).as_pointer()
    pieces = builder.inttoptr(pulls, I32.as_pointer())

    def turn(k: Any, sums: list[Any]) -> list[Any]:
        first = builder.add(z, builder.mul(builder.mul(k, ir.Constant(I64, 2)), stride))
        rows = [builder.load(builder.inttoptr(a, line), align=1) for a in (first, builder.add(first, stride))]
        both = mixed(builder, *rows)
        parts = [half_of(builder, both, part) for part in range(2)]
        if element != I16:
            parts = [builder.sext(part, halves) for part in parts]
        start = builder.mul(k, ir.Constant(I64, columns))
        for c in range(columns):
            pull = builder.load(builder.gep(pieces, [builder.add(start, ir.Constant(I64, c))]), align=4)
            spread = builder.bitcast(splat(builder, pull, width), halves)
            for part in range(2):
                place = 2 * c + part
                sums[place] = pinned(builder, builder.add(sums[place], dot_pairs(builder, parts[part], spread)))
        return sums

    return counted_loop(builder, pairs, 1, [constant(0, words)] * (2 * columns), turn)


def _signature(feature: Any) -> Any:
    return types.void(*[types.intp] * 6, feature)


@intrinsic
def _pull_one(typing: Any, z: Any, stride: Any, pulls: Any, pairs: Any, sums: Any, apart: Any, feature: Any) -> Any:
    """Pairs of rows from ``z`` on, ``stride`` bytes apart. Any ``feature`` tells their type."""
    return _signature(feature), _pulled(1)


@intrinsic
def _pull_two(typing: Any, z: Any, stride: Any, pulls: Any, pairs: Any, sums: Any, apart: Any, feature: Any) -> Any:
    return _signature(feature), _pulled(2)


@intrinsic
def _pull_three(typing: Any, z: Any, stride: Any, pulls: Any, pairs: Any, sums: Any, apart: Any, feature: Any) -> Any:
    return _signature(feature), _pulled(3)


@inner_kernel
def _in_pieces(C: Any, first: int, last: int, pieces: int, bits: int) -> Any:
    """(pairs, outputs, pieces) int32: the pieces of two rows' pulls side by side, the lowest first."""
    rows = len(C)
    out = np.zeros(((rows + 1) // 2, last - first, pieces), np.int32)
    half = np.int64(1) << (bits - 1)
    for r in range(rows):
        for o in range(first, last):
            left = np.int64(C[r, o])
            for p in range(pieces):
                piece = ((left + half) & (2 * half - 1)) - half if p < pieces - 1 else left
                left = (left - piece) >> bits
                out[r // 2, o - first, p] |= np.int32((piece & 0xFFFF) << (16 * (r % 2)))
    return out


@kernel
def add_whole_pulls(Z: Any, C: Any, sums: Any) -> None:
    """``sums[o] += Z[:rows]' C[:, o]``, exactly, for whole pulls C (rows, outputs) of at most PULL_BITS bits."""
    pieces, bits = (BYTE_PIECES, BYTE_BITS) if Z.itemsize == 1 else (WORD_PIECES, WORD_BITS)
    group, whole = SUMS // (2 * pieces), sums.shape[1] // FEATURES * FEATURES
    rows, outputs = C.shape
    for top in range(0, rows, MOST_ROWS):
        bottom = min(top + MOST_ROWS, rows)
        for first in range(0, outputs, group):
            last = min(first + group, outputs)
            pulls = _in_pieces(C[top:bottom], first, last, pieces, bits)
            _add_tiles(Z[top:bottom], pulls, sums[first:last, :whole])
    for o in range(outputs):
        for r in range(rows):
            for j in range(whole, sums.shape[1]):
                sums[o, j] += np.int64(C[r, o]) * Z[r, j]


@inner_kernel
def _add_tiles(Z: Any, pulls: Any, sums: Any) -> None:
    """Whole tiles of features. A last row without a partner is paired with itself, whose pull is then zero."""
    z, p, stride, even = Z.ctypes.data, pulls.ctypes.data, Z.strides[0], len(Z) // 2
    for first in range(0, sums.shape[1], FEATURES):
        place = np.intp(sums.ctypes.data + first * sums.itemsize)
        row = np.intp(z + first * Z.itemsize)
        if even:
            _add_tile(row, stride, np.intp(p), even, place, pulls.shape[1], sums.strides[0], Z[0, 0])
        if len(pulls) > even:
            row, pull = np.intp(row + 2 * even * stride), np.intp(p + even * pulls.strides[0])
            _add_tile(row, 0, pull, 1, place, pulls.shape[1], sums.strides[0], Z[0, 0])


@inner_kernel
def _add_tile(
    row: int, stride: int, pulls: int, pairs: int, place: int, outputs: int, apart: int, feature: Any
) -> None:
    if outputs == 1:
        _pull_one(row, stride, pulls, pairs, place, apart, feature)
    elif outputs == 2:
        _pull_two(row, stride, pulls, pairs, place, apart, feature)
    else:
        _pull_three(row, stride, pulls, pairs, place, apart, feature)


@kernel
def add_pulls(Z: np.ndarray, C: np.ndarray, sums: np.ndarray) -> None:
    """``sums[o] += Z[:rows]' C[o]`` in floats, for pulls C (outputs, rows): four rows at a time, a tile at a time."""
    outputs, rows = C.shape
    for first in range(0, sums.shape[1], TILE):
        last = min(first + TILE, sums.shape[1])
        for o in range(outputs):
            line, total = C[o], sums[o, first:last]
            r = 0
            while r + 4 <= rows:
                a, b, c, d = line[r], line[r + 1], line[r + 2], line[r + 3]
                za, zb, zc, zd = Z[r, first:last], Z[r + 1, first:last], Z[r + 2, first:last], Z[r + 3, first:last]
                for j in range(last - first):
                    total[j] += (za[j] * a + zb[j] * b) + (zc[j] * c + zd[j] * d)
                r += 4
            while r < rows:
                a, za = line[r], Z[r, first:last]
                for j in range(last - first):
                    total[j] += za[j] * a
                r += 1


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
