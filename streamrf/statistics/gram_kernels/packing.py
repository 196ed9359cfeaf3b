"""Blocks of features as the register tiles of the integer Gram kernel read them: in groups of rows, tile by tile."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from streamrf.statistics.gram_kernels.tiles import FOURS, GROUPS, RAISED, TILE, UNROLLED, VECTORS
from streamrf.support.simd import I8, I16, I32, I64, constant, counted_loop, dot_bytes, dot_pairs, lanes, mixed, splat

SPARE = 8  # elements at the end of a buffer, for copies that take more than they need


@intrinsic
def _interleave(typing: Any, first: Any, stride: Any, out: Any, feature: Any) -> Any:
    """One full tile of a group of rows, ``stride`` bytes apart: their features side by side, column by column.

    Any ``feature`` tells their type. (Z itself would do, and have its references counted each time, by all threads.)
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        per, element = (4, I8) if signature.args[3].bitwidth == 8 else (2, I16)
        line = ir.VectorType(element, TILE).as_pointer()
        address, rows = args[0], []
        for _ in range(per):
            rows.append(builder.load(builder.inttoptr(address, line), align=1))
            address = builder.add(address, args[1])
        group = mixed(builder, *rows[:2])
        if per == 4:
            pairs = ir.VectorType(I16, TILE)
            group = mixed(builder, *(builder.bitcast(part, pairs) for part in (group, mixed(builder, *rows[2:]))))
        builder.store(group, builder.inttoptr(args[2], group.type.as_pointer()), align=32)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, i, feature), codegen


@njit(cache=True, nogil=True)
def whole_groups(rows: int, per: int) -> int:
    """Groups that so many rows make, in whole turns of the kernel."""
    return (rows + per * UNROLLED - 1) // (per * UNROLLED) * UNROLLED


@intrinsic
def _begin(typing: Any, tile: Any, groups: Any) -> Any:
    """Write in front of a packed tile of fours what its sums begin with: less by what RAISED on the other side adds."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        width = lanes()
        words, quarters = ir.VectorType(I32, width), ir.VectorType(I8, 4 * width)
        head = builder.inttoptr(args[0], words.as_pointer())
        ones, wide_ones = constant(1, quarters), constant(1, ir.VectorType(I16, 2 * width))

        def group(k: Any, sums: list[Any]) -> list[Any]:
            after = []
            for v, total in enumerate(sums):
                position = builder.add(builder.mul(k, ir.Constant(I64, VECTORS)), ir.Constant(I64, VECTORS + v))
                features = builder.bitcast(builder.load(builder.gep(head, [position]), align=4 * width), quarters)
                after.append(builder.add(total, dot_pairs(builder, dot_bytes(builder, ones, features), wide_ones)))
            return after

        for v, total in enumerate(counted_loop(builder, args[1], 1, [constant(0, words)] * VECTORS, group)):
            place = builder.gep(head, [ir.Constant(I64, v)])
            builder.store(builder.mul(total, constant(-RAISED, words)), place, align=4 * width)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i), codegen


@njit(cache=True, nogil=True)
def _pack(Z: Any, first: int, last: int, j0: int, j1: int, out: Any) -> None:
    """``out[tile, 1 + group, column]``: the rows of a group of a column in one int32, missing ones zero."""
    tiles, groups, width = out.shape
    per, bits = 4 // Z.itemsize, 8 * Z.itemsize
    mask = (1 << bits) - 1
    z, o = Z.ctypes.data, out.ctypes.data
    for tile in range(tiles):
        start = j0 + tile * width
        filled = max(0, min(width, j1 - start))
        for group in range(groups - 1):
            row = first + per * group
            if filled == width and row + per <= last:
                place = o + tile * out.strides[0] + (1 + group) * out.strides[1]
                rows = np.intp(z + row * Z.strides[0] + start * Z.itemsize)
                _interleave(rows, Z.strides[0], np.intp(place), Z[row, start])
                continue
            for c in range(width):
                value = np.int32(0)
                for r in range(min(per, last - row) if c < filled else 0):
                    value |= np.int32((np.int64(Z[row + r, start + c]) & mask) << (bits * r))
                out[tile, 1 + group, c] = value
        if per == FOURS:
            _begin(np.intp(o + tile * out.strides[0]), groups - 1)
        else:
            out[tile, 0, :] = 0


@njit(cache=True, nogil=True)
def pack_slices(Z: Any, j0: int, j1: int, first_tile: int, last_tile: int, packed: Any) -> None:
    """Some tiles of every slice of a block."""
    per = 4 // Z.itemsize
    for s in range(len(packed)):
        first, last = s * GROUPS * per, min((s + 1) * GROUPS * per, len(Z))
        _pack(Z, first, last, j0, j1, packed[s, first_tile:last_tile, : 1 + whole_groups(last - first, per)])


@intrinsic
def _copy_eight(typing: Any, source: Any, target: Any, raised: Any) -> Any:
    """Eight int32 from one address to another, every byte raised."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(I8, 4 * SPARE)
        source, target = (builder.inttoptr(a, kind.as_pointer()) for a in args[:2])
        raised = splat(builder, builder.trunc(args[2], I8), kind.count)
        builder.store(builder.add(builder.load(source, align=4), raised), target, align=4)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, i), codegen


@njit(cache=True, nogil=True)
def regroup(rows: Any, j0: int, j1: int, raised: int, out: Any) -> None:
    """Columns ``j0:j1`` of a packed block in the narrower tiles of the other side, every byte raised.

    Eight are copied where six or fewer are wanted: what is too much is overwritten by the next group, lies in columns
    beyond the last, which nobody looks at, or in the SPARE elements at the end of the buffer.
    """
    tiles, groups, width = out.shape
    height = rows.shape[2]
    for tile in range(tiles):
        start = j0 + tile * width
        split = height - start % height  # columns before the next wide tile begins
        here = rows[start // height, 1:].ctypes.data + 4 * (start % height)
        there = rows[min(start // height + 1, len(rows) - 1), 1:].ctypes.data
        target = out[tile].ctypes.data
        for group in range(groups):
            place = target + 4 * width * group
            _copy_eight(np.intp(here + 4 * height * group), np.intp(place), raised)
            if split < width:
                _copy_eight(np.intp(there + 4 * height * group), np.intp(place + 4 * split), raised)
