"""Data that joins or leaves statistics: one pass over the shards in question, with everything else fixed."""

from __future__ import annotations

from dataclasses import replace

from streamrf.algebra.agreement import check_source, check_targets
from streamrf.algebra.statistics import Statistics
from streamrf.errors import InputError, MismatchError
from streamrf.ledger import Ledger, RowSet, ledger_of
from streamrf.look import scan_targets
from streamrf.reporting import Reporter
from streamrf.sources.base import Source
from streamrf.threads import Threads
from streamrf.training import Prepared, Settings, Training


class Work:
    """How passes are carried out; none of it changes a bit."""

    def __init__(self, threads: Threads, settings: Settings | None = None, reporter: Reporter | None = None) -> None:
        self.threads, self.settings, self.reporter = threads, settings or Settings(), reporter or Reporter()


def accumulate(prepared: Prepared, source: Source, work: Work, *, rows: RowSet | None = None) -> Statistics:
    """The statistics of a source, or of some of its rows."""
    check_source(prepared, source)
    ledger_of(source, RowSet([(0, source.n_rows)]))  # a shard that is listed twice is refused before the pass
    check_targets(prepared, scan_targets(source))
    recipe = prepared.recipe.with_(pilot="none", holdout=0.0, cv=None)
    training = Training(source, recipe, work.settings, work.reporter, work.threads)
    state = training.accumulate(prepared, rows)
    return Statistics(prepared, state.gram, training.ledger(), state.dropped, name=source.describe())


def update(statistics: Statistics, source: Source, work: Work, *, rows: RowSet | None = None) -> int:
    """Add a source, or some of its rows, in place: bits equal to having summed everything at once. How many rows."""
    _check_new(statistics.ledger, ledger_of(source, rows or RowSet([(0, source.n_rows)])))
    added = accumulate(statistics.prepared, source, work, rows=rows)
    statistics += added
    statistics.remember("update", added.rows)
    return added.rows


def _check_new(ledger: Ledger, new: Ledger) -> None:
    """Before the pass, not after it."""
    try:
        ledger.copy().add_all(new)
    except MismatchError as error:
        raise MismatchError(f"{error} These rows are in already: leave this shard out, or forget it first.") from None


def forget(statistics: Statistics, source: Source, work: Work, *, rows: RowSet | None = None) -> int:
    """Take a source's rows (those that are in, or some of them) out in place: bits equal to never having seen them."""
    present = rows_in(statistics.ledger, source)
    leaving = present if rows is None else rows
    if not present.contains_all(leaving):
        raise MismatchError(f"{leaving.difference(present).count} of the rows to forget are not in: nothing was done")
    if leaving.count >= statistics.ledger.count:
        raise InputError("these are all the rows there are: nothing would be left, delete the model instead")
    removed = accumulate(statistics.prepared, source, work, rows=leaving)
    statistics -= removed
    statistics.remember("forget", removed.rows)
    return removed.rows


def rows_in(ledger: Ledger, source: Source) -> RowSet:
    """Which rows of a source are in the ledger, in the source's own numbering; a shard that is not is refused."""
    found, start = RowSet(), 0
    for member in source.members():
        own = ledger.rows(member.fingerprint())
        if not own:
            ledger.copy().remove(member.fingerprint(), getattr(member, "location", "a shard"), RowSet([(0, 1)]))
        for span in own.spans():
            found.add((span.start + start, span.stop + start))
        start += member.n_rows
    return found


def with_nan_policy(statistics: Statistics, nan: str | None) -> None:
    """From now on rows with NaN are refused or dropped, in passes that add and in those that take away alike."""
    if nan is not None:
        recipe = statistics.prepared.recipe.with_(nan=nan)
        statistics.prepared = replace(statistics.prepared, recipe=recipe)
