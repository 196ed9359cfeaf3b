"""What random binning chooses before its passes: scaling, a width for each column, grids; and whether it is better.

``widths`` has the search itself. Here it meets a recipe and a sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.features.binning.map import BinningMap, occupancy, width_law
from streamrf.features.scaling import Scaling
from streamrf.features.scaling_fits import distinct, fit_scaling
from streamrf.features.targets import REGRESSION, TargetCoding
from streamrf.recipe import AUTO, BINNING, Recipe
from streamrf.solvers.binning import RIDGE, default_bits, default_grids
from streamrf.support.progress import Reporter
from streamrf.support.quantiles import copies
from streamrf.support.threads import Threads
from streamrf.training.pilot.choice import FOLD_ROWS, MOST_SHOWN, BinningTrial, Choice, folds_of, trial_grids
from streamrf.training.pilot.defaults import DEFAULTS
from streamrf.training.pilot.fourier import VALIDATION
from streamrf.training.pilot.judging import judge_of
from streamrf.training.pilot.log import TrialLog
from streamrf.training.pilot.room import WHOLE, Room
from streamrf.training.pilot.widths import (
    Rows,
    WidthSearch,
    WidthTrial,
    choose_widths,
    few_outputs,
    grid_scales,
    mean_gap,
    usual_trials,
)

KERNEL = "bins:4"  # of --map binning, unless --kernel says otherwise
SCALINGS = ("standard", "quantile")
OCCUPANCY_ROWS = 20_000
MIXED_STEPS = 24  # of the two fits that compare kinds of grids: low-order ones converge later
STAGE = "pilot of random binning"
COMPARED = "random binning compared"  # in the log


class BinningPilot:
    """Searches on one sample: the first three quarters fit, the rest judge, as in the pilot of Fourier features."""

    def __init__(
        self, sample: Block, coding: TargetCoding, recipe: Recipe, threads: Threads, *, rows: int, reporter: Reporter,
        log: TrialLog | None = None, room: Room = WHOLE,
    ) -> None:  # fmt: skip
        self.log, self.room = log or TrialLog(), room
        kernel = KERNEL if recipe.kernel == AUTO else recipe.kernel
        grids, bits = recipe.grids or default_grids(rows, coding.outputs), recipe.table_bits or default_bits(rows)
        self.recipe = recipe.with_(map=BINNING, kernel=kernel, grids=grids, table_bits=bits)
        self.sample, self.coding, self.threads, self.reporter = sample, coding, threads, reporter
        self.rows = rows  # of the run
        self.cut = len(sample) - max(1, int(len(sample) * VALIDATION))
        self.judge = judge_of(sample, coding, recipe)
        values = self.judge.coding.values(self.judge.rows.targets)
        spread = _deviation(values, sample.weights) if coding.task == REGRESSION else np.ones(values.shape[1])
        self.unit = np.where(spread > 0, spread, 1.0)  # outputs count alike, whatever their units
        self.targets = values / self.unit
        self.trials: list[BinningTrial] = []
        self.done = self.expected = 0  # trials of the search for widths

    def choose(self) -> Choice:
        """Everything chosen by trials, which an interrupted run may have finished."""
        choice = self.log.chosen(BINNING, self._searched)
        self.trials = [trial for trial in choice.trials if isinstance(trial, BinningTrial)]
        return choice

    def _searched(self) -> Choice:
        if self.recipe.length_scale is not None:
            return self._choice(*self._at_one_width(self.recipe.length_scale))
        searches = {name: self._search(name, few_outputs(self.targets)) for name in self._scalings()}
        self.expected = usual_trials(searches)
        choice, self.expected = choose_widths(searches), 0
        self.reporter.working(STAGE, 1.0)
        for name, trial in choice.trials:
            self._note(name, trial, next(iter(searches.values())).grids)
        mixed = self._mixed(choice.scaling, choice.trial.length_scales * choice.factor)
        return self._choice(choice.scaling, choice.length_scales(self.rows), choice.exponent, mixed=mixed)

    def _mixed(self, scaling: str, length_scales: np.ndarray) -> bool:
        """Whether unseen rows prefer that half of the grids see few columns."""
        if len(length_scales) <= 2:
            return False
        grids = trial_grids(len(self.sample), self.targets.shape[1], self.recipe.grids or 1, self.room.bins)
        search = self._search(scaling, few_outputs(self.targets), grids)
        full, mixed = (search.trial(length_scales, mixed=mixed, steps=MIXED_STEPS) for mixed in (False, True))
        self.reporter.detail(f"every grid sees every column: error {full.error:.4f}; half see few: {mixed.error:.4f}")
        return mixed.error < full.error

    def _at_one_width(self, length_scale: float) -> tuple[str, np.ndarray]:
        """All columns have the same; only scalings are compared."""
        widths = np.full(self.sample.X.shape[1], length_scale)
        found = {}
        for name in self._scalings():
            search = self._search(name, few_outputs(self.targets))
            found[name] = search.trial(widths)
            self._note(name, found[name], search.grids)
        return min(found, key=lambda name: found[name].error), widths

    def defaults(self) -> Choice:
        """Without trials: every column counts alike."""
        scaling = str(DEFAULTS["scaling"]) if self.recipe.scaling == AUTO else self.recipe.scaling
        search = self._search(scaling, few_outputs(self.targets))
        given = self.recipe.length_scale
        return self._choice(scaling, search.first() if given is None else np.full(len(search.spread), given))

    def compared(self, choice: Choice) -> BinningTrial:
        """What was chosen, with all outputs and the grids of the run (where that is cheap), judged as others are."""
        line = self.log.trial(
            f"{COMPARED}: {choice.recipe.scaling} of {len(self.sample)}", lambda: self._compared(choice)
        )
        assert isinstance(line, BinningTrial)
        return self._told(line)

    def _compared(self, choice: Choice) -> BinningTrial:
        rows, outputs = len(self.sample), self.targets.shape[1]
        grids = trial_grids(rows, outputs, choice.recipe.grids or 1, self.room.bins)
        assert choice.length_scales is not None
        widths = choice.length_scales * (self.rows / max(1, self.cut)) ** choice.growth
        parts = folds_of(rows) if rows <= FOLD_ROWS else [slice(self.cut, rows)]
        searches = [self._search(choice.recipe.scaling, self.targets, grids, part) for part in parts]
        trials = [search.trial(widths, mixed=choice.mixed) for search in searches]
        predictions = np.concatenate([trial.predictions for trial in trials])
        found = self.judge.verdict((predictions * self.unit)[:, None], slice(parts[0].start, rows))
        seconds = sum(trial.seconds for trial in trials)
        line = replace(self._line(choice.recipe.scaling, trials[0], grids), error=found.error, misses=found.misses)
        return replace(line, seconds=seconds)

    def _choice(self, scaling: str, length_scales: np.ndarray, growth: float = 0.0, *, mixed: bool = False) -> Choice:
        recipe = self.recipe.with_(scaling=scaling, ridge=self._ridge, bits="8", form="phase")
        return Choice(recipe, tuple(self.trials), length_scales=length_scales, growth=growth, mixed=mixed)

    @property
    def _ridge(self) -> float:
        return RIDGE if self.recipe.ridge is None else self.recipe.ridge

    def _scalings(self) -> Iterable[str]:
        return distinct(SCALINGS, self._scaled) if self.recipe.scaling == AUTO else (self.recipe.scaling,)

    def _search(
        self, scaling: str, targets: np.ndarray, grids: int | None = None, judges: slice | None = None
    ) -> WidthSearch:
        weights, X = self.sample.weights, self._scaled(scaling)
        judge = np.zeros(len(X), bool)
        judge[slice(self.cut, None) if judges is None else judges] = True
        fit = np.flatnonzero(~judge)
        fit = fit[copies(None if weights is None else weights[fit], len(fit), len(fit))]
        options: dict[str, Any] = {} if grids is None else {"grids": grids}
        return WidthSearch(
            Rows(X[fit], targets[fit]), Rows(X[judge], targets[judge], None if weights is None else weights[judge]),
            self.threads,
            law=width_law(self.recipe.kernel), ridge=self._ridge, seed=self.recipe.seed,
            watch=self._watch, **options,
        )  # fmt: skip

    @cache  # noqa: B019 (a pilot lives as long as its run)
    def _scaled(self, scaling: str) -> np.ndarray:
        sample = self.sample
        return fit_scaling(scaling, sample.X, sample.weights).transform(sample.X, np.float32)

    def _watch(self) -> None:
        """Show how far the search is."""
        self.done += 1
        if self.expected:
            self.reporter.working(STAGE, min(self.done / self.expected, MOST_SHOWN))

    def _note(self, scaling: str, trial: WidthTrial, grids: int) -> BinningTrial:
        """A trial for the table; with its wrong classes, where it has all outputs."""
        line = self._line(scaling, trial, grids)
        if self.coding.classes and trial.predictions.shape[1] == self.targets.shape[1]:
            found = self.judge.verdict((trial.predictions * self.unit)[:, None], slice(self.cut, None))
            line = replace(line, misses=found.misses)
        return self._told(line)

    def _line(self, scaling: str, trial: WidthTrial, grids: int) -> BinningTrial:
        width = float(np.exp(np.log(trial.length_scales).mean()))
        return BinningTrial(
            scaling, self.recipe.kernel, width, 0, "8", len(self.sample), self._ridge, trial.error, None, trial.seconds,
            grids=grids,
        )  # fmt: skip

    def _told(self, line: BinningTrial) -> BinningTrial:
        self.trials.append(line)
        self.reporter.tried(line)
        return line


def _deviation(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """(k,) of values (n, k)."""
    if weights is None:
        return values.std(axis=0)
    mean = np.average(values, axis=0, weights=weights)
    return np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))


def build_binning(
    choice: Choice, scaling: Scaling, X: np.ndarray, threads: Threads
) -> tuple[BinningMap, dict[str, Any]]:
    """The map that was chosen, and how full its bins are with the sample."""
    scaled, recipe = scaling.transform(X, np.float32), choice.recipe
    assert recipe.grids is not None
    assert recipe.table_bits is not None
    assert choice.length_scales is not None
    metric = grid_scales(choice.length_scales, mean_gap(scaled), recipe.grids, recipe.seed, mixed=choice.mixed)
    map = BinningMap.draw(
        width_law(recipe.kernel), scaling.n_outputs, recipe.grids, recipe.table_bits, recipe.seed,
        metric=metric, bounds=(scaled.min(axis=0), scaled.max(axis=0)),
    )  # fmt: skip
    found = occupancy(map, scaled[:OCCUPANCY_ROWS], threads)
    return map, {
        "rows": found.rows, "bins": float(found.cells.mean()), "occupied": float(found.occupied.mean() / found.buckets),
        "colliding": found.colliding,
    }  # fmt: skip
