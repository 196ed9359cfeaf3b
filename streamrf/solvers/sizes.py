"""Sizes that the plans and the fits of iterative solvers must agree on."""

from __future__ import annotations

from streamrf.solvers.preconditioners import NystromFactor, SampleFactor
from streamrf.solvers.primal_factor import PrimalFactor
from streamrf.solvers.settings import SolverSettings

MOST_ROWS, LEAST_ROWS = 16_000, 256  # of a sample that preconditions by the products of its rows
SGD_ROWS = 4000  # of the sample that stochastic gradients look at, at most
FEW = 1000  # rows that cost nothing worth saving
PER_FEATURE, MOST_PER_FEATURE = 2, 8  # rows of one that preconditions by those of its features
ROWS_SHARE = 12  # the part of all rows that a sample may be, so that it costs little beside the passes
MOST_RANK = 1000
MEMORY_SHARE = 0.4  # of what is left of the budget
BATCH = 512  # rows of a step of stochastic gradients
PART_ROWS, PART_BYTES = 65_536, 64 * 2**20  # rows that are shuffled together


def sample_rows(recipe: SolverSettings, n_rows: int, room: int) -> int:
    """Rows of the sample (or rank of the sketch) that precondition: as many as help and fit."""
    if recipe.solver == "sgd":
        return min(SGD_ROWS, n_rows)
    if is_sketched(recipe):
        return rank(recipe, room)
    allowed = n_rows // ROWS_SHARE
    if allowed >= PER_FEATURE * recipe.D and PrimalFactor.nbytes(recipe.D, recipe.bits) <= MEMORY_SHARE * room:
        return min(max(FEW, min(MOST_PER_FEATURE * recipe.D, allowed)), n_rows)
    rows = max(FEW, min(MOST_ROWS, recipe.D, allowed))
    while rows > LEAST_ROWS and preconditioner_bytes(recipe, rows) > MEMORY_SHARE * room:
        rows = rows * 3 // 4
    return min(rows, n_rows)


def part_rows(n_rows: int, row_bytes: int, shards: int) -> int:
    """Rows of a part that stochastic gradients go through in one run, at most."""
    return max(BATCH, min(PART_ROWS, PART_BYTES // max(1, row_bytes), -(-n_rows // shards)))


def parts_of_a_leg(n_rows: int, row_bytes: int, shards: int) -> int:
    """At most; two parts that follow one another have the rows of more than a full one together."""
    return min(shards, 2 * n_rows // part_rows(n_rows, row_bytes, shards) + 1)


def is_sketched(recipe: SolverSettings) -> bool:
    """Whether a sketch of all rows preconditions; stochastic gradients look at a sample, whatever is asked for."""
    return recipe.preconditioner == "nystrom" and recipe.solver != "sgd"


def drawn_rows(recipe: SolverSettings, rows: int) -> int:
    """Rows to keep, where so many precondition: a sketch has none, and some losses take their scale from residuals."""
    return max(FEW, rows) if is_sketched(recipe) else rows


def is_primal(D: int, rows: int) -> bool:
    """Whether the sample knows enough of the features' own matrix, which is then smaller than that of the rows."""
    return 2 * rows >= 3 * D


def rank(recipe: SolverSettings, room: int) -> int:
    rank = min(MOST_RANK, max(1, recipe.D // 4))
    while rank > 16 and NystromFactor.nbytes(rank, recipe.D) > MEMORY_SHARE * room:
        rank = rank * 3 // 4
    return rank


def preconditioner_bytes(recipe: SolverSettings, rows: int) -> int:
    if is_sketched(recipe):
        return NystromFactor.nbytes(rows, recipe.D)
    if is_primal(recipe.D, rows) and recipe.solver != "sgd":
        return PrimalFactor.nbytes(recipe.D, recipe.bits)
    return SampleFactor.nbytes(rows, recipe.D, "float64" if recipe.bits == "auto" else recipe.bits)
