"""The passes of one run, one after the other. Every pass reports progress, writes checkpoints and can be resumed.

A route calls ``keep`` with whatever it needs to find its place again, then ``sum``. A checkpoint holds both that and
the sums of the pass under way, so a run of a hundred passes resumes in the middle of the one it was in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np

from streamrf.data.source import Block, Source
from streamrf.data.wrappers import TargetsOnly
from streamrf.engines.base import Engine, Next, Pass
from streamrf.features.blend import BlendMap
from streamrf.features.pipeline import Parts, Pipeline
from streamrf.solvers.lambda_path import wrong_classes
from streamrf.solvers.ridge import NormalEquations, RidgeSolver
from streamrf.solvers.settings import SolverSettings
from streamrf.statistics.base import CountedState, S, Statistic
from streamrf.statistics.gram import GramState
from streamrf.statistics.holdout import HoldoutState, SampleState, no_marks
from streamrf.statistics.rowset import Ledger, RowSet, ledger_of
from streamrf.statistics.targets import READ_ROWS, WEIGHTING, ScanTargets, TargetScan, Weighting
from streamrf.support.errors import DataError, FileFormatError, InputError, MismatchError, NumericalError, StorageError
from streamrf.support.progress import Interrupted, Reporter, deferred_interrupts
from streamrf.support.storage.checkpoint import Checkpoint, Clock, SavedPass
from streamrf.support.threads import ALONE
from streamrf.support.units import format_count

ROUTE, SUMS, MARKS = "route.", "sums.", "passes.marks"


class Prepared(Protocol):
    """What is fixed before the first pass, and saved with every pass."""

    @property
    def recipe(self) -> SolverSettings: ...
    @property
    def pipeline(self) -> Pipeline: ...
    def to_parts(self) -> Parts: ...


@dataclass
class Kept:
    """What a route needs to find its place again: small facts and arrays."""

    document: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Saving:
    """Where and how often unfinished work is kept; None: nowhere."""

    checkpoint: Checkpoint | None
    identity: dict[str, Any]  # what a checkpoint must agree with to be resumed
    every: float = 300.0


@runtime_checkable
class _FirstPass(Protocol):
    """The state of a first pass, which decides which rows are in."""

    marks: np.ndarray
    dropped: int

    @property
    def rows(self) -> int: ...


class Passes:
    """Sums over the rows of one source. The first pass decides which rows are in; all others visit the same ones."""

    def __init__(
        self, source: Source, prepared: Prepared, engine: Engine, reporter: Reporter, saving: Saving,
        *, sizes: dict[str, int], saved: SavedPass | None = None, skipped: RowSet | None = None, is_only: bool = False,
    ) -> None:  # fmt: skip
        self.source, self.prepared, self.engine, self.reporter = source, prepared, engine, reporter
        self.saving, self.clock = saving, Clock(saving.every)
        self._sizes, self._skipped, self._is_only = sizes, skipped or RowSet(), is_only
        self.rows, self.dropped, self.marks = RowSet(), 0, no_marks()  # of the first pass, once it is over
        self.kept: Kept | None = None  # what the route kept last, in this run or in the one that this one resumes
        self._partial, self._stopping = saved, False
        if saved:
            self._restore(saved)

    def _restore(self, saved: SavedPass) -> None:
        self.kept = Kept(saved.extra["route"], _named(saved.arrays, ROUTE))
        self.rows, self.dropped = RowSet.from_json(saved.extra["rows"]), int(saved.extra["dropped"])
        self.marks = saved.arrays[MARKS]

    def keep(self, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Where the route stands, before the next pass. Arrays must not change until the next call."""
        self.kept = Kept(document, arrays)

    def sum(self, statistic: Statistic[S], title: str = "training", source: Source | None = None) -> S:
        """Sum a statistic over all rows; ``source`` may stand in for the data, row for row (a cache of it)."""
        job = Pass.start(statistic, source or self.source, nan=self.prepared.recipe.nan, **self._sizes)
        job.done, job.is_only = self._skipped.copy(), self._is_only
        if self._partial:
            self._resume(job, self._partial)
            self._partial = None
        self.reporter.started(title, job.source.n_rows, job.done.count)
        with deferred_interrupts() as asked:
            if self._stopping:
                self.stop(job)
            self._run(job, _Watcher(self, job.done.count, asked.is_set))
            if job.rows_left:
                self.stop(job)
            self._stopping = asked.is_set()  # at the last block, too late to stop there: before the next pass then
        self.reporter.finished()
        if not self._counts_agree(job):
            raise MismatchError(f"{self._counts(job)}: nothing was written; please report this")
        self._note_rows(job)
        return job.state

    def _run(self, job: Pass[S], watcher: _Watcher) -> None:
        """Keep what was summed before rows that cannot be read: once they are fixed, the run resumes from there."""
        try:
            self.engine.run(job, watcher)
        except (DataError, StorageError):
            new = job.done.count - watcher.saved
            if self.saving.checkpoint and (new > 0 or (new == 0 and self.rows.count)):
                self.save(job)
            raise

    def _resume(self, job: Pass[S], saved: SavedPass) -> None:
        job.state, job.done = job.statistic.load(_named(saved.arrays, SUMS)), RowSet.from_json(saved.ledger)
        job.dropped = int(saved.extra["dropped_so_far"])
        if not self._counts_agree(job):
            place = self.saving.checkpoint.place if self.saving.checkpoint else "the checkpoint"
            raise FileFormatError(f"{place} is damaged: {self._counts(job)}. Remove it to start over.")

    def _counts_agree(self, job: Pass[S]) -> bool:
        """Whether a first pass has summed or dropped each row of its ledger; later ones skip rows that are held out."""
        if not isinstance(job.state, _FirstPass):
            return True
        return job.state.rows + job.dropped == job.done.difference(self._skipped).count

    def _counts(self, job: Pass[S]) -> str:
        rows, ledger = getattr(job.state, "rows", 0), job.done.difference(self._skipped).count
        return f"the sums hold {rows:,} rows and {job.dropped:,} were dropped, but the ledger has {ledger:,}"

    def _note_rows(self, job: Pass[S]) -> None:
        if not isinstance(job.state, _FirstPass):
            return
        job.state.dropped = job.dropped
        told, self.rows, self.dropped, self.marks = self.dropped, job.done, job.dropped, job.state.marks
        if job.dropped != told:  # the second member of a blend drops the same rows
            what = "without a target" if self.prepared.recipe.nan == "auto" else "with NaN or infinite values"
            self.reporter.note(f"{format_count(job.dropped)} rows {what} were left out")

    def ledger(self) -> Ledger:
        """The rows that were summed, by shard."""
        return ledger_of(self.source, self.rows.difference(self._skipped), self.marks.tolist())

    def stop(self, job: Pass[S]) -> NoReturn:
        """Save, and say how far the run is."""
        place = self.saving.checkpoint
        if place:
            self.save(job)
        where = f"{format_count(job.done.count)} of {format_count(job.source.n_rows)} rows are done"
        kept = f" and kept in {place.place}" if place else "; nothing was kept (no checkpoint)"
        raise Interrupted(f"stopped: {where}{kept}")

    def save(self, job: Pass[S]) -> None:
        """Write everything that the run needs to resume from here."""
        assert self.saving.checkpoint is not None
        document, arrays = self.prepared.to_parts()
        kept = self.kept or Kept()
        arrays |= {ROUTE + name: array for name, array in kept.arrays.items()}
        arrays |= {SUMS + name: array for name, array in job.state.arrays().items()} | {MARKS: self.marks}
        extra = {
            "prepared": document, "route": kept.document, "rows": self.rows.to_json(), "dropped": self.dropped,
            "dropped_so_far": job.dropped,
        }  # fmt: skip
        with self.clock.saving():
            self.saving.checkpoint.save(self.saving.identity, job.done, arrays, extra)


