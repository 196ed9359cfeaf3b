"""What commands on statistics need, from the sizes of files alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streamrf.solvers.plan import COMPILED, DEFAULT_BUDGET_SHARE, SLACK
from streamrf.support import memory
from streamrf.support.errors import BudgetError
from streamrf.support.storage.archive import read_archive
from streamrf.support.units import format_bytes


def check_budget(paths: Sequence[str | Path], budget: int | None, *, states: int) -> None:
    """Refuse now what would not fit: so many states at once, and the matrix of the solve, which is twice a state."""
    sizes = [read_archive(path).files.get("statistics.safetensors") for path in paths]
    largest = max((size.n_bytes for size in sizes if size), default=0)
    reserved = memory.resident() + COMPILED
    allowed = budget or reserved + int(DEFAULT_BUDGET_SHARE * memory.available())
    projected = reserved + int(SLACK * (states + 2) * largest)
    if projected > allowed:
        raise BudgetError(
            f"this is projected to need {format_bytes(projected)} ({states} statistics of {format_bytes(largest)} and"
            f" a matrix of twice that), the budget is {format_bytes(allowed)}: raise --memory"
        )
