"""Scores from features: ``intercept + features . coefficients``, in a fixed order of operations.

Every row is summed in the same 16 lanes in the same order whatever the block or the machine, so that a prediction too
depends on its row alone. Features are made, used and dropped a few rows at a time, while they are in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from streamrf.features.base import FeatureMap
from streamrf.support.simd import I64, aligned_empty, call, counted_loop, lanes, own_function, prefetch
from streamrf.support.threads import ALONE, Threads

LANES = 16  # on every machine: narrower vectors are paired by the compiler
GROUP_BYTES = 12  # of outputs whose sums for two rows fit the registers
TILE_BYTES = 1 << 13  # of each output's weights
BATCH, MOST_ROWS = 64, 512  # rows whose features are alive at once in each thread: a multiple of the first
BATCH_BYTES = 1 << 18  # that they may take where rows are short: half of the second cache


Features = Callable[[slice, np.ndarray], np.ndarray]
"""The features of some rows, in the room that is given, or where they are kept."""


def _dots(outputs: int) -> Callable[..., Any]:
    """Code for the dot products of two rows, ``apart`` bytes apart, with lines of W: LANES sums of each go on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element, real = (context.get_value_type(signature.args[number].dtype) for number in (6, 7))

        def body(inner: Any, *places: Any) -> None:
            _dot_tile(inner, element, real, outputs, *places)

        name = f"streamrf_dots_{outputs}_{element}_{real}"
        return own_function(name, body)(context, builder, signature, args[:6])

    return codegen


def _dot_tile(
    builder: Any, element: Any, real: Any, outputs: int, z: Any, apart: Any, w: Any, stride: Any, count: Any, sums: Any
) -> None:
    """``count`` features, a register's worth at a time, so that no more than one of W's is held."""
    width = lanes() if real == ir.FloatType() else lanes() // 2
    kind, parts = ir.VectorType(real, width), LANES // width
    vector, two = ir.VectorType(element, width).as_pointer(), builder.add(apart, apart)
    starts = (z, builder.add(z, apart))
    rows = [builder.inttoptr(start, vector) for start in starts]
    following = [builder.inttoptr(builder.add(start, two), vector) for start in starts]
    lines = [
        builder.inttoptr(builder.add(w, builder.mul(stride, ir.Constant(I64, o))), kind.as_pointer())
        for o in range(outputs)
    ]
    held = builder.inttoptr(sums, kind.as_pointer())
    places = [builder.gep(held, [ir.Constant(I64, index)]) for index in range(len(rows) * outputs * parts)]

    def feature(row: Any, at: Any) -> Any:
        value = builder.load(builder.gep(row, [at]), align=1)
        if isinstance(element, ir.IntType):
            return builder.sitofp(value, kind)
        return value if element == real else builder.fpext(value, kind)

    def turn(k: Any, totals: list[Any]) -> list[Any]:
        for line in following:  # where features are kept, they come from memory
            prefetch(builder, builder.ptrtoint(builder.gep(line, [k]), I64), write=False)
        for part in range(parts):
            at = builder.add(k, ir.Constant(I64, part))
            values = [feature(row, at) for row in rows]
            for o, line in enumerate(lines):
                weight = builder.load(builder.gep(line, [at]), align=4)
                for r, value in enumerate(values):
                    place = (r * outputs + o) * parts + part
                    totals[place] = call(builder, "llvm.fma", kind, value, weight, totals[place])
        return totals

    vectors, start = builder.sdiv(count, ir.Constant(I64, width)), [builder.load(place, align=4) for place in places]
    for value, place in zip(counted_loop(builder, vectors, parts, start, turn), places, strict=True):
        builder.store(value, place, align=4)


def _signature(Z: Any, W: Any) -> Any:
    return types.void(*[types.intp] * 6, Z, W)


@intrinsic
def _dot_one(typing: Any, z: Any, apart: Any, w: Any, stride: Any, count: Any, sums: Any, Z: Any, W: Any) -> Any:
    return _signature(Z, W), _dots(1)


@intrinsic
def _dot_two(typing: Any, z: Any, apart: Any, w: Any, stride: Any, count: Any, sums: Any, Z: Any, W: Any) -> Any:
    return _signature(Z, W), _dots(2)


@intrinsic
def _dot_three(typing: Any, z: Any, apart: Any, w: Any, stride: Any, count: Any, sums: Any, Z: Any, W: Any) -> Any:
    return _signature(Z, W), _dots(3)


