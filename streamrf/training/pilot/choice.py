"""What the pilot returns: its trials, and the choice they led to. Also how much it may see and
spend, and what is said of learned maps and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from streamrf.features.fourier.fitted import ROWS
from streamrf.features.learned.kernel_ridge import kernel_ridge_bytes
from streamrf.recipe import ANY, AUTO, BINNING, NONE, Recipe
from streamrf.solvers.binning import VECTORS, default_bits


@dataclass(frozen=True)
class Trial:
    """One setting and what it cost: ``error`` is the mean squared error on unseen rows over the targets' variance."""

    scaling: str
    kernel: str
    length_scale: float
    D: int
    bits: str
    rows: int
    ridge: float = 0.0
    error: float = np.inf
    misses: float | None = None  # share of wrong classes, for classification
    seconds: float = 0.0
    metric: str = NONE  # or the name of one that the run learned

    @property
    def settings(self) -> tuple[object, ...]:
        """What it was asked for: all but what came of it."""
        return *self.size, self.length_scale, self.ridge

    @property
    def size(self) -> tuple[object, ...]:
        """What trials have in common that differ in width alone."""
        return self.scaling, self.kernel, self.D, self.bits, self.rows, self.metric


@dataclass(frozen=True)
class BinningTrial(Trial):
    """Its length scale is the geometric mean over columns; it has grids in place of features."""

    grids: int = 0


@dataclass(frozen=True)
class Choice:
    """A recipe without ``auto``, and the arrays that the map is built from besides it."""

    recipe: Recipe
    trials: Sequence[Trial] = ()
    metric: np.ndarray | None = None  # a factor for the scaled inputs, where one was learned
    length_scales: np.ndarray | None = None  # of random binning: one for each column
    growth: float = 0.0  # length scales go as rows to the minus this
    mixed: bool = False  # whether half of the grids see few columns
    notes: dict[str, Any] = field(default_factory=dict)  # for the metadata of the model

    def metadata(self) -> dict[str, Any]:
        """What the model says of the pilot; nothing that trains reads it back."""
        document: dict[str, Any] = {"pilot": [vars(trial) for trial in self.trials]} if self.trials else {}
        if self.length_scales is not None:
            scales = [float(each) for each in self.length_scales]
            document["binning"] = {"length_scales": scales, "growth": self.growth, "mixed": self.mixed}
        return {**document, **self.notes}


RIDGES = tuple(10.0**e for e in range(-10, 0))
SMALL_D, SMALL_ROWS = 512, 8000
FINALISTS = 3
WIDTHS = 4  # that a search usually tries
SCANNED, SCAN_STEP = 8, 2**0.25  # widths on either side, where few features make the error jump from one to the next
MOST_SHOWN = 0.98  # of the bar, while trials go on
FOLDS, FOLD_ROWS = 4, 8000  # trials of so few rows are judged on all of them, a quarter at a time
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


def usual_trials(
    recipe: Recipe, small: tuple[int, int], large: tuple[int, int], whole: tuple[int, int], pairs: int
) -> list[tuple[tuple[int, int], int]]:
    """Sizes (D and rows) and how many trials they usually get: a few widths at each size, then precisions."""
    widths = 1 if recipe.length_scale is not None else WIDTHS
    again = 2 * SCANNED if recipe.D <= SMALL_D and widths > 1 else widths * (large != small)
    last = widths * (whole != large) + 2 * (recipe.bits == AUTO)
    return [(small, widths * pairs), (large, FINALISTS * again), (whole, last)]


def folds_of(rows: int) -> list[slice]:
    """The rows of each fold."""
    edges = np.linspace(0, rows, FOLDS + 1).astype(int).tolist()
    return [slice(start, stop) for start, stop in pairwise(edges)]


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


MOMENTS = 1024  # features up to which the fits of supervised frequencies hold second moments
JUDGES, LANDMARKS = 1000, 256
MOST_SOLVED = 4096
CLUSTERING = 64 * 2**20  # scikit-learn itself


def learning_bytes(recipe: Recipe, columns: int, rows: int) -> int:
    """Of the frequencies, where they are learned, and of the roots of a metric."""
    metric = 0 if recipe.metric == NONE else max(6 * 8 * columns * columns, kernel_ridge_bytes(rows, columns))
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


MEASURES = {  # of a learned map, in the order of their telling
    "landmark_loss": "landmark loss", "kernel_error": "kernel error on fresh rows", "holdout_error": "hold-out error",
}  # fmt: skip


def change(figures: dict[str, float]) -> str:
    """Before and after."""
    return f"{figures['before']:.4g} -> {figures['after']:.4g}"


def map_sentence(told: dict[str, Any]) -> str:
    """Of frequencies that were learned."""
    if "reason" in told:
        return f"nothing was learned: {told['reason']}"
    figures = ", ".join(f"{name} {change(told[key])}" for key, name in MEASURES.items() if key in told)
    kept = "" if told["kept"] == "learned" else "; no better than the start, which was kept"
    return figures + kept


def metric_sentence(told: dict[str, Any]) -> str:
    """Of a metric, with the columns that count most in it."""
    error = f"hold-out error {change(told['holdout_error'])}"
    if told["form"] == "none":
        return f"none: no {told['asked']} metric was better on unseen rows ({error})"
    weights = (f"{100 * each['share']:.0f} % {_name(each)}" for each in told["columns"][:5])
    return f"{told['form']}, {error}; weight is on {', '.join(weights)}"


def _name(column: dict[str, Any]) -> str:
    return str(column.get("name", f"column {column['column']}"))


def with_names(told: dict[str, Any], names: tuple[str, ...] | None, scaling: str) -> dict[str, Any]:
    """A metric's columns with the names that the data has for them, where scaled inputs are the columns themselves."""
    if not names or scaling == "pca":
        return told
    return {**told, "columns": [{**each, "name": names[each["column"]]} for each in told["columns"]]}


def learning_rows(learning: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Lines for a table that people read."""
    learning = learning or {}
    rows = [("learned map", map_sentence(learning["map"]))] if "map" in learning else []
    return rows + ([("metric", metric_sentence(learning["metric"]))] if "metric" in learning else [])