def _named(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names have this prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


class _Watcher:
    """Between blocks of a pass: reports progress, saves when that is due, and stops when asked to."""

    def __init__(self, passes: Passes, done: int, asked: Callable[[], bool]) -> None:
        self.passes, self.asked = passes, asked
        self.progress_error = ProgressError(passes.prepared.pipeline, passes.prepared.recipe.ridge, passes.reporter)
        self.saved = done  # rows of this pass in the last checkpoint

    def __call__(self, job: Pass[S], pending: int) -> Next:
        passes, clock = self.passes, self.passes.clock
        self.progress_error(job)
        passes.reporter.advanced(job.done.count + pending, clock.age if clock.saves else None)
        if self.asked() and job.rows_left:
            if not passes.saving.checkpoint:  # nothing to bring in for: end at once
                passes.stop(job)
            return Next.STOP
        if passes.saving.checkpoint and clock.due():
            if job.done.count == self.saved:
                return Next.COLLECT if pending else Next.CONTINUE
            self.saved = job.done.count
            passes.save(job)
        return Next.CONTINUE


MOST_FEATURES = 1500  # beyond, one estimate takes long, and a matrix that the plan has no room for during the pass
ROWS, FEWEST_ROWS = 1000, 50  # hold-out rows that are used
SHARE = 0.01  # of the pass, for estimates
FIRST = 3.0  # seconds before the first estimate
FLOPS = 5e9  # of one thread, to guess how long the first estimate takes


class ProgressError:
    """Called between blocks; makes an estimate when enough time has passed to afford it."""

    def __init__(
        self, pipeline: Pipeline, ridge: float | None, reporter: Reporter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pipeline, self.ridge, self.reporter, self.clock = pipeline, ridge, reporter, clock
        self.due = clock() + max(FIRST, self._guess() / SHARE) if self.possible else float("inf")

    @property
    def possible(self) -> bool:
        if isinstance(self.pipeline.map, BlendMap):  # whose sums are those of one member
            return False
        size = getattr(self.pipeline.map, "n_features", MOST_FEATURES + 1)
        return self.reporter.wants_progress_error and size <= MOST_FEATURES and bool(self.ridge)

    def _guess(self) -> float:
        D = self.pipeline.map.n_features
        return (D**3 / 3 + ROWS * D * (self.pipeline.map.n_inputs + 1)) / FLOPS

    def __call__(self, job: Pass[S]) -> None:
        start = self.clock()
        if start < self.due:
            return
        error = self.error(job.state) if isinstance(job.state, HoldoutState) else None
        if error is not None:
            what = "error" if self.pipeline.coding.classes else "RMSE"
            self.reporter.progress_error(error, what)
        now = self.clock()
        self.due = now + max((now - start) / SHARE, 1.0)

    def error(self, state: HoldoutState[CountedState]) -> float | None:
        """Share of wrong classes, or root mean squared error; None where there are too few rows to say."""
        if not isinstance(state.sums, GramState):  # counts of random binning: no system to solve on the way
            return None
        rows = first_rows(state.holdout, ROWS)
        if rows is None or len(rows) < FEWEST_ROWS or state.sums.rows < 2:
            return None
        pipeline, ridge = self.pipeline, self.ridge
        try:
            equations = NormalEquations.from_state(
                state.sums, pipeline.map, pipeline.coding, unrounded=pipeline.unrounded
            )
            weights = RidgeSolver(equations, ALONE).solve(ridge or 0.0)
        except NumericalError:
            return None
        X = pipeline.scaled(rows.X)
        scores = pipeline.scorer(weights.coefficients, weights.intercept).scores(X, ALONE)
        if pipeline.coding.classes:
            return float(wrong_classes(scores, rows.targets).mean())
        return float(np.sqrt(((scores - rows.y) ** 2).mean()))


def first_rows(sample: SampleState, count: int) -> Block | None:
    """The rows that were kept first, the same each time once there are enough; the state is left as it is."""
    blocks: list[Block] = []
    for block in sample.blocks:
        if sum(map(len, blocks)) >= count:
            break
        blocks.append(block)
    if not blocks:
        return None
    X, y, index = (np.concatenate([getattr(b, name) for b in blocks])[:count] for name in ("X", "y", "index"))
    return Block(X, y, index)


def scan_targets(source: Source, engine: Engine) -> TargetScan:
    """Sum up every target and weight once; inputs are not read."""
    if not source.has_targets:
        raise InputError("the data has no targets: name them with `y` (zarr, npy) or `target` (parquet)")
    job = Pass.start(ScanTargets(), TargetsOnly(source), nan="drop", span_rows=READ_ROWS, span_bytes=2**30)
    scan = engine.run(job)
    scan.rows, scan.missing = scan.rows + job.dropped, scan.missing + job.dropped
    return scan


def weighting_of(passes: Passes, metadata: Mapping[str, Any]) -> Weighting:
    """What the rows of a run count for; plain rows are not even scanned. A run that an older version began had not
    noted it."""
    source, recipe = passes.source, passes.prepared.recipe
    if recipe.class_weight is None and not source.has_weights:
        return Weighting()
    if WEIGHTING in metadata:
        return Weighting.from_json(metadata[WEIGHTING])
    scan = scan_targets(source, passes.engine)
    return Weighting.of(scan, passes.prepared.pipeline.coding, recipe.class_weight, weighted=source.has_weights)