@njit(cache=True, nogil=True)
def dot_rows(Z: Any, rows: int, W: Any, intercept: Any, out: Any) -> None:
    """``out[r, o] = intercept[o] + Z[r] . W[o]``."""
    group = GROUP_BYTES // W.itemsize
    for o in range(0, len(W), group):
        last = min(o + group, len(W))
        _dot_group(Z, rows, W[o:last], intercept[o:last], out[:, o:last])


@njit(cache=True, nogil=True)
def _dot_group(Z: Any, rows: int, W: Any, intercept: Any, out: Any) -> None:
    """Outputs that share one reading of the features, a tile of them at a time, whose weights stay in the first cache.

    A last row without a partner is taken twice.
    """
    outputs, count = W.shape
    sums = np.zeros((rows + 1, outputs, LANES), W.dtype)
    z, w, s, tile = Z.ctypes.data, W.ctypes.data, sums.ctypes.data, TILE_BYTES // W.itemsize
    for k in range(0, count, tile):
        size, weights = np.intp(min(tile, count - k)), np.intp(w + k * W.itemsize)
        for r in range(0, rows, 2):
            row, place = np.intp(z + r * Z.strides[0] + k * Z.itemsize), np.intp(s + r * sums.strides[0])
            apart = np.intp(Z.strides[0] if r + 1 < rows else 0)
            if outputs == 1:
                _dot_one(row, apart, weights, W.strides[0], size, place, Z, W)
            elif outputs == 2:
                _dot_two(row, apart, weights, W.strides[0], size, place, Z, W)
            else:
                _dot_three(row, apart, weights, W.strides[0], size, place, Z, W)
    for r in range(rows):
        for o in range(outputs):
            total = sums[r, o, 0]
            for lane in range(1, LANES):
                total += sums[r, o, lane]
            out[r, o] = np.float64(total) + intercept[o]


def scored_width(map: FeatureMap) -> int:
    """Columns of features that are to be scored: what the map writes, in whole vectors."""
    return -(-max(map.width, map.n_features) // LANES) * LANES


def batch_rows(row_bytes: int, room: int = BATCH_BYTES) -> int:
    """Rows whose features are alive at once in each thread."""
    return min(MOST_ROWS, max(1, room // max(row_bytes * BATCH, 1)) * BATCH)


class Scorer:
    """A feature map with coefficients: scaled inputs in, scores out."""

    def __init__(
        self, map: FeatureMap, coefficients: np.ndarray, intercept: np.ndarray, room: int = BATCH_BYTES
    ) -> None:
        self.map = map
        self.dtype = map.precision.inputs
        self.intercept = np.asarray(intercept, np.float64)  # targets may lie far from zero and close together
        self.width = scored_width(map)
        self.batch = batch_rows(self.width * map.precision.features.itemsize, room)
        self._coefficients = aligned_empty((coefficients.shape[1], self.width), self.dtype)
        self._coefficients[:] = 0
        self._coefficients[:, : map.n_features] = coefficients.T

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64 scores of scaled inputs."""

        def features(rows: slice, room: np.ndarray) -> np.ndarray:
            self.map.compute(X[rows], room, ALONE)
            return room

        return self.scores_from(features, len(X), threads)

    def scores_from(self, features: Features, count: int, threads: Threads) -> np.ndarray:
        """The same of so many rows, whose features are to be had a batch at a time."""
        out = np.empty((count, len(self.intercept)))
        step = max(BATCH, -(-count // (4 * threads.count * BATCH)) * BATCH)  # some for each thread

        def batches(first: int) -> None:
            room = self.batch_features()
            last = min(first + step, count)
            for start in range(first, last, self.batch):
                rows = slice(start, min(start + self.batch, last))
                dot_rows(features(rows, room), rows.stop - start, self._coefficients, self.intercept, out[rows])

        threads.each(batches, range(0, count, step))
        return out

    def batch_features(self) -> np.ndarray:
        """Room for the features of one batch."""
        return np.zeros((self.batch, self.width), self.map.precision.features)

    def score_features(self, Z: np.ndarray, rows: int) -> np.ndarray:
        """(rows, outputs) scores of the first rows of Z, features as the map writes them."""
        out = np.empty((rows, len(self.intercept)))
        dot_rows(Z, rows, self._coefficients, self.intercept, out)
        return out
