"""Scores from features: ``intercept + features . coefficients``, in a fixed order of operations.

Every row is summed in the same 16 lanes in the same order whatever the block or the machine, so that a prediction too
depends on its row alone. Features are made, used and dropped a few rows at a time, while they are in cache.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from streamrf.support import simd
from streamrf.support.simd import I64, call, counted_loop, lanes, own_function, prefetch

T = simd.Type
LANES = 16  # on every machine: narrower vectors are paired by the compiler
GROUP_BYTES = 12  # of outputs whose sums for two rows fit the registers
TILE_BYTES = 1 << 13  # of each output's weights
BATCH, MOST_ROWS = 64, 512  # rows whose features are alive at once in each thread: a multiple of the first
BATCH_BYTES = 1 << 18  # that they may take where rows are short: half of the second cache


def _dots(outputs: int) -> simd.Codegen:
    """Code for the dot products of two rows, ``apart`` bytes apart, with lines of W: LANES sums of each go on."""

    def codegen(context: simd.Lowering, builder: ir.IRBuilder, signature: simd.Signature, args: simd.Args) -> ir.Value:
        element, real = (context.get_value_type(signature.args[number].dtype) for number in (6, 7))

        def body(inner: ir.IRBuilder, *places: ir.Value) -> None:
            _dot_tile(inner, element, real, outputs, *places)

        name = f"streamrf_dots_{outputs}_{element}_{real}"
        return own_function(name, body)(context, builder, signature, args[:6])

    return codegen


def _dot_tile(
    builder: ir.IRBuilder, element: ir.Type, real: ir.Type, outputs: int,
    z: ir.Value, apart: ir.Value, w: ir.Value, stride: ir.Value, count: ir.Value, sums: ir.Value,
) -> None:  # fmt: skip
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

    def feature(row: ir.Value, at: ir.Value) -> ir.Value:
        value = builder.load(builder.gep(row, [at]), align=1)
        if isinstance(element, ir.IntType):
            return builder.sitofp(value, kind)
        return value if element == real else builder.fpext(value, kind)

    def turn(k: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
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


def _intrinsic(outputs: int, Z: T, W: T) -> simd.Intrinsic:
    return types.void(*[types.intp] * 6, Z, W), _dots(outputs)


@intrinsic
def _dot_one(typing: simd.Typing, z: T, apart: T, w: T, stride: T, count: T, sums: T, Z: T, W: T) -> simd.Intrinsic:
    return _intrinsic(1, Z, W)


@intrinsic
def _dot_two(typing: simd.Typing, z: T, apart: T, w: T, stride: T, count: T, sums: T, Z: T, W: T) -> simd.Intrinsic:
    return _intrinsic(2, Z, W)


@intrinsic
def _dot_three(typing: simd.Typing, z: T, apart: T, w: T, stride: T, count: T, sums: T, Z: T, W: T) -> simd.Intrinsic:
    return _intrinsic(3, Z, W)


@njit(cache=True, nogil=True)
def dot_rows(Z: np.ndarray, rows: int, W: np.ndarray, intercept: np.ndarray, out: np.ndarray) -> None:
    """``out[r, o] = intercept[o] + Z[r] . W[o]``."""
    group = GROUP_BYTES // W.itemsize
    for o in range(0, len(W), group):
        last = min(o + group, len(W))
        _dot_group(Z, rows, W[o:last], intercept[o:last], out[:, o:last])


@njit(cache=True, nogil=True)
def _dot_group(Z: np.ndarray, rows: int, W: np.ndarray, intercept: np.ndarray, out: np.ndarray) -> None:
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


def batch_rows(row_bytes: int, room: int = BATCH_BYTES) -> int:
    """Rows whose features are alive at once in each thread."""
    return min(MOST_ROWS, max(1, room // max(row_bytes * BATCH, 1)) * BATCH)
