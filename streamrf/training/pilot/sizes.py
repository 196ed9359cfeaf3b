"""How much the pilot sees and spends: rows of the sample, work, memory. Arithmetic on sizes only."""

from __future__ import annotations

import numpy as np

from streamrf.recipe import ANY, BINNING, NONE, Recipe
from streamrf.solvers.binning import VECTORS, default_bits

RIDGES = tuple(10.0**e for e in range(-10, 0))
SMALL_D, SMALL_ROWS = 512, 8000
PILOT_D, LARGE_ROWS, MOST_ROWS = 2048, 24_000, 96_000
BINNING_ROWS = 53_334  # three quarters of them to fit: random binning learns a width for each column
SHARE, LAST_FITS = 0.15, 6  # the last stage's fits may cost so much of the pass
SAMPLE_BYTES = 64 * 2**20
PRODUCTS_A_SECOND, LEAST_SECONDS, MOST_SECONDS = 1e11, 8.0, 30.0
PILOT_GRIDS = 32
TRIAL_BYTES = 256 * 2**20  # of the one trial of random binning that is compared with other maps
TRIAL_GRIDS = 100


def budget_seconds(rows: int, D: int) -> float:
    """What each half may cost before no new width is tried: a tenth of the pass, on a machine of two modest cores."""
    return float(np.clip(0.1 * rows * D * D / PRODUCTS_A_SECOND, LEAST_SECONDS, MOST_SECONDS))


def sample_rows(rows: int, row_bytes: int, recipe: Recipe) -> int:
    """How many rows the pilot should see: more where the pass that follows is long."""
    if recipe.pilot == NONE:
        return LARGE_ROWS
    if recipe.map in (ANY, BINNING):
        return int(np.clip(SAMPLE_BYTES // row_bytes, LARGE_ROWS, BINNING_ROWS))
    ratio = (recipe.D / min(recipe.D, PILOT_D)) ** 2
    cheap = LEAST_SECONDS * PRODUCTS_A_SECOND / min(recipe.D, PILOT_D) ** 2
    affordable = int(max(SHARE * rows * ratio, cheap / 2) / LAST_FITS)
    return int(np.clip(min(affordable, SAMPLE_BYTES // row_bytes), LARGE_ROWS, MOST_ROWS))


def binning_bytes(rows: int, d: int, outputs: int) -> int:
    """The largest trial of random binning, and the sample in two scalings."""
    bins = 1 << default_bits(rows)
    search = PILOT_GRIDS * bins * _bin_bytes(min(outputs, 3))
    compared = trial_grids(rows, outputs, TRIAL_GRIDS) * bins * _bin_bytes(outputs)
    return max(search, compared) + rows * (12 * d + 4 * TRIAL_GRIDS + 24 * outputs)


def _bin_bytes(outputs: int) -> int:
    """For each bin: counts, totals and vectors."""
    return 24 + 8 * (VECTORS + 3) * outputs


def trial_grids(rows: int, outputs: int, grids: int) -> int:
    """Grids of the trial that is compared with other maps: those of the run, where that is cheap."""
    most = TRIAL_BYTES // (_bin_bytes(outputs) << default_bits(rows))
    return int(np.clip(min(most, grids), 1, TRIAL_GRIDS))
