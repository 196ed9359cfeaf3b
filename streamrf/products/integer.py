"""The integer Gram kernel: int16 features, exact int32 tiles, int64 totals; no library needed.

The block is packed so that two rows of one column lie side by side: one instruction multiplies the pairs of 8 (or 16)
columns with a pair of one other column and adds each pair's two products into an int32 lane. A tile of 2 vectors by 6
columns keeps 12 accumulators in registers over up to ``depth`` rows, after which the tile is added to the int64 totals,
before an int32 lane could overflow: 2 * 127^2 * 2048/2 < 2^31 and 2 * 2047^2 * 512/2 < 2^31.
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
from streamrf.simd import I16, I32, I64, aligned_empty, dot_pairs, lanes, splat
from streamrf.threads import Threads

VECTORS, COLUMNS = 2, 6
TILE = VECTORS * lanes()
DEPTH = {8: 2048, 12: 512}  # rows summed in int32 lanes

assert all(limit * limit * DEPTH[bits] < 2**31 for bits, limit in LIMITS.items())


@intrinsic
def _tile(typing: Any, a: Any, b: Any, pairs: Any, out: Any) -> Any:
    """``out[c, r] = sum over pairs of a[pair, r] . b[pair, c]``: one register tile."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, pairs, out = args
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
        sums = []
        for _ in range(COLUMNS * VECTORS):
            total = builder.phi(words)
            total.add_incoming(ir.Constant(words, [0] * width), entry)
            sums.append(total)

        def element(base: Any, per_pair: int, index: int, align: int) -> Any:
            position = builder.add(builder.mul(k, ir.Constant(I64, per_pair)), ir.Constant(I64, index))
            return builder.load(builder.gep(base, [position]), align=align)

        rows = [element(left, VECTORS, v, 4 * width) for v in range(VECTORS)]
        after = []
        for c in range(COLUMNS):
            pair = builder.bitcast(splat(builder, element(right, COLUMNS, c, 4), width), halves)
            after += [builder.add(sums[c * VECTORS + v], dot_pairs(builder, rows[v], pair)) for v in range(VECTORS)]
        following = builder.add(k, ir.Constant(I64, 1))
        k.add_incoming(following, loop)
        for total, value in zip(sums, after, strict=True):
            total.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, pairs), loop, done)
        builder.position_at_end(done)
        store = builder.inttoptr(out, words.as_pointer())
        for index, value in enumerate(after):
            builder.store(value, builder.gep(store, [ir.Constant(I64, index)]), align=4 * width)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, i, i), codegen


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
                if c < filled:
                    value = np.int32(Z[row, start + c]) & 0xFFFF
                    if pair < whole:
                        value |= np.int32(Z[row + 1, start + c]) << 16
                out[tile, pair, c] = value


