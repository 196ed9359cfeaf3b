"""The pilot of landmarks: exact kernel ridge on a few thousand rows chooses scaling, kernel, metric and width.

Few rows rank scalings and kernels, more rows learn a metric with the best scaling, and the kernels are compared again
with and without it. One small run with the landmarks themselves, on more rows, finds the first lambda; the precision
follows from that, and the number of landmarks from a budget of time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.features.base import FeatureMap
from streamrf.features.kernels import make_kernel
from streamrf.features.learned.kernel_ridge import RIDGES as EXACT_RIDGES
from streamrf.features.learned.kernel_ridge import (
    ROUGH,
    SEARCHES,
    Fit,
    KernelRidge,
    factor_name,
)
from streamrf.features.learned.metric import DIAGONAL, FULL, Metric
from streamrf.features.pipeline import build_map
from streamrf.features.precision import make_precision
from streamrf.features.profiles import PROFILES
from streamrf.features.scaling import Scaling
from streamrf.features.scaling_fits import distinct, fit_scaling, heavy_tailed
from streamrf.features.targets import TargetCoding
from streamrf.recipe import AUTO, LANDMARKS, NONE, Recipe
from streamrf.solvers.ridge import RidgeTrial
from streamrf.solvers.stacking import SMALL_ROWS
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE, Threads
from streamrf.training.pilot.choice import MOST_SHOWN, RIDGES, Choice, Trial
from streamrf.training.pilot.judging import MORE_ROWS, SET_THEM, SURE, Certainty, judge_of, standard_errors
from streamrf.training.pilot.log import TrialLog
from streamrf.training.pilot.metric import describe, forms_for
from streamrf.training.pilot.precision import Rounding, along_path, bearable_in_run
from streamrf.training.pilot.room import FEW_FEATURES, TRIAL_ROWS, WHOLE, Room
from streamrf.training.pilot.size import (
    ERROR_CURVE,
    affordable_features,
    enough_features,
    error_curve,
    halved,
    larger_budget,
)
from streamrf.training.pilot.trend import at_an_end

KERNELS = (ROUGH, "gaussian", "laplacian")
SCALINGS, NEAR_BEST = 2, 1.1  # that kernels are compared with; and times the error of the best one
FINALISTS = 2
STEPS = (0.5**0.5, 2**0.5)  # of the width, with all rows
MOST_COLUMNS = 300  # of a full metric
MANY_ROWS = 20_000  # trials with landmarks judge kernels again
IN_SIGHT, HALVES = 1.3, 2  # times the error of the best: kernels that are tried at half of their width; how often
BEHIND = 1.1  # times the error of a rival: of a blend whose best member is another, fewer landmarks are enough
MUCH_WORSE, RESOLVED = 2.0, tuple(0.5**step for step in range(7))
VALIDATION = 0.25
TRIAL_RIDGES = (*(10.0**e for e in range(-15, -10)), *RIDGES)
STAGE = "pilot of landmarks"
USUAL = 20  # fits of a search


@dataclass(frozen=True)
class Candidate:
    """A kernel of inputs in one scaling and one metric, with the best fit so far."""

    scaling: str
    form: str
    fit: Fit

    @property
    def error(self) -> float:
        return self.fit.error


class KernelPilot:
    """Searches on one sample: the first three quarters fit, the rest judge."""

    def __init__(
        self, sample: Block, coding: TargetCoding, recipe: Recipe, threads: Threads, *, rows: int, reporter: Reporter,
        log: TrialLog | None = None, sized: bool = False, room: Room = WHOLE, rival: float = math.inf,
    ) -> None:  # fmt: skip
        self.sized, self.room = sized, room  # whether D is the most that there may be; how large trials may be
        self.rival = rival  # the error of the best of the other members of a blend of many rows
        self.threads = ALONE if room.alone else threads
        self.sample, self.coding, self.reporter = sample, coding, reporter
        self.recipe = recipe.with_(map=LANDMARKS)
        self.rows, self.log = rows, log or TrialLog()
        self.judge = judge_of(sample, coding, recipe)
        self.cut = len(sample) - max(1, int(len(sample) * VALIDATION))
        self.factors: dict[str, np.ndarray] = {}
        self.learning: dict[str, Any] = {}
        self.widths: dict[tuple[str, str, str], list[float]] = {}  # that were tried, of a scaling, a kernel and a form
        self.certainty: Certainty | None = None
        self.trials: list[Trial] = []
        self.tried: dict[str, Trial] = {}  # small runs with landmarks, by their names in the log

    def choose(self) -> Choice:
        """Everything chosen by trials, which an interrupted run may have finished."""
        choice = self.log.chosen(LANDMARKS, self._searched)
        self.trials = list(choice.trials)
        return choice

    def _searched(self) -> Choice:
        """BLAS has one thread, as elsewhere: more would change last digits of the metric, and with it every sum."""
        return self._settled(self._best_kernel())

    # -- kernel, scaling and metric, by exact kernel ridge

    def _best_kernel(self) -> Candidate:
        first = self._searched_at([(scaling, self._kernels[0], NONE) for scaling in self._scalings()])
        leading = sorted(first, key=lambda each: each.error)[:SCALINGS]
        leading = [each for each in leading if each.error <= NEAR_BEST * leading[0].error]
        others = [(each.scaling, kernel, NONE) for each in leading for kernel in self._kernels[1:]]
        found = [*first, *self._searched_at(others)]
        scaling = min(found, key=lambda each: each.error).scaling
        found = [each for each in found if each.scaling == scaling]
        if self.recipe.metric != NONE and self._fits(scaling).enough:
            found += self._better(self._stretched(scaling, found), found)
        finalists = sorted(found, key=lambda each: each.error)[:FINALISTS]
        finalists = self._with_all_rows(finalists)
        best = min(finalists, key=lambda each: each.error)
        self._compare(best, finalists)
        if self.recipe.length_scale is not None:
            return best
        best = self._refined(best)
        return self._resolved(best) if self.rows < MANY_ROWS else self._with_landmarks([best, *found])

    def _with_landmarks(self, found: list[Candidate]) -> Candidate:
        """The first of them, or the best of another kernel, or one that is narrower: small runs on several times the
        rows see what exact fits do not, because more rows bear rougher and narrower kernels."""
        first = {each.fit.kernel: each for each in sorted(found[1:], key=lambda each: each.error, reverse=True)}
        kernels = {**first, found[0].fit.kernel: found[0]}.values()
        tried = self._narrowed([(each, 1.0) for each in kernels])
        least = min(error for _, error in tried)
        near = [each for each, error in tried if error <= IN_SIGHT * least]
        for _ in range(HALVES):
            narrower = self._narrowed([(each, 0.5) for each in near])
            tried += narrower
            best, _ = min(tried, key=_its_error)
            near = [each for each, _ in narrower if each is best]
        return best

    def _resolved(self, best: Candidate) -> Candidate:
        """Exact fits to smooth targets without noise take widths so large that rounded values of the kernel are all
        alike. Where a small run is much worse than the fit, it says how wide is too wide."""
        [(_, error)] = self._narrowed([(best, 1.0)])
        if error < MUCH_WORSE * best.error:
            return best
        return min(self._narrowed([(best, step) for step in RESOLVED]), key=_its_error)[0]

    def _narrowed(self, tried: list[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
        """Each narrower by so much, with the error of a small run."""
        found = [
            replace(each, fit=replace(each.fit, length_scale=each.fit.length_scale * step)) for each, step in tried
        ]
        trials = self._trials([(*self._asked(each), self._few_features) for each in found])
        for each in found:
            self._widths_of(each).append(each.fit.length_scale)
        return [(each, trial.error) for each, (trial, _) in zip(found, trials, strict=True)]

    @property
    def _few_features(self) -> int:
        return min(FEW_FEATURES, self.room.features, self.cut)

    def _compare(self, best: Candidate, finalists: list[Candidate]) -> None:
        """How sure it is that the best of fits on the same rows is the best."""
        losses = {_trial_of(each): each.fit.losses for each in finalists if each.fit.losses is not None}
        others = [trial for each in finalists if (trial := _trial_of(each)) in losses and each is not best]
        if others:
            self.certainty = Certainty.of(_trial_of(best), others, losses, self._fits(best.scaling).judging)

    def _widths_of(self, found: Candidate) -> list[float]:
        return self.widths.setdefault((found.scaling, found.fit.kernel, found.form), [])

    def _stretched(self, scaling: str, plain: list[Candidate]) -> list[Candidate]:
        """Every kernel with the metric, where one was learned."""
        fits = self._fits(scaling)
        asked = "learned" if self.recipe.metric == AUTO else self.recipe.metric
        columns = fits.X.shape[1]
        forms = forms_for(asked, columns)
        if asked == "learned" and columns > MOST_COLUMNS:
            forms = (DIAGONAL,)
        searched = [each.fit for each in plain if each.fit.kernel == ROUGH and self.recipe.length_scale is None]
        metric: Metric = fits.metric(forms, searched[0] if searched else None)
        self.learning = {"asked": asked, "form": metric.form if metric.learned else NONE, **describe(metric)}
        self.learning["holdout_error"] = {"before": metric.isotropic.error, "after": metric.judged.error}
        if not metric.learned:
            return []
        self.factors[metric.form] = metric.factor
        kernels = [kernel for kernel in self._kernels if metric.form != FULL or PROFILES[kernel].norm == 2]
        return self._searched_at([(scaling, kernel, metric.form) for kernel in kernels])

    def _better(self, stretched: list[Candidate], plain: list[Candidate]) -> list[Candidate]:
        """Those with a metric, but for a full one that may be better by chance where rows are few: it has as many
        numbers as squared columns, and the rows that judge it will also say how much of the landmarks is taken."""
        if not stretched or self.rows >= SMALL_ROWS or self.learning["asked"] == FULL:
            return stretched
        best, other = (min(some, key=lambda each: each.error) for some in (stretched, plain))
        if best.form != FULL or best.fit.losses is None or other.fit.losses is None:
            return stretched
        gap, _ = standard_errors(best.fit.losses, other.fit.losses, self._fits(best.scaling).judging)
        if gap >= SURE:
            return stretched
        self.learning["form"] = NONE
        return []

    def _searched_at(self, asked: list[tuple[str, str, str]]) -> list[Candidate]:
        """Scalings, kernels and forms of a metric, at their best widths on few rows."""
        given = self.recipe.length_scale

        def search(fits: KernelRidge, start: Fit, factor: np.ndarray) -> Fit:
            if given is None:
                return fits.search(start.kernel, factor)
            return fits.width(start.kernel, factor, given, EXACT_RIDGES, few=True)

        return self._fitted([Candidate(scaling, form, Fit(kernel, 0.0)) for scaling, kernel, form in asked], search)

    def _with_all_rows(self, found: list[Candidate]) -> list[Candidate]:
        return self._fitted(found, lambda fits, fit, factor: fits.with_all_rows(fit, factor))

    def _refined(self, found: Candidate) -> Candidate:
        return self._fitted([found], lambda fits, fit, factor: fits.refined(fit, factor, STEPS))[0]

    def _fitted(self, found: list[Candidate], work: Callable[[KernelRidge, Fit, np.ndarray], Fit]) -> list[Candidate]:
        """Candidates with other fits, side by side and in one thread each, whose last digits any number of threads
        leaves alone; few at once, for the sake of memory."""
        fits = {each.scaling: self._fits(each.scaling) for each in found}
        if len(found) > 1:
            fits = {scaling: each.alone() for scaling, each in fits.items()}

        def one(each: Candidate) -> tuple[Candidate, float]:
            begun, factor = time.monotonic(), self._factor(each.form, each.scaling)
            return replace(each, fit=work(fits[each.scaling], each.fit, factor)), time.monotonic() - begun

        some = len(found) if self.threads.count <= SEARCHES else SEARCHES
        groups = [found[start : start + some] for start in range(0, len(found), max(some, 1))]
        return [self._noted(*done) for group in groups for done in self.threads.map(one, group)]

    def _noted(self, found: Candidate, seconds: float) -> Candidate:
        self._tell(_trial_of(found, seconds))
        self._widths_of(found).extend(found.fit.tried)
        return found

    def _tell(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.reporter.tried(trial)
        self.reporter.working(STAGE, min(len(self.trials) / USUAL, MOST_SHOWN))

    @property
    def _kernels(self) -> tuple[str, ...]:
        return KERNELS if self.recipe.kernel == AUTO else (make_kernel(self.recipe.kernel, length_scale=1.0).label,)

    def _scalings(self) -> list[str]:
        if self.recipe.scaling != AUTO:
            return [self.recipe.scaling]
        tails = heavy_tailed(self.sample.X, self.sample.weights).any()
        kinds = ["standard", "quantile", "log"] if tails else ["standard", "quantile"]
        return distinct(kinds, lambda kind: self._fits(kind).X)

    @cache  # noqa: B019 (a pilot lives as long as its run)
    def scaling(self, kind: str) -> Scaling:
        return fit_scaling(kind, self.sample.X, self.sample.weights)

    @cache  # noqa: B019
    def _fits(self, scaling: str) -> KernelRidge:
        rows = self.judge.rows
        return KernelRidge(
            self.scaling(scaling).transform(rows.X), self.judge.coding.values(rows.targets), self.cut, rows.weights,
            self.threads, self.room.exact, lambda name, fit: self.log.fit(f"{LANDMARKS}: {scaling} {name}", fit),
        )  # fmt: skip

    def _factor(self, form: str, scaling: str) -> np.ndarray:
        return self.factors[form] if form != NONE else np.ones(self.scaling(scaling).n_outputs)

    # -- what the run will be made with

    def _settled(self, best: Candidate) -> Choice:
        recipe, factor = self._asked(best)
        tried = [self._trials([(recipe, factor, D)])[0] for D in self._trial_sizes()]
        trial, map = tried[-1]
        ridge = trial.ridge if self.recipe.ridge is None else self.recipe.ridge
        D, bits = self.recipe.D, self.recipe.bits
        curve: dict[str, Any] = {}
        if self.sized:
            errors, columns = {each.D: each.error for each, _ in tried}, self.sample.X.shape[1]
            ratio = self.rows / trial.rows
            curve[ERROR_CURVE] = error_curve(errors, self.rows, columns, ratio)
            D = enough_features(errors, D, ratio)
            if trial.error > BEHIND * self.rival:
                D = halved(D)
            if affordable_features(self.rows, columns, recipe.seconds) == D:  # neither memory nor the trials said so
                curve |= larger_budget(errors, D, self.rows, columns, ratio)
        if bits == AUTO:
            fitted = len(self._landmark_rows(recipe.scaling))
            bearable = bearable_in_run(trial, fitted, self.rows, classes=False, given=False)
            bits = Rounding(map, D, self.rows if self.recipe.takes_wide else 0).cheapest(bearable)
        self.reporter.working(STAGE, 1.0)
        recipe = recipe.with_(ridge=ridge, bits=bits, D=D)
        return Choice(recipe, tuple(self.trials), factor, notes={**self._notes(best), **curve})

    def _notes(self, best: Candidate) -> dict[str, Any]:
        """What the model says of the search. Warnings are shown at the end: a blend may leave landmarks out."""
        notes: dict[str, Any] = {"learning": {"metric": self.learning}} if self.learning else {}
        if self.certainty is not None:
            notes["certainty"] = self.certainty.to_json()
            self.reporter.detail(self.certainty.sentence())
        given = self.recipe.length_scale is not None
        end = "" if given else at_an_end(best.fit.length_scale, self._widths_of(best))
        unsure = ""
        if self.certainty is not None:  # a kernel that is set would leave the other members of a blend out
            unsure = self.certainty.warning(MORE_ROWS if self.sized else SET_THEM)
        warnings = [text for text in (unsure, end) if text]
        return {**notes, "warnings": warnings} if warnings else notes

    def _asked(self, found: Candidate) -> tuple[Recipe, np.ndarray | None]:
        """What a candidate stands for: a recipe, and a metric."""
        factor = self.factors.get(found.form)
        metric = NONE if factor is None else self.recipe.metric if self.recipe.metric != AUTO else "learned"
        return self.recipe.with_(
            scaling=found.scaling, kernel=found.fit.kernel, length_scale=found.fit.length_scale, form="phase",
            metric=metric,
        ), factor  # fmt: skip

    def _trial_sizes(self) -> list[int]:
        """Few landmarks, and twice as many each time where the run may have any number: how errors fall tells how many
        are enough."""
        most = min(self.room.features, max(self.cut // 2, 1))
        return [most // 4, most // 2, most] if self.sized and most >= 4 else [most]

    def _trials(self, asked: list[tuple[Recipe, np.ndarray | None, int]]) -> list[tuple[Trial, FeatureMap]]:
        """Small runs with so many landmarks, side by side."""
        threads = self.threads if len(asked) == 1 else ALONE
        for recipe, _, _ in asked:
            self._landmark_rows(recipe.scaling)
        done = list(self.threads.map(lambda each: self._trial(*each, threads), asked))
        for trial, _ in done:
            self._tell(trial)
        return done

    def _trial(self, recipe: Recipe, factor: np.ndarray | None, D: int, threads: Threads) -> tuple[Trial, FeatureMap]:
        """Judged as the trials of other maps are."""
        sample, scaling = self._landmark_rows(recipe.scaling), self.scaling(recipe.scaling)
        map = build_map(
            LANDMARKS, make_kernel(recipe.kernel, length_scale=recipe.length_scale), D, scaling.n_outputs,
            form="phase", precision=make_precision("20"), seed=recipe.seed, sample=sample, metric=factor,
        )  # fmt: skip
        asked = recipe.scaling, recipe.kernel, recipe.length_scale, D, len(sample)
        named = "" if factor is None else f" with {factor_name(factor)}"
        name = f"{LANDMARKS}: {asked}{named}"
        if name not in self.tried:  # the best kernel is tried again, among other numbers of landmarks
            self.tried[name] = self.log.trial(name, lambda: self._judged(recipe, map, len(sample), threads))
        return replace(self.tried[name], metric=NONE if factor is None else "learned"), map

    def _judged(self, recipe: Recipe, map: FeatureMap, cut: int, threads: Threads) -> Trial:
        """Fitted to the first ``cut`` rows."""
        begun, rows = time.monotonic(), min(len(self.sample), TRIAL_ROWS)
        fitted, judge = RidgeTrial(self.scaling(recipe.scaling), map, self.judge.coding, threads), self.judge
        ridge, bearable, verdict = along_path(fitted, judge, slice(0, cut), slice(cut, rows), TRIAL_RIDGES)
        return Trial(
            recipe.scaling, recipe.kernel, recipe.length_scale or 0.0, map.n_features, "20", rows, ridge,
            verdict.error, verdict.misses, time.monotonic() - begun, bearable=bearable,
        )  # fmt: skip

    @cache  # noqa: B019
    def _landmark_rows(self, scaling: str) -> np.ndarray:
        """Scaled rows that trials with landmarks are fitted to."""
        rows = min(len(self.sample), TRIAL_ROWS)
        return self.scaling(scaling).transform(self.judge.rows.X[: rows - max(1, int(rows * VALIDATION))])


def _its_error(tried: tuple[Candidate, float]) -> float:
    return tried[1]


def _trial_of(found: Candidate, seconds: float = 0.0) -> Trial:
    """An exact fit as a trial: rows that were fitted are its features."""
    fit, fitted = found.fit, 0 if found.fit.coefficients is None else len(found.fit.coefficients)
    return Trial(
        found.scaling, fit.kernel, fit.length_scale, fitted, "float64", fitted, fit.ridge, fit.error, None, seconds,
        found.form,
    )  # fmt: skip
