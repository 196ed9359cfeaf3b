"""The integer Gram kernel: int16 features, exact int32 tiles, int64 totals; no library needed.

The block is packed so that two rows of one column lie side by side: one instruction multiplies the pairs of 8 (or 16)
columns with a pair of one other column and adds each pair's two products into an int32 lane. A tile of 2 vectors by 6
columns keeps 12 accumulators in registers over a slice of DEPTH rows, then adds them to the int64 totals, before an
int32 lane could overflow: 2047^2 * 512 < 2^31. A tile's slice stays in the first cache while the columns of a panel go
by from the second; a panel takes all slices of a block in turn, so that its totals stay in the third meanwhile.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from streamrf.products.base import LIMITS, PANEL, Layout, Product, each_panel
from streamrf.simd import I16, I32, I64, aligned_empty, dot_pairs, half_of, lanes, pinned, prefetch, splat
from streamrf.threads import Threads

VECTORS, COLUMNS = 2, 6
TILE = VECTORS * lanes()
DEPTH, BLOCK = 512, 2048  # rows summed in int32 lanes, and rows of a block
SPARE = 8  # elements at the end of a buffer, for copies that take more than they need
UNROLLED = 4  # pairs of rows a turn of the innermost loop
SHARE = 2 * DEPTH * TILE // (PANEL // COLUMNS)  # bytes of a tile's slice, for each tile of a panel's columns

assert all(limit * limit * DEPTH < 2**31 for limit in LIMITS.values())
assert BLOCK % DEPTH == DEPTH % (2 * UNROLLED) == 0


def _multiply(builder: Any, a: Any, b: Any, pairs: Any) -> list[Any]:
    """The accumulators of ``sum over pairs of a[pair, r] . b[pair, c]``, column after column; pairs in whole turns."""
    width = lanes()
    halves, words = ir.VectorType(I16, 2 * width), ir.VectorType(I32, width)
    left = builder.inttoptr(a, halves.as_pointer())
    right = builder.inttoptr(b, I32.as_pointer())
    entry = builder.block
    loop, done = builder.append_basic_block("pairs"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(ir.Constant(I64, 0), entry)
    sums = [builder.phi(words) for _ in range(COLUMNS * VECTORS)]
    for total in sums:
        total.add_incoming(ir.Constant(words, [0] * width), entry)

    def element(base: Any, per_pair: int, index: int, align: int) -> Any:
        position = builder.add(builder.mul(k, ir.Constant(I64, per_pair)), ir.Constant(I64, index))
        return builder.load(builder.gep(base, [position]), align=align)

    after: list[Any] = list(sums)
    for turn in range(UNROLLED):
        rows = [element(left, VECTORS, turn * VECTORS + v, 4 * width) for v in range(VECTORS)]
        for c in range(COLUMNS):
            pair = builder.bitcast(splat(builder, element(right, COLUMNS, turn * COLUMNS + c, 4), width), halves)
            for v in range(VECTORS):
                place = c * VECTORS + v
                after[place] = pinned(builder, builder.add(after[place], dot_pairs(builder, rows[v], pair)))
    following = builder.add(k, ir.Constant(I64, UNROLLED))
    k.add_incoming(following, loop)
    for total, value in zip(sums, after, strict=True):
        total.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, pairs), loop, done)
    builder.position_at_end(done)
    return after


@intrinsic
def _tile(typing: Any, a: Any, b: Any, pairs: Any, out: Any) -> Any:
    """One register tile into ``out[c, r]``, for those that the diagonal or the border crosses."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = ir.VectorType(I32, lanes())
        store = builder.inttoptr(args[3], words.as_pointer())
        for index, value in enumerate(_multiply(builder, *args[:3])):
            builder.store(value, builder.gep(store, [ir.Constant(I64, index)]), align=4 * lanes())
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, i, i), codegen