@njit(cache=True, nogil=True)
def _regroup(rows: Any, j0: int, j1: int, out: Any) -> None:
    """Columns ``j0:j1`` of a packed block in the narrower tiles of the other side."""
    tiles, pairs, width = out.shape
    height = rows.shape[2]
    for tile in range(tiles):
        start = j0 + tile * width
        filled = min(width, j1 - start)
        split = min(filled, height - start % height)  # columns before the next wide tile begins
        here, there = rows[start // height], rows[min(start // height + 1, len(rows) - 1)]
        for pair in range(pairs):
            for c in range(split):
                out[tile, pair, c] = here[pair, start % height + c]
            for c in range(split, filled):
                out[tile, pair, c] = there[pair, c - split]
            for c in range(filled, width):
                out[tile, pair, c] = 0


@njit(cache=True, nogil=True)
def _panel(rows: Any, first_tile: int, columns: Any, scratch: Any, totals: Any) -> None:
    """Add the products of the packed row tiles from ``first_tile`` on with the packed columns of one panel.

    Tiles above the diagonal are left out, and so are the entries above it in tiles that it crosses.
    """
    row_tiles, pairs, height = rows.shape
    column_tiles, _, width = columns.shape
    panel_width, panel_height = totals.shape
    a, b, s = rows.ctypes.data, columns.ctypes.data, scratch.ctypes.data
    for r in range(first_tile, row_tiles):
        i0 = (r - first_tile) * height
        filled = min(height, panel_height - i0)
        for c in range(column_tiles):
            if i0 + height <= c * width:
                break
            _tile(np.intp(a + r * rows.strides[0]), np.intp(b + c * columns.strides[0]), pairs, np.intp(s))
            for j in range(c * width, min((c + 1) * width, panel_width)):
                line, sums = totals[j], scratch[j - c * width]
                for i in range(max(0, j - i0), filled):
                    line[i0 + i] += np.int64(sums[i])


@njit(cache=True, nogil=True)
def _all_panels(
    Z: Any, first: int, last: int, size: int, width: int, packed: Any, columns: Any, scratch: Any, totals: Any
) -> None:
    """A whole slice on one thread, without returning to Python between panels."""
    _pack(Z, first, last, 0, size, packed)
    offset = 0
    for j0 in range(0, size, width):
        j1 = min(j0 + width, size)
        tiles = columns[: (j1 - j0 + COLUMNS - 1) // COLUMNS]
        _regroup(packed, j0, j1, tiles)
        length = (j1 - j0) * (size - j0)
        _panel(packed, j0 // TILE, tiles, scratch, totals[offset : offset + length].reshape(j1 - j0, size - j0))
        offset += length


class IntegerProduct(Product):
    """int16 features; the kernel above."""

    name = "integer"

    def __init__(self, bits: int) -> None:
        self.depth = DEPTH[bits]
        self.dtype = np.dtype(np.int16)
        self.rows = 2048
        self._buffers = threading.local()

    def add(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        add_slice = self._alone if threads.count == 1 else self._together
        for first in range(0, len(Z), self.depth):
            add_slice(Z, first, min(first + self.depth, len(Z)), layout, totals, threads)

    def _alone(
        self, Z: np.ndarray, first: int, last: int, layout: Layout, totals: np.ndarray, threads: Threads
    ) -> None:
        packed, columns, scratch = (self._buffer(name, shape) for name, shape in self._shapes(first, last, layout))
        _all_panels(Z, first, last, layout.size, layout.panel_width, packed, columns, scratch, totals)

    def _together(
        self, Z: np.ndarray, first: int, last: int, layout: Layout, totals: np.ndarray, threads: Threads
    ) -> None:
        shapes = dict(self._shapes(first, last, layout))
        packed = self._buffer("rows", shapes["rows"])

        def pack(number: int) -> None:
            j0 = layout.starts[number]
            tiles = packed[j0 // TILE : -(-(j0 + layout.width(j0)) // TILE)]
            _pack(Z, first, last, j0, layout.size, tiles)

        def multiply(number: int) -> None:
            j0 = layout.starts[number]
            j1 = j0 + layout.width(j0)
            columns = self._buffer("columns", shapes["columns"])[: -(-(j1 - j0) // COLUMNS)]
            _regroup(packed, j0, j1, columns)
            scratch = self._buffer("tile", shapes["tile"])
            _panel(packed, j0 // TILE, columns, scratch, layout.panel(totals, number))

        each_panel(layout, threads, pack)
        each_panel(layout, threads, multiply)

    def _shapes(self, first: int, last: int, layout: Layout) -> tuple[tuple[str, tuple[int, ...]], ...]:
        pairs = (last - first + 1) // 2
        return (
            ("rows", (-(-layout.size // TILE), pairs, TILE)),
            ("columns", (-(-layout.width(0) // COLUMNS), pairs, COLUMNS)),
            ("tile", (COLUMNS, TILE)),
        )

    def _buffer(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """An int32 array of this thread's own, kept for the next block: fresh memory costs a page fault a page."""
        size = math.prod(shape)
        kept = getattr(self._buffers, name, None)
        if kept is None or len(kept) < size:
            kept = aligned_empty((size,), np.int32)
            setattr(self._buffers, name, kept)
        return kept[:size].reshape(shape)

    def work_bytes(self, layout: Layout, threads: int) -> int:
        return 2 * self.depth * (layout.size + TILE + threads * (PANEL + COLUMNS))
