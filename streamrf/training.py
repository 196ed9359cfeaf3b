"""Training, from a source to a model: look, plan, pilot, pass, solve. Every step is small and can be called alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamrf import memory
from streamrf.calibration import Calibration
from streamrf.checkpoint import Checkpoint, Clock
from streamrf.engines.base import Engine, Pass
from streamrf.engines.local import LocalEngine
from streamrf.errors import DataError
from streamrf.interrupts import Interrupted, deferred_interrupts
from streamrf.kernels import make_kernel
from streamrf.ledger import Ledger, RowSet
from streamrf.look import scan_targets, settle_targets
from streamrf.maps.base import FeatureMap
from streamrf.maps.build import build_fourier, map_from_parts
from streamrf.maps.scores import Scorer
from streamrf.model import Model
from streamrf.pilot import PilotRun, defaults, sample_rows
from streamrf.plan import Plan, make_plan
from streamrf.precision import make_precision
from streamrf.recipe import Recipe
from streamrf.reporting import Reporter
from streamrf.sampling import draw_sample
from streamrf.scaling import Scaling, fit_scaling
from streamrf.solvers.ridge import NormalEquations, RidgeSolver, Weights
from streamrf.sources.base import Block, Source
from streamrf.statistics.fitting import Fitting, FittingState
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.moments import Moments
from streamrf.statistics.scores import Scores
from streamrf.targets import TargetCoding
from streamrf.threads import Threads
from streamrf.units import format_count

RIDGE_LIMITS = (1e-13, 1e2)


@dataclass
class Settings:
    """How a run is carried out; none of it changes a bit of the result."""

    threads: int | None = None
    memory: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: float = 300.0
    order: Callable[[int], Any] | None = None  # order of the spans, for tests


@dataclass
class Prepared:
    """Everything that is fixed before the pass: what a checkpoint must hold besides the sums."""

    recipe: Recipe
    coding: TargetCoding
    scaling: Scaling
    map: FeatureMap
    story: dict[str, Any] = field(default_factory=dict)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        scaling, scaling_arrays = self.scaling.to_parts()
        map, map_arrays = self.map.to_parts()
        coding, coding_arrays = self.coding.to_parts()
        document = {
            "recipe": self.recipe.to_json(), "scaling": scaling, "map": map, "targets": coding, "story": self.story,
        }  # fmt: skip
        return document, {**scaling_arrays, **map_arrays, **coding_arrays}

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Prepared:
        return cls(
            Recipe.from_json(document["recipe"]), TargetCoding.from_parts(document["targets"], arrays),
            Scaling.from_parts(document["scaling"], arrays), map_from_parts(document["map"], arrays), document["story"],
        )  # fmt: skip


@dataclass
class Trained:
    """The model, its statistics, and what the run took."""

    model: Model
    state: GramState
    plan: Plan
    seconds: dict[str, float]


class Training:
    """One run over one source."""

    def __init__(
        self, source: Source, recipe: Recipe, settings: Settings, reporter: Reporter, threads: Threads
    ) -> None:
        self.source, self.recipe, self.settings = source, recipe, settings
        self.reporter, self.threads = reporter, threads
        self.engine: Engine = LocalEngine(threads, settings.order)
        self.seconds: dict[str, float] = {}

    def run(self) -> Trained:
        start = time.monotonic()
        self.reporter.note(self.source.describe())
        self.plan = self._plan()
        checkpoint = self._checkpoint()
        saved = checkpoint.load(self.identity()) if checkpoint else None
        if saved:
            prepared = Prepared.from_parts(saved.extra, saved.arrays)
            self.reporter.note(f"resuming: {format_count(RowSet.from_json(saved.ledger).count)} rows are done already")
        else:
            with self._timed("pilot"):
                prepared = self.prepare()
        self.reporter.settled(chosen(prepared.recipe))
        with self._timed("pass"):
            state = self._pass(prepared, checkpoint, saved)
        with self._timed("solve"):
            model = self.solve(prepared, state)
        self.seconds["total"] = time.monotonic() - start
        self._finish_story(model, state)
        return Trained(model, state.gram, self.plan, self.seconds)

    def _plan(self) -> Plan:
        outputs = max(self.source.n_outputs, 1)
        plan = make_plan(
            self.source, self.recipe, outputs=outputs, threads=self.threads.count, budget=self.settings.memory
        )
        self.reporter.planned(plan)
        plan.check()
        return plan

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[stage] = time.monotonic() - start

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be continued."""
        return {"data": self.source.fingerprint(), "recipe": self.recipe.to_json()}

    def _checkpoint(self) -> Checkpoint | None:
        return Checkpoint(self.settings.checkpoint) if self.settings.checkpoint else None

    def prepare(self) -> Prepared:
        """Look at the targets, draw the sample, run the pilot, fix scaling and map."""
        assert self.source.y_dtype is not None or not self.source.has_targets
        scan = scan_targets(self.source)
        coding = settle_targets(scan, self.recipe.task, self.source.y_dtype.kind, self.recipe.nan)  # type: ignore[union-attr]
        self.reporter.note(describe_targets(coding))
        rows = sample_rows(self.source.n_rows, self.source.n_features * self.source.x_dtype.itemsize, self.recipe)
        sample = draw_sample(self.source, rows, self.recipe.seed, self.recipe.nan)
        recipe, story = self._pilot(sample, coding)
        scaling = self._scaling(recipe, sample)
        return Prepared(recipe, coding, scaling, self._map(recipe, scaling, sample, coding), story)

    def _pilot(self, sample: Block, coding: TargetCoding) -> tuple[Recipe, dict[str, Any]]:
        recipe = self.recipe.with_(task=coding.task)
        if recipe.pilot == "none":
            return defaults(recipe, sample.X), {}
        run = PilotRun(sample, coding, recipe, self.threads, budget=60.0, reporter=self.reporter)
        return run.settle(), {"pilot": [vars(trial) for trial in run.trials]}

    def _scaling(self, recipe: Recipe, sample: Block) -> Scaling:
        if recipe.scaling != "minmax":
            return fit_scaling(recipe.scaling, sample.X)
        job = Pass.start(Moments(self.source.n_features), self.source, nan=recipe.nan, **self._sizes())
        self.reporter.started("scaling", self.source.n_rows, 0)
        moments = self.engine.run(job, lambda job: self.reporter.advanced(job.done.count, None))
        self.reporter.finished()
        return fit_scaling("minmax", sample.X, moments=moments)

    def _map(self, recipe: Recipe, scaling: Scaling, sample: Block, coding: TargetCoding) -> FeatureMap:
        kernel = make_kernel(recipe.kernel, length_scale=recipe.length_scale)
        rows = slice(0, 2000)
        return build_fourier(
            recipe.map, kernel, recipe.D, scaling.n_outputs, form=recipe.form, precision=make_precision(recipe.bits),
            seed=recipe.seed, sample=scaling.transform(sample.X[rows]), targets=coding.values(sample.y[rows]),  # type: ignore[index]
        )  # fmt: skip

    def _sizes(self) -> dict[str, int]:
        return {"span_rows": self.plan.span_rows, "span_bytes": self.plan.span_bytes}

    def _pass(self, prepared: Prepared, checkpoint: Checkpoint | None, saved: Any) -> FittingState:
        gram = Gram.on_this_machine(prepared.scaling, prepared.map, prepared.coding, self.threads.count)
        statistic = Fitting(gram, self.plan.holdout, prepared.recipe.seed)
        job = Pass.start(statistic, self.source, nan=prepared.recipe.nan, **self._sizes())
        if saved:
            job.state, job.done = statistic.load(saved.arrays), RowSet.from_json(saved.ledger)
            job.dropped = job.state.dropped
        self.reporter.started("training", self.source.n_rows, job.done.count)
        with deferred_interrupts() as asked:
            watcher = _Watcher(self, prepared, checkpoint, asked.is_set)
            self.engine.run(job, watcher)
        self.reporter.finished()
        job.state.dropped = job.dropped
        self.done = job.done
        if job.dropped:
            self.reporter.note(f"{format_count(job.dropped)} rows with NaN or infinite values were left out")
        if job.state.gram.rows + job.state.holdout.rows < 2:
            raise DataError(f"{job.state.gram.rows} usable rows: at least two are needed to fit a model")
        if checkpoint:
            self.finished_checkpoint = checkpoint
        return job.state

    def solve(self, prepared: Prepared, state: FittingState) -> Model:
        """The lambda path on the hold-out rows, which then join; weights, calibration and metrics."""
        holdout = state.holdout.table()
        ridge, calibration, metrics = prepared.recipe.ridge, None, None
        if holdout is not None and state.gram.rows >= 2:
            path = self._path(prepared, state.gram, holdout)
            ridge, scores = path.choose(prepared.recipe.ridge if self.recipe.ridge is not None else None)
            calibration, metrics = self._judge(prepared, ridge, path.weights, scores, holdout)
            self._join(prepared, state, holdout)
        weights = self._solver(prepared, state.gram).solve(_known(ridge))
        self._mention_rank(weights)
        if calibration is None and prepared.coding.classes:
            calibration = Calibration.plain(prepared.coding.outputs)
        return Model(
            prepared.recipe.with_(ridge=ridge), prepared.scaling, prepared.map, prepared.coding, weights, calibration,
            self.source.feature_names, self._ledger(), {**prepared.story, "holdout": metrics},
        )  # fmt: skip

    def _mention_rank(self, weights: Weights) -> None:
        if weights.jitter:
            self.reporter.note(
                f"at lambda {weights.ridge:.3g} the system is singular to rounding (effective rank"
                f" {weights.rank:.0f} of {len(weights.coefficients)}): solved at {weights.ridge + weights.jitter:.3g}"
            )

    def _solver(self, prepared: Prepared, gram: GramState) -> RidgeSolver:
        return RidgeSolver(NormalEquations.from_state(gram, prepared.map, prepared.coding), self.threads)

    def _path(self, prepared: Prepared, gram: GramState, holdout: Block) -> RidgePath:
        X = prepared.scaling.transform(holdout.X, prepared.map.precision.inputs)
        return RidgePath(self._solver(prepared, gram), prepared, X, holdout.y, self.threads, self.reporter)  # type: ignore[arg-type]

    def _judge(
        self, prepared: Prepared, ridge: float, weights: Weights, scores: np.ndarray, holdout: Block
    ) -> tuple[Calibration | None, dict[str, Any]]:
        """Calibration on the hold-out rows, and the metrics there."""
        calibration = None
        coding = prepared.coding
        if coding.classes:
            codes = _codes(holdout.y)  # type: ignore[arg-type]
            calibration = Calibration.fit(scores, codes)
        model = Model(prepared.recipe, prepared.scaling, prepared.map, coding, weights, calibration, None, Ledger())
        statistic = Scores(model)
        state = statistic.zero()
        y = np.asarray(coding.classes)[codes] if coding.classes else holdout.y
        statistic.update(state, Block(holdout.X, y, holdout.index), self.threads)
        return calibration, statistic.metrics(state)

    def _join(self, prepared: Prepared, state: FittingState, holdout: Block) -> None:
        """The hold-out rows enter the sums: bits equal to never having been held out."""
        gram = Gram.on_this_machine(prepared.scaling, prepared.map, prepared.coding, self.threads.count)
        y = holdout.y
        if prepared.coding.classes:
            y = np.asarray(prepared.coding.classes)[_codes(holdout.y)]  # type: ignore[arg-type]
        gram.update(state.gram, Block(holdout.X, y, holdout.index), self.threads)

    def _ledger(self) -> Ledger:
        ledger = Ledger()
        ledger.add(self.source.fingerprint(), self.source.describe(), self.source.n_rows, self.done)
        return ledger

    def _finish_story(self, model: Model, state: FittingState) -> None:
        model.story |= {
            "rows": state.gram.rows,
            "dropped": state.dropped,
            "seconds": self.seconds,
            "memory": {"projected": self.plan.projected, "budget": self.plan.budget, "peak": memory.peak()},
            "statistics_digest": state.gram.digest(),
            "data": {"fingerprint": self.source.fingerprint(), "describe": self.source.describe()},
        }

    def clear_checkpoint(self) -> None:
        """After the model is safely written."""
        checkpoint = self._checkpoint()
        if checkpoint:
            checkpoint.clear()


