"""The integer Gram kernel: int16 or int8 features, exact int32 tiles, int64 totals; no library needed.

A block is packed so that the rows of a group lie side by side. Register tiles sum a slice of GROUPS groups in int32
lanes, then add them to the int64 totals, before a lane could overflow: 2047^2 * 512 < 2^31. A tile's slice stays in the
first cache while the columns of a panel go by from the second; a panel takes all slices of a block in turn, so that its
totals stay in the third meanwhile.
"""

from __future__ import annotations

import math
import threading

import numpy as np

from streamrf.features.precision import LIMITS
from streamrf.statistics.gram_kernels.base import PANEL, Layout, Product, each_panel
from streamrf.statistics.gram_kernels.tiles import (
    COLUMNS,
    DOTS,
    FOURS,
    GROUPS,
    PAIRS,
    RAISED,
    RAISED_DOTS,
    SPARE,
    TILE,
    add_tile_of_dots,
    add_tile_of_fours,
    add_tile_of_pairs,
    pack_slices,
    regroup,
    share_of_tile,
    tile_of_dots,
    tile_of_fours,
    tile_of_pairs,
    whole_groups,
)
from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.simd import aligned_empty
from streamrf.support.threads import Threads

Array = np.ndarray

SLICES = 4  # of a block
SHARES = tuple(share_of_tile(way) if way in COLUMNS else 0 for way in range(DOTS + 1))
RAISES = (0, 0, 0, 0, RAISED, RAISED_DOTS)  # of each way

assert all(limit * limit * PAIRS * GROUPS < 2**31 for bits, limit in LIMITS.items() if bits <= 12)
assert 255 * 128 * FOURS * GROUPS < 2**31


@inner_kernel
def _panel(rows: Array, first_tile: int, columns: Array, way: int, scratch: Array, totals: Array) -> None:
    """Add the products of the packed row tiles from ``first_tile`` on with the packed columns of one panel.

    Tiles above the diagonal are left out, and so are the entries above it in tiles that it crosses.
    """
    row_tiles, _, height = rows.shape
    column_tiles, groups, width = columns.shape
    panel_width, panel_height = totals.shape
    a, b, s = rows.ctypes.data, columns.ctypes.data, np.intp(scratch.ctypes.data)
    t, stride = totals.ctypes.data, totals.strides[0]
    share = SHARES[way]
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
                place, soon = np.intp(t + j0 * stride + i0 * 8), np.intp(tile + rows.strides[0] + c * share)
                if way == DOTS:
                    add_tile_of_dots(tile, column, groups, place, stride, soon)
                elif way == FOURS:
                    add_tile_of_fours(tile, column, groups, place, stride, soon)
                else:
                    add_tile_of_pairs(tile, column, groups, place, stride, soon)
                continue
            if way == DOTS:
                tile_of_dots(tile, column, groups, s)
            elif way == FOURS:
                tile_of_fours(tile, column, groups, s)
            else:
                tile_of_pairs(tile, column, groups, s)
            for j in range(j0, j1):
                line, sums = totals[j], scratch[j - j0]
                for i in range(max(0, j - i0), filled):
                    line[i0 + i] += np.int64(sums[i])


@kernel
def _add_panels(
    packed: Array, rows: int, way: int, size: int, width: int, first: int, last: int, columns: Array, scratch: Array,
    totals: Array,
) -> None:  # fmt: skip
    """Add every slice of a packed block of so many rows to the panels ``first:last``, ``width`` columns each."""
    per = min(way, FOURS)
    offset = width * (first * size - width * (first * (first - 1) // 2))
    for j0 in range(first * width, min(last * width, size), width):
        j1 = min(j0 + width, size)
        length = (j1 - j0) * (size - j0)
        panel = totals[offset : offset + length].reshape(j1 - j0, size - j0)
        tiles = (j1 - j0 + columns.shape[2] - 1) // columns.shape[2]
        for s in range(len(packed)):
            groups = whole_groups(min(GROUPS * per, rows - s * GROUPS * per), per)
            regroup(packed[s], j0, j1, RAISES[way], columns[:tiles, :groups])
            _panel(packed[s], j0 // TILE, columns[:tiles, :groups], way, scratch, panel)
        offset += length


class IntegerProduct(Product):
    """int16 features, in pairs of rows."""

    name = "integer"
    way = PAIRS

    def __init__(self) -> None:
        self.per = min(self.way, FOURS)
        self.dtype = np.dtype(np.int16 if self.per == PAIRS else np.int8)
        self.rows = SLICES * GROUPS * self.per
        self._buffers = threading.local()

    def add(self, Z: Array, layout: Layout, totals: Array, threads: Threads) -> None:
        add_block = self._alone if threads.count == 1 else self._together
        for first in range(0, len(Z), self.rows):
            add_block(Z[first : first + self.rows], layout, totals, threads)

    def _alone(self, Z: Array, layout: Layout, totals: Array, threads: Threads) -> None:
        packed = self._packed(Z, layout)
        pack_slices(Z, 0, layout.size, 0, packed.shape[1], RAISES[self.way], packed)
        self._multiply(packed, len(Z), layout, 0, len(layout.starts), totals)

    def _together(self, Z: Array, layout: Layout, totals: Array, threads: Threads) -> None:
        packed = self._packed(Z, layout)

        def pack(number: int) -> None:
            j0 = layout.starts[number]
            pack_slices(Z, j0, layout.size, j0 // TILE, -(-(j0 + layout.width(j0)) // TILE), RAISES[self.way], packed)

        def multiply(number: int) -> None:
            self._multiply(packed, len(Z), layout, number, number + 1, totals)

        each_panel(layout, threads, pack)
        each_panel(layout, threads, multiply)

    def _multiply(self, packed: Array, rows: int, layout: Layout, first: int, last: int, totals: Array) -> None:
        size, width = layout.size, layout.panel_width
        _add_panels(packed, rows, self.way, size, width, first, last, *self._work(layout), totals)

    def _packed(self, Z: Array, layout: Layout) -> Array:
        """Room for the block in slices and tiles, each with what its sums begin with: [slice, tile, group, column]."""
        slices = -(-len(Z) // (GROUPS * self.per))
        return self._buffer("rows", (slices, -(-layout.size // TILE), 1 + GROUPS, TILE))

    def _work(self, layout: Layout) -> tuple[Array, Array]:
        """Room for one slice of a panel's columns, and for one tile, of this thread's own."""
        width = COLUMNS[self.way]
        columns = self._buffer("columns", (-(-layout.width(0) // width), GROUPS, width))
        return columns, self._buffer("tile", (width, TILE))

    def _buffer(self, name: str, shape: tuple[int, ...]) -> Array:
        """An int32 array of this thread's own, kept for the next block: fresh memory costs a page fault a page."""
        size = math.prod(shape)
        kept = getattr(self._buffers, name, None)
        if kept is None or len(kept) < size + SPARE:
            kept = aligned_empty((size + SPARE,), np.int32)
            setattr(self._buffers, name, kept)
        return kept[:size].reshape(shape)

    def work_bytes(self, layout: Layout, threads: int) -> int:
        return 4 * (SLICES * (1 + GROUPS) * (layout.size + TILE) + GROUPS * threads * (PANEL + COLUMNS[self.way]))


class ByteProduct(IntegerProduct):
    """int8 features of seven bits, in groups of four rows: as fast as a CPU without VNNI goes."""

    name = "bytes"
    way = FOURS


class DotProduct(IntegerProduct):
    """int8 features of seven or eight bits, in groups of four rows, for CPUs with VNNI or SDOT."""

    name = "dots"
    way = DOTS
