"""Data that joins or leaves statistics: one pass over the shards in question, with everything else fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from streamrf.data.source import Source
from streamrf.models.model import Model, UntrainedModel
from streamrf.recipe import AUTO, BINNING, BLEND, TREES, Recipe
from streamrf.solvers.passes import scan_targets
from streamrf.statistics.rowset import Ledger, RowSet, ledger_of
from streamrf.support.errors import InputError, MismatchError
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads
from streamrf.training.categories import as_trained
from streamrf.training.run import Settings, Trained, Training
from streamrf.training.update.statistics import Statistics, check_source, check_targets

DIRECT = "cholesky"  # what sums are solved by, and so what a pass that makes them is planned for


@dataclass
class Work:
    """How passes are carried out; none of it changes a bit."""

    threads: Threads
    settings: Settings = field(default_factory=Settings)
    reporter: Reporter = field(default_factory=Reporter)


@contextmanager
def at_work(work: Work | None) -> Iterator[Work]:
    """The work given, or work with all cores."""
    if work is not None:
        yield work
        return
    with Threads() as threads:
        yield Work(threads)


def prepare(
    source: Source, recipe: Recipe | None = None, work: Work | None = None, *, classes: tuple[str, ...] | None = None
) -> UntrainedModel:
    """Everything that is fixed before a pass: coding, scaling, features.

    Parameters
    ----------
    source : Source
        The rows that settle it: all that ``open_source`` returns.
    recipe : Recipe or None, default=None
        Settings of the model.
    work : Work or None, default=None
        Threads, settings of the run and a reporter; all cores by default.
    classes : tuple of str or None, default=None
        All labels there will ever be, where other rows may have more than these.

    Returns
    -------
    UntrainedModel
        For ``accumulate``, here or elsewhere.
    """
    recipe = (recipe or Recipe()).as_fourier()
    _check_sums(recipe)
    with at_work(work) as work:
        training = Training(source, recipe.with_(solver=DIRECT), work.settings, work.reporter, work.threads)
        return training.prepare(classes)


def _check_sums(recipe: Recipe) -> None:
    """Refuse what sums of rows that each count once, solved by least squares, would pass over in silence."""
    if recipe.map in (BINNING, TREES):
        name = "random binning has" if recipe.map == BINNING else "trees have"
        raise InputError(f"{name} no sums that can be added or taken away: use Fourier features, such as `D=2000`")
    if recipe.map == BLEND:
        raise InputError(
            "a blend has no sums that can be added or taken away: use `map='landmarks'`, or Fourier features, such as"
            " `D=2000`"
        )
    if recipe.loss != "squared":
        raise InputError(
            f"the {recipe.loss} loss has no sums that can be added or taken away: use `loss='squared'`, or train on all"
            " rows at once"
        )
    if recipe.class_weight is not None:
        raise InputError(
            f"`class_weight={recipe.class_weight!r}` depends on all rows, and sums that can be added or taken away"
            " count each row once: leave it out, or train on all rows at once"
        )
    if recipe.solver not in (AUTO, DIRECT):
        raise InputError(
            f"`solver={recipe.solver!r}` keeps no sums that can be added or taken away: prepare with"
            f" `solver={DIRECT!r}`"
        )


def accumulate(
    prepared: UntrainedModel, source: Source, work: Work | None = None, *, rows: RowSet | None = None
) -> Statistics:
    """The statistics of a source, or of some of its rows.

    Parameters
    ----------
    prepared : UntrainedModel
        What ``prepare`` returned.
    source : Source
        The rows to sum.
    work : Work or None, default=None
        Threads, settings of the run and a reporter; all cores by default.
    rows : RowSet or None, default=None
        Numbers of rows of the source; all of them by default.

    Returns
    -------
    Statistics
        Sums that add, subtract and can be solved.
    """
    _check_sums(prepared.recipe)
    if source.columns is not None:  # a first batch was coded before it was known what the target says of its columns
        source = as_trained(source, prepared.columns)
    check_source(prepared, source)
    ledger_of(source, RowSet([(0, source.n_rows)]))  # a shard that is listed twice is refused before the pass
    recipe = prepared.recipe.with_(pilot="none", holdout=0.0, cv=None, solver=DIRECT)
    with at_work(work) as work:
        training = Training(source, recipe, work.settings, work.reporter, work.threads)
        check_targets(prepared, scan_targets(source, training.engine))
        state, ledger = training.accumulate(prepared, rows)
    return Statistics(prepared, state.sums, ledger, state.dropped, name=source.describe())


def update(statistics: Statistics, source: Source, work: Work | None = None, *, rows: RowSet | None = None) -> int:
    """Add a source, or some of its rows, in place: bits equal to having summed everything at once.

    Parameters
    ----------
    statistics : Statistics
        Sums that rows are added to.
    source : Source
        The new rows. A shard that is in already is refused.
    work : Work or None, default=None
        Threads, settings of the run and a reporter; all cores by default.
    rows : RowSet or None, default=None
        Numbers of rows of the source; all of them by default.

    Returns
    -------
    int
        How many rows were added.
    """
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
        raise MismatchError(f"{error} Leave this shard out, or forget it first.") from None


def forget(statistics: Statistics, source: Source, work: Work | None = None, *, rows: RowSet | None = None) -> int:
    """Take rows of a source out in place: bits equal to never having seen them.

    Parameters
    ----------
    statistics : Statistics
        Sums that rows are taken out of.
    source : Source
        The table that holds them, as it was when they were added.
    work : Work or None, default=None
        Threads, settings of the run and a reporter; all cores by default.
    rows : RowSet or None, default=None
        Numbers of rows of the source; all that are in by default.

    Returns
    -------
    int
        How many rows were taken out.
    """
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


def combine(parts: Sequence[str | Path], minus: Sequence[str | Path] = ()) -> Statistics:
    """The sum of statistics that lie in files, less others; two are in memory at a time."""
    total = Statistics.load(parts[0])
    for path in parts[1:]:
        part = Statistics.load(path)
        total += part
        total.remember("merge", part.rows)
        if part.prepared.recipe.nan == "drop":
            use_nan_policy(total, "drop")
    for path in minus:
        part = Statistics.load(path)
        total -= part
        total.remember("subtract", part.rows)
    return total


def use_nan_policy(statistics: Statistics, nan: str | None) -> None:
    """From now on rows with NaN are refused or dropped, in passes that add and in those that take away alike."""
    if nan is not None:
        recipe = statistics.prepared.recipe.with_(nan=nan)
        statistics.prepared = replace(statistics.prepared, recipe=recipe)


def retrain(
    model: Model, stays: Source, leaves: Source | None, work: Work, recoded: Callable[[], Source] | None = None
) -> tuple[Trained, int]:
    """The model that the same request would have made of the shards that stay, and how many rows are gone.

    Shards are compared with the ledger as the model codes their columns. ``recoded`` then opens those that stay with a
    coding that is learned from them alone; without it they are trained on as they are.
    """
    gone = _gone(model.ledger, ledger_of(stays, RowSet([(0, stays.n_rows)])))
    if not gone:
        raise InputError("every shard of the model is among those that stay: there is nothing to forget")
    if leaves is not None:
        _check_named(gone, ledger_of(leaves, rows_in(model.ledger, leaves)))
    if "asked" not in model.metadata:
        raise InputError("this model file does not hold its original settings: retrain on the shards that stay")
    if model.metadata.get("data", {}).get("weighted") and not stays.has_weights:
        raise InputError("this model was trained on rows with weights: retrain on the shards that stay, with theirs")
    if model.metadata.get("data", {}).get("holdout_key") and not stays.holdout_key:
        raise InputError("rows were held out by a column: retrain on the shards that stay, with the same `holdout_by`")
    recipe = Recipe.from_json(model.metadata["asked"])
    source = recoded() if recoded else stays
    trained = Training(source, recipe, work.settings, work.reporter, work.threads).run()
    return trained, gone.count


def _gone(before: Ledger, stays: Ledger) -> Ledger:
    """What is in the model and not among what stays; anything among it that was never in is refused."""
    rest = before.copy()
    try:
        rest.remove_all(stays)
    except MismatchError as error:
        raise MismatchError(f"the shards that stay are more than the model was trained on: {error}") from None
    return rest


def _check_named(gone: Ledger, named: Ledger) -> None:
    if gone == named:
        return
    lost = sorted(shard.label for key, shard in gone.shards().items() if not named.rows(key))
    kept = sorted(shard.label for key, shard in named.shards().items() if not gone.rows(key))
    if lost:
        raise MismatchError(
            f"{lost[0]} is in the model and neither to be forgotten nor among those that stay: name it there"
        )
    raise MismatchError(
        f"{kept[0] if kept else 'a shard'} is to be forgotten, and among those that stay too: take it out there"
    )