class _Watcher:
    """Called between blocks: shows, saves, stops."""

    def __init__(
        self, training: Training, prepared: Prepared, checkpoint: Checkpoint | None, asked: Callable[[], bool]
    ) -> None:
        self.training, self.prepared, self.checkpoint, self.asked = training, prepared, checkpoint, asked
        self.clock = Clock(training.settings.checkpoint_every)

    def __call__(self, job: Pass[FittingState]) -> None:
        age = self.clock.age if self.checkpoint else None
        self.training.reporter.advanced(job.done.count, age)
        stopping = self.asked() and job.rows_left > 0
        if self.checkpoint and (stopping or self.clock.due()):
            self._save(job)
        if stopping:
            where = f"{format_count(job.done.count)} of {format_count(job.source.n_rows)} rows are done"
            kept = f" and kept in {self.checkpoint.place}" if self.checkpoint else "; nothing was kept (no checkpoint)"
            raise Interrupted(f"stopped: {where}{kept}")

    def _save(self, job: Pass[FittingState]) -> None:
        assert self.checkpoint is not None
        job.state.dropped = job.dropped
        extra, arrays = self.prepared.to_parts()
        with self.clock.saving():
            self.checkpoint.save(self.training.identity(), job.done, {**arrays, **job.state.arrays()}, extra)


