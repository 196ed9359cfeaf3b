"""Training, from a source to a model: look, plan, pilot, pass, solve. Every step is small and can be called alone."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from streamrf import memory, safejson
from streamrf.calibration import Calibration
from streamrf.checkpoint import Checkpoint, Clock, SavedPass
from streamrf.engines.base import Engine, Pass
from streamrf.engines.local import LocalEngine
from streamrf.errors import DataError
from streamrf.interrupts import Interrupted, deferred_interrupts
from streamrf.kernels import make_kernel
from streamrf.ledger import Ledger, RowSet, ledger_of
from streamrf.look import scan_targets, settle_targets
from streamrf.maps.base import FeatureMap
from streamrf.maps.build import build_fourier, map_from_parts
from streamrf.model import Model
from streamrf.pilot import PilotRun, budget_seconds, defaults, sample_rows
from streamrf.plan import Plan, make_plan
from streamrf.precision import make_precision
from streamrf.recipe import Recipe
from streamrf.reporting import Reporter
from streamrf.sampling import draw_sample
from streamrf.scaling import Scaling, fit_scaling
from streamrf.solvers.ridge import NormalEquations, RidgeSolver, Weights
from streamrf.sources.base import Block, Source
from streamrf.statistics.fitting import Fitting, FittingState
from streamrf.statistics.folds import Folds, FoldsState, fold_of
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.moments import Moments
from streamrf.statistics.scores import Scores
from streamrf.targets import TargetCoding
from streamrf.threads import Threads
from streamrf.units import format_count
from streamrf.validation import FoldPath, HoldoutPath, LambdaWalk


@dataclass
class Settings:
    """How a run is carried out; none of it changes a bit of the result."""

    threads: int | None = None
    memory: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: float = 300.0
    order: Callable[[int], Any] | None = None  # order of the spans, for tests
    engine: Engine | None = None  # where the summing happens; this process by default


@dataclass
class Prepared:
    """Everything that is fixed before the pass: what a checkpoint must hold besides the sums."""

    recipe: Recipe
    coding: TargetCoding
    scaling: Scaling
    map: FeatureMap
    story: dict[str, Any] = field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        scaling, scaling_arrays = self.scaling.to_parts()
        map, map_arrays = self.map.to_parts()
        coding, coding_arrays = self.coding.to_parts()
        document = {
            "recipe": self.recipe.to_json(), "scaling": scaling, "map": map, "targets": coding, "story": self.story,
            "feature_names": self.feature_names,
        }  # fmt: skip
        return document, {**scaling_arrays, **map_arrays, **coding_arrays}

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Prepared:
        return cls(
            Recipe.from_json(document["recipe"]), TargetCoding.from_parts(document["targets"], arrays),
            Scaling.from_parts(document["scaling"], arrays), map_from_parts(document["map"], arrays), document["story"],
            tuple(document["feature_names"]) if document["feature_names"] else None,
        )  # fmt: skip

    def digests(self) -> dict[str, str]:
        """SHA-256 of each part that statistics must have in common to be added, by the name people know it by."""
        parts: dict[str, Any] = {"map": self.map, "scaling": self.scaling, "target coding": self.coding}
        return {name: _digest(*part.to_parts()) for name, part in parts.items()}

    def model(self, weights: Weights, calibration: Calibration | None, ledger: Ledger, story: dict[str, Any]) -> Model:
        """The model that these weights make of it."""
        if calibration is None and self.coding.classes:
            calibration = Calibration.plain(self.coding.outputs)
        return Model(
            self.recipe.with_(ridge=weights.ridge), self.scaling, self.map, self.coding, weights, calibration,
            self.feature_names, ledger, story,
        )  # fmt: skip


def _digest(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    sha = hashlib.sha256(safejson.digest(safejson.plain(document, "a part")).encode())
    for name, array in sorted(arrays.items()):
        sha.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()


PassState = FittingState | FoldsState  # what a training pass sums: without folds, or with them


@dataclass
class Verdict:
    """What the rows that were not trained on decided, and the sums of all rows."""

    ridge: float
    calibration: Calibration | None
    gram: GramState
    story: dict[str, Any]


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
        self.engine: Engine = settings.engine or LocalEngine(threads, settings.order)
        self.seconds: dict[str, float] = {"pilot": 0.0}  # a run that goes on from a checkpoint has none
        self.fixed: dict[str, Any] = {}  # what else a checkpoint must agree with, where the settings came from outside
        self.skipped = RowSet()

    def run(self) -> Trained:
        start = time.monotonic()
        self.reporter.note(self.source.describe())
        self.plan = self._plan()
        ledger_of(self.source, self._all_rows())  # a shard that is listed twice is refused now, not after the pass
        checkpoint, saved = self._open_checkpoint()
        if saved:
            prepared = Prepared.from_parts(saved.extra, saved.arrays)
            self._make_room_for(prepared.coding)
        else:
            with self._timed("pilot"):
                prepared = self.prepare()
        self.reporter.settled(chosen(prepared.recipe))
        with self._timed("pass"):
            state = self._pass(prepared, checkpoint, saved)
        if state.rows < 2:
            raise DataError(f"{state.rows} usable rows: at least two are needed to fit a model")
        dropped = state.dropped
        with self._timed("solve"):
            verdict = self.choose(prepared, state)
            model = self.solve(prepared, verdict)
        self.seconds["total"] = time.monotonic() - start
        self._finish_story(model, verdict.gram, dropped)
        return Trained(model, verdict.gram, self.plan, self.seconds)

    def accumulate(self, prepared: Prepared, rows: RowSet | None = None) -> FittingState:
        """The sums of the source (or of some of its rows) alone, with everything else fixed: no pilot, no weights."""
        self.reporter.note(self.source.describe())
        self.plan = self._plan()
        self.skipped = RowSet() if rows is None else rows.complement(self.source.n_rows)
        self.fixed = {**prepared.digests(), "rows": None if rows is None else rows.to_json()}
        state = self._pass(prepared, *self._open_checkpoint())
        assert isinstance(state, FittingState)
        return state

    def _plan(self) -> Plan:
        return self._agreed(self._sized(max(self.source.n_outputs, 1)))

    def _sized(self, outputs: int, **known: Any) -> Plan:
        return make_plan(
            self.source, self.recipe, outputs=outputs, threads=self.threads.count, budget=self.settings.memory, **known
        )

    def _agreed(self, plan: Plan) -> Plan:
        """The plan, shown and found to fit."""
        self.reporter.planned(plan)
        plan.workers = self.engine.needs(plan.reserved, plan.parts)
        if plan.workers:
            self.reporter.note(plan.workers.describe())
        plan.check()
        return plan

    def _make_room_for(self, coding: TargetCoding) -> None:
        """Plan again now that the classes are counted: many of them make wide targets and wide scores."""
        if coding.classes:
            wider = self._sized(coding.outputs, classes=True, reserved=self.plan.reserved)
            if wider.projected > self.plan.projected:
                self.plan = self._agreed(wider)

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

    def _open_checkpoint(self) -> tuple[Checkpoint | None, SavedPass | None]:
        checkpoint = self._checkpoint()
        saved = checkpoint.load(self.identity()) if checkpoint else None
        if saved:
            done = RowSet.from_json(saved.ledger).difference(self.skipped)
            self.reporter.note(f"resuming: {format_count(done.count)} rows are done already")
        return checkpoint, saved

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
        scaling = self._scaling(recipe, sample)
        map = self._map(recipe, scaling, sample, coding)
        story["asked"] = self.recipe.to_json()  # with its autos: what a strict forget runs again
        return Prepared(recipe, coding, scaling, map, story, self.source.feature_names)

    def _coding(self, classes: tuple[str, ...] | None) -> TargetCoding:
        scan = scan_targets(self.source)
        kind = self.source.y_dtype.kind  # type: ignore[union-attr]
        if classes is not None:
            scan.declare(classes, kind)
        return settle_targets(scan, self.recipe.task, kind, self.recipe.nan)

    def _pilot(self, sample: Block, coding: TargetCoding) -> tuple[Recipe, dict[str, Any]]:
        recipe = self.recipe.with_(task=coding.task)
        if recipe.pilot == "none":
            return defaults(recipe, sample.X), {}
        budget = budget_seconds(self.source.n_rows, recipe.D)
        run = PilotRun(sample, coding, recipe, self.threads, budget=budget, reporter=self.reporter)
        return run.settle(), {"pilot": [vars(trial) for trial in run.trials]}

    def _scaling(self, recipe: Recipe, sample: Block) -> Scaling:
        if recipe.scaling != "minmax":
            return fit_scaling(recipe.scaling, sample.X)
        job = Pass.start(Moments(self.source.n_features), self.source, nan=recipe.nan, **self._sizes())
        self.reporter.started("scaling", self.source.n_rows, 0)
        moments = self.engine.run(job, lambda job: self.reporter.advanced(job.done.count + job.pending, None))
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

    def _statistic(self, prepared: Prepared) -> Fitting | Folds:
        gram = Gram.on_this_machine(prepared.scaling, prepared.map, prepared.coding, self.threads.count)
        share, seed, folds = self.plan.holdout, prepared.recipe.seed, self.recipe.cv
        starts = tuple(accumulate((member.n_rows for member in self.source.members()), initial=0))[:-1]
        return Folds(gram, folds, share, seed, starts) if folds else Fitting(gram, share, seed, starts)

    def _pass(self, prepared: Prepared, checkpoint: Checkpoint | None, saved: SavedPass | None) -> PassState:
        statistic: Any = self._statistic(prepared)
        job: Pass[Any] = Pass.start(statistic, self.source, nan=prepared.recipe.nan, **self._sizes())
        job.done = self.skipped.copy()
        if saved:
            job.state, job.done = statistic.load(saved.arrays), RowSet.from_json(saved.ledger)
            job.dropped = job.state.dropped
        self.reporter.started("training", self.source.n_rows, job.done.count)
        with deferred_interrupts() as asked:
            watcher = _Watcher(self, prepared, checkpoint, asked.is_set)
            self.engine.run(job, watcher)
        self.reporter.finished()
        job.state.dropped = job.dropped
        self.done, self.marks = job.done, job.state.marks
        if job.dropped:
            self.reporter.note(f"{format_count(job.dropped)} rows with NaN or infinite values were left out")
        if checkpoint:
            self.finished_checkpoint = checkpoint
        return job.state

    def choose(self, prepared: Prepared, state: PassState) -> Verdict:
        """Lambda, calibration and metrics, from rows or folds that the weights have not seen; then all rows are in."""
        if isinstance(state, FoldsState):
            return self._choose_by_folds(prepared, state)
        verdict = Verdict(_known(prepared.recipe.ridge), None, state.gram, {"holdout": None})
        holdout = state.holdout.table()
        if holdout is not None and state.gram.rows >= 2:
            path = self._path(prepared, state.gram, holdout)
            verdict.ridge = self._walk(prepared, path)
            verdict.calibration, verdict.story["holdout"] = self._judge(prepared, [(path.weights, holdout)])
        if holdout is not None:
            self._join(prepared, state, holdout)
        return verdict

    def _choose_by_folds(self, prepared: Prepared, state: FoldsState) -> Verdict:
        path = FoldPath(state, prepared.map, prepared.coding, self.threads)
        ridge = self._walk(prepared, path)
        parts = self._out_of_fold(prepared, path, state)
        calibration, metrics = self._judge(prepared, parts) if parts else (None, None)
        story = {"holdout": metrics, "cross_validation": path.story()}
        del path  # and with it a matrix and a state
        return Verdict(ridge, calibration, state.total(), story)

    def _walk(self, prepared: Prepared, path: LambdaWalk) -> float:
        """The best lambda of a path; one that was asked for is only judged."""
        ridge = path.choose(_known(prepared.recipe.ridge), fixed=self.recipe.ridge is not None)
        self.reporter.note(f"lambda {ridge:.3g} ({len(path.tried)} tried)")
        return ridge

    def _out_of_fold(self, prepared: Prepared, path: FoldPath, state: FoldsState) -> list[tuple[Weights, Block]]:
        """The rows kept of each fold, with weights that have not seen it."""
        kept = state.kept.table()
        if kept is None:
            return []
        place = fold_of(kept.index, len(state.folds), prepared.recipe.seed)
        present = [number for number in range(len(state.folds)) if (place == number).any()]
        return [(path.weights_without(state.folds[i], path.ridge), kept.take(place == i)) for i in present]

    def solve(self, prepared: Prepared, verdict: Verdict) -> Model:
        """Weights from the sums of all rows."""
        solver = self._solver(prepared, verdict.gram)
        weights = solver.solve(verdict.ridge)
        if weights.jitter:  # rare, and worth another factorisation to say how singular it is
            weights = solver.solve(verdict.ridge, dimension=True)
            self._mention_rank(weights)
        return prepared.model(weights, verdict.calibration, self.ledger(), {**prepared.story, **verdict.story})

    def _mention_rank(self, weights: Weights) -> None:
        self.reporter.note(
            f"at lambda {weights.ridge:.3g} the system is singular to rounding (effective rank"
            f" {weights.rank:.0f} of {len(weights.coefficients)}): solved at {weights.ridge + weights.jitter:.3g}"
        )

    def _solver(self, prepared: Prepared, gram: GramState) -> RidgeSolver:
        return RidgeSolver(NormalEquations.from_state(gram, prepared.map, prepared.coding), self.threads)

    def _path(self, prepared: Prepared, gram: GramState, holdout: Block) -> HoldoutPath:
        X = prepared.scaling.transform(holdout.X, prepared.map.precision.inputs)
        return HoldoutPath(self._solver(prepared, gram), prepared.map, X, holdout.y)  # type: ignore[arg-type]

    def _judge(
        self, prepared: Prepared, parts: list[tuple[Weights, Block]]
    ) -> tuple[Calibration | None, dict[str, Any]]:
        """Calibration on rows that the weights beside them have not seen, and the metrics there."""
        calibration = self._calibrate(prepared, parts) if prepared.coding.classes else None
        models = [prepared.model(weights, calibration, Ledger(), {}) for weights, _ in parts]
        state = Scores(models[0]).zero()
        for model, (_, rows) in zip(models, parts, strict=True):
            Scores(model).update(state, _as_read(prepared.coding, rows), self.threads)
        return calibration, Scores(models[0]).metrics(state)

    def _calibrate(self, prepared: Prepared, parts: list[tuple[Weights, Block]]) -> Calibration:
        models = [prepared.model(weights, None, Ledger(), {}) for weights, _ in parts]
        scores = [model.scores(rows.X, self.threads) for model, (_, rows) in zip(models, parts, strict=True)]
        codes = [_codes(rows.y) for _, rows in parts]  # type: ignore[arg-type]
        return Calibration.fit(np.concatenate(scores), np.concatenate(codes))

    def _join(self, prepared: Prepared, state: FittingState, holdout: Block) -> None:
        """The hold-out rows enter the sums: bits equal to never having been held out."""
        gram = Gram.on_this_machine(prepared.scaling, prepared.map, prepared.coding, self.threads.count)
        gram.update(state.gram, _as_read(prepared.coding, holdout), self.threads)

    def _all_rows(self) -> RowSet:
        return RowSet([(0, self.source.n_rows)])

    def ledger(self) -> Ledger:
        """The rows that the pass summed, by shard."""
        return ledger_of(self.source, self.done.difference(self.skipped), self.marks)

    def _finish_story(self, model: Model, gram: GramState, dropped: int) -> None:
        model.story |= {
            "rows": gram.rows,
            "dropped": dropped,
            "seconds": self.seconds,
            "memory": {"projected": self.plan.projected, "budget": self.plan.budget, "peak": memory.peak()},
            "statistics_digest": gram.digest(),
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
        self.saved = 0  # rows that were done at the last save

    def __call__(self, job: Pass[Any]) -> None:
        age = self.clock.age if self.saved else None
        self.training.reporter.advanced(job.done.count + job.pending, age)
        stopping = self.asked() and job.rows_left > 0
        if self.checkpoint and (stopping or self.clock.due()):
            if job.pending and (stopping or not job.arrived):
                job.ask(stop=stopping)
                return
            if stopping or job.done.count > self.saved:
                self._save(job)
        if stopping:
            where = f"{format_count(job.done.count)} of {format_count(job.source.n_rows)} rows are done"
            kept = f" and kept in {self.checkpoint.place}" if self.checkpoint else "; nothing was kept (no checkpoint)"
            raise Interrupted(f"stopped: {where}{kept}")

    def _save(self, job: Pass[Any]) -> None:
        assert self.checkpoint is not None
        job.state.dropped = job.dropped
        extra, arrays = self.prepared.to_parts()
        self.saved = job.done.count
        with self.clock.saving():
            self.checkpoint.save(self.training.identity(), job.done, {**arrays, **job.state.arrays()}, extra)


def _known(ridge: float | None) -> float:
    assert ridge is not None  # settled by the pilot, the defaults or the path
    return ridge


def _codes(values: np.ndarray) -> np.ndarray:
    """Class positions from the coded targets that hold-out rows keep."""
    return (values[:, 0] > 0).astype(np.int64) if values.shape[1] == 1 else values.argmax(axis=1)


def _as_read(coding: TargetCoding, rows: Block) -> Block:
    """Hold-out rows with their targets as a source gives them."""
    if not coding.classes:
        return rows
    return Block(rows.X, np.asarray(coding.classes)[_codes(rows.y)], rows.index)  # type: ignore[arg-type]


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
