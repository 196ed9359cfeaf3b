"""Maps side by side on a sample of rows: kernel error, hold-out error, time per row.

Maps and a small ridge fit are fitted to one half of the sample. Everything is measured on the other half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from streamrf.data.screening import draw_sample
from streamrf.data.source import Block, Source
from streamrf.features.base import FeatureMap
from streamrf.features.fourier import KINDS, Learning, kind_of
from streamrf.features.fourier.map import FourierMap
from streamrf.features.kernels import Kernel, make_kernel
from streamrf.features.pipeline import build_fourier
from streamrf.features.precision import make_precision
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import CLASSIFICATION, TargetCoding
from streamrf.recipe import BINNING, Recipe
from streamrf.reports.bounds import (
    draw_grids,
    dual_scores,
    feature_block,
    relative_error,
    relative_gap,
    shared_grids,
)
from streamrf.solvers.lambda_path import wrong_classes
from streamrf.solvers.ridge import RidgeTrial
from streamrf.statistics.targets import TargetScan, settle_targets
from streamrf.support import memory
from streamrf.support.errors import BudgetError, DataError, InputError, NumericalError
from streamrf.support.progress import Reporter
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import ALONE, Threads, available_cores, seconds_of
from streamrf.support.units import format_bytes
from streamrf.training.pilot.choice import RIDGES
from streamrf.training.pilot.defaults import defaults

FEWEST_ROWS = 8
DRAWN = tuple(
    kind for kind in KINDS if not (kind_of(kind).learned or kind_of(kind).whole)
)  # learned ones take seconds each
BINNABLE = "laplacian"  # the kernel that random binning can draw
SWEPT = ("mc", "orthogonal", "ekal-sample", "ekal-cluster")  # the default if numbers of landmarks are compared
TIMED_ROWS, TIMED_REPEATS = 256, 15  # short runs, so that the median is one that nothing else interrupted
SMALL_D = 1500  # up to here, threads that share one factorisation wait for each other more than they work
BUDGET_SHARE = 0.8


@dataclass(frozen=True)
class Spread:
    """One measurement for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """One standard deviation over seeds; 0 for a single seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    def to_json(self) -> JSON:
        return {"mean": self.mean, "spread": self.deviation, "values": list(self.values)}


@dataclass(frozen=True)
class Cell:
    """One map at one number of features."""

    map: str
    D: int
    kernel_error: Spread
    holdout_error: Spread
    microseconds: float  # a row, on one thread
    landmarks: int | None = None  # if numbers of them are compared

    def to_json(self) -> JSON:
        return {
            "map": self.map, "D": self.D, "kernel_error": self.kernel_error.to_json(),
            "holdout_error": self.holdout_error.to_json(), "microseconds_per_row": self.microseconds,
            **({} if self.landmarks is None else {"landmarks": self.landmarks}),
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Every cell, why maps were left out, and the settings that all cells share."""

    cells: list[Cell]
    skipped: dict[str, str]
    recipe: Recipe
    seeds: tuple[int, ...]
    rows: dict[str, int]  # fitted, measured
    inputs: int
    task: str
    seconds: float
    bench: Bench | None = field(default=None, repr=False, compare=False)  # what everything was measured on

    @property
    def metric(self) -> str:
        """The name of the hold-out error, as in `streamrf evaluate`."""
        return "error" if self.task == CLASSIFICATION else "rmse"

    @property
    def kernel(self) -> Kernel:
        return make_kernel(self.recipe.kernel, length_scale=self.recipe.length_scale)

    def of_map(self, kind: str) -> list[Cell]:
        """The cells of one map, fewest features first, then fewest landmarks."""
        return sorted((cell for cell in self.cells if cell.map == kind), key=lambda cell: (cell.D, cell.landmarks or 0))

    def to_json(self) -> JSON:
        return {
            "kernel": {"name": self.kernel.label, "length_scale": self.kernel.length_scale, "gamma": self.kernel.gamma},
            "scaling": self.recipe.scaling, "form": self.recipe.form, "bits": self.recipe.bits, "task": self.task,
            "holdout_metric": self.metric, "rows": self.rows, "inputs": self.inputs, "seeds": list(self.seeds),
            "cells": [cell.to_json() for cell in self.cells],
            "skipped": [{"map": kind, "reason": reason} for kind, reason in self.skipped.items()],
            "seconds": self.seconds,
        }  # fmt: skip