class RidgePath:
    """Walks lambda downhill on the squared error of the hold-out rows, in steps of ten and then of its root."""

    def __init__(
        self,
        solver: RidgeSolver,
        prepared: Prepared,
        X: np.ndarray,
        y: np.ndarray,
        threads: Threads,
        reporter: Reporter,
    ) -> None:
        self.solver, self.prepared, self.X, self.y = solver, prepared, X, y
        self.threads, self.reporter = threads, reporter
        self.tried: dict[float, float] = {}
        self.best = math.inf
        self.weights: Weights

    def choose(self, fixed: float | None) -> tuple[float, np.ndarray]:
        """The best lambda and its scores on the hold-out rows; a lambda that was asked for is only judged."""
        start = fixed if fixed is not None else _known(self.prepared.recipe.ridge)
        self.error(start)
        if fixed is None:
            for factor in (10.0, 10.0**0.5):
                here = self.weights.ridge
                self._walk(here, 1 / factor) or self._walk(here, factor)
        self.reporter.note(f"lambda {self.weights.ridge:.3g} ({len(self.tried)} tried)")
        return self.weights.ridge, self.scores

    def _walk(self, start: float, factor: float) -> bool:
        """Follow one direction as long as it gets better; whether it did at all."""
        ridge, better = start * factor, False
        while RIDGE_LIMITS[0] <= ridge <= RIDGE_LIMITS[1] and self.error(ridge):
            ridge, better = ridge * factor, True
        return better

    def error(self, ridge: float) -> bool:
        """Solve at this lambda; whether it is the best so far by more than a hair."""
        weights = self.solver.solve(ridge)
        scores = Scorer(self.prepared.map, weights.coefficients, weights.intercept).scores(self.X, self.threads)
        error = float(((scores - self.y) ** 2).mean())
        self.tried[ridge] = error
        if error < self.best * (1 - 1e-4):
            self.best, self.weights, self.scores = error, weights, scores
            return True
        return False


def _known(ridge: float | None) -> float:
    assert ridge is not None  # settled by the pilot, the defaults or the path
    return ridge


def _codes(values: np.ndarray) -> np.ndarray:
    """Class positions from the coded targets that hold-out rows keep."""
    return (values[:, 0] > 0).astype(np.int64) if values.shape[1] == 1 else values.argmax(axis=1)


def chosen(recipe: Recipe) -> dict[str, Any]:
    """Every setting used, with the kernel's width in both conventions."""
    settings = recipe.to_json()
    if recipe.length_scale:
        settings["gamma"] = make_kernel(recipe.kernel, length_scale=recipe.length_scale).gamma
    return settings


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
