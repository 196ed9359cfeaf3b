"""The passes of one run, one after the other. Every pass reports progress, writes checkpoints and can be resumed.

A route calls ``keep`` with whatever it needs to find its place again, then ``sum``. A checkpoint holds both that and
the sums of the pass under way, so a run of a hundred passes resumes in the middle of the one it was in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np

from streamrf.data.source import Source
from streamrf.engines.base import Engine, Next, Pass
from streamrf.features.pipeline import Parts, Pipeline
from streamrf.solvers.progress_error import ProgressError
from streamrf.solvers.settings import SolverSettings
from streamrf.statistics.base import S, Statistic
from streamrf.statistics.marks import no_marks
from streamrf.statistics.rowset import Ledger, RowSet, ledger_of
from streamrf.support.errors import DataError, StorageError
from streamrf.support.progress import Interrupted, Reporter, deferred_interrupts
from streamrf.support.storage.checkpoint import Checkpoint, Clock, SavedPass
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


class Passes:
    """Sums over the rows of one source. The first pass decides which rows are in; all others visit the same ones."""

    def __init__(
        self, source: Source, prepared: Prepared, engine: Engine, reporter: Reporter, saving: Saving,
        *, sizes: dict[str, int], saved: SavedPass | None = None, skipped: RowSet | None = None,
    ) -> None:  # fmt: skip
        self.source, self.prepared, self.engine, self.reporter = source, prepared, engine, reporter
        self.saving, self.clock = saving, Clock(saving.every)
        self._sizes, self._skipped = sizes, skipped or RowSet()
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
        job.done = self._skipped.copy()
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

    def _note_rows(self, job: Pass[S]) -> None:
        if not isinstance(job.state, _FirstPass):
            return
        job.state.dropped = job.dropped
        self.rows, self.dropped, self.marks = job.done, job.dropped, job.state.marks
        if job.dropped:
            self.reporter.note(f"{format_count(job.dropped)} rows with NaN or infinite values were left out")

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
