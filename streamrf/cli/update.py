"""`streamrf update` and `streamrf forget`: add shards to a model, or remove them, exactly."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamrf.cli import options as shared
from streamrf.cli.statistics import answer, report, write

if TYPE_CHECKING:
    from streamrf.data.source import Source
    from streamrf.models.model import Model
    from streamrf.statistics.rowset import RowSet
    from streamrf.support.threads import Threads
    from streamrf.training.update.changes import Work
    from streamrf.training.update.statistics import Statistics

_change_options = shared.stack(
    shared.data_options,
    click.option("--rows", multiple=True, metavar="START:STOP",
                 help="Only these rows of one shard, STOP excluded; may be repeated."),
    click.option("--nan", type=click.Choice(["error", "drop"]),
                 help="What to do with rows that have NaN; as in training by default."),
    click.option("--lambda", "ridge", type=float, help="Another ridge penalty; that of the model by default."),
    click.option("--retune", is_flag=True, help="Choose lambda again by generalised cross-validation (GCV)."),
    click.option("--out", type=click.Path(), help="Where the result goes; replaces MODEL by default."),
    shared.overwrite_option, shared.pass_options,
)  # fmt: skip


@click.command("update")
@shared.model_argument
@shared.shards_argument
@_change_options
def update_command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Add the shards DATA to MODEL: one pass over them alone, then the weights are solved again.

    The statistics are those of training on everything at once with this map, bit for bit. A shard that is in already is
    refused. MODEL may also be statistics, which then grow.

    \b
    Examples:
      streamrf update months.model april.zarr
      streamrf update months.model april.zarr may.zarr --retune --out spring.model
    """
    target = _target(model, options)
    with shared.working(options, target[0]) as work:
        found = _change("added", model, data, target, work, options)
    answer(options, found)


@click.command("forget")
@shared.model_argument
@click.argument("shards", nargs=-1)
@_change_options
@click.option("--strict", is_flag=True, help="Retrain on --data: pilot, coding, scaling and calibration forget too.")
@click.option("--data", "rest", multiple=True, metavar="SHARD", help="With --strict: each shard that stays.")
def forget_command(model: str, shards: tuple[str, ...], **options: Any) -> None:
    """Remove SHARDS from MODEL: their sums are computed again and subtracted, then the weights are solved again.

    The statistics are those of never having seen the shards, bit for bit. A shard that is not in is refused. Settings
    that the pilot chose with them stay, unless --strict runs it again on what is left.

    \b
    Examples:
      streamrf forget months.model january.zarr
      streamrf forget months.model january.zarr --rows 100:200
      streamrf forget months.model january.zarr --strict --data february.zarr --data march.zarr
    """
    from streamrf.cli.summary import show as show_training

    strict = options["strict"]
    _check_forget(shards, options)
    target = _target(model, options)
    with shared.working(options, target[0]) as work:
        if strict:
            found = _retrain(model, shards, target, work, options)
        else:
            found = _change("removed", model, shards, target, work, options)
    if strict and not options["as_json"]:
        show_training(found)
    else:
        answer(options, found)


def _target(model: str, options: shared.Options) -> tuple[Path, bool]:
    """Where the result goes, and whether it may replace something. Fails early without the place or the memory."""
    from streamrf.support.storage.archive import check_target
    from streamrf.training.update.statistics import check_budget

    out, replaces = Path(options["out"] or model), options["overwrite"] or options["out"] is None
    check_target(out, replaces)
    check_budget([model], options["memory"], states=2)
    return out, replaces


def _change(
    what: str, model: str, shards: tuple[str, ...], target: tuple[Path, bool], work: Work, options: shared.Options
) -> dict[str, Any]:
    """Add or subtract the sums of shards, solve and write."""
    from streamrf.training.update.changes import forget, update, use_nan_policy
    from streamrf.training.update.statistics import Statistics

    start, statistics = time.monotonic(), Statistics.load(model)
    use_nan_policy(statistics, options["nan"])
    source = shared.open_data(shards, options, known=statistics.prepared)
    change = update if what == "added" else forget
    rows = change(statistics, source, work, rows=parse_rows(options["rows"], source))
    solved = solve_again(statistics, options, work.threads)
    write(statistics, solved, *target)
    return report(statistics, solved, target[0], **{what: rows}, seconds=time.monotonic() - start)


