"""What learning a map takes beside the sample, in bytes. Arithmetic on sizes only."""

from __future__ import annotations

from streamrf.features.fourier.learned import ROWS
from streamrf.recipe import NONE, Recipe

MOMENTS = 1024  # features up to which the fits of supervised frequencies hold second moments
JUDGES, LANDMARKS = 1000, 256
MOST_SOLVED = 4096
CLUSTERING = 64 * 2**20  # scikit-learn itself


def learning_bytes(recipe: Recipe, columns: int, rows: int) -> int:
    """Of the frequencies, where they are learned, and of the roots of a metric."""
    metric = 0 if recipe.metric == NONE else 6 * 8 * columns * columns
    kind = recipe.fourier_kind
    if kind is None or not kind.learned:
        return metric
    F = recipe.D // 2 if recipe.settled_form == "pairs" else recipe.D
    rows = min(rows, ROWS)
    inputs = rows * columns * (3 * 8 + 2 * 4)  # as asked for, shuffled, and in single precision
    own = _supervised(F, rows) if kind.targets else _unsupervised(F)
    imported = CLUSTERING if recipe.map == "ekal-cluster" else 0
    return max(metric, inputs + own + _common(F, columns) + imported)


def _common(F: int, columns: int) -> int:
    """The kernel between judges and their waves, those of landmarks, and what Adam remembers."""
    return 5 * 8 * JUDGES**2 + 8 * F * (4 * JUDGES + 8 * LANDMARKS) + 10 * 4 * F * columns


def _supervised(F: int, rows: int) -> int:
    """Cosines and sines of the rows, twice while they are put together, and second moments."""
    return 2 * 4 * rows * 2 * F + 5 * 8 * min(2 * F, MOMENTS) ** 2


def _unsupervised(F: int) -> int:
    """The quadratic programme of the weights."""
    return 8 * 8 * min(F, MOST_SOLVED) ** 2
