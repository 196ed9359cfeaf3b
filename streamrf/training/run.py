"""Training, from a source to a model: look, plan, pilot, pass, solve. Every step is small and can be called alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamrf.data.sampling import draw_sample
from streamrf.data.source import Block, Source
from streamrf.engines.base import Engine, Pass, showing
from streamrf.engines.local import LocalEngine
from streamrf.features.base import FeatureMap
from streamrf.features.build import build_fourier
from streamrf.features.fourier import kind_of
from streamrf.features.kernels import make_kernel
from streamrf.features.precision import make_precision
from streamrf.features.scaling import Scaling, fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.models.model import Model
from streamrf.models.prepared import Prepared
from streamrf.recipe import ANY, AUTO, BINNING, NONE, Recipe
from streamrf.solvers.base import Fitted, Route, Run
from streamrf.solvers.binning_plan import cache_on_workers
from streamrf.solvers.cholesky import DirectRoute
from streamrf.solvers.iterative import SAMPLE
from streamrf.solvers.passes import Passes, Saving
from streamrf.solvers.plan import Plan
from streamrf.solvers.registry import route_of
from streamrf.statistics.fitting import FittingState
from streamrf.statistics.gram import GramState
from streamrf.statistics.moments import Moments
from streamrf.statistics.rowset import Ledger, RowSet, ledger_of
from streamrf.statistics.target_scan import scan_targets, settle_targets
from streamrf.support import memory
from streamrf.support.progress import Reporter
from streamrf.support.storage.checkpoint import Checkpoint, SavedPass
from streamrf.support.storage.files import check_free_space
from streamrf.support.threads import Threads
from streamrf.support.units import format_bytes, format_count
from streamrf.training.pilot.binning import BinningPilot, Settled, best_of_both, build_binning
from streamrf.training.pilot.fourier import PilotRun, budget_seconds, defaults, sample_rows
from streamrf.training.pilot.learning_report import map_sentence, with_names
from streamrf.training.plan import compares, plan_run


@dataclass
class Settings:
    """How a run is carried out; none of it changes a bit of the result, but for ``memory``, which decides how large a
    sample preconditions an iterative solver, and whether that is what ``auto`` stands for."""

    threads: int | None = None
    memory: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: float = 300.0
    order: Callable[[int], Any] | None = None  # order of the spans, for tests
    engine: Engine | None = None  # where the summing happens; this process by default
    keeps: Path | None = None  # where the sums will be written, which must have room for them


@dataclass
class Trained:
    """The model, its statistics, and what the run took."""

    model: Model
    state: GramState | None  # the sums beside it, where the route has such
    plan: Plan
    seconds: dict[str, float]


FOURIER_ONLY = ("D", "bits", "form")  # settings that random binning does not have

FEWEST_ROWS = 8  # of a sample that can be split in two and still say anything


class Training:
    """One run over one source."""

    def __init__(
        self, source: Source, recipe: Recipe, settings: Settings, reporter: Reporter, threads: Threads
    ) -> None:
        self.source, self.recipe, self.settings = source, recipe, settings
        self.reporter, self.threads = reporter, threads
        self.engine: Engine = settings.engine or LocalEngine(threads, settings.order)
        self.seconds: dict[str, float] = {"pilot": 0.0}  # a run that goes on from a checkpoint has none
        self.fixed: dict[str, Any] = {}  # what else a checkpoint must agree with, where the settings came from outside
        self.skipped = RowSet()
        self.metric: np.ndarray | None = None  # a factor for the scaled inputs, where one was learned

    def run(self) -> Trained:
        start = time.monotonic()
        self.reporter.note(self.source.describe())
        ledger_of(self.source, self._all_rows())  # a shard that is listed twice is refused now, not after the pass
        asked = self._sized(max(self.source.n_outputs, 1))  # before sums are loaded, which plans count on top
        saved = self._saved()
        if saved:
            prepared = Prepared.from_parts(saved.extra["prepared"], saved.arrays)
            self.plan = self._agreed(self._begun(prepared, asked, saved.extra["route"].get(SAMPLE)))
        else:
            self.plan = self._agreed(asked)
            with self._timed("pilot"):
                prepared = self.prepare()
        self.reporter.settled(chosen(prepared.recipe))
        passes = self._passes(prepared, saved)
        fitted = self._route(prepared, passes).fit()
        self.seconds["total"] = time.monotonic() - start
        story = {**prepared.story, **fitted.story, **self._facts(fitted, passes)}
        model = prepared.model(fitted.weights, fitted.calibration, passes.ledger(), story)
        return Trained(model, fitted.gram, self.plan, self.seconds)

    def accumulate(self, prepared: Prepared, rows: RowSet | None = None) -> tuple[FittingState, Ledger]:
        """The sums of the source (or of some of its rows) alone, with everything else fixed: no pilot, no weights."""
        self.reporter.note(self.source.describe())
        self.plan = self._plan()
        self.skipped = RowSet() if rows is None else rows.complement(self.source.n_rows)
        self.fixed = {**prepared.digests(), "rows": None if rows is None else rows.to_json()}
        passes = self._passes(prepared, self._saved())
        state = DirectRoute(self._run(prepared, passes)).sums()
        assert isinstance(state, FittingState)
        return state, passes.ledger()

    def _route(self, prepared: Prepared, passes: Passes) -> Route:
        return route_of(prepared.recipe)(self._run(prepared, passes))

    def _run(self, prepared: Prepared, passes: Passes) -> Run:
        return Run(self.recipe, prepared, self.plan, passes, self.threads, self.reporter, self.seconds)

    def _passes(self, prepared: Prepared, saved: SavedPass | None) -> Passes:
        saving = Saving(self._checkpoint(), self.identity(), self.settings.checkpoint_every)
        return Passes(
            self.source, prepared, self.engine, self.reporter, saving,
            sizes=self._sizes(), saved=saved, skipped=self.skipped,
        )  # fmt: skip

    def _plan(self) -> Plan:
        return self._agreed(self._sized(max(self.source.n_outputs, 1)))

    def _sized(self, outputs: int, recipe: Recipe | None = None, **known: Any) -> Plan:
        return plan_run(
            self.source, recipe or self.recipe, outputs=outputs, threads=self.threads.count,
            keeps=self.settings.engine is None, **{"budget": self.settings.memory, **known},
        )  # fmt: skip

    def _begun(self, prepared: Prepared, asked: Plan, sample: int | None) -> Plan:
        """The plan of a run that goes on: with what it was begun with, whatever would be chosen now."""
        recipe, coding = prepared.recipe.with_(pilot=NONE, metric=NONE), prepared.coding
        known = {"classes": bool(coding.classes), "reserved": asked.reserved, "budget": asked.budget}
        known |= {} if sample is None else {"sample": sample}
        plan = self._sized(coding.outputs, recipe, **known)
        if self.recipe.solver == AUTO:
            plan.why = f"the run was begun with {plan.solver}"
        return plan

    def _agreed(self, plan: Plan) -> Plan:
        """The plan, shown and found to fit."""
        self.reporter.planned(plan)
        plan.workers = self.engine.needs(plan.reserved, plan.parts)
        if plan.workers:
            self.reporter.note(plan.workers.describe())
        plan.check()
        if self.settings.keeps:
            check_free_space(self.settings.keeps, plan.parts.get("statistics", 0))
        if plan.cache:
            plan.cache = cache_on_workers(plan) if plan.workers else plan.cache
            self.reporter.note(plan.cache.why)
        return plan

    def _make_room_for(self, coding: TargetCoding) -> None:
        """Plan again now that the classes are counted: many of them make wide targets and wide scores."""
        if coding.classes:
            wider = self._sized(coding.outputs, classes=True, reserved=self.plan.reserved)
            if wider.projected > self.plan.projected or wider.keeps_features != self.plan.keeps_features:
                self.plan = self._agreed(wider)

    def _keep_features(self, recipe: Recipe, coding: TargetCoding) -> None:
        """Plan again now that the precision is known: features may be smaller than they might have been, and fit."""
        if self.recipe.bits == AUTO and self.plan.parts.get("features kept") == 0:
            known = {"classes": bool(coding.classes), "reserved": self.plan.reserved}
            settled = self._sized(coding.outputs, recipe.with_(solver=self.plan.solver), **known)
            if settled.keeps_features:
                settled.why, settled.others = self.plan.why, self.plan.others
                self.plan = self._agreed(settled)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[stage] = time.monotonic() - start

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be continued."""
        return {"data": self.source.fingerprint(), "recipe": self.recipe.to_json(), **self.fixed}

    def _checkpoint(self) -> Checkpoint | None:
        return Checkpoint(self.settings.checkpoint) if self.settings.checkpoint else None

    def _saved(self) -> SavedPass | None:
        checkpoint = self._checkpoint()
        saved = checkpoint.load(self.identity()) if checkpoint else None
        if saved:
            done = RowSet.from_json(saved.ledger).difference(self.skipped)
            self.reporter.note(f"resuming: {format_count(done.count)} rows are done already")
        return saved

    def prepare_alone(self, classes: tuple[str, ...] | None = None) -> Prepared:
        """Plan and prepare, without the pass."""
        self.reporter.note(self.source.describe())
        self.plan = self._plan()
        return self.prepare(classes)

    def prepare(self, classes: tuple[str, ...] | None = None) -> Prepared:
        """Look at the targets, draw the sample, run the pilot, fix scaling and map.

        ``classes`` are all there will ever be, as people write them: other data may have more than this source.
        """
        coding = self._coding(classes)
        self.reporter.note(describe_targets(coding))
        self._make_room_for(coding)
        rows = sample_rows(self.source.n_rows, self.source.n_features * self.source.x_dtype.itemsize, self.recipe)
        sample = draw_sample(self.source, rows, self.recipe.seed, self.recipe.nan)
        recipe, story = self._pilot(sample, coding)
        self._plan_binning(recipe, coding)
        self._keep_features(recipe, coding)
        scaling = self._scaling(recipe, sample)
        map = self._map(recipe, scaling, sample, coding, story)
        recipe = recipe.with_(solver=self.plan.solver)
        story["asked"] = self.recipe.to_json()  # with its autos: what a strict forget runs again
        source = self.source
        return Prepared(recipe, coding, scaling, map, story, source.feature_names, source.columns, source.target_names)

    def _coding(self, classes: tuple[str, ...] | None) -> TargetCoding:
        scan = scan_targets(self.source)
        kind = self.source.y_dtype.kind  # type: ignore[union-attr]
        if classes is not None:
            scan.declare(classes, kind)
        return settle_targets(scan, self.recipe.task, kind, self.recipe.nan)

    def _pilot(self, sample: Block, coding: TargetCoding) -> tuple[Recipe, dict[str, Any]]:
        recipe = self.recipe.with_(task=coding.task)
        if len(sample) < FEWEST_ROWS:
            recipe = recipe.with_(pilot="none", metric="none")
        if recipe.map == ANY and not compares(self.source, recipe):
            recipe = recipe.with_(map=AUTO)
        if recipe.map in (ANY, BINNING):
            settled = self._binning_pilot(sample, coding, recipe)
            return settled.recipe, settled.story
        searched = recipe.pilot != "none"
        recipe = recipe if searched else defaults(recipe, sample.X)
        if not searched and recipe.metric == NONE:
            return recipe, {}
        rows = self.source.n_rows
        budget = budget_seconds(rows, recipe.D)
        run = PilotRun(sample, coding, recipe, self.threads, budget=budget, reporter=self.reporter, rows=rows)
        recipe = run.settle() if searched else run.settle_metric()
        self.metric = run.metric
        story: dict[str, Any] = {"pilot": [vars(trial) for trial in run.trials]}
        if run.learning:
            told = with_names(run.learning, self.source.feature_names, recipe.scaling)
            story["learning"] = {"metric": told}
        return recipe, story

    def _scaling(self, recipe: Recipe, sample: Block) -> Scaling:
        if recipe.scaling != "minmax":
            return fit_scaling(recipe.scaling, sample.X)
        job = Pass.start(Moments(self.source.n_features), self.source, nan=recipe.nan, **self._sizes())
        self.reporter.started("scaling", self.source.n_rows, 0)
        moments = self.engine.run(job, showing(self.reporter))
        self.reporter.finished()
        return fit_scaling("minmax", sample.X, moments=moments)

    def _binning_pilot(self, sample: Block, coding: TargetCoding, recipe: Recipe) -> Settled:
        """Random binning, or both it and Fourier features where either will do."""
        rows, reporter = self.source.n_rows, self.reporter
        binning = BinningPilot(sample, coding, recipe, self.threads, rows=rows, reporter=reporter)
        if recipe.map == BINNING:
            return binning.defaults() if recipe.pilot == "none" else binning.settle()
        budget = budget_seconds(rows, recipe.D)
        plain = recipe.with_(map=AUTO)
        fourier = PilotRun(sample, coding, plain, self.threads, budget=budget, reporter=reporter, rows=rows)
        plan = self._sized(coding.outputs, binning.recipe, classes=bool(coding.classes), reserved=self.plan.reserved)
        if plan.projected <= plan.budget:
            return best_of_both(fourier, binning, reporter)
        reporter.note(
            f"random binning is not compared: it would need {format_bytes(plan.projected)}, the budget is"
            f" {format_bytes(plan.budget)}"
        )
        return Settled(fourier.settle(), {"pilot": [vars(trial) for trial in fourier.trials]})

    def _plan_binning(self, recipe: Recipe, coding: TargetCoding) -> None:
        """Plan again where the pilot chose random binning."""
        if recipe.map == BINNING != self.recipe.map:
            known = {"classes": bool(coding.classes), "reserved": self.plan.reserved}
            self.plan = self._agreed(self._sized(coding.outputs, recipe.with_(pilot="none"), **known))

    def _map(
        self, recipe: Recipe, scaling: Scaling, sample: Block, coding: TargetCoding, story: dict[str, Any]
    ) -> FeatureMap:
        if recipe.map == BINNING:
            return build_binning(recipe, scaling, sample.X, story, self.threads)
        kernel, start = make_kernel(recipe.kernel, length_scale=recipe.length_scale), time.monotonic()
        rows = slice(0, kind_of(recipe.map).rows)
        map = build_fourier(
            recipe.map, kernel, recipe.D, scaling.n_outputs, form=recipe.form, precision=make_precision(recipe.bits),
            seed=recipe.seed, sample=scaling.transform(sample.X[rows]), targets=coding.values(sample.y[rows]),  # type: ignore[index]
            learning=recipe.learning(coding.task), metric=self.metric,
        )  # fmt: skip
        if map.frequencies.report:
            told = {**map.frequencies.report, "seconds": time.monotonic() - start}
            story["learning"] = {**story.get("learning", {}), "map": told}
            self.reporter.note(f"learned {recipe.map} frequencies: {map_sentence(told)}")
        return map

    def _sizes(self) -> dict[str, int]:
        return {"span_rows": self.plan.span_rows, "span_bytes": self.plan.span_bytes}

    def _all_rows(self) -> RowSet:
        return RowSet([(0, self.source.n_rows)])

    def _facts(self, fitted: Fitted, passes: Passes) -> dict[str, Any]:
        return {
            "rows": fitted.rows,
            "dropped": passes.dropped,
            "seconds": self.seconds,
            "memory": {"projected": self.plan.projected, "budget": self.plan.budget, "peak": memory.peak()},
            "statistics_digest": fitted.digest,
            "data": {
                "fingerprint": self.source.fingerprint(),
                "describe": self.source.describe(),
                "weighted": self.source.has_weights,
            },
        }

    def clear_checkpoint(self) -> None:
        """After the model is safely written."""
        checkpoint = self._checkpoint()
        if checkpoint:
            checkpoint.clear()


