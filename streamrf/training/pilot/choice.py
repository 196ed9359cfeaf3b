"""What the pilot returns: its trials, and the choice they led to. Also how much it may see and
spend, and what is said of learned maps and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from streamrf.features.fourier.fitted import ROWS
from streamrf.features.learned.kernel_ridge import ROWS as EXACT_ROWS
from streamrf.features.learned.kernel_ridge import kernel_ridge_bytes
from streamrf.recipe import ANY, BINNING, BLEND, NONE, TREES, Recipe
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
    bearable: float = 0.0  # the largest lambda that costs next to nothing

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
    hidden: tuple[int, ...] = ()  # inputs that trees do not see
    members: tuple[Choice, ...] = ()  # of a blend
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
FINALISTS = 2
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
    """Sizes (D and rows) and how many trials they usually get: a few widths at each size."""
    widths = 1 if recipe.length_scale is not None else WIDTHS
    again = 2 * SCANNED if recipe.D <= SMALL_D and widths > 1 else widths * (large != small)
    last = widths * (whole != large)
    return [(small, widths * pairs), (large, FINALISTS * again), (whole, last)]


def folds_of(rows: int) -> list[slice]:
    """The rows of each fold."""
    edges = np.linspace(0, rows, FOLDS + 1).astype(int).tolist()
    return [slice(start, stop) for start, stop in pairwise(edges)]


def sample_rows(rows: int, row_bytes: int, recipe: Recipe) -> int:
    """How many rows the pilot should see: more where the pass that follows is long."""
    if recipe.pilot == NONE:
        return LARGE_ROWS
    if recipe.map in (ANY, BINNING, TREES, BLEND):
        return int(np.clip(SAMPLE_BYTES // row_bytes, LARGE_ROWS, BINNING_ROWS))
    ratio = (recipe.D / min(recipe.D, PILOT_D)) ** 2
    cheap = LEAST_SECONDS * PRODUCTS_A_SECOND / min(recipe.D, PILOT_D) ** 2
    affordable = int(max(SHARE * rows * ratio, cheap / 2) / LAST_FITS)
    return int(np.clip(min(affordable, SAMPLE_BYTES // row_bytes), LARGE_ROWS, MOST_ROWS))


def binning_bytes(rows: int, d: int, outputs: int, most: int = TRIAL_BYTES) -> int:
    """The largest trial of random binning, and the sample in two scalings."""
    bins = 1 << default_bits(rows)
    search = PILOT_GRIDS * bins * _bin_bytes(min(outputs, 3))
    compared = trial_grids(rows, outputs, TRIAL_GRIDS, most) * bins * _bin_bytes(outputs)
    return max(search, compared) + sample_bytes_of_binning(rows, d, outputs)


def sample_bytes_of_binning(rows: int, d: int, outputs: int) -> int:
    """Two scalings of the sample, its bin indices and its scores."""
    return rows * (12 * d + 4 * TRIAL_GRIDS + 24 * outputs)


def _bin_bytes(outputs: int) -> int:
    """For each bin: counts, totals and vectors."""
    return 24 + 8 * (VECTORS + 3) * outputs


def trial_grids(rows: int, outputs: int, grids: int, most: int = TRIAL_BYTES) -> int:
    """Grids of the trial that is compared with other maps: those of the run, where that is cheap."""
    bearable = most // (_bin_bytes(outputs) << default_bits(rows))
    return int(np.clip(min(bearable, grids), 1, TRIAL_GRIDS))


MOMENTS = 1024  # features up to which the fits of supervised frequencies hold second moments
JUDGES, LANDMARKS = 1000, 256
MOST_SOLVED = 4096
CLUSTERING = 64 * 2**20  # scikit-learn itself


def learning_bytes(
    recipe: Recipe, columns: int, rows: int, most: int = EXACT_ROWS, *, alone: bool = False
) -> int:  # fmt: skip
    """Of the frequencies, where they are learned, and of the roots of a metric by exact fits to ``most`` rows."""
    exact = kernel_ridge_bytes(rows, columns, most, alone=alone)
    metric = 0 if recipe.settled_metric == NONE else max(6 * 8 * columns * columns, exact)
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


MEMBER_NAMES = {"binning": "random binning"}  # for people; others are called by the names of their maps


def member_sentence(members: Sequence[dict[str, Any]]) -> str:
    """What a blend takes of each member: of several outputs, from the least to the most."""
    return " + ".join(f"{_share(each['share'])} {member_name(each)}" for each in members)


def member_name(member: dict[str, Any]) -> str:
    return MEMBER_NAMES.get(member["map"], member["map"])


def _share(shares: Sequence[float]) -> str:
    low, high = min(shares), max(shares)
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def member_rows(members: Sequence[dict[str, Any]] | None, figure: str | None) -> list[tuple[str, str]]:
    """Lines for a table that people read: the shares, and what each member came to alone on the rows that judge."""
    if not members:
        return []
    rows = [("blend", member_sentence(members))]
    for each in members:
        alone = (each.get("holdout") or {}).get(figure)
        if alone is not None:
            rows.append((f"{member_name(each)} alone", f"hold-out {str(figure).replace('_', ' ')} {alone:.5g}"))
    return rows


def learning_rows(learning: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Lines for a table that people read."""
    learning = learning or {}
    rows = [("learned map", map_sentence(learning["map"]))] if "map" in learning else []
    return rows + ([("metric", metric_sentence(learning["metric"]))] if "metric" in learning else [])
