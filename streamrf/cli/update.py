"""`streamrf update`."""

from __future__ import annotations

import time
from typing import Any

import click

from streamrf.cli.options import data_options, open_data, shards_argument
from streamrf.cli.statistics import lambda_options, nan_option, pass_options, place_options, rows_option


@click.command("update")
@click.argument("model", type=click.Path())
@shards_argument
@data_options
@rows_option
@nan_option
@lambda_options
@place_options
@pass_options
def command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Let the shards DATA join MODEL: one pass over them alone, then the weights are solved again.

    The statistics are those of training on everything at once with this map, bit for bit. A shard that is in already is
    refused. MODEL may also be statistics, which then grow.

    \b
    Examples:
      streamrf update months.model april.zarr
      streamrf update months.model april.zarr may.zarr --retune --out spring.model
    """
    from streamrf.cli.statistics import parse_rows, place, report, show, solve_again, working, write
    from streamrf.training.update.changes import update, use_nan_policy
    from streamrf.training.update.statistics import Statistics, check_budget

    start = time.monotonic()
    out, overwrite = place(model, options)
    check_budget([model], options["memory"], states=2)
    statistics = Statistics.load(model)
    use_nan_policy(statistics, options["nan"])
    source = open_data(data, options, known=statistics.prepared)
    with working(options, out) as work:
        added = update(statistics, source, work, rows=parse_rows(options["rows"], source))
        solved = solve_again(statistics, options, work.threads)
        write(statistics, solved, out, overwrite)
    show(report(statistics, solved, out, added=added, seconds=time.monotonic() - start), options["as_json"])