def chosen(recipe: Recipe) -> dict[str, Any]:
    """Every setting used, with the kernel's width in both conventions."""
    settings = {name: value for name, value in recipe.to_json().items() if name not in idle(recipe)}
    if recipe.length_scale and recipe.map != BINNING:
        settings["gamma"] = make_kernel(recipe.kernel, length_scale=recipe.length_scale).gamma
    return settings


def idle(recipe: Recipe) -> tuple[str, ...]:
    """Settings that mean nothing for the map of a recipe."""
    return FOURIER_ONLY if recipe.map == BINNING else ("grids", "table_bits")


def describe_targets(coding: TargetCoding) -> str:
    if coding.classes:
        shown = ", ".join(map(str, coding.classes[:5])) + (", ..." if len(coding.classes) > 5 else "")
        return f"classification into {len(coding.classes)} classes ({shown})"
    return "regression" + (f" of {coding.outputs} outputs" if coding.outputs > 1 else "")


def train(
    source: Source, recipe: Recipe | None = None, settings: Settings | None = None, reporter: Reporter | None = None
) -> Trained:
    """Train on a source; the functional face of everything above."""
    settings = settings or Settings()
    with Threads(settings.threads) as threads:
        return Training(source, recipe or Recipe(), settings, reporter or Reporter(), threads).run()
