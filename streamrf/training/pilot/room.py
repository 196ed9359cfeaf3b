"""What trials take of memory, and how small they are made where it is scarce.

Smaller trials choose a little worse, but a blend of them is far better than none. Sizes go by steps, so that a few
bytes more or less choose the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from streamrf.features.learned.kernel_ridge import ROWS, kernel_ridge_bytes
from streamrf.recipe import BINNING, BLEND, LANDMARKS, NONE, TREES, Recipe
from streamrf.solvers.cholesky import block_bytes, gram_layout
from streamrf.solvers.plan import SLACK, Sizes
from streamrf.solvers.ridge import RidgeTrial
from streamrf.training.pilot.choice import (
    PILOT_D,
    RIDGES,
    TRIAL_BYTES,
    binning_bytes,
    learning_bytes,
    sample_bytes_of_binning,
    sample_rows,
)

EXACT_ROWS = (ROWS, 3000, 2000, 1500, 1000, 700, 500)
TRIAL_FEATURES, FEW_FEATURES, TRIALS = 1024, 512, 9  # the last two: trials that judge kernels again
FEATURES = (TRIAL_FEATURES, 512, 256)
BINS = tuple(TRIAL_BYTES >> step for step in range(6))


@dataclass(frozen=True)
class Room:
    """The largest trials that there may be."""

    exact: int = EXACT_ROWS[0]  # rows of exact kernel ridge
    alone: bool = False  # one fit at a time
    features: int = FEATURES[0]  # landmarks
    bins: int = BINS[0]  # bytes of random binning


WHOLE = Room()


def room_for(sizes: Sizes, recipe: Recipe) -> Room:
    """What the budget leaves for the trials of landmarks and random binning; ``recipe`` is what was asked for."""
    rows, columns, outputs = sampled_rows(sizes, recipe), sizes.source.n_features, sizes.outputs
    left = int((sizes.budget - sizes.reserved) / SLACK) - sample_bytes(sizes, recipe)
    bins = _first(BINS, lambda most: most + sample_bytes_of_binning(rows, columns, outputs) <= left)
    if max(kernel_ridge_bytes(rows, columns), landmark_bytes(sizes, recipe, rows, FEATURES[0], alone=False)) <= left:
        return Room(bins=bins)
    return Room(
        _first(EXACT_ROWS, lambda most: kernel_ridge_bytes(rows, columns, most, alone=True) <= left), True,
        _first(FEATURES, lambda D: landmark_bytes(sizes, recipe, rows, D, alone=True) <= left), bins,
    )  # fmt: skip


def _first(sizes: tuple[int, ...], fits: Callable[[int], bool]) -> int:
    """The largest that fits; the smallest where none does, for the plan to refuse."""
    return next((size for size in sizes if fits(size)), sizes[-1])


def pilot_bytes(sizes: Sizes, recipe: Recipe, *, blends: bool) -> int:
    """Trials, then what is learned: never both at once."""
    rows, columns, outputs = sampled_rows(sizes, recipe), sizes.source.n_features, sizes.outputs
    searched, exact, needed = recipe.pilot != NONE, blends or recipe.map in (BLEND, LANDMARKS), [0]
    room = room_for(sizes, recipe) if exact else WHOLE
    if searched and (blends or recipe.map == BINNING):
        needed.append(binning_bytes(rows, columns, outputs, room.bins))
    if recipe.map in (BINNING, TREES):
        return max(needed)
    if searched or recipe.settled_metric != NONE:
        needed.append(
            landmark_bytes(sizes, recipe, rows, room.features, alone=room.alone) if exact
            else trial_bytes(sizes, recipe.with_(D=min(PILOT_D, recipe.D)), rows)
        )  # fmt: skip
    return max(*needed, learning_bytes(recipe, columns, rows, room.exact, alone=room.alone))


def sampled_rows(sizes: Sizes, recipe: Recipe) -> int:
    return min(sizes.rows, sample_rows(sizes.rows, sizes.row_bytes, recipe))


def sample_bytes(sizes: Sizes, recipe: Recipe) -> int:
    return 3 * sampled_rows(sizes, recipe) * max(sizes.row_bytes, 4 * sizes.source.n_features)


def landmark_bytes(sizes: Sizes, recipe: Recipe, rows: int, features: int, *, alone: bool) -> int:
    """Trials with so many landmarks: one, or side by side half and a quarter as many, or all that judge kernels."""
    one = replace(sizes, threads=1)
    each = [trial_bytes(one, recipe.with_(D=features >> step), rows) for step in range(3)]
    few = trial_bytes(one, recipe.with_(D=min(features, FEW_FEATURES)), rows)
    return each[0] if alone else max(sum(each), min(sizes.threads, TRIALS) * few)


def trial_bytes(sizes: Sizes, recipe: Recipe, rows: int) -> int:
    """A small run with the features of ``recipe``, and the scores of a whole lambda path on a quarter of the sample."""
    small = replace(sizes, recipe=recipe, classes=False)
    layout = gram_layout(small)
    scores = rows // 4 * sizes.outputs * len(RIDGES) * 8 * 4
    return 8 * layout.length + RidgeTrial.matrix_bytes(recipe.D, sizes.threads) + block_bytes(small, layout) + scores
