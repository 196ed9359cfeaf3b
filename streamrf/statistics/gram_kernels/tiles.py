"""The register tiles of the integer Gram kernel, as LLVM IR.

A group is what one int32 holds of a column: a pair of rows in int16, or four rows in int8. A tile multiplies the groups
of VECTORS vectors of columns with those of COLUMNS other columns, each spread over a vector, and keeps all its sums in
registers. It begins with the sums that stand in front of the first tile's groups.

- Pairs: one instruction multiplies and adds into int32 lanes.
- Fours: one side is unsigned, its features raised by RAISED; one instruction multiplies and adds two rows into int16
  lanes. Two such sums fit an int16 at seven bits (4 * 126 * 63 < 2^15), and are then widened to int32: five
  instructions where pairs take eight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from streamrf.statistics.gram_kernels.base import LIMITS, PANEL
from streamrf.support.simd import (
    I8,
    I16,
    I32,
    I64,
    add_widened,
    constant,
    counted_loop,
    dot_bytes,
    dot_pairs,
    lanes,
    own_function,
    pinned,
    prefetch,
    splat,
)

PAIRS, FOURS = 2, 4  # rows of a group
VECTORS = 2
COLUMNS = {PAIRS: 6, FOURS: 4}  # as many as leave no sum without a register
TILE = VECTORS * lanes()
GROUPS = 256  # of a slice: a tile of rows then takes 16 kB, half of the first cache
UNROLLED = 4  # groups a turn of the innermost loop
RAISED = LIMITS[7]

assert 4 * (2 * RAISED) * RAISED < 2**15
assert GROUPS % UNROLLED == UNROLLED % 2 == 0

Load = Callable[[int, int], Any]
"""The vector of one group, counted from the first of a turn, at a place among vectors or columns."""


def _pairs(builder: Any, sums: list[Any], row: Load, column: Load) -> list[Any]:
    """One turn of pairs. Sums are pinned: LLVM would hold back several turns of products, and spill."""
    halves = ir.VectorType(I16, 2 * lanes())
    for group in range(UNROLLED):
        rows = [builder.bitcast(row(group, v), halves) for v in range(VECTORS)]
        for c in range(COLUMNS[PAIRS]):
            other = builder.bitcast(column(group, c), halves)
            for v in range(VECTORS):
                place = c * VECTORS + v
                sums[place] = pinned(builder, builder.add(sums[place], dot_pairs(builder, rows[v], other)))
    return sums


def _fours(builder: Any, sums: list[Any], row: Load, column: Load) -> list[Any]:
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


def _multiply(builder: Any, per: int, a: Any, b: Any, groups: Any) -> list[Any]:
    """The sums over all groups of ``a[group, r] . b[group, c]``, column after column; groups in whole turns."""
    width, columns, turn = lanes(), COLUMNS[per], _fours if per == FOURS else _pairs
    words = ir.VectorType(I32, width)
    head = builder.inttoptr(a, words.as_pointer())
    heads = [builder.load(builder.gep(head, [ir.Constant(I64, v)]), align=4 * width) for v in range(VECTORS)]
    left = builder.gep(head, [ir.Constant(I64, VECTORS)])
    right = builder.inttoptr(b, I32.as_pointer())

    def element(base: Any, k: Any, per_group: int, index: int, align: int) -> Any:
        position = builder.add(builder.mul(k, ir.Constant(I64, per_group)), ir.Constant(I64, index))
        return builder.load(builder.gep(base, [position]), align=align)

    def one_turn(k: Any, sums: list[Any]) -> list[Any]:
        def row(group: int, v: int) -> Any:
            return element(left, k, VECTORS, group * VECTORS + v, 4 * width)

        def column(group: int, c: int) -> Any:
            return splat(builder, element(right, k, columns, group * columns + c, 4), width)

        return turn(builder, sums, row, column)

    return counted_loop(builder, groups, UNROLLED, heads * columns, one_turn)


def _store(builder: Any, per: int, a: Any, b: Any, groups: Any, out: Any) -> None:
    store = builder.inttoptr(out, ir.VectorType(I32, lanes()).as_pointer())
    for index, value in enumerate(_multiply(builder, per, a, b, groups)):
        builder.store(value, builder.gep(store, [ir.Constant(I64, index)]), align=4 * lanes())


def _add(builder: Any, per: int, a: Any, b: Any, groups: Any, totals: Any, stride: Any, soon: Any) -> None:
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


def _function(body: Callable[..., None], per: int) -> Callable[..., Any]:
    """In a larger function LLVM would leave some sums on the stack, at addresses that no vector is aligned to."""
    return own_function(f"streamrf_tile{body.__name__}_{per}", lambda builder, *args: body(builder, per, *args))


STORED, ADDED = (types.void(*[types.intp] * count) for count in (4, 6))


@intrinsic
def tile_of_pairs(typing: Any, a: Any, b: Any, groups: Any, out: Any) -> Any:
    """One register tile into ``out[c, r]``, for those that the diagonal or the border crosses."""
    return STORED, _function(_store, PAIRS)


@intrinsic
def tile_of_fours(typing: Any, a: Any, b: Any, groups: Any, out: Any) -> Any:
    """The same of four rows a group."""
    return STORED, _function(_store, FOURS)


@intrinsic
def add_tile_of_pairs(typing: Any, a: Any, b: Any, groups: Any, totals: Any, stride: Any, soon: Any) -> Any:
    """One register tile, added to ``totals[c, r]`` whose columns are ``stride`` bytes apart.

    They are asked for first, so that they are near by the time the products are done; and so is a share of the next
    tile of rows, which begins at ``soon``.
    """
    return ADDED, _function(_add, PAIRS)


@intrinsic
def add_tile_of_fours(typing: Any, a: Any, b: Any, groups: Any, totals: Any, stride: Any, soon: Any) -> Any:
    """The same of four rows a group."""
    return ADDED, _function(_add, FOURS)
