"""The passes of one run, one after the other: each is shown, saved, and gone on with where it was stopped.

A route calls ``keep`` with whatever it needs to find its place again, then ``sum``. A save holds both that and the sums
of the pass that is under way, so that a run of a hundred passes resumes in the middle of the one it was in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from streamrf.data.source import Source
from streamrf.engines.base import Engine, Pass
from streamrf.features.pipeline import Parts, Pipeline
from streamrf.solvers.progress_error import Glimpse
from streamrf.solvers.settings import SolverSettings
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.marks import no_marks
from streamrf.statistics.rowset import Ledger, RowSet, ledger_of
from streamrf.support.errors import DataError, StorageError
from streamrf.support.progress import Interrupted, Reporter, deferred_interrupts
from streamrf.support.storage.checkpoint import Checkpoint, Clock, SavedPass
from streamrf.support.units import format_count

S = TypeVar("S", bound=State)


class Prepared(Protocol):
    """What is fixed before the first pass, and saved with every pass."""

    @property
    def recipe(self) -> SolverSettings: ...
    @property
    def pipeline(self) -> Pipeline: ...
    def to_parts(self) -> Parts: ...


ROUTE, SUMS, MARKS = "route.", "sums.", "passes.marks"


@dataclass
class Kept:
    """What a route needs to find its place again: small facts and arrays."""

    document: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Saving:
    """Where and how often unfinished work is kept; None: nowhere."""

    checkpoint: Checkpoint | None
    identity: dict[str, Any]  # what a checkpoint must agree with to be gone on from
    every: float = 300.0


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
        self.kept: Kept | None = None  # what the route kept last, in this run or in the one that this one goes on with
        self._partial, self._stopping = saved, False
        if saved:
            self._remember(saved)

    def _remember(self, saved: SavedPass) -> None:
        arrays = {name[len(ROUTE) :]: array for name, array in saved.arrays.items() if name.startswith(ROUTE)}
        self.kept = Kept(saved.extra["route"], arrays)
        self.rows, self.dropped = RowSet.from_json(saved.extra["rows"]), int(saved.extra["dropped"])
        self.marks = saved.arrays[MARKS]

    def keep(self, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Where the route stands, before the next pass. Arrays must not change until the next call."""
        self.kept = Kept(document, arrays)

    def sum(self, statistic: Statistic[S], title: str = "training", source: Source | None = None) -> S:
        """Sum a statistic over all rows; ``source`` may stand in for the data, row for row (a cache of it)."""
        job: Pass[Any] = Pass.start(statistic, source or self.source, nan=self.prepared.recipe.nan, **self._sizes)
        job.done = self._skipped.copy()
        if self._partial:
            self._go_on(job, self._partial)
            self._partial = None
        self.reporter.started(title, job.source.n_rows, job.done.count)
        with deferred_interrupts() as asked:
            if self._stopping:
                self.stop(job)
            self._run(job, _Watcher(self, asked.is_set))
            self._stopping = asked.is_set()  # at the last block, too late to stop there: before the next pass then
        self.reporter.finished()
        self._note_rows(job)
        return job.state

    def _run(self, job: Pass[Any], watcher: _Watcher) -> None:
        """What was summed before rows that cannot be read is kept: once they are mended, the run goes on from there."""
        try:
            self.engine.run(job, watcher)
        except (DataError, StorageError):
            if self.saving.checkpoint and job.whole:
                self.save(job)
            raise

    def _go_on(self, job: Pass[Any], saved: SavedPass) -> None:
        sums = {name[len(SUMS) :]: array for name, array in saved.arrays.items() if name.startswith(SUMS)}
        job.state, job.done = job.statistic.load(sums), RowSet.from_json(saved.ledger)
        job.dropped = int(saved.extra["dropped_so_far"])

    def _note_rows(self, job: Pass[Any]) -> None:
        """The first pass is the one whose state has marks."""
        if not hasattr(job.state, "marks"):
            return
        job.state.dropped = job.dropped
        self.rows, self.dropped, self.marks = job.done, job.dropped, job.state.marks
        if job.dropped:
            self.reporter.note(f"{format_count(job.dropped)} rows with NaN or infinite values were left out")

    def ledger(self) -> Ledger:
        """The rows that were summed, by shard."""
        return ledger_of(self.source, self.rows.difference(self._skipped), self.marks)  # type: ignore[arg-type]

    def stop(self, job: Pass[Any]) -> NoReturn:
        """Save and say where things stand."""
        place = self.saving.checkpoint
        if place:
            self.save(job)
        where = f"{format_count(job.done.count)} of {format_count(job.source.n_rows)} rows are done"
        kept = f" and kept in {place.place}" if place else "; nothing was kept (no checkpoint)"
        raise Interrupted(f"stopped: {where}{kept}")

    def save(self, job: Pass[Any]) -> None:
        """Everything that the run needs to go on from here."""
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


class _Watcher:
    """Called between blocks of a pass: shows, saves, stops."""

    def __init__(self, passes: Passes, asked: Callable[[], bool]) -> None:
        self.passes, self.asked = passes, asked
        self.glimpse = Glimpse(passes.prepared.pipeline, passes.prepared.recipe.ridge, passes.reporter)
        self.checkpoint = passes.saving.checkpoint
        self.saved = 0  # rows of this pass that were done at the last save

    def __call__(self, job: Pass[Any]) -> None:
        clock = self.passes.clock
        self.glimpse(job)
        self.passes.reporter.advanced(job.done.count + job.pending, clock.age if clock.saves else None)
        stopping = self.asked() and job.rows_left > 0
        if self.checkpoint and (stopping or clock.due()) and job.pending and (stopping or not job.arrived):
            job.ask(stop=stopping)
        elif stopping:
            self.passes.stop(job)
        elif self.checkpoint and clock.due() and job.done.count > self.saved:
            self.saved = job.done.count
            self.passes.save(job)