@intrinsic
def _add_tile(typing: Any, a: Any, b: Any, pairs: Any, totals: Any, stride: Any, soon: Any) -> Any:
    """One register tile, added to ``totals[c, r]`` whose columns are ``stride`` bytes apart.

    They are asked for first, so that they are near by the time the products are done; and so is a share of the next
    tile of rows, which begins at ``soon``.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        width = lanes()
        half = ir.VectorType(I64, width // 2)
        totals, stride, soon = args[3:]
        starts = [builder.add(totals, builder.mul(stride, ir.Constant(I64, c))) for c in range(COLUMNS)]
        for start, size in [*((start, 8 * TILE) for start in starts), (soon, SHARE)]:
            for line in range(0, size, 64):
                prefetch(builder, builder.add(start, ir.Constant(I64, line)))
        for index, value in enumerate(_multiply(builder, *args[:3])):
            column, vector = divmod(index, VECTORS)
            place = builder.add(starts[column], ir.Constant(I64, 8 * width * vector))
            for part in range(2):
                words = half_of(builder, value, part)
                here = builder.inttoptr(builder.add(place, ir.Constant(I64, 4 * width * part)), half.as_pointer())
                builder.store(builder.add(builder.load(here, align=8), builder.sext(words, half)), here, align=8)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, i, i, i, i), codegen


@intrinsic
def _interleave(typing: Any, even: Any, odd: Any, out: Any) -> Any:
    """One full tile of a pair of rows: their int16 side by side, column by column."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line, pairs = ir.VectorType(I16, TILE), ir.VectorType(I16, 2 * TILE)
        even, odd = (builder.load(builder.inttoptr(a, line.as_pointer()), align=1) for a in args[:2])
        order = [index for c in range(TILE) for index in (c, TILE + c)]
        mixed = builder.shuffle_vector(even, odd, ir.Constant(ir.VectorType(I32, 2 * TILE), order))
        builder.store(mixed, builder.inttoptr(args[2], pairs.as_pointer()), align=32)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, i), codegen


@njit(cache=True, nogil=True)
def _turns(rows: int) -> int:
    """Pairs that so many rows make, in whole turns."""
    return (rows + 2 * UNROLLED - 1) // (2 * UNROLLED) * UNROLLED


@njit(cache=True, nogil=True)
def _pack(Z: Any, first: int, last: int, j0: int, j1: int, out: Any) -> None:
    """``out[tile, pair, column]``: rows ``2 pair`` and ``2 pair + 1`` of a column in one int32, missing ones zero."""
    tiles, pairs, width = out.shape
    whole = (last - first) // 2
    z, o = Z.ctypes.data, out.ctypes.data
    for tile in range(tiles):
        start = j0 + tile * width
        filled = max(0, min(width, j1 - start))
        for pair in range(pairs):
            row = first + 2 * pair
            if filled == width and pair < whole:
                even = z + row * Z.strides[0] + start * 2
                place = o + tile * out.strides[0] + pair * out.strides[1]
                _interleave(np.intp(even), np.intp(even + Z.strides[0]), np.intp(place))
                continue
            for c in range(width):
                value = np.int32(0)
                if c < filled and row < last:
                    value = np.int32(Z[row, start + c]) & 0xFFFF
                    if pair < whole:
                        value |= np.int32(Z[row + 1, start + c]) << 16
                out[tile, pair, c] = value


@njit(cache=True, nogil=True)
def _pack_slices(Z: Any, j0: int, j1: int, first_tile: int, last_tile: int, packed: Any) -> None:
    """Some tiles of every slice of a block."""
    for s in range(len(packed)):
        first, last = s * DEPTH, min((s + 1) * DEPTH, len(Z))
        _pack(Z, first, last, j0, j1, packed[s, first_tile:last_tile, : _turns(last - first)])


