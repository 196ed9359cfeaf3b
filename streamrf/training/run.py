"""Training, from a source to a model: plan, prepare, pass, solve. Every step is small and can be called alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from streamrf.data.source import Block, Source, check_reading
from streamrf.data.split import Split
from streamrf.data.stored import in_brief
from streamrf.engines.base import Engine
from streamrf.engines.current import engine_for
from streamrf.engines.local import LocalEngine
from streamrf.features.kernels import make_kernel
from streamrf.models.model import Model, UntrainedModel
from streamrf.recipe import (
    AUTO,
    BINNING,
    BINNING_ONLY,
    BLEND,
    FOURIER_ONLY,
    NONE,
    NOT_OF_TREES,
    TREES,
    Recipe,
)
from streamrf.solvers.base import Fitted, Run
from streamrf.solvers.binning import on_workers
from streamrf.solvers.boosting import TREE_LIMITS
from streamrf.solvers.cholesky import Cholesky
from streamrf.solvers.iterative import SAMPLE
from streamrf.solvers.passes import Passes, Saving, weighting_of
from streamrf.solvers.plan import Plan
from streamrf.solvers.registry import solver_of
from streamrf.statistics.gram import GramState
from streamrf.statistics.holdout import HoldoutState
from streamrf.statistics.rowset import Ledger, RowSet, ledger_of
from streamrf.support import memory
from streamrf.support.errors import ClusterError, DataError, ExistsError, InputError, MismatchError, NumericalError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.storage.checkpoint import STORED, Checkpoint, SavedPass
from streamrf.support.storage.files import check_free_space, content_errors
from streamrf.support.threads import Threads
from streamrf.support.units import format_count, size_of
from streamrf.training.pilot.log import TrialLog, pilot_place
from streamrf.training.plan import plan_run, replan
from streamrf.training.prepare import Preparation
from streamrf.training.sanity import LINEAR, advice, judge_linear

FROM_DATA = (DataError, InputError, NumericalError, ClusterError, ExistsError, Interrupted)  # not a checkpoint's fault


@dataclass
class Settings:
    """How a run is carried out; none of it changes a bit of the result, but for ``memory``, which decides how large a
    sample preconditions an iterative solver, and whether that is what ``auto`` stands for, as does ``keep_sums``.

    Parameters
    ----------
    threads : int or None, default=None
        Threads to use; all cores by default.
    memory : int, str or None, default=None
        Memory budget: bytes, or text such as ``"2GB"``; 80 % of free memory by default.
    checkpoint : Path or None, default=None
        Folder in which the run saves itself, to be resumed from there.
    checkpoint_every : float, default=300.0
        Seconds between two saves.
    order : callable or None, default=None
        Order of the spans of a pass, for tests.
    engine : Engine, distributed.Client or None, default=None
        Where the summing happens: this process by default, for dask collections the current client.
    clear : bool, default=True
        Whether success removes the checkpoint.
    keeps : Path or None, default=None
        Where the sums will be written, which must have room for them.
    keep_sums : bool, default=True
        Whether the model is to be updated later, or to forget: where it is not, ``auto`` takes the fastest solver.
    """

    threads: int | None = None
    memory: int | str | None = None
    checkpoint: Path | None = None
    checkpoint_every: float = 300.0
    order: Callable[[int], Sequence[int]] | None = None  # order of the spans, for tests
    engine: Engine | None = None  # where the summing happens; this process by default
    clear: bool = True  # whether success removes the checkpoint; the command line does so once the model is written
    keeps: Path | None = None  # where the sums will be written, which must have room for them
    keep_sums: bool = True  # or ``auto`` takes the fastest solver

    def __post_init__(self) -> None:
        self.engine = engine_for(self.engine)

    @property
    def budget(self) -> int | None:
        """The memory budget in bytes."""
        return size_of("memory", self.memory)


@dataclass
class Trained:
    """The model, its statistics, and what the run took."""

    model: Model
    state: GramState | None  # the sums beside it, where the solver leaves such
    plan: Plan
    seconds: dict[str, float]
    source: Source  # with its columns coded as they were trained on

    def __repr__(self) -> str:
        return repr(self.model)

    def _repr_html_(self) -> str:
        return self.model._repr_html_()


class Training:
    """One run over one source."""

    def __init__(
        self, source: Source, recipe: Recipe, settings: Settings, reporter: Reporter, threads: Threads
    ) -> None:
        self.source, self.recipe, self.settings = source, recipe, settings
        self.reporter, self.threads = reporter, threads
        self.engine: Engine = settings.engine or LocalEngine(threads, settings.order)
        self.seconds: dict[str, float] = {"pilot": 0.0}  # a run that is resumed has none
        self.fixed: dict[str, Any] = {}  # what else a checkpoint must agree with, where the settings came from outside
        self.skipped = RowSet()
        self._shown: Plan | None = None  # the plan that was told of last
        check_reading(source, settings.budget)

    def run(self) -> Trained:
        start = time.monotonic()
        self.reporter.note(self.source.describe())
        ledger_of(self.source, self._all_rows())  # a shard that is listed twice is refused now, not after the pass
        plan = self._plan()  # before sums are loaded, which plans count on top
        saved = self._saved()
        with content_errors(self._place, *FROM_DATA) if saved else nullcontext():
            return self._trained(plan, saved, start)

    def _trained(self, plan: Plan, saved: SavedPass | None, start: float) -> Trained:
        if saved:
            untrained = self._begun(saved)
            if untrained.columns is not None and untrained.columns.by_target:
                self.source = self.source.recoded(untrained.columns.at(0))
            plan = self._agreed(self._resumed_plan(plan, untrained, saved.extra["route"].get(SAMPLE)))
        else:
            plan, untrained = self._prepared(self._agreed(plan))
            self.seconds["pilot"] = time.monotonic() - start
        self.reporter.settled(chosen(untrained.recipe))
        untrained, fitted, passes = self._solved(untrained, plan, saved)
        self.seconds["total"] = time.monotonic() - start
        metadata = _merged(untrained.metadata, fitted.metadata) | self._facts(fitted, passes, plan)
        metadata = self._checked(metadata, untrained, fitted.judges)
        untrained.metadata.pop(LINEAR, None)  # no pass is left that could be resumed
        model = untrained.trained(fitted.weights, fitted.calibration, passes.ledger(), metadata)
        self._succeeded()
        return Trained(model, fitted.gram, plan, self.seconds, self.source)

    def _checked(self, metadata: dict[str, Any], untrained: UntrainedModel, judges: Block | None) -> dict[str, Any]:
        """With what a plain linear ridge came to on the rows that judged, and the warnings that all of it gives rise
        to, which are shown too."""
        linear, holdout = metadata.get(LINEAR), metadata.get("holdout")
        if holdout and judges is not None:
            told = judge_linear(linear, untrained.pipeline, judges, self.threads) if linear else None
            metadata = {**metadata, "holdout": {**holdout, "linear": told}}
        warnings = advice(metadata, untrained.recipe)
        for warning in warnings:
            self.reporter.note(f"warning: {warning}")
        return {name: value for name, value in metadata.items() if name != LINEAR} | {"warnings": warnings}

    @property
    def _place(self) -> str:
        return f"the checkpoint {self.settings.checkpoint}"

    def _begun(self, saved: SavedPass) -> UntrainedModel:
        with content_errors(self._place):
            return UntrainedModel.from_parts(saved.extra["prepared"], saved.arrays)

    def prepare(self, classes: tuple[str, ...] | None = None) -> UntrainedModel:
        """Plan and prepare, without the pass."""
        self.reporter.note(self.source.describe())
        prepared = self._prepared(self._agreed(self._plan()), classes)[1]
        prepared.metadata.pop(LINEAR, None)
        return prepared

    def fit_again(self, untrained: UntrainedModel) -> Model:
        """Weights from this source, with everything else fixed: no pilot, and nothing is saved."""
        plan = self._agreed(self._resumed_plan(self._plan(), untrained, None))
        untrained, fitted, passes = self._solved(untrained, plan, None)
        return untrained.trained(fitted.weights, fitted.calibration, passes.ledger(), fitted.metadata)

    def _solved(
        self, untrained: UntrainedModel, plan: Plan, saved: SavedPass | None
    ) -> tuple[UntrainedModel, Fitted, Passes]:
        """Weights, the passes that led to them, and the model with what is known of its map only then."""
        passes = self._passes(untrained, plan, saved)
        fitted = solver_of(untrained.recipe)(self._run(untrained, plan, passes)).fit()
        if fitted.pipeline is not None:
            untrained = replace(untrained, pipeline=fitted.pipeline)
        return untrained, fitted, passes

    def accumulate(
        self, untrained: UntrainedModel, rows: RowSet | None = None
    ) -> tuple[HoldoutState[GramState], Ledger]:
        """The sums of the source (or of some of its rows) alone, with everything else fixed: no pilot, no weights."""
        self.reporter.note(self.source.describe())
        plan = self._agreed(self._plan())
        self.skipped = RowSet() if rows is None else rows.complement(self.source.n_rows)
        self.fixed = {**untrained.pipeline.digests(), "rows": None if rows is None else rows.to_json()}
        saved = self._saved()
        with content_errors(self._place, *FROM_DATA) if saved else nullcontext():
            passes = self._passes(untrained, plan, saved)
            untrained = untrained.with_metadata(split=Split().to_json())  # every row is summed
            sums = Cholesky(self._run(untrained, plan, passes)).sums()
        self._succeeded()
        return sums, passes.ledger()

    def _prepared(self, plan: Plan, classes: tuple[str, ...] | None = None) -> tuple[Plan, UntrainedModel]:
        log = TrialLog(self.settings.checkpoint, self.identity())
        if log.count:
            self.reporter.note(f"resuming: {format_count(log.count)} trials of the pilot are done already")
        preparation = Preparation(
            self.source, self.recipe, plan, self._agreed, self.engine, self.reporter, self.threads, log
        )
        try:
            untrained = preparation.run(classes)
        except KeyboardInterrupt as stop:
            raise log.stopped() from stop
        if self.source.reading:
            untrained = untrained.with_metadata(reading=dict(self.source.reading))
        self.source = preparation.source
        return preparation.plan, untrained

    def _run(self, untrained: UntrainedModel, plan: Plan, passes: Passes) -> Run:
        return Run(
            self.recipe, untrained.recipe, untrained.pipeline, plan, passes, self.threads, self.reporter, self.seconds,
            split_of(untrained, plan), weighting_of(passes, untrained.metadata),
        )  # fmt: skip

    def _passes(self, untrained: UntrainedModel, plan: Plan, saved: SavedPass | None) -> Passes:
        saving = Saving(self._checkpoint(), self.identity(), self.settings.checkpoint_every)
        return Passes(
            self.source, untrained, self.engine, self.reporter, saving,
            sizes={"span_rows": plan.span_rows, "span_bytes": plan.span_bytes}, saved=saved, skipped=self.skipped,
            is_only=plan.passes == 1,
        )  # fmt: skip

    def _plan(self) -> Plan:
        return plan_run(
            self.source, self.recipe, outputs=max(self.source.n_outputs, 1), threads=self.threads.count,
            budget=self.settings.budget, local=self.settings.engine is None, keeps_sums=self.settings.keep_sums,
        )  # fmt: skip

    def _resumed_plan(self, asked: Plan, untrained: UntrainedModel, sample: int | None) -> Plan:
        """The plan of a run that is resumed: with what it was begun with, whatever would be chosen now."""
        recipe, coding = untrained.recipe.with_(pilot=NONE, metric=NONE), untrained.coding
        known = {"outputs": coding.outputs, "classes": bool(coding.classes), "sample": sample}
        known |= {name: untrained.metadata.get("split", {}).get(name) for name in ("folds", "counted")}
        known[TREE_LIMITS] = untrained.metadata.get(TREE_LIMITS)
        plan = replan(asked, recipe=recipe, **known)
        return replace(plan, why=f"the run was begun with {plan.solver}") if self.recipe.solver == AUTO else plan

    def _agreed(self, plan: Plan) -> Plan:
        """The plan, shown where it is news, and found to fit."""
        if self._is_news(plan):
            self.reporter.planned(plan)
            self._shown = plan
        plan = replace(plan, workers=self.engine.needs(plan.bytes))
        if plan.workers:
            self.reporter.note(plan.workers.describe())
        plan.check()
        if self.settings.keeps:
            check_free_space(self.settings.keeps, plan.bytes["statistics"])
        plan = on_workers(plan)
        if plan.cache:
            self.reporter.detail(plan.cache.why)
        return plan

    def _is_news(self, plan: Plan) -> bool:
        """A plan is made again as more becomes known; one that asks for no more than the last says nothing new."""
        last = self._shown
        if last is None or (plan.solver, plan.passes, plan.why) != (last.solver, last.passes, last.why):
            return True
        return plan.projected - plan.reserved > last.projected - last.reserved  # whatever the process holds by now

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be continued."""
        return {"data": self.source.fingerprint(), STORED: self._stored, "recipe": self.recipe.to_json(), **self.fixed}

    @cached_property
    def _stored(self) -> dict[str, str] | None:
        """What is stored as the run begins; listing it takes a while where there are many files."""
        return in_brief(self.source.stored()) if self.settings.checkpoint else None

    def _checkpoint(self) -> Checkpoint | None:
        return Checkpoint(self.settings.checkpoint) if self.settings.checkpoint else None

    def _saved(self) -> SavedPass | None:
        checkpoint = self._checkpoint()
        saved = checkpoint.load(self.identity()) if checkpoint else None
        if saved:
            done = RowSet.from_json(saved.ledger).difference(self.skipped)
            self.reporter.note(f"resuming: {format_count(done.count)} rows are done already")
        return saved

    def _all_rows(self) -> RowSet:
        return RowSet([(0, self.source.n_rows)])

    def _facts(self, fitted: Fitted, passes: Passes, plan: Plan) -> dict[str, Any]:
        return {
            "rows": fitted.rows,
            "dropped": passes.dropped,
            "seconds": self.seconds,
            "memory": {"projected": plan.projected, "budget": plan.budget, "peak": memory.peak()},
            "statistics_digest": fitted.digest,
            "data": {
                "fingerprint": self.source.fingerprint(),
                "describe": self.source.describe(),
                "weighted": self.source.has_weights,
                "holdout_key": self.source.holdout_key,
            },
        }

    def _succeeded(self) -> None:
        """Old sums must not be there for the next run."""
        if self.settings.clear:
            clear_checkpoint(self.settings)