def parse_rows(texts: tuple[str, ...], source: Source) -> RowSet | None:
    """The rows that --rows names, or None for all."""
    from streamrf.statistics.rowset import RowSet
    from streamrf.support.errors import InputError

    if not texts:
        return None
    if len(source.members()) > 1:
        raise InputError(f"--rows is about the rows of one shard, and {len(source.members())} are named")
    found = [re.fullmatch(r"(\d+):(\d+)", text) for text in texts]
    spans = [(int(match[1]), int(match[2])) for match in found if match]
    if len(spans) < len(texts) or any(not a < b <= source.n_rows for a, b in spans):
        raise InputError(f"--rows {' '.join(texts)}: must be START:STOP within the {source.n_rows:,} rows")
    return RowSet(spans)


def solve_again(statistics: Statistics, options: shared.Options, threads: Threads) -> Model | None:
    """A model with the lambda of the options; None for statistics that never had a model."""
    from streamrf.support.errors import InputError

    ridge, retune = options["ridge"], options["retune"]
    if ridge is not None and retune:
        raise InputError("--lambda sets the penalty and --retune searches for one: give one of them")
    if statistics.ridge is None:
        if ridge is not None or retune:
            raise InputError(f"{statistics.name} holds statistics and no weights: use `streamrf solve` on the result")
        return None
    return statistics.solve(*(() if retune else (statistics.ridge if ridge is None else ridge,)), threads=threads)


# -- strict forgetting


def _check_forget(shards: tuple[str, ...], options: shared.Options) -> None:
    from streamrf.support.errors import InputError

    strict = options["strict"]
    if strict != bool(options["rest"]):
        raise InputError("--strict retrains on the shards that stay: name each of them with --data, and only then")
    if not shards and not strict:
        raise InputError("name the shards to forget, as they lie on disk: their sums are subtracted")
    if strict and any(options[name] for name in ("ridge", "retune", "rows", "nan")):
        raise InputError("--strict retrains with the settings of MODEL: leave out --lambda, --retune, --rows and --nan")


def _retrain(
    model: str, shards: tuple[str, ...], target: tuple[Path, bool], work: Work, options: shared.Options
) -> dict[str, Any]:
    from streamrf.cli.train import summary
    from streamrf.models.model import Model
    from streamrf.training.update.changes import retrain

    old = Model.load(model)
    stays = shared.open_data(options["rest"], options, known=old)
    leaves = shared.open_data(shards, options, known=old) if shards else None
    result, removed = retrain(old, stays, leaves, work, lambda: _recoded(old, stays, work, options))
    result.model.save(target[0], state=result.state, overwrite=target[1])
    return {**summary(target[0], result), "removed": removed, "strict": True}


def _recoded(old: Model, stays: Source, work: Work, options: shared.Options) -> Source:
    """The shards that stay, with a coding of columns learned from them alone; a zarr store has its own."""
    from streamrf.data.open import learn_coding, open_source
    from streamrf.support.errors import InputError

    if old.columns is None or stays.first_array() is not None:
        return stays
    if old.columns.handling is None:
        raise InputError("the model does not say how its columns were to be coded: retrain on the shards that stay")
    reading, target = shared.make_reading(options, old), list(options["target"]) or old.target_names
    place, keeps = shared.readable_data(options["rest"], reading, work.reporter)
    choice: shared.Options = {"y": options["y"], "target": target, "features": old.columns.names}
    columns = learn_coding(place, old.columns.handling, work.reporter, **choice)
    source = open_source(place, columns=columns, **choice)
    source.keeps, source.reading = (*source.keeps, *keeps), reading.meanings
    return source