@intrinsic
def _copy_eight(typing: Any, source: Any, target: Any) -> Any:
    """Eight int32 from one address to another."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, target = (builder.inttoptr(a, ir.VectorType(I32, SPARE).as_pointer()) for a in args)
        builder.store(builder.load(source, align=4), target, align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@njit(cache=True, nogil=True)
def _regroup(rows: Any, j0: int, j1: int, out: Any) -> None:
    """Columns ``j0:j1`` of a packed block in the narrower tiles of the other side.

    Eight are copied where six or fewer are wanted: what is too much is overwritten by the next pair, lies in columns
    beyond the last, which nobody looks at, or in the SPARE elements at the end of the buffer.
    """
    tiles, pairs, width = out.shape
    height = rows.shape[2]
    for tile in range(tiles):
        start = j0 + tile * width
        split = height - start % height  # columns before the next wide tile begins
        here = rows[start // height].ctypes.data + 4 * (start % height)
        there = rows[min(start // height + 1, len(rows) - 1)].ctypes.data
        target = out[tile].ctypes.data
        for pair in range(pairs):
            _copy_eight(np.intp(here + 4 * height * pair), np.intp(target + 4 * width * pair))
            if split < width:
                _copy_eight(np.intp(there + 4 * height * pair), np.intp(target + 4 * (width * pair + split)))


@njit(cache=True, nogil=True)
def _panel(rows: Any, first_tile: int, columns: Any, scratch: Any, totals: Any) -> None:
    """Add the products of the packed row tiles from ``first_tile`` on with the packed columns of one panel.

    Tiles above the diagonal are left out, and so are the entries above it in tiles that it crosses.
    """
    row_tiles, pairs, height = rows.shape
    column_tiles, _, width = columns.shape
    panel_width, panel_height = totals.shape
    a, b, s = rows.ctypes.data, columns.ctypes.data, scratch.ctypes.data
    t = totals.ctypes.data
    for r in range(first_tile, row_tiles):
        i0 = (r - first_tile) * height
        filled = min(height, panel_height - i0)
        tile = np.intp(a + r * rows.strides[0])
        for c in range(column_tiles):
            j0, j1 = c * width, min((c + 1) * width, panel_width)
            if i0 + height <= j0:
                break
            column = np.intp(b + c * columns.strides[0])
            if filled == height and i0 >= j1 and j1 - j0 == width:
                place, soon = t + j0 * totals.strides[0] + i0 * 8, tile + rows.strides[0] + c * SHARE
                _add_tile(tile, column, pairs, np.intp(place), totals.strides[0], np.intp(soon))
                continue
            _tile(tile, column, pairs, np.intp(s))
            for j in range(j0, j1):
                line, sums = totals[j], scratch[j - j0]
                for i in range(max(0, j - i0), filled):
                    line[i0 + i] += np.int64(sums[i])


@njit(cache=True, nogil=True)
def _panel_of_slices(packed: Any, rows: int, j0: int, j1: int, columns: Any, scratch: Any, totals: Any) -> None:
    """Add every slice of a packed block of so many rows to the panel of columns ``j0:j1``."""
    tiles = (j1 - j0 + COLUMNS - 1) // COLUMNS
    for s in range(len(packed)):
        pairs = _turns(min(DEPTH, rows - s * DEPTH))
        _regroup(packed[s, :, :pairs], j0, j1, columns[:tiles, :pairs])
        _panel(packed[s, :, :pairs], j0 // TILE, columns[:tiles, :pairs], scratch, totals)


@njit(cache=True, nogil=True)
def _all_panels(Z: Any, size: int, width: int, packed: Any, columns: Any, scratch: Any, totals: Any) -> None:
    """A whole block on one thread, without returning to Python between panels."""
    _pack_slices(Z, 0, size, 0, packed.shape[1], packed)
    offset = 0
    for j0 in range(0, size, width):
        j1 = min(j0 + width, size)
        length = (j1 - j0) * (size - j0)
        panel = totals[offset : offset + length].reshape(j1 - j0, size - j0)
        _panel_of_slices(packed, len(Z), j0, j1, columns, scratch, panel)
        offset += length


class IntegerProduct(Product):
    """int16 features; the kernel above."""

    name = "integer"

    def __init__(self) -> None:
        self.dtype = np.dtype(np.int16)
        self.rows = BLOCK
        self._buffers = threading.local()

    def add(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        add_block = self._alone if threads.count == 1 else self._together
        for first in range(0, len(Z), BLOCK):
            add_block(Z[first : first + BLOCK], layout, totals, threads)

    def _alone(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        _all_panels(Z, layout.size, layout.panel_width, self._packed(Z, layout), *self._work(layout), totals)

    def _together(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        packed = self._packed(Z, layout)

        def pack(number: int) -> None:
            j0 = layout.starts[number]
            _pack_slices(Z, j0, layout.size, j0 // TILE, -(-(j0 + layout.width(j0)) // TILE), packed)

        def multiply(number: int) -> None:
            j0 = layout.starts[number]
            panel = layout.panel(totals, number)
            _panel_of_slices(packed, len(Z), j0, j0 + layout.width(j0), *self._work(layout), panel)

        each_panel(layout, threads, pack)
        each_panel(layout, threads, multiply)

    def _packed(self, Z: np.ndarray, layout: Layout) -> np.ndarray:
        """Room for the block in slices and tiles: [slice, tile, pair, column]."""
        return self._buffer("rows", (-(-len(Z) // DEPTH), -(-layout.size // TILE), DEPTH // 2, TILE))

    def _work(self, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
        """Room for one slice of a panel's columns, and for one tile, of this thread's own."""
        columns = self._buffer("columns", (-(-layout.width(0) // COLUMNS), DEPTH // 2, COLUMNS))
        return columns, self._buffer("tile", (COLUMNS, TILE))

    def _buffer(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """An int32 array of this thread's own, kept for the next block: fresh memory costs a page fault a page."""
        size = math.prod(shape)
        kept = getattr(self._buffers, name, None)
        if kept is None or len(kept) < size + SPARE:
            kept = aligned_empty((size + SPARE,), np.int32)
            setattr(self._buffers, name, kept)
        return kept[:size].reshape(shape)

    def work_bytes(self, layout: Layout, threads: int) -> int:
        return 2 * BLOCK * (layout.size + TILE) + 2 * DEPTH * threads * (PANEL + COLUMNS)
