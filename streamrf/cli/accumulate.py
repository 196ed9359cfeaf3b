"""`streamrf accumulate`."""

from __future__ import annotations

import time
from pathlib import Path
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


@click.command("accumulate")
@click.argument("prepared", type=click.Path())
@shards_argument
@data_options
@click.option("--out", required=True, type=click.Path(), help="Where the statistics go, such as site.stats.")
@click.option("--overwrite", is_flag=True, help="Replace what is at --out already.")
@memory_option
@checkpoint_options
@run_options
def command(prepared: str, data: tuple[str, ...], **options: Any) -> None:
    """Sum the statistics of DATA with what PREPARED has fixed (a model or statistics will do), and solve nothing.

    The statistics hold sums and a ledger of shards, and no row of the data.

    \b
    Examples:
      streamrf accumulate recipe.prepared north.zarr --out north.stats
      streamrf merge north.stats south.stats --out both.model
    """
    from streamrf.algebra import Work, accumulate, load_prepared
    from streamrf.algebra.changes import clear_checkpoint
    from streamrf.archive import check_target
    from streamrf.cli.display import make_reporter
    from streamrf.cli.statistics import report, show
    from streamrf.threads import Threads

    start, as_json, quiet = time.monotonic(), options.pop("as_json"), options.pop("quiet")
    out, overwrite = Path(options.pop("out")), options.pop("overwrite")
    check_target(out, overwrite)
    settings, fixed = make_settings(options, out), load_prepared(prepared)
    source = open_data(data, options, features=fixed.feature_names)
    with Threads(settings.threads) as threads:
        statistics = accumulate(fixed, source, Work(threads, settings, make_reporter(quiet=quiet or as_json)))
    statistics.save(out, overwrite=overwrite)
    clear_checkpoint(settings)
    show(report(statistics, None, out, seconds=time.monotonic() - start), as_json)
