"""The pilot: small fits on a sample of rows choose scaling, kernel, width, precision and a first lambda.

Coordinate by coordinate, cheap to dear: every pairing of scaling and kernel is tried at small D with a search over the
width; the best few are tried again at larger D; the winner's width once more on all sample rows, because more rows want
a narrower kernel; a metric, if one is asked for; and where the run has many more features than any trial, its width
follows how that of trials falls with their features. Every trial is a ridge path, judged on rows it has not seen: a
quarter of them, or of few rows all, by folds. The precision follows from the winner's path.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.features.base import FeatureMap
from streamrf.features.fourier import kind_of
from streamrf.features.kernels import make_kernel
from streamrf.features.median import median_length_scale
from streamrf.features.pipeline import build_map, default_kind
from streamrf.features.precision import make_precision
from streamrf.features.scaling import Scaling
from streamrf.features.scaling_fits import fit_scaling, heavy_tailed
from streamrf.features.targets import CLASSIFICATION, REGRESSION, TargetCoding
from streamrf.recipe import AUTO, NONE, Recipe
from streamrf.solvers.ridge import RidgeTrial
from streamrf.statistics.scores import Weights
from streamrf.support.progress import Reporter
from streamrf.support.quantiles import copies
from streamrf.support.threads import Threads
from streamrf.training.pilot.choice import (
    FINALISTS,
    FOLD_ROWS,
    FOLDS,
    LARGE_ROWS,
    MOST_SHOWN,
    PILOT_D,
    PRODUCTS_A_SECOND,
    RIDGES,
    SCAN_STEP,
    SCANNED,
    SMALL_D,
    SMALL_ROWS,
    Choice,
    Trial,
    budget_seconds,
    folds_of,
    usual_trials,
)
from streamrf.training.pilot.defaults import MEDIAN_ROWS
from streamrf.training.pilot.judging import Certainty, NumberJudge, judge_of
from streamrf.training.pilot.log import TrialLog
from streamrf.training.pilot.precision import Rounding, bearable_in_run, bearable_ridge
from streamrf.training.pilot.trend import FAR, SMALLER, at_an_end, lowest, on_grid, power, reach

KERNELS = ("gaussian", "laplacian", "matern32")
VALIDATION = 0.25
REACH = 128.0  # no width is tried that is so many times that of the median heuristic, or a share of it as small
MAP_COST, FACTOR_COST = 4.0, 2.0  # of a product in a projection or a factorisation, next to one in a Gram matrix
# What trials are made with. Classes are noisy targets: eight bits hold what can be learnt of them, and a penalty below
# LEAST_RIDGE would only pick wide kernels that lean on digits far behind the point, and lose at the D of the real run.
SEARCH_BITS = {REGRESSION: "12", CLASSIFICATION: "8"}
LEAST_RIDGE = {REGRESSION: 1e-12, CLASSIFICATION: 1e-8}


@dataclass(frozen=True, eq=False)
class Measured:
    """A trial, and the map and weights it was judged by (without the first fold, where there are folds)."""

    trial: Trial
    map: FeatureMap
    weights: Weights


class PilotRun:
    """Spends a budget of work on a sample, counted and not timed: a busy machine chooses what an idle one does.
    A trial is a small training run: the same sums, solver and scores as the large one."""

    def __init__(
        self, sample: Block, coding: TargetCoding, recipe: Recipe, threads: Threads, *, reporter: Reporter,
        rows: int = 0, budget: float | None = None, log: TrialLog | None = None,
    ) -> None:  # fmt: skip
        self.log = log or TrialLog()
        self.recipe, self.coding, self.threads, self.reporter = recipe, coding, threads, reporter
        self.sample, self.rows = sample, max(rows, len(sample))  # of the whole table
        self.judge = judge_of(sample, coding, recipe)
        seconds = budget_seconds(self.rows, recipe.D) if budget is None else budget
        self.budget = self.limit = seconds * PRODUCTS_A_SECOND
        self.spent = self.expected = 0.0  # products: so far, and of a usual search
        self.trials: list[Trial] = []
        self.first_fresh = 0  # of the trials, those fitted to targets as they are fitted to now
        self.losses: dict[Trial, np.ndarray] = {}  # by rows
        self.factors: dict[str, np.ndarray] = {}  # of metrics, by the name that a trial has them by
        self.any_ridge = False  # even if one was given: a metric is to be the same whether it was or not
        self.learning: dict[str, Any] = {}  # how the metric was learned

    def choose(self) -> Choice:
        """The recipe with every ``auto`` replaced, and the metric where one was learned."""
        rows = len(self.sample)
        small = min(self.recipe.D, SMALL_D), min(rows, SMALL_ROWS)
        large = min(self.recipe.D, PILOT_D), min(rows, LARGE_ROWS)
        self._foresee(small, large)
        finalists = sorted((self.search(pair, *small) for pair in self.pairings()), key=lambda t: t.error)[:FINALISTS]
        finalists = self._with_clean_targets(finalists, small)
        if jumpy := self.recipe.D <= SMALL_D and self.recipe.length_scale is None:
            self.limit = self.spent + self.budget
            finalists = [self.scan(trial, *large) for trial in finalists]
        elif large != small:
            finalists = [self.refine(trial, *large) for trial in finalists]
        best = min(finalists, key=lambda trial: trial.error)
        certainty = self.certainty(best, finalists)
        if rows > large[1]:
            self.limit = self.spent + self.budget  # the stage that matters most is not to starve
            best = self.descend(replace(best, rows=rows), SCAN_STEP**0.5 if jumpy else 2**0.5)
        isotropic = best
        if self.recipe.settled_metric != NONE:
            best, isotropic = self.with_metric(best)
        bits = self.recipe.bits if self.recipe.bits != AUTO else self.precision_for(best)
        kernel = make_kernel(best.kernel, length_scale=best.length_scale)
        self.reporter.working("pilot", 1.0)
        recipe = replace(
            self.recipe, scaling=best.scaling, kernel=best.kernel, length_scale=self.length_scale_for(isotropic),
            bits=bits, ridge=best.ridge if self.recipe.ridge is None else self.recipe.ridge,
            map=default_kind(kernel, self._columns(best)) if self.recipe.map == AUTO else self.recipe.map,
            form=self.recipe.settled_form,
        )  # fmt: skip
        return self._choice(recipe, best, isotropic, certainty)

    def _with_clean_targets(self, finalists: list[Trial], size: tuple[int, int]) -> list[Trial]:
        """For losses that are not to mind outliers: fit once more, to targets that have none far from the best fit."""
        judge = self.judge
        if not isinstance(judge, NumberJudge) or not judge.robust:
            return finalists
        self.judge = judge.cleaned(self._predicted(finalists[0]))
        self.first_fresh, self.limit = len(self.trials), self.spent + self.budget
        again = [self.refine(replace(trial, ridge=0.0), *size) for trial in finalists]
        return sorted(again, key=lambda trial: trial.error)

    def _predicted(self, trial: Trial) -> np.ndarray:
        """For every row of the sample, from all rows of the trial."""
        fitted = RidgeTrial(self.scaling(trial.scaling), self._map(trial), self.judge.coding, self.threads)
        path = fitted.fit(self.judge.rows.take(slice(0, trial.rows)), [trial.ridge])
        return fitted.scores(path, self.judge.rows)[:, 0]

    def _foresee(self, small: tuple[int, int], large: tuple[int, int]) -> None:
        """Count the products of a usual search, for those who wait."""
        kind = "standard" if self.recipe.scaling == AUTO else self.recipe.scaling
        first, whole = Trial(kind, KERNELS[0], 1.0, 0, "", 0), (large[0], len(self.sample))
        stages = usual_trials(self.recipe, small, large, whole, len(list(self.pairings())))
        self.expected = sum(n * self._cost(replace(first, D=D, rows=rows)) for (D, rows), n in stages)

    def choose_metric(self) -> Choice:
        """Return a fully resolved recipe unchanged, with a metric for it."""
        recipe, rows = self.recipe, min(len(self.sample), LARGE_ROWS)
        assert recipe.length_scale is not None
        D = min(recipe.D, PILOT_D)
        plain = self.fit(Trial(recipe.scaling, recipe.kernel, recipe.length_scale, D, recipe.bits, rows))
        return self._choice(recipe, *self.with_metric(plain))

    def _choice(self, recipe: Recipe, best: Trial, isotropic: Trial, certainty: Certainty | None = None) -> Choice:
        notes: dict[str, Any] = {"learning": {"metric": self.learning}} if self.learning else {}
        if certainty is not None:
            notes["certainty"] = certainty.to_json()
            self.reporter.detail(certainty.sentence())
        for warning in self._warnings(best, certainty):
            notes.setdefault("warnings", []).append(warning)
            self.reporter.note(f"warning: {warning}")
        return Choice(recipe, tuple(self.trials), self._folded(best, isotropic), notes=notes)

    def _folded(self, best: Trial, isotropic: Trial) -> np.ndarray | None:
        """The metric with its width in it: the recipe keeps that of the isotropic kernel, from which all of it follows
        again."""
        factor = self.factors.get(best.metric)
        return None if factor is None else factor * (isotropic.length_scale / best.length_scale)

    def with_metric(self, best: Trial) -> tuple[Trial, Trial]:
        """The trial with a learned metric and a width of its own, and the isotropic one that it came from; the trial
        as it is, twice, where no metric is clearly better."""
        from streamrf.training.pilot.metric import MetricStage

        self.any_ridge = True
        stage = MetricStage(self, best)
        stretched, plain = stage.run()
        self.any_ridge = False
        self.learning = stage.told
        errors = self.learning["holdout_error"]
        what = f"{self.learning['form']}, error {errors['before']:.4f} -> {errors['after']:.4f}"
        self.reporter.detail(f"metric: {what} on unseen rows")
        return stretched, plain

    def pairings(self) -> Iterator[tuple[str, str]]:
        """Scalings and kernels to try: what the recipe fixes, or the candidates."""
        scalings = [self.recipe.scaling] if self.recipe.scaling != AUTO else self._scalings()
        kernels = [self.recipe.kernel] if self.recipe.kernel != AUTO else self._kernels()
        return ((scaling, kernel) for kernel in kernels for scaling in scalings)

    def _kernels(self) -> list[str]:
        kind = self.recipe.fourier_kind
        return list(KERNELS) if kind is None else kind.kernels_among(kind.tried or KERNELS)

    def _scalings(self) -> list[str]:
        """Standardising, and what differs from it on this sample."""
        some = self.sample.X[:1000]
        plain = self.scaling("standard").transform(some)
        candidates = ["quantile", "log"] if heavy_tailed(self.sample.X, self.sample.weights).any() else ["quantile"]
        return ["standard", *(k for k in candidates if not np.array_equal(self.scaling(k).transform(some), plain))]

    @cache  # noqa: B019 (a run lives as long as its pilot)
    def scaling(self, kind: str) -> Scaling:
        return fit_scaling(kind, self.sample.X, self.sample.weights)

    @cache  # noqa: B019
    def median(self, scaling: str, kernel: str) -> float:
        rng, some = np.random.default_rng(self.recipe.seed), self.sample.take(slice(0, MEDIAN_ROWS))
        return median_length_scale(self.scaling(scaling).transform(some.X), kernel, rng, some.weights)

    def search(self, pair: tuple[str, str], D: int, rows: int, *, free: bool = False) -> Trial:
        """From the median heuristic outward by factors of two, as long as it gets better."""
        scaling, kernel = pair
        given = None if free else self.recipe.length_scale
        width = given or on_grid(self.median(scaling, kernel))
        start = Trial(scaling, kernel, width, D, SEARCH_BITS[self.coding.task], rows)
        return self.descend(start, 2.0, free=free)

    def refine(self, trial: Trial, D: int, rows: int, *, free: bool = False) -> Trial:
        """Once more at larger D and on more rows, in smaller steps; lambda moves little."""
        return self.descend(replace(trial, D=D, rows=rows), 2**0.5, free=free)

    def descend(self, trial: Trial, factor: float, *, free: bool = False) -> Trial:
        """A line search over the width in steps of ``factor``; a width that was given moves only if it is set free."""
        best = self.fit(trial)
        if self.recipe.length_scale is not None and not free:
            return best
        for step in (1 / factor, factor):
            moved = False
            while self.spent < self.limit and self._within_reach(best, best.length_scale * step):
                there = self.fit(replace(best, length_scale=best.length_scale * step))
                if there.error >= best.error:
                    break
                best, moved = there, True
            if moved:
                break
        return best

    def scan(self, trial: Trial, D: int, rows: int) -> Trial:
        """Every width of a fine grid round the best so far."""
        best = replace(trial, D=D, rows=rows)
        found = [self.fit(best)]
        for step in sorted(range(-SCANNED, SCANNED + 1), key=abs)[1:]:
            if self.spent < self.limit:
                found.append(self.fit(replace(best, length_scale=best.length_scale * SCAN_STEP**step)))
        return min(found, key=lambda trial: trial.error)

    def _within_reach(self, trial: Trial, width: float) -> bool:
        """A metric has widths of its own."""
        start = self.median(trial.scaling, trial.kernel)
        return trial.metric != NONE or start / REACH <= width <= start * REACH

    def certainty(self, best: Trial, finalists: Sequence[Trial]) -> Certainty | None:
        """How sure it is that the best of trials on the same rows is the best."""
        others, judges = [trial for trial in finalists if trial is not best], self.judge.rows.take(self._judges(best))
        return Certainty.of(best, others, self.losses, judges.weights) if others else None

    def _warnings(self, best: Trial, certainty: Certainty | None) -> list[str]:
        tried = [trial.length_scale for trial in self.trials[self.first_fresh :] if trial.size == best.size]
        end = at_an_end(best.length_scale, tried) if self.recipe.length_scale is None else ""
        return [warning for warning in (certainty.warning() if certainty else "", end) if warning]

    def length_scale_for(self, best: Trial) -> float:
        """The width of the run: that of the best trial, or narrower, where the run has many more features. A metric
        goes with the width that it was learned at."""
        D = reach(self.recipe.D, self.rows)
        if D < FAR * best.D or self.recipe.length_scale is not None or self.recipe.settled_metric != NONE:
            return best.length_scale
        self.limit = self.spent + self.budget
        widths = [(best.D // fewer, self._lowest(self._smaller(best, fewer))) for fewer in SMALLER]
        fall, (_, width) = power(widths), widths[0]
        found = width * (D / best.D) ** fall
        self.reporter.detail(
            f"width: {width:.4g} at D = {best.D:,}, taken to fall with D to the power {fall:.2f}: {found:.4g} at"
            f" D = {self.recipe.D:,}"
        )
        return found

    def _smaller(self, best: Trial, fewer: int) -> Trial:
        """The best width with so many times fewer features and rows."""
        return best if fewer == 1 else self.refine(best, best.D // fewer, best.rows // fewer)

    def _lowest(self, best: Trial) -> float:
        """Between the widths that were tried at the size of the best of them."""
        return lowest(
            (trial.length_scale, trial.error) for trial in self.trials[self.first_fresh :] if trial.size == best.size
        )

    def precision_for(self, best: Trial) -> str:
        """The cheapest whose rounding adds no larger a ridge than all rows of the run can bear."""
        bearable = bearable_in_run(
            best, self.cut(best), self.rows, classes=bool(self.coding.classes), given=self.recipe.ridge is not None
        )
        asked = self.recipe
        summed = asked.solver in (AUTO, "cholesky") and asked.loss == "squared" and self.sample.weights is None
        rounding = Rounding(self._map(best), asked.D, self.rows if summed else 0)
        return rounding.cheapest(bearable, structured=self._structured())

    def _structured(self) -> bool:
        return self.recipe.map != AUTO and kind_of(self.recipe.map).structured

    def fit(self, trial: Trial) -> Trial:
        """The trial with its error and its best lambda, which an interrupted run may have found already."""
        if found := self.log.recall(trial):
            return self._note(trial, *found)
        done = self.measure(trial).trial
        return self.log.record(trial, done, self.losses[done])

    def measure(self, trial: Trial) -> Measured:
        """As ``fit``, with what was fitted."""
        start, map = time.monotonic(), self._map(trial)
        fitted = RidgeTrial(self.scaling(trial.scaling), map, self.judge.coding, self.threads)
        path, scores = self._tried(fitted, trial)
        found = self.judge.verdict(scores, self._judges(trial))
        bearable = bearable_ridge(self._ridges(trial), found.path)
        done = replace(trial, ridge=path[found.best].ridge, error=found.error, misses=found.misses, bearable=bearable)
        done = replace(done, seconds=time.monotonic() - start)
        return Measured(self._note(trial, done, found.losses), map, path[found.best])

    def _note(self, asked: Trial, done: Trial, losses: np.ndarray) -> Trial:
        self.spent, self.losses[done] = self.spent + self._cost(asked), losses
        self.trials.append(done)
        self.reporter.tried(done)
        if self.expected:
            self.reporter.working("pilot", min(self.spent / self.expected, MOST_SHOWN))
        return done

    def _tried(self, fitted: RidgeTrial, trial: Trial) -> tuple[list[Weights], np.ndarray]:
        """Weights of all lambdas, and scores of the rows that judge them."""
        rows, ridges = self.judge.rows, self._ridges(trial)
        if self._has_folds(trial):
            return fitted.by_folds([rows.take(fold) for fold in folds_of(trial.rows)], ridges)
        path = fitted.fit(rows.take(slice(0, self.cut(trial))), ridges)
        return path, fitted.scores(path, rows.take(self._judges(trial)))

    def _has_folds(self, trial: Trial) -> bool:
        """Few rows judge by folds. A metric is learned from rows that must not judge it."""
        return trial.rows <= FOLD_ROWS and self.recipe.settled_metric == NONE

    def _judges(self, trial: Trial) -> slice:
        return slice(0 if self._has_folds(trial) else self.cut(trial), trial.rows)

    def cut(self, trial: Trial) -> int:
        """Where the rows begin that judge a trial."""
        return trial.rows - max(1, int(trial.rows * VALIDATION))

    def _cost(self, trial: Trial) -> float:
        """Products of a fit: features and their Gram matrix, a factorisation and scores for each lambda."""
        D, outputs, lambdas = float(trial.D), self.coding.outputs, len(self._ridges(trial))
        features = trial.rows * D * (D + MAP_COST * self._columns(trial))
        folds = FOLDS if self._has_folds(trial) else 1
        return features + folds * lambdas * (FACTOR_COST * D**3 + VALIDATION * trial.rows * D * outputs)

    def _ridges(self, trial: Trial) -> tuple[float, ...]:
        if self.recipe.ridge is not None and not self.any_ridge:
            return (self.recipe.ridge,)
        ridges = RIDGES if not trial.ridge else tuple(trial.ridge * 10.0**e for e in (-2, -1, 0, 1))
        return tuple(ridge for ridge in ridges if ridge >= LEAST_RIDGE[self.coding.task])

    def _map(self, trial: Trial) -> FeatureMap:
        """What the run would draw with so many features; unlearned, where the run learns."""
        kernel, pairs = make_kernel(trial.kernel, length_scale=trial.length_scale), self.recipe.settled_form == "pairs"
        stands_in = self.recipe.map == AUTO or kind_of(self.recipe.map).slow
        kind = default_kind(kernel, self._columns(trial)) if stands_in else self.recipe.map
        return build_map(
            kind, kernel, trial.D - trial.D % 2 if pairs else trial.D, self._columns(trial),
            form=self.recipe.settled_form, precision=make_precision(trial.bits), seed=self.recipe.seed,
            sample=self._seen(trial.scaling, kind_of(kind).rows) if kind_of(kind).sample != "ignored" else None,
            metric=self.factors.get(trial.metric),
        )  # fmt: skip

    @cache  # noqa: B019
    def _seen(self, scaling: str, rows: int) -> np.ndarray:
        """Scaled rows of the sample: how they are spread helps some kinds of frequencies."""
        some = copies(self.sample.weights, len(self.sample), rows)
        return self.scaling(scaling).transform(self.sample.X[some])

    def _columns(self, trial: Trial) -> int:
        return self.scaling(trial.scaling).n_outputs
