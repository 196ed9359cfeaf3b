"""The integer Gram kernel: int16 features, exact int32 tiles, int64 totals; no library needed.

The block is packed so that two rows of one column lie side by side: one instruction multiplies the pairs of 8 (or 16)
columns with a pair of one other column and adds each pair's two products into an int32 lane. A tile of 2 vectors by 6
columns keeps 12 accumulators in registers over up to ``depth`` rows, after which the tile is added to the int64 totals,
before an int32 lane could overflow: 2 * 127^2 * 2048/2 < 2^31 and 2 * 2047^2 * 512/2 < 2^31.
"""

from __future__ import annotations

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


@njit(cache=True, nogil=True)
def _pack(Z: Any, first: int, last: int, j0: int, j1: int, out: Any) -> None:
    """``out[tile, pair, column, parity]`` of columns ``j0:j1`` and rows ``first:last``; what is missing is zero."""
    tiles, pairs, width, _ = out.shape
    for tile in range(tiles):
        start = j0 + tile * width
        filled = max(0, min(width, j1 - start))
        for pair in range(pairs):
            row = first + 2 * pair
            for c in range(filled):
                out[tile, pair, c, 0] = Z[row, start + c] if row < last else 0
                out[tile, pair, c, 1] = Z[row + 1, start + c] if row + 1 < last else 0
            for c in range(filled, width):
                out[tile, pair, c, 0] = 0
                out[tile, pair, c, 1] = 0


@njit(cache=True, nogil=True)
def _panel(rows: Any, first_tile: int, columns: Any, scratch: Any, totals: Any) -> None:
    """Add the products of all packed row tiles from ``first_tile`` on with the packed columns of one panel."""
    row_tiles, pairs, height, _ = rows.shape
    column_tiles, _, width, _ = columns.shape
    panel_width, panel_height = totals.shape
    a, b, s = rows.ctypes.data, columns.ctypes.data, scratch.ctypes.data
    for r in range(first_tile, row_tiles):
        i0 = (r - first_tile) * height
        filled = min(height, panel_height - i0)
        for c in range(column_tiles):
            _tile(np.intp(a + r * rows.strides[0]), np.intp(b + c * columns.strides[0]), pairs, np.intp(s))
            for j in range(min(width, panel_width - c * width)):
                line = totals[c * width + j]
                for i in range(filled):
                    line[i0 + i] += np.int64(scratch[j, i])


class IntegerProduct(Product):
    """int16 features; the kernel above."""

    name = "integer"

    def __init__(self, bits: int) -> None:
        self.depth = DEPTH[bits]
        self.dtype = np.dtype(np.int16)
        self.rows = 2048

    def add(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        for first in range(0, len(Z), self.depth):
            self._add_slice(Z, first, min(first + self.depth, len(Z)), layout, totals, threads)

    def _add_slice(
        self, Z: np.ndarray, first: int, last: int, layout: Layout, totals: np.ndarray, threads: Threads
    ) -> None:
        pairs = (last - first + 1) // 2
        packed = aligned_empty((-(-layout.size // TILE), pairs, TILE, 2), np.int16)

        def pack(number: int) -> None:
            j0 = layout.starts[number]
            tiles = packed[j0 // TILE : -(-(j0 + layout.width(j0)) // TILE)]
            _pack(Z, first, last, j0, layout.size, tiles)

        def multiply(number: int) -> None:
            j0 = layout.starts[number]
            j1 = j0 + layout.width(j0)
            columns = aligned_empty((-(-(j1 - j0) // COLUMNS), pairs, COLUMNS, 2), np.int16)
            _pack(Z, first, last, j0, j1, columns)
            scratch = aligned_empty((COLUMNS, TILE), np.int32)
            _panel(packed, j0 // TILE, columns, scratch, layout.panel(totals, number))

        each_panel(layout, threads, pack)
        each_panel(layout, threads, multiply)

    def work_bytes(self, layout: Layout, threads: int) -> int:
        return 2 * self.depth * (layout.size + TILE + threads * (PANEL + COLUMNS))