class Bench:
    """The rows that maps are measured on, and the exact kernel there."""

    def __init__(self, sample: Block, recipe: Recipe, threads: Threads) -> None:
        if len(sample) < FEWEST_ROWS:
            raise DataError(f"{len(sample)} usable rows: comparing maps needs at least {FEWEST_ROWS}")
        half = len(sample) // 2
        self.fitted, self.unseen = sample.take(slice(0, half)), sample.take(slice(half, None))
        self.recipe, self.threads = defaults(recipe, self.fitted.X), threads
        self.coding = _coding(sample, recipe)
        self.scaling = fit_scaling(self.recipe.scaling, self.fitted.X)
        self.kernel = make_kernel(self.recipe.kernel, length_scale=self.recipe.length_scale)
        self.exact = self.kernel(self.scaling.transform(self.unseen.X, np.float64))  # of the unseen rows

    def build(self, kind: str, D: int, seed: int, landmarks: int | None = None) -> FourierMap:
        """The map that training would build from the fitted half of the sample."""
        rows, precision = self.fitted.take(slice(0, kind_of(kind).rows)), make_precision(self.recipe.bits)
        return build_fourier(
            kind, self.kernel, D, self.scaling.n_outputs, form=self.recipe.form, precision=precision, seed=seed,
            sample=self.scaling.transform(rows.X), targets=self._targets(rows),
            learning=Learning(landmarks=landmarks, task=self.coding.task),
        )  # fmt: skip

    def measure(self, kind: str, D: int, seeds: Sequence[int], landmarks: int | None = None) -> Cell:
        """Small fits run side by side on one thread each, large ones one by one on all threads."""
        if kind == BINNING:
            return self.measure_grids(D, seeds)
        across, within = (self.threads, ALONE) if D <= SMALL_D else (ALONE, self.threads)
        maps = list(across.map(lambda seed: self.build(kind, D, seed, landmarks), seeds))
        kernel = Spread(tuple(across.map(lambda each: self.kernel_error(each, within), maps)))
        holdout = Spread(tuple(across.map(lambda each: self.holdout_error(each, within), maps)))
        microseconds = float(np.median([self.microseconds(each) for each in maps]))
        return Cell(kind, D, kernel, holdout, microseconds, landmarks)

    def measure_grids(self, grids: int, seeds: Sequence[int]) -> Cell:
        """Random binning, by its inner products."""
        X, Y = (self.scaling.transform(rows.X, np.float32) for rows in (self.fitted, self.unseen))
        maps = [draw_grids(self.kernel, X.shape[1], grids, seed) for seed in seeds]
        kernel, holdout = [], []
        for map in maps:
            kernel.append(relative_gap(shared_grids(map, Y, Y, self.threads), self.exact))
            fitted, across = (shared_grids(map, rows, X, self.threads) for rows in (X, Y))
            holdout.append(self._judged(dual_scores(fitted, across, self._targets(self.fitted), RIDGES)))
        timed = Y[:TIMED_ROWS]
        microseconds = float(np.median([_microseconds(partial(map.indices, timed)) for map in maps])) / len(timed)
        return Cell(BINNING, grids, Spread(tuple(kernel)), Spread(tuple(holdout)), microseconds)

    def kernel_error(self, map: FeatureMap, threads: Threads) -> float:
        return relative_error(map, self._inputs(map), self.exact, threads)

    def holdout_error(self, map: FeatureMap, threads: Threads) -> float:
        """RMSE, or share of wrong classes, of a ridge fit to the fitted half."""
        trial = RidgeTrial(self.scaling, map, self.coding, threads)
        return self._judged(trial.scores(trial.fit(self.fitted, RIDGES), self.unseen))

    def _judged(self, scores: np.ndarray) -> float:
        truth = self._targets(self.unseen)
        picked = crossed_scores(scores, truth)
        if self.coding.task == CLASSIFICATION:
            return float(wrong_classes(picked, truth).mean())
        return float(np.sqrt(((picked - truth) ** 2).mean()))

    def microseconds(self, map: FeatureMap) -> float:
        """Time for one row on one thread (projection and cosines): the median of a few runs over a block."""
        X = self._inputs(map)[:TIMED_ROWS]
        out = feature_block(map, len(X))
        return _microseconds(lambda: map.compute(X, out, ALONE)) / len(X)

    def _targets(self, rows: Block) -> np.ndarray:
        assert rows.y is not None  # refused by _coding
        return self.coding.values(rows.y)

    def _inputs(self, map: FeatureMap) -> np.ndarray:
        return self.scaling.transform(self.unseen.X, map.precision.inputs)


def _microseconds(work: Callable[[], object]) -> float:
    return float(np.median(seconds_of(work, TIMED_REPEATS))) * 1e6


def _coding(sample: Block, recipe: Recipe) -> TargetCoding:
    """Settled by the sample alone: a comparison reads nothing else."""
    if sample.y is None:
        raise InputError("the data has no targets: name them with `y` (zarr, npy) or `target` (parquet)")
    scan = TargetScan()
    scan.update(sample.y)
    return settle_targets(scan, recipe.task, sample.y.dtype.kind, recipe.nan)


