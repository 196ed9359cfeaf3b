"""How many rows make a chunk, and whether the work fits into the memory that was allowed. Arithmetic only."""

from __future__ import annotations

from streamrf.support.errors import BudgetError, InputError
from streamrf.support.units import format_bytes

CHUNK_BYTES = 16 << 20  # large enough to read fast, small enough to hold a few
SMALLEST_CHUNK = 1 << 18
COPIES = 6  # of a chunk: being filled, joined, encoded, compressed, and what the allocator keeps
PARSING = 48 << 20  # blocks of text and batches on their way, what is made of them, and the library that writes


def chunk_rows(row_bytes: int, *, asked: int | None, budget: int, reserved: int) -> int:
    """Rows of a chunk: those asked for, or as many as make about 16 MB, fewer where the budget is small.

    ``reserved`` is what the process holds before it writes. What cannot fit is a BudgetError.
    """
    if asked is not None and asked < 1:
        raise InputError(f"--chunk-rows {asked}: at least 1 row is wanted")
    room = (budget - reserved - PARSING) // COPIES
    rows = asked or max(1, min(CHUNK_BYTES, max(room, SMALLEST_CHUNK)) // max(1, row_bytes))
    if rows * row_bytes > room:
        needed = reserved + PARSING + COPIES * rows * row_bytes
        raise BudgetError(
            f"converting in chunks of {rows:,} rows needs about {format_bytes(needed)}, and --memory allows"
            f" {format_bytes(budget)}: allow more" + (", or fewer rows with --chunk-rows" if asked else "")
        )
    return rows
