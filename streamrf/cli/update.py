"""`streamrf update`."""

from __future__ import annotations

import time
from typing import Any

import click

from streamrf.cli.options import (
    checkpoint_options,
    data_options,
    make_settings,
    memory_option,
    open_data,
    run_options,
    shards_argument,
)
from streamrf.cli.statistics import lambda_options, nan_option, place_options, rows_option


@click.command("update")
@click.argument("model", type=click.Path())
@shards_argument
@data_options
@rows_option
@nan_option
@lambda_options
@place_options
@memory_option
@checkpoint_options
@run_options
def command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Let the shards DATA join MODEL: one pass over them alone, then the weights are solved again.

    The statistics are those of training on everything at once with this map, bit for bit. A shard that is in already is
    refused. MODEL may also be statistics, which then grow.

    \b
    Examples:
      streamrf update months.model april.zarr
      streamrf update months.model april.zarr may.zarr --retune --out spring.model
    """
    from streamrf.algebra import Statistics, Work, update
    from streamrf.algebra.changes import clear_checkpoint, use_nan_policy
    from streamrf.algebra.memory import check_budget
    from streamrf.cli.display import make_reporter
    from streamrf.cli.statistics import parse_rows, place, report, show, solve_again, write
    from streamrf.threads import Threads

    start, as_json, quiet = time.monotonic(), options.pop("as_json"), options.pop("quiet")
    out, overwrite = place(model, options)
    check_budget([model], options["memory"], states=2)
    settings = make_settings(options, out)
    statistics = Statistics.load(model)
    use_nan_policy(statistics, options.pop("nan"))
    source = open_data(data, options, features=statistics.prepared.feature_names)
    with Threads(settings.threads) as threads:
        work = Work(threads, settings, make_reporter(quiet=quiet or as_json))
        added = update(statistics, source, work, rows=parse_rows(options["rows"], source))
        solved = solve_again(statistics, options, threads)
        write(statistics, solved, out, overwrite)
    clear_checkpoint(settings)
    show(report(statistics, solved, out, added=added, seconds=time.monotonic() - start), as_json)