def clear_checkpoint(settings: Settings) -> None:
    """Once its result is safe."""
    if settings.checkpoint:
        Checkpoint(pilot_place(settings.checkpoint)).clear()
        Checkpoint(settings.checkpoint).clear()


def split_of(untrained: UntrainedModel, plan: Plan) -> Split:
    """The roles of rows that were settled with the model. Older versions had rows that both chose and judged."""
    if "split" in untrained.metadata:
        return Split.from_json(untrained.metadata["split"])
    if untrained.recipe.cv:
        raise MismatchError(
            "this run was begun by an older version, whose folds held the rows that judge too: train again from the"
            " start, without its checkpoint"
        )
    return Split(choose=plan.sizes.split.choose, seed=untrained.recipe.seed)


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What the pilot noted, and what the solver did, where both speak of one thing."""
    both = {name: {**first[name], **second[name]} for name in ("binning",) if name in first and name in second}
    warnings = [*first.get("warnings", []), *second.get("warnings", [])]
    return {**first, **second, **both} | ({"warnings": warnings} if warnings else {})


def chosen(recipe: Recipe) -> dict[str, Any]:
    """Every setting used, with the kernel's width in both conventions."""
    settings = {name: value for name, value in recipe.to_json().items() if name not in idle(recipe)}
    if recipe.length_scale and recipe.map != BINNING:
        settings["gamma"] = make_kernel(recipe.kernel, length_scale=recipe.length_scale).gamma
    return settings


def idle(recipe: Recipe) -> tuple[str, ...]:
    """Settings that mean nothing for the map of a recipe."""
    if recipe.map == BLEND:
        return ()
    if recipe.map == TREES:
        return NOT_OF_TREES
    return FOURIER_ONLY if recipe.map == BINNING else BINNING_ONLY


def train(
    source: Source, recipe: Recipe | None = None, settings: Settings | None = None, reporter: Reporter | None = None
) -> Trained:
    """Train on a source; the functional face of everything above."""
    settings = settings or Settings()
    with Threads(settings.threads) as threads:
        return Training(source, recipe or Recipe(), settings, reporter or Reporter(), threads).run()
