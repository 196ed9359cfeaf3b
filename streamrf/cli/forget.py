"""`streamrf forget`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from streamrf.cli.options import data_options, open_data
from streamrf.cli.statistics import lambda_options, nan_option, pass_options, place_options, rows_option


@click.command("forget")
@click.argument("model", type=click.Path())
@click.argument("shards", nargs=-1)
@data_options
@rows_option
@nan_option
@lambda_options
@click.option("--strict", is_flag=True, help="Train anew on --data: pilot, coding, scaling and calibration forget too.")
@click.option("--data", "rest", multiple=True, metavar="SHARD", help="With --strict: each shard that stays.")
@place_options
@pass_options
def command(model: str, shards: tuple[str, ...], **options: Any) -> None:
    """Take SHARDS out of MODEL: their sums are computed again and subtracted, then the weights are solved again.

    The statistics are those of never having seen the shards, bit for bit. A shard that is not in is refused. Settings
    that the pilot chose with them stay, unless --strict runs it again on what is left.

    \b
    Examples:
      streamrf forget months.model january.zarr
      streamrf forget months.model january.zarr --rows 100:200
      streamrf forget months.model january.zarr --strict --data february.zarr --data march.zarr
    """
    from streamrf.cli.statistics import place, show, working
    from streamrf.cli.train import show as show_training
    from streamrf.training.update.statistics import check_budget

    strict, rest, as_json = options.pop("strict"), options.pop("rest"), options["as_json"]
    _check(shards, strict, rest, options)
    target = place(model, options)
    check_budget([model], options["memory"], states=2)
    with working(options, target[0]) as work:
        if strict:
            found = _train_anew(model, shards, rest, target, work, options)
        else:
            found = _subtract(model, shards, target, work, options)
    if strict and not as_json:
        show_training(found)
    else:
        show(found, as_json)


def _check(shards: tuple[str, ...], strict: bool, rest: tuple[str, ...], options: dict[str, Any]) -> None:
    from streamrf.support.errors import InputError

    if strict != bool(rest):
        raise InputError("--strict trains anew on the shards that stay: name each of them with --data, and only then")
    if not shards and not strict:
        raise InputError("name the shards to forget, as they lie on disk: their sums are subtracted")
    if strict and any(options[name] for name in ("ridge", "retune", "rows", "nan")):
        raise InputError("--strict trains as it was first asked: leave out --lambda, --retune, --rows and --nan")


def _subtract(
    model: str, shards: tuple[str, ...], target: tuple[Path, bool], work: Any, options: dict[str, Any]
) -> dict[str, Any]:
    from streamrf.cli.statistics import parse_rows, report, solve_again, write
    from streamrf.training.update.changes import forget, use_nan_policy
    from streamrf.training.update.statistics import Statistics

    start, statistics = time.monotonic(), Statistics.load(model)
    use_nan_policy(statistics, options["nan"])
    source = open_data(shards, options, known=statistics.prepared)
    removed = forget(statistics, source, work, rows=parse_rows(options["rows"], source))
    solved = solve_again(statistics, options, work.threads)
    write(statistics, solved, *target)
    return report(statistics, solved, target[0], removed=removed, seconds=time.monotonic() - start)


def _train_anew(
    model: str,
    shards: tuple[str, ...],
    rest: tuple[str, ...],
    target: tuple[Path, bool],
    work: Any,
    options: dict[str, Any],
) -> dict[str, Any]:
    from streamrf.cli.train import summary
    from streamrf.models.model import Model
    from streamrf.training.update.changes import retrain

    old = Model.load(model)
    stays = open_data(rest, dict(options), known=old)
    leaves = open_data(shards, dict(options), known=old) if shards else None
    result, removed = retrain(old, stays, leaves, work, lambda: _coded_anew(old, stays, rest, work, options))
    result.model.save(target[0], state=result.state, overwrite=target[1])
    return {**summary(target[0], result), "removed": removed, "strict": True}


def _coded_anew(old: Any, stays: Any, rest: tuple[str, ...], work: Any, options: dict[str, Any]) -> Any:
    """The shards that stay, their columns coded as is learned from them alone; a zarr store has its coding itself."""
    from streamrf.data.open import learn_coding, open_source
    from streamrf.support.errors import InputError

    place = list(rest)
    if old.columns is None or stays.first_array() is not None:
        return stays
    if old.columns.handling is None:
        raise InputError("this model does not say how its columns were to be coded: train anew on the shards that stay")
    choice = {"y": options["y"], "target": list(options["target"]) or old.target_names, "features": old.columns.names}
    columns = learn_coding(place, old.columns.handling, work.reporter, **choice)
    return open_source(place, columns=columns, **choice)
