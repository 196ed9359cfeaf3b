"""From a source to an untrained model: scan the targets, draw a sample, run the pilot, fix scaling and map."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamrf.data.keyed import Keyed
from streamrf.data.screening import draw_sample
from streamrf.data.source import Block, Source
from streamrf.data.split import NONE_HELD, NUMBER, ORDER, OTHER_STREAM, Split, hash_rows, key_for
from streamrf.engines.base import Engine, Pass, showing
from streamrf.features.base import FeatureMap
from streamrf.features.fourier import kind_of
from streamrf.features.kernels import make_kernel
from streamrf.features.pipeline import Pipeline, build_map
from streamrf.features.precision import make_precision
from streamrf.features.scaling import Scaling
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.models.model import UntrainedModel
from streamrf.recipe import ANY, AUTO, BINNING, NONE, Recipe
from streamrf.solvers.passes import scan_targets
from streamrf.solvers.plan import Plan
from streamrf.statistics.base import S, Statistic
from streamrf.statistics.holdout import FitRows
from streamrf.statistics.moments import Moments
from streamrf.statistics.targets import ScanTargets, TargetScan, Weighting, row_weights, settle_targets
from streamrf.support.errors import InputError
from streamrf.support.progress import Reporter
from streamrf.support.quantiles import copies
from streamrf.support.threads import Threads
from streamrf.support.units import format_bytes
from streamrf.training.categories import learn_levels, warn_of_targets
from streamrf.training.pilot.binning import BinningPilot, best_of_both, build_binning
from streamrf.training.pilot.choice import Choice, map_sentence, sample_rows, with_names
from streamrf.training.pilot.defaults import defaults
from streamrf.training.pilot.fourier import PilotRun
from streamrf.training.pilot.log import TrialLog
from streamrf.training.plan import compares, replan
from streamrf.training.sanity import LINEAR, fit_linear

FEWEST_ROWS = 8  # of a sample that can be split in two and still say anything


@dataclass
class Preparation:
    """Everything that is chosen before the passes. ``plan`` is in force; ``agreed`` shows and checks another."""

    source: Source
    recipe: Recipe
    plan: Plan
    agreed: Callable[[Plan], Plan]
    engine: Engine
    reporter: Reporter
    threads: Threads
    log: TrialLog = field(default_factory=TrialLog)  # where finished trials are kept
    metadata: dict[str, Any] = field(default_factory=dict)
    weighting: Weighting = field(default_factory=Weighting)  # once targets are scanned
    split: Split = NONE_HELD  # once it is settled

    def run(self, classes: tuple[str, ...] | None = None) -> UntrainedModel:
        """``classes`` are all there will ever be, as people write them: other data may have more than this source."""
        scan = self._scan(classes)
        coding = settle_targets(scan, self.recipe.task, self._target_kind, self.recipe.nan)
        self.reporter.note(coding.describe())
        _check_threshold(self.recipe, coding)
        self._make_room_for(coding)
        drawn = self._drawn()
        self._split(drawn)
        coding = coding.narrowed(self._fitted(drawn).targets)
        self._weigh(scan, coding)
        if self.source.columns is not None and self.source.columns.by_target:
            self._code_by_target(coding)
            drawn = self._drawn()
        source, sample = self.source, self._weighed(self._fitted(drawn), coding)
        warn_of_targets(sample, source, coding, self.reporter)
        choice = self._choose(sample, coding)
        self._replan(choice.recipe, coding)
        self.metadata = {**choice.metadata(), "split": self.split.to_json(), **self.weighting.to_json()}
        scaling = self._scaling(choice.recipe, sample)
        map = self._map(choice, scaling, sample, coding)
        self.metadata[LINEAR] = fit_linear(sample, scaling, coding)
        recipe = choice.recipe.with_(solver=self.plan.solver)
        columns = None if source.columns is None else source.columns.at(None)
        pipeline = Pipeline(columns, scaling, map, coding, source.feature_names, source.target_names)
        asked = self.recipe.to_json()  # with its autos: what a strict forget runs again
        return UntrainedModel(recipe, pipeline, {**self.metadata, "asked": asked})

    def _drawn(self) -> Block:
        source = self.source
        rows = sample_rows(source.n_rows, source.n_features * source.x_dtype.itemsize, self.recipe)
        return draw_sample(source, rows, self.recipe.seed, self.recipe.nan)

    def _split(self, sample: Block) -> None:
        """Settle which rows choose and which judge."""
        split = self.plan.sizes.split
        key = self.source.holdout_key or key_for(sample)
        self.split = replace(split, key=key if split.holds else NUMBER, folds=self.plan.folds)
        if split.holds and isinstance(self.source, Keyed) and key == ORDER:
            self.split, held = self.source.bounds(self.split)
            if held > self.plan.sizes.held_out:
                self.plan = self.agreed(replan(self.plan, held=held))
        if split.holds and self.split.key == NUMBER:
            self.reporter.note("most rows have copies: which rows are held out is decided by their numbers")

    def _fitted(self, sample: Block) -> Block:
        """The rows of a sample that settings are chosen on: none that choose or judge later."""
        fit = sample.take(~self.split.held(sample))
        return self._side_by_side(fit if len(fit) else sample)  # none may be left of a handful of rows

    def _side_by_side(self, sample: Block) -> Block:
        """In random order, but for rows of one key (copies, groups): the pilot fits to some rows and judges by others,
        and these are not to be on both sides."""
        hashes = hash_rows(self.split.keys(sample), self.recipe.seed ^ OTHER_STREAM)
        return sample.take(np.argsort(hashes, kind="stable"))

    def _scan(self, classes: tuple[str, ...] | None) -> TargetScan:
        """Of all rows: which classes there are, and bounds that no target and no weight is beyond."""
        scan = scan_targets(self.source, self.engine)
        if classes is not None:
            scan.declare(classes, self._target_kind)
        return scan

    @property
    def _target_kind(self) -> str:
        assert self.source.y_dtype is not None
        return self.source.y_dtype.kind

    def _weigh(self, scan: TargetScan, coding: TargetCoding) -> None:
        """What rows count for, classes by how many of the rows to fit have them."""
        balance, weighted = self.recipe.class_weight, self.source.has_weights
        if balance is not None and self.split.holds:
            fitted = self._summed(FitRows(ScanTargets(), self.split), "classes", "drop")
            scan = replace(scan, labels=fitted.labels_among(scan))
        self.weighting = Weighting.of(scan, coding, balance, weighted=weighted)

    def _summed(self, statistic: Statistic[S], title: str, nan: str) -> S:
        """One pass over the data as it is coded now."""
        sizes = {"span_rows": self.plan.span_rows, "span_bytes": self.plan.span_bytes}
        self.reporter.started(title, self.source.n_rows, 0)
        state = self.engine.run(Pass.start(statistic, self.source, nan=nan, **sizes), showing(self.reporter))
        self.reporter.finished()
        return state

    def _weighed(self, sample: Block, coding: TargetCoding) -> Block:
        """With all that rows count for: their own weights times those of their classes; none where all are equal."""
        weights = row_weights(sample, coding, self.weighting.class_weights)
        differ = weights is not None and bool((weights != weights[0]).any())
        return replace(sample, weights=weights if differ else None)

    def _code_by_target(self, coding: TargetCoding) -> None:
        """Learn the categories that are coded by the target; several classes make more inputs."""
        source = learn_levels(self.source, coding, self.split, self.plan, self.engine, self.reporter)
        if source.n_features != self.source.n_features:
            self.plan = self.agreed(replan(self.plan, source=source))
        self.source = source

    def _make_room_for(self, coding: TargetCoding) -> None:
        """Plan again now that the classes are counted: many of them make wide targets and wide scores."""
        if coding.classes:
            wider = replan(self.plan, outputs=coding.outputs, classes=True)
            if wider.projected > self.plan.projected or wider.keeps_features != self.plan.keeps_features:
                self.plan = self.agreed(wider)

    def _replan(self, recipe: Recipe, coding: TargetCoding) -> None:
        """Plan again where the pilot chose random binning, or features so small that they may be kept."""
        known = {"outputs": coding.outputs, "classes": bool(coding.classes)}
        if recipe.map == BINNING != self.recipe.map:
            self.plan = self.agreed(replan(self.plan, recipe=recipe.with_(pilot=NONE), **known))
        elif recipe.map != BINNING and self.recipe.bits == AUTO and not self.plan.keeps_features:
            if "features kept" not in self.plan.parts:
                return
            smaller = replan(self.plan, recipe=recipe.with_(solver=self.plan.solver), **known)
            if smaller.keeps_features:
                self.plan = self.agreed(smaller.with_parts(why=self.plan.why, others=self.plan.others))

    def _choose(self, sample: Block, coding: TargetCoding) -> Choice:
        recipe = self.recipe.with_(task=coding.task)
        if len(sample) < FEWEST_ROWS:
            recipe = recipe.with_(pilot=NONE, metric=NONE)
        if recipe.map == ANY and not compares(self.source, recipe):
            recipe = recipe.as_fourier()
        if recipe.map in (ANY, BINNING):
            return self._choose_map(sample, coding, recipe)
        return self._choose_fourier(sample, coding, recipe)

    def _choose_fourier(self, sample: Block, coding: TargetCoding, recipe: Recipe) -> Choice:
        searched = recipe.pilot != NONE
        recipe = recipe if searched else defaults(recipe, sample.X, sample.weights)
        if not searched and recipe.metric == NONE:
            return Choice(recipe)
        run = PilotRun(
            sample, coding, recipe, self.threads, reporter=self.reporter, rows=self.source.n_rows, log=self.log
        )
        choice = run.choose() if searched else run.choose_metric()
        if run.learning:
            told = with_names(run.learning, self.source.feature_names, choice.recipe.scaling)
            choice.notes["learning"] = {"metric": told}
        return choice

    def _choose_map(self, sample: Block, coding: TargetCoding, recipe: Recipe) -> Choice:
        """Random binning, or the better of it and Fourier features where either will do."""
        reporter = self.reporter
        how: dict[str, Any] = {"reporter": reporter, "rows": self.source.n_rows, "log": self.log}
        binning = BinningPilot(sample, coding, recipe, self.threads, **how)
        if recipe.map == BINNING:
            return binning.defaults() if recipe.pilot == NONE else binning.choose()
        fourier = PilotRun(sample, coding, recipe.as_fourier(), self.threads, **how)
        plan = replan(self.plan, recipe=binning.recipe, outputs=coding.outputs, classes=bool(coding.classes))
        if plan.fits:
            return best_of_both(fourier, binning, reporter)
        reporter.note(
            f"random binning is not compared: it would need {format_bytes(plan.projected)}, the budget is"
            f" {format_bytes(plan.budget)}"
        )
        return fourier.choose()

    def _scaling(self, recipe: Recipe, sample: Block) -> Scaling:
        if recipe.scaling != "minmax":
            return fit_scaling(recipe.scaling, sample.X, sample.weights)
        moments = self._summed(FitRows(Moments(self.source.n_features), self.split), "scaling", recipe.nan)
        known = moments if moments.rows else None  # a handful of rows may all be held out
        return fit_scaling("minmax", sample.X, sample.weights, moments=known)

    def _map(self, choice: Choice, scaling: Scaling, sample: Block, coding: TargetCoding) -> FeatureMap:
        recipe = choice.recipe
        if recipe.map == BINNING:
            binning, facts = build_binning(choice, scaling, sample.X, self.threads)
            self.metadata["binning"]["sample"] = facts
            return binning
        kernel, start = make_kernel(recipe.kernel, length_scale=recipe.length_scale), time.monotonic()
        rows = copies(sample.weights, len(sample), kind_of(recipe.map).rows)
        map = build_map(
            recipe.map, kernel, recipe.D, scaling.n_outputs, form=recipe.form, precision=make_precision(recipe.bits),
            seed=recipe.seed, sample=scaling.transform(sample.X[rows]), targets=coding.values(sample.targets[rows]),
            learning=recipe.learning(coding.task), metric=choice.metric,
        )  # fmt: skip
        if map.report:
            told = {**map.report, "seconds": time.monotonic() - start}
            self.metadata["learning"] = {**self.metadata.get("learning", {}), "map": told}
            self.reporter.detail(f"learned {recipe.map} frequencies: {map_sentence(told)}")
        return map


def _check_threshold(recipe: Recipe, coding: TargetCoding) -> None:
    if recipe.threshold is not None and len(coding.classes) != 2:
        raise InputError(f"`threshold` is for two classes, and this is {coding.describe()}: leave it out")
