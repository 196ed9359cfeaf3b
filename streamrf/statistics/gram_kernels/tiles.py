"""The register tiles of the integer Gram kernel, as LLVM IR, and blocks of features packed as they read them.

A group is what one int32 holds of a column: a pair of rows in int16, or four rows in int8. A tile multiplies the groups
of VECTORS vectors of columns with those of COLUMNS other columns, each spread over a vector, and keeps all its sums in
registers. It begins with the sums that stand in front of the first tile's groups.

- Pairs: one instruction multiplies and adds into int32 lanes.
- Fours: one side is unsigned, its features raised by RAISED; one instruction multiplies and adds two rows into int16
  lanes. Two such sums fit an int16 at seven bits (4 * 126 * 63 < 2^15), and are then widened to int32: five
  instructions where pairs take eight.
- Dots: groups of four by one instruction that multiplies and adds them into int32 lanes, where the CPU has it (VNNI of
  x86, SDOT of ARM). Eight bits fit. On x86 one side is unsigned, its features raised by 128; on ARM none is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from streamrf.features.precision import LIMITS
from streamrf.statistics.gram_kernels.base import PANEL
from streamrf.support import simd
from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.simd import (
    I8,
    I16,
    I32,
    I64,
    add_dot_pairs,
    add_widened,
    constant,
    counted_loop,
    dot_bytes,
    dot_fours,
    dot_pairs,
    dots_are_signed,
    has_dots,
    lanes,
    mixed,
    own_function,
    pinned,
    prefetch,
    splat,
)

T = simd.Type
PAIRS, FOURS = 2, 4  # rows of a group
DOTS = 5  # a way to multiply groups of four rows
VECTORS = 2
COLUMNS = {PAIRS: 6, FOURS: 4, DOTS: 6}  # as many as leave no sum without a register
TILE = VECTORS * lanes()
GROUPS = 256  # of a slice: a tile of rows then takes 16 kB, half of the first cache
UNROLLED = 4  # groups a turn of the innermost loop
RAISED = LIMITS[7]
RAISED_DOTS = 0 if dots_are_signed() else 128
SPARE = 8  # elements at the end of a buffer, for copies that take more than they need

assert 4 * (2 * RAISED) * RAISED < 2**15
assert GROUPS % UNROLLED == UNROLLED % 2 == 0

Load = Callable[[int, int], ir.Value]
"""The vector of one group, counted from the first of a turn, at a place among vectors or columns."""


def _pairs(builder: ir.IRBuilder, sums: list[ir.Value], row: Load, column: Load) -> list[ir.Value]:
    """One turn of pairs. Sums are pinned: LLVM would hold back several turns of products, and spill."""
    halves = ir.VectorType(I16, 2 * lanes())
    for group in range(UNROLLED):
        rows = [builder.bitcast(row(group, v), halves) for v in range(VECTORS)]
        for c in range(COLUMNS[PAIRS]):
            other = builder.bitcast(column(group, c), halves)
            for v in range(VECTORS):
                place = c * VECTORS + v
                sums[place] = pinned(builder, add_dot_pairs(builder, sums[place], rows[v], other))
    return sums


def _fours(builder: ir.IRBuilder, sums: list[ir.Value], row: Load, column: Load) -> list[ir.Value]:
    """One turn of fours, two groups at a time."""
    quarters, ones = ir.VectorType(I8, 4 * lanes()), constant(1, ir.VectorType(I16, 2 * lanes()))
    for first in range(0, UNROLLED, 2):
        groups = (first, first + 1)
        rows = [[builder.bitcast(row(group, v), quarters) for group in groups] for v in range(VECTORS)]
        for c in range(COLUMNS[FOURS]):
            others = [builder.bitcast(column(group, c), quarters) for group in groups]
            for v in range(VECTORS):
                parts = [dot_bytes(builder, other, mine) for other, mine in zip(others, rows[v], strict=True)]
                wide, place = dot_pairs(builder, builder.add(*parts), ones), c * VECTORS + v
                sums[place] = pinned(builder, builder.add(sums[place], wide))
    return sums


def _dots(builder: ir.IRBuilder, sums: list[ir.Value], row: Load, column: Load) -> list[ir.Value]:
    """One turn of fours, a group at a time."""
    quarters = ir.VectorType(I8, 4 * lanes())
    for group in range(UNROLLED):
        rows = [builder.bitcast(row(group, v), quarters) for v in range(VECTORS)]
        for c in range(COLUMNS[DOTS]):
            other = builder.bitcast(column(group, c), quarters)
            for v in range(VECTORS):
                place = c * VECTORS + v
                sums[place] = pinned(builder, dot_fours(builder, sums[place], other, rows[v]))
    return sums


TURNS = {PAIRS: _pairs, FOURS: _fours, DOTS: _dots}


def _multiply(builder: ir.IRBuilder, per: int, a: ir.Value, b: ir.Value, groups: ir.Value) -> list[ir.Value]:
    """The sums over all groups of ``a[group, r] . b[group, c]``, column after column; groups in whole turns."""
    width, columns, turn = lanes(), COLUMNS[per], TURNS[per]
    words = ir.VectorType(I32, width)
    head = builder.inttoptr(a, words.as_pointer())
    heads = [builder.load(builder.gep(head, [ir.Constant(I64, v)]), align=4 * width) for v in range(VECTORS)]
    left = builder.gep(head, [ir.Constant(I64, VECTORS)])
    right = builder.inttoptr(b, I32.as_pointer())

    def element(base: ir.Value, k: ir.Value, per_group: int, index: int, align: int) -> ir.Value:
        position = builder.add(builder.mul(k, ir.Constant(I64, per_group)), ir.Constant(I64, index))
        return builder.load(builder.gep(base, [position]), align=align)

    def one_turn(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        def row(group: int, v: int) -> ir.Value:
            return element(left, k, VECTORS, group * VECTORS + v, 4 * width)

        def column(group: int, c: int) -> ir.Value:
            return splat(builder, element(right, k, columns, group * columns + c, 4), width)

        return turn(builder, sums, row, column)

    return counted_loop(builder, groups, UNROLLED, heads * columns, one_turn)


def _store(builder: ir.IRBuilder, per: int, a: ir.Value, b: ir.Value, groups: ir.Value, out: ir.Value) -> None:
    store = builder.inttoptr(out, ir.VectorType(I32, lanes()).as_pointer())
    for index, value in enumerate(_multiply(builder, per, a, b, groups)):
        builder.store(value, builder.gep(store, [ir.Constant(I64, index)]), align=4 * lanes())


def _add(
    builder: ir.IRBuilder, per: int, a: ir.Value, b: ir.Value, groups: ir.Value,
    totals: ir.Value, stride: ir.Value, soon: ir.Value,
) -> None:  # fmt: skip
    starts = [builder.add(totals, builder.mul(stride, ir.Constant(I64, c))) for c in range(COLUMNS[per])]
    for start in starts:
        for line in range(0, 8 * TILE, 64):
            prefetch(builder, builder.add(start, ir.Constant(I64, line)), write=True)
    for line in range(0, share_of_tile(per), 64):
        prefetch(builder, builder.add(soon, ir.Constant(I64, line)), write=False)
    for index, value in enumerate(_multiply(builder, per, a, b, groups)):
        column, vector = divmod(index, VECTORS)
        add_widened(builder, builder.add(starts[column], ir.Constant(I64, 8 * lanes() * vector)), [value])


def share_of_tile(per: int) -> int:
    """Bytes of a tile's slice, for each tile of a panel's columns."""
    return 4 * GROUPS * TILE * COLUMNS[per] // PANEL


def _function(body: Callable[..., None], per: int) -> simd.Codegen:
    """In a larger function LLVM would leave some sums on the stack, at addresses that no vector is aligned to."""
    return own_function(f"streamrf_tile{body.__name__}_{per}", lambda builder, *args: body(builder, per, *args))


STORED, ADDED = (types.void(*[types.intp] * count) for count in (4, 6))


@intrinsic
def tile_of_pairs(typing: simd.Typing, a: T, b: T, groups: T, out: T) -> simd.Intrinsic:
    """One register tile into ``out[c, r]``, for those that the diagonal or the border crosses."""
    return STORED, _function(_store, PAIRS)


@intrinsic
def tile_of_fours(typing: simd.Typing, a: T, b: T, groups: T, out: T) -> simd.Intrinsic:
    """The same of four rows a group."""
    return STORED, _function(_store, FOURS)


@intrinsic
def add_tile_of_pairs(typing: simd.Typing, a: T, b: T, groups: T, totals: T, stride: T, soon: T) -> simd.Intrinsic:
    """One register tile, added to ``totals[c, r]`` whose columns are ``stride`` bytes apart.

    They are asked for first, so that they are near by the time the products are done; and so is a share of the next
    tile of rows, which begins at ``soon``.
    """
    return ADDED, _function(_add, PAIRS)


@intrinsic
def add_tile_of_fours(typing: simd.Typing, a: T, b: T, groups: T, totals: T, stride: T, soon: T) -> simd.Intrinsic:
    """The same of four rows a group."""
    return ADDED, _function(_add, FOURS)


@intrinsic
def tile_of_dots(typing: simd.Typing, a: T, b: T, groups: T, out: T) -> simd.Intrinsic:
    """The same by one instruction a group; elsewhere nobody calls it, and it is that of fours."""
    return STORED, _function(_store, DOTS if has_dots() else FOURS)


@intrinsic
def add_tile_of_dots(typing: simd.Typing, a: T, b: T, groups: T, totals: T, stride: T, soon: T) -> simd.Intrinsic:
    """The same by one instruction a group."""
    return ADDED, _function(_add, DOTS if has_dots() else FOURS)


# -- packing


@intrinsic
def _interleave(typing: simd.Typing, first: T, stride: T, out: T, feature: T) -> simd.Intrinsic:
    """One full tile of a group of rows, ``stride`` bytes apart: their features side by side, column by column.

    Any ``feature`` tells their type. (Z itself would do, and have its references counted each time, by all threads.)
    """

    def codegen(context: simd.Lowering, builder: ir.IRBuilder, signature: simd.Signature, args: simd.Args) -> ir.Value:
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


@inner_kernel
def whole_groups(rows: int, per: int) -> int:
    """Groups that so many rows make, in whole turns of the kernel."""
    return (rows + per * UNROLLED - 1) // (per * UNROLLED) * UNROLLED


@intrinsic
def _begin(typing: simd.Typing, tile: T, groups: T, raised: T) -> simd.Intrinsic:
    """Write in front of a packed tile of fours what its sums begin with: less by what being raised on the other side
    adds."""

    def codegen(context: simd.Lowering, builder: ir.IRBuilder, signature: simd.Signature, args: simd.Args) -> ir.Value:
        width = lanes()
        words, quarters = ir.VectorType(I32, width), ir.VectorType(I8, 4 * width)
        head = builder.inttoptr(args[0], words.as_pointer())
        ones, wide_ones = constant(1, quarters), constant(1, ir.VectorType(I16, 2 * width))
        less = splat(builder, builder.trunc(builder.neg(args[2]), I32), width)

        def group(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            after = []
            for v, total in enumerate(sums):
                position = builder.add(builder.mul(k, ir.Constant(I64, VECTORS)), ir.Constant(I64, VECTORS + v))
                features = builder.bitcast(builder.load(builder.gep(head, [position]), align=4 * width), quarters)
                after.append(builder.add(total, dot_pairs(builder, dot_bytes(builder, ones, features), wide_ones)))
            return after

        for v, total in enumerate(counted_loop(builder, args[1], 1, [constant(0, words)] * VECTORS, group)):
            place = builder.gep(head, [ir.Constant(I64, v)])
            builder.store(builder.mul(total, less), place, align=4 * width)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, i), codegen


@inner_kernel
def _pack(Z: np.ndarray, first: int, last: int, j0: int, j1: int, raised: int, out: np.ndarray) -> None:
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
            _begin(np.intp(o + tile * out.strides[0]), groups - 1, raised)
        else:
            out[tile, 0, :] = 0


@kernel
def pack_slices(
    Z: np.ndarray, j0: int, j1: int, first_tile: int, last_tile: int, raised: int, packed: np.ndarray
) -> None:
    """Some tiles of every slice of a block, to be multiplied with columns that are ``raised``."""
    per = 4 // Z.itemsize
    for s in range(len(packed)):
        first, last = s * GROUPS * per, min((s + 1) * GROUPS * per, len(Z))
        _pack(Z, first, last, j0, j1, raised, packed[s, first_tile:last_tile, : 1 + whole_groups(last - first, per)])


@intrinsic
def _copy_eight(typing: simd.Typing, source: T, target: T, raised: T) -> simd.Intrinsic:
    """Eight int32 from one address to another, every byte raised."""

    def codegen(context: simd.Lowering, builder: ir.IRBuilder, signature: simd.Signature, args: simd.Args) -> ir.Value:
        kind = ir.VectorType(I8, 4 * SPARE)
        source, target = (builder.inttoptr(a, kind.as_pointer()) for a in args[:2])
        raised = splat(builder, builder.trunc(args[2], I8), kind.count)
        builder.store(builder.add(builder.load(source, align=4), raised), target, align=4)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, i), codegen


@inner_kernel
def regroup(rows: np.ndarray, j0: int, j1: int, raised: int, out: np.ndarray) -> None:
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
