"""From a source to an untrained model: scan the targets, draw a sample, run the pilot, fix scaling and map."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamrf.data.keyed import Keyed
from streamrf.data.screening import draw_sample
from streamrf.data.source import Block, Source, Span
from streamrf.data.split import (
    NONE_HELD,
    NUMBER,
    ORDER,
    OTHER_STREAM,
    Split,
    different_rows,
    hash_rows,
    key_for,
    merge_copies,
)
from streamrf.engines.base import Engine, Pass, showing
from streamrf.features.base import FeatureMap
from streamrf.features.blend import BlendMap, Member
from streamrf.features.fourier import kind_of
from streamrf.features.kernels import make_kernel
from streamrf.features.pipeline import Pipeline, build_map
from streamrf.features.precision import make_precision
from streamrf.features.scaling import Scaling
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.features.trees.map import TreesMap
from streamrf.models.model import UntrainedModel
from streamrf.recipe import ANY, AUTO, BINNING, BLEND, LANDMARKS, NONE, TREES, Recipe
from streamrf.solvers.boosting import TREE_LIMITS, loss_of, tree_limits
from streamrf.solvers.passes import scan_targets
from streamrf.solvers.plan import FEW_ROWS, Plan
from streamrf.statistics.base import S, Statistic
from streamrf.statistics.holdout import FitRows
from streamrf.statistics.losses import check_task
from streamrf.statistics.moments import Moments
from streamrf.statistics.targets import ScanTargets, TargetScan, Weighting, row_weights, settle_targets
from streamrf.support.errors import InputError
from streamrf.support.progress import Reporter
from streamrf.support.quantiles import copies
from streamrf.support.threads import Threads
from streamrf.training.categories import learn_levels, warn_of_targets
from streamrf.training.pilot.binning import BinningPilot, build_binning
from streamrf.training.pilot.blend import SMALL_ROWS, binned_recipe, blended, smooth_recipe, together
from streamrf.training.pilot.choice import Choice, map_sentence, sample_rows, with_names
from streamrf.training.pilot.defaults import defaults
from streamrf.training.pilot.fourier import PilotRun
from streamrf.training.pilot.kernel import KernelPilot
from streamrf.training.pilot.log import TrialLog
from streamrf.training.pilot.room import room_for, scarce_rows
from streamrf.training.pilot.trees import trees_choice, tried_trees
from streamrf.training.plan import replan, scarce_grids
from streamrf.training.sanity import LINEAR, fit_linear, linear_scaling

DIRECT = "cholesky"  # what solves the landmarks of a blend
FIRST_TARGETS = 500  # rows that are looked at to say what is wrong with them
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
    weighing: int = 0  # rows of a positive weight, once they are counted

    def run(self, classes: tuple[str, ...] | None = None) -> UntrainedModel:
        """``classes`` are all there will ever be, as people write them: other data may have more than this source."""
        scan = self._scan(classes)
        coding = settle_targets(scan, self.recipe.task, self._target_kind, self.recipe.nan, self._first_targets)
        self.reporter.note(coding.describe())
        _check_threshold(self.recipe, coding)
        check_task(self.recipe.loss, coding)
        self._make_room_for(coding)
        self.weighing = scan.weighing
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
        if TREES in (choice.recipe.map, *(member.recipe.map for member in choice.members)):
            self.metadata[TREE_LIMITS] = tree_limits(self.plan.sizes)
        own = NONE if choice.members else choice.recipe.scaling  # members of a blend have their own
        scaling = self._scaling(choice.recipe.with_(scaling=own), sample)
        map = self._map(choice, scaling, sample, coding)
        self.metadata[LINEAR] = fit_linear(sample, linear_scaling(scaling, map), coding)
        recipe = choice.recipe.with_(solver=self.plan.solver)
        columns = None if source.columns is None else source.columns.at(None)
        names = source.feature_names, source.target_names
        pipeline = Pipeline(columns, scaling, map, coding, *names, unrounded=map.can_serve_unrounded)
        asked = self.recipe.to_json()  # with its autos: what a strict forget runs again
        return UntrainedModel(recipe, pipeline, {**self.metadata, "asked": asked})

    def _drawn(self) -> Block:
        source = self.source
        rows = sample_rows(self.weighing, source.n_features * source.x_dtype.itemsize, self.recipe)
        rows = min(rows, scarce_rows(self.plan.sizes, self.recipe) or rows)
        return draw_sample(source, rows, self.recipe.seed, self.recipe.nan)

    def _split(self, sample: Block) -> None:
        """Settle which rows choose and which judge."""
        key = self.source.holdout_key or key_for(sample)
        self._count(sample, key)
        split = self.plan.sizes.split
        counted = self.plan.sizes.counting_rows
        self.split = replace(split, key=key if split.holds else NUMBER, folds=self.plan.folds, counted=counted)
        if split.holds and isinstance(self.source, Keyed) and key == ORDER:
            self.split, held = self.source.bounds(self.split)
            if held > self.plan.sizes.held_out:
                self.plan = self.agreed(replan(self.plan, held=held))
        if split.holds and self.split.key == NUMBER:
            self.reporter.note("most rows have copies: which rows are held out is decided by their numbers")

    def _count(self, sample: Block, key: str) -> None:
        """Plan again by the rows that count, of which copies are one, if they make a difference."""
        counted = different_rows(sample) if self._is_whole(sample) and key != NUMBER else self.weighing
        if counted == self.plan.sizes.counting_rows:
            return
        plan = replan(self.plan, recipe=self.recipe, counted=counted)
        if (plan.sizes.split, plan.folds, plan.solver) != (self.plan.sizes.split, self.plan.folds, self.plan.solver):
            self.plan = self.agreed(plan)
        else:
            self.plan = replace(self.plan, sizes=plan.sizes)

    def _is_whole(self, sample: Block) -> bool:
        """Whether the sample has every row that weighs something."""
        return len(sample) >= self.weighing

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

    def _first_targets(self) -> np.ndarray:
        return self.source.read_targets(Span(0, min(FIRST_TARGETS, self.source.n_rows)))

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
        sample = replace(sample, weights=row_weights(sample, coding, self.weighting.class_weights))
        if len(sample) < FEW_ROWS:
            sample = self._side_by_side(merge_copies(sample, coding.values(sample.targets)))
        weights = sample.weights
        differ = weights is not None and bool((weights != weights[0]).any())
        return replace(sample, weights=weights if differ else None)

    def _code_by_target(self, coding: TargetCoding) -> None:
        """Learn the categories that are coded by the target; several classes make more inputs."""
        source = learn_levels(self.source, coding, self.weighting, self.split, self.plan, self.engine, self.reporter)
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
        if recipe.map != self.recipe.map and recipe.map in (BINNING, BLEND, LANDMARKS, TREES):
            self.plan = self.agreed(replan(self.plan, recipe=recipe.with_(pilot=NONE), **known))
        elif recipe.map not in (BINNING, TREES) and self.recipe.bits == AUTO and not self.plan.keeps_features:
            if "features kept" not in self.plan.parts:
                return
            smaller = replan(self.plan, recipe=recipe.with_(solver=self.plan.solver), **known)
            if smaller.keeps_features:
                self.plan = self.agreed(smaller.with_parts(why=self.plan.why, others=self.plan.others))

    def _choose(self, sample: Block, coding: TargetCoding) -> Choice:
        recipe = self.recipe.with_(task=coding.task)
        if len(sample) < FEWEST_ROWS:
            recipe = recipe.with_(pilot=NONE, metric=NONE)
        if recipe.map == ANY and self.plan.sizes.recipe.map != BLEND:
            recipe = recipe.as_fourier()
        if recipe.map in (ANY, BLEND):
            return self._choose_maps(sample, coding, recipe)
        if recipe.map == TREES:
            return trees_choice(recipe, self.source.columns)
        if recipe.pilot != NONE and recipe.map in (BINNING, LANDMARKS):
            pilot = BinningPilot if recipe.map == BINNING else KernelPilot
            recipe = recipe.with_(solver=self.plan.solver)  # which may not take every precision
            return self._named(pilot(sample, coding, recipe, self.threads, **self._how).choose())
        if recipe.map == BINNING:
            return BinningPilot(sample, coding, recipe, self.threads, **self._how).defaults()
        return self._choose_fourier(sample, coding, recipe)

    @property
    def _how(self) -> dict[str, Any]:
        sizes = self.plan.sizes
        room = room_for(sizes, self.recipe)
        return {"reporter": self.reporter, "rows": sizes.counting_rows, "log": self.log, "room": room}

    def _choose_fourier(self, sample: Block, coding: TargetCoding, recipe: Recipe) -> Choice:
        searched = recipe.pilot != NONE
        recipe = recipe if searched else defaults(recipe, sample.X, sample.weights)
        if not searched and recipe.metric in (AUTO, NONE):
            return Choice(recipe)
        if recipe.map == LANDMARKS:  # all is given but the metric, and the width that goes with it
            recipe = recipe.with_(length_scale=self.recipe.length_scale)
            return self._named(KernelPilot(sample, coding, recipe, self.threads, **self._how).choose())
        if recipe.solver == AUTO:  # the choice of a precision depends on it
            recipe = recipe.with_(solver=self.plan.solver)
        how = {name: value for name, value in self._how.items() if name != "room"}
        run = PilotRun(sample, coding, recipe, self.threads, **how)
        return self._named(run.choose() if searched else run.choose_metric())

    def _named(self, choice: Choice) -> Choice:
        """With the names of columns in what was learned of a metric."""
        told = choice.notes.get("learning", {}).get("metric")
        if told:
            told = with_names(told, self.source.feature_names, choice.recipe.scaling)
            choice = replace(choice, notes={**choice.notes, "learning": {"metric": told}})
        return choice

    def _choose_maps(self, sample: Block, coding: TargetCoding, recipe: Recipe) -> Choice:
        """Landmarks, random binning and trees together, without those that are far behind."""
        D = self.plan.sizes.recipe.D  # what time and memory allow
        grids = recipe.grids or scarce_grids(self.plan.sizes)
        smooth, bins = smooth_recipe(recipe.with_(D=D)), binned_recipe(recipe.with_(grids=grids))
        binning = BinningPilot(sample, coding, bins, self.threads, **self._how)
        trees = trees_choice(bins, self.source.columns)
        if recipe.pilot == NONE:
            first = self._choose_fourier(sample, coding, smooth.with_(solver=DIRECT))
            return together((first, binning.defaults(), trees))
        trees, tried = tried_trees(trees, self.source.columns, sample, coding, self.threads, self.log)
        binned = binning.choose()
        compared, many = binning.compared(binned).error, self.plan.sizes.counting_rows >= SMALL_ROWS
        rival = min(tried, compared) if many else math.inf
        how = {**self._how, "sized": recipe.map == ANY, "rival": rival}
        chosen = self._named(KernelPilot(sample, coding, smooth, self.threads, **how).choose())
        errors = {LANDMARKS: chosen.trials[-1].error, BINNING: compared, TREES: tried}
        choice = blended((chosen, binned, trees), errors, self.plan.sizes.counting_rows, recipe, self.reporter)
        return replace(choice, trials=(*chosen.trials, *binning.trials))

    def _scaling(self, recipe: Recipe, sample: Block) -> Scaling:
        if recipe.scaling != "minmax":
            return fit_scaling(recipe.scaling, sample.X, sample.weights)
        moments = self._summed(FitRows(Moments(self.source.n_features), self.split), "scaling", recipe.nan)
        known = moments if moments.rows else None  # a handful of rows may all be held out
        return fit_scaling("minmax", sample.X, sample.weights, moments=known)

    def _blend(self, choice: Choice, sample: Block, coding: TargetCoding) -> FeatureMap:
        members = []
        for each in choice.members:
            scaling = self._scaling(each.recipe, sample)
            members.append(Member(scaling, self._map(each, scaling, sample, coding)))
        return BlendMap(tuple(members), coding.outputs)

    def _map(self, choice: Choice, scaling: Scaling, sample: Block, coding: TargetCoding) -> FeatureMap:
        recipe = choice.recipe
        if choice.members:
            return self._blend(choice, sample, coding)
        if recipe.map == TREES:
            X, loss = scaling.transform(sample.X, np.float32), loss_of(bool(coding.classes))
            return TreesMap.ungrown(X, loss, choice.hidden, coding.values(sample.targets), sample.weights)
        if recipe.map == BINNING:
            rows = copies(sample.weights, len(sample), len(sample))
            binning, facts = build_binning(choice, scaling, sample.X[rows], self.threads)
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