def crossed_scores(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(rows, outputs) of (rows, lambdas, outputs): each half of the rows at the best lambda of the other half."""
    scale = np.maximum(truth.var(axis=0), np.finfo(float).tiny)
    cost = ((scores - truth[:, None]) ** 2 / scale).mean(axis=2)
    first, second = slice(0, len(truth) // 2), slice(len(truth) // 2, None)
    pairs = ((first, second), (second, first))
    return np.concatenate([scores[here, cost[there].mean(axis=0).argmin()] for here, there in pairs])


def compare(
    source: Source, recipe: Recipe, *, kinds: Sequence[str] | None = None, Ds: Sequence[int] = (50, 100, 200, 400),
    seeds: int = 3, rows: int = 2000, landmarks: Sequence[int] | None = None, threads: Threads,
    reporter: Reporter | None = None,
) -> Comparison:  # fmt: skip
    """Measure maps at each D; by default all whose frequencies are drawn and not learned.

    ``recipe`` sets kernel, scaling, form, bits and seed. Learned maps are measured at each number of ``landmarks``.
    """
    start, reporter = time.monotonic(), reporter or Reporter()
    usual = SWEPT if landmarks else (*DRAWN, *([BINNING] if recipe.kernel == BINNABLE else []))
    kinds, Ds = list(dict.fromkeys(kinds or usual)), sorted(set(Ds))
    _check(recipe, kinds, Ds, seeds, rows, landmarks or ())
    reporter.note(source.describe())
    bench = Bench(_sample(source, rows, recipe), recipe, threads)
    taken = tuple(range(recipe.seed, recipe.seed + seeds))
    cells, skipped = _measure_all(bench, kinds, Ds, taken, sorted(set(landmarks or ())), reporter)
    if not cells:
        raise InputError("no map is left to compare: " + "; ".join(skipped.values()))
    return Comparison(
        cells, skipped, bench.recipe, taken, {"fitted": len(bench.fitted), "measured": len(bench.unseen)},
        source.n_features, bench.coding.task, time.monotonic() - start, bench,
    )  # fmt: skip


def _check(
    recipe: Recipe, kinds: list[str], Ds: list[int], seeds: int, rows: int, landmarks: Sequence[int] = ()
) -> None:
    for kind in kinds:
        if kind != BINNING:
            kind_of(kind)
    for D in Ds:
        recipe.with_(D=D)
    for count in landmarks:
        recipe.with_(landmarks=count)
    if not Ds:
        raise InputError("no number of features to compare maps at: give at least one `D`, such as 100")
    if seeds < 1:
        raise InputError(f"`seeds` must be at least 1, not {seeds}")
    if 2 * rows < FEWEST_ROWS:
        raise InputError(f"`rows` must be at least {FEWEST_ROWS // 2}, not {rows}")
    needed, free = projected_bytes(rows, Ds[-1], seeds), int(BUDGET_SHARE * memory.available())
    if needed > free:
        raise BudgetError(
            f"comparing {Ds[-1]} features on {rows} rows is projected to need {format_bytes(needed)}, and"
            f" {format_bytes(free)} are free: lower `rows` or `D`"
        )


def projected_bytes(rows: int, D: int, seeds: int) -> int:
    """The exact kernel, and for each fit that runs at once its kernel, features, Gram matrix and factor."""
    at_once = min(seeds, available_cores()) if D <= SMALL_D else 1
    frequencies = at_once * (2 * 8 * rows * rows + 2 * rows * D + 2 * 8 * D * D)
    grids = 6 * 8 * rows * rows + 4 * 8 * rows * D  # inner products and keys of random binning, one seed at a time
    return 8 * rows * rows + max(frequencies, grids)


def _sample(source: Source, rows: int, recipe: Recipe) -> Block:
    """Twice ``rows`` rows. The sampler draws a random count, so ask for a few more and cut."""
    wanted = 2 * rows
    margin = 64 + int(4 * wanted**0.5)
    return draw_sample(source, wanted + margin, recipe.seed, recipe.nan).take(slice(0, wanted))


def _measure_all(
    bench: Bench, kinds: list[str], Ds: list[int], seeds: tuple[int, ...], landmarks: list[int], reporter: Reporter
) -> tuple[list[Cell], dict[str, str]]:
    cells: list[Cell] = []
    skipped: dict[str, str] = {}
    for number, kind in enumerate(kinds, 1):
        reporter.note(f"comparing: {kind} ({number} of {len(kinds)})")
        learned = kind != BINNING and kind_of(kind).learned
        counts: list[int | None] = [*landmarks] if landmarks and learned else [None]
        try:
            cells += [bench.measure(kind, D, seeds, count) for D in Ds for count in counts]
        except (InputError, NumericalError) as error:  # not defined for this kernel, or not found on these rows
            skipped[kind] = str(error)
            reporter.note(f"comparing: {kind} is left out: {error}")
    return cells, skipped
