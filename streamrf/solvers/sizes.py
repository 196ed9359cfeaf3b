"""Sizes that the plan and the iterative routes must agree on."""

from __future__ import annotations

from typing import Any

from streamrf.solvers.preconditioners import NystromFactor, SampleFactor

MOST_ROWS, LEAST_ROWS = 8000, 256  # of the sample that preconditions
MOST_RANK = 1000
MEMORY_SHARE = 0.4  # of what is left of the budget


def sample_rows(recipe: Any, n_rows: int, room: int) -> int:
    """Rows of the sample (or rank of the sketch) that precondition: as many as help and fit."""
    if recipe.preconditioner == "nystrom":
        return rank(recipe, room)
    rows = max(1000, min(MOST_ROWS, 2 * recipe.D))
    while rows > LEAST_ROWS and preconditioner_bytes(recipe, rows) > MEMORY_SHARE * room:
        rows = rows * 3 // 4
    return min(rows, n_rows)


def rank(recipe: Any, room: int) -> int:
    rank = min(MOST_RANK, max(1, recipe.D // 4))
    while rank > 16 and NystromFactor.nbytes(rank, recipe.D) > MEMORY_SHARE * room:
        rank = rank * 3 // 4
    return rank


def preconditioner_bytes(recipe: Any, rows: int) -> int:
    if recipe.preconditioner == "nystrom":
        return NystromFactor.nbytes(rows, recipe.D)
    return SampleFactor.nbytes(rows, recipe.D, "float64" if recipe.bits == "auto" else recipe.bits)
