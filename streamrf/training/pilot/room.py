"""What trials take of memory, and how small they are made where it is scarce.

Smaller trials choose a little worse, but a blend of them is far better than none. Sizes go by steps, so that a few
bytes more or less choose the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from streamrf.data.split import ORDER
from streamrf.features.learned.kernel_ridge import ROWS, kernel_ridge_bytes
from streamrf.recipe import ANY, BINNING, BLEND, LANDMARKS, NONE, TREES, Recipe
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
TRIAL_FEATURES, FEW_FEATURES, TRIALS = 1024, 512, 3  # the last two: trials that judge kernels again, side by side
TRIAL_ROWS = 12_000  # of trials with landmarks, at most
FEATURES = (TRIAL_FEATURES, 512, 256)
BINS = tuple(TRIAL_BYTES >> step for step in range(6))
SAMPLES, FEWEST_SAMPLED = (1.0, 0.75, 0.5, 0.375, 0.25, 0.1875, 0.125), 4000  # shares of the usual sample; rows
FEWEST_ROWS = 150  # of a table that is blended: of fewer, shares would be chosen by too few


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
    return _room(sizes, recipe, sampled_rows(sizes, recipe))


def _room(sizes: Sizes, recipe: Recipe, rows: int) -> Room:
    columns, outputs = sizes.source.n_features, sizes.outputs
    left = _left(sizes) - _drawn_bytes(sizes, rows)
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


def compares(recipe: Recipe, rows: int) -> bool:
    """Whether landmarks, random binning and trees will be trained, or the best of them; else ``any`` is Fourier."""
    if recipe.map not in (ANY, BLEND) or recipe.pilot == NONE:
        return False
    return recipe.map == BLEND or (recipe.can_be_binned and rows >= FEWEST_ROWS)


def pilot_bytes(sizes: Sizes, recipe: Recipe) -> int:
    """Trials, then what is learned: never both at once."""
    return _pilot_bytes(sizes, recipe, sampled_rows(sizes, recipe))


def _pilot_bytes(sizes: Sizes, recipe: Recipe, rows: int) -> int:
    columns, outputs, blends = sizes.source.n_features, sizes.outputs, compares(recipe, sizes.counting_rows)
    searched, exact, needed = recipe.pilot != NONE, blends or recipe.map in (BLEND, LANDMARKS), [0]
    room = _room(sizes, recipe, rows) if exact else WHOLE
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
    """The usual sample; where memory is scarce even for the smallest trials on it, the largest part that fits."""
    return scarce_rows(sizes, recipe) or _usual_rows(sizes, recipe)


def scarce_rows(sizes: Sizes, recipe: Recipe) -> int | None:
    """The rows of a sample where memory does not allow the usual number."""
    usual = _usual_rows(sizes, recipe)
    tried = [usual, *(max(int(usual * share), min(usual, FEWEST_SAMPLED)) for share in SAMPLES[1:])]

    def fits(rows: int) -> bool:
        return _drawn_bytes(sizes, rows) + _pilot_bytes(sizes, recipe, rows) <= _left(sizes)

    rows = _first(tuple(tried), fits)
    return rows if rows < usual else None


def _usual_rows(sizes: Sizes, recipe: Recipe) -> int:
    return min(sizes.rows, sample_rows(sizes.rows, sizes.row_bytes, recipe))


def _left(sizes: Sizes) -> int:
    """What the budget leaves for the sample and the trials."""
    return int((sizes.budget - sizes.reserved) / SLACK) - order_bytes(sizes)


def order_bytes(sizes: Sizes) -> int:
    """Of the keys of all rows, where the last rows judge."""
    return 8 * sizes.rows if sizes.source.holdout_key == ORDER else 0


def sample_bytes(sizes: Sizes, recipe: Recipe) -> int:
    return _drawn_bytes(sizes, sampled_rows(sizes, recipe))


def _drawn_bytes(sizes: Sizes, rows: int) -> int:
    return 3 * rows * max(sizes.row_bytes, 4 * sizes.source.n_features)


def landmark_bytes(sizes: Sizes, recipe: Recipe, rows: int, features: int, *, alone: bool) -> int:
    """Trials with so many landmarks: one, or side by side half and a quarter as many, or all that judge kernels."""
    one, rows = replace(sizes, threads=1), min(rows, TRIAL_ROWS)
    each = [trial_bytes(one, recipe.with_(D=features >> step), rows) for step in range(3)]
    few = trial_bytes(one, recipe.with_(D=min(features, FEW_FEATURES)), rows)
    return each[0] if alone else max(sum(each), min(sizes.threads, TRIALS) * few)


def trial_bytes(sizes: Sizes, recipe: Recipe, rows: int) -> int:
    """A small run with the features of ``recipe``, and the scores of a whole lambda path on a quarter of the sample."""
    small = replace(sizes, recipe=recipe, classes=False)
    layout = gram_layout(small)
    scores = rows // 4 * sizes.outputs * len(RIDGES) * 8 * 4
    return 8 * layout.length + RidgeTrial.matrix_bytes(recipe.D, sizes.threads) + block_bytes(small, layout) + scores
