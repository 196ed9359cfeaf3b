"""How much work the pilot of landmarks usually is, for plans."""

from __future__ import annotations

from streamrf.features.learned.kernel_ridge import FEW_JUDGES, FEW_ROWS, MOST_JUDGES, USUAL_ROWS
from streamrf.training.pilot.kernel import KERNELS, MANY_ROWS, VALIDATION
from streamrf.training.pilot.room import FEW_FEATURES, TRIAL_FEATURES, TRIAL_ROWS

RIDGES_TRIED = 7  # of a small run
FACTORS_OF_FEW, FACTORS_OF_MORE = 190, 16  # of a usual search
MATRICES_OF_FEW, MATRICES_OF_MORE, VALUE_COST = 55, 11, 240.0  # and what one value of a kernel costs, in products


def kernel_work(rows: int, columns: int) -> float:
    """Products of a usual search: factorisations of few rows and of more, kernels of all, and trials with landmarks."""
    fit, judges = rows * (1 - VALIDATION), rows * VALIDATION
    few, more, D = min(fit, FEW_ROWS), min(fit, USUAL_ROWS), min(TRIAL_FEATURES, fit / 2)
    factors = FACTORS_OF_FEW * few**3 / 3 + FACTORS_OF_MORE * more**3 / 3
    values = MATRICES_OF_FEW * few * (few / 2 + min(judges, FEW_JUDGES))
    values += MATRICES_OF_MORE * more * (more / 2 + min(judges, MOST_JUDGES))
    tried = [D] if rows < MANY_ROWS else [D, *[FEW_FEATURES] * (2 * len(KERNELS))]
    trials = sum(min(rows, TRIAL_ROWS) * D**2 + RIDGES_TRIED * D**3 / 2 for D in tried)
    return factors + values * (VALUE_COST + columns) + trials
