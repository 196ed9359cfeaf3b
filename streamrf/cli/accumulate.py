"""`streamrf accumulate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from streamrf.cli.options import data_options, open_data, shards_argument
from streamrf.cli.statistics import pass_options


@click.command("accumulate")
@click.argument("prepared", type=click.Path())
@shards_argument
@data_options
@click.option("--out", required=True, type=click.Path(), help="Where the statistics go, such as site.stats.")
@click.option("--overwrite", is_flag=True, help="Replace what is at --out already.")
@pass_options
def command(prepared: str, data: tuple[str, ...], **options: Any) -> None:
    """Sum the statistics of DATA with what PREPARED has fixed (a model or statistics will do), and solve nothing.

    The statistics hold sums and a ledger of shards, and no row of the data.

    \b
    Examples:
      streamrf accumulate recipe.prepared north.zarr --out north.stats
      streamrf merge north.stats south.stats --out both.model
    """
    from streamrf.cli.statistics import report, show, working
    from streamrf.support.storage.archive import check_target
    from streamrf.training.update.changes import accumulate
    from streamrf.training.update.statistics import load_prepared

    start, out, overwrite = time.monotonic(), Path(options["out"]), options["overwrite"]
    check_target(out, overwrite)
    fixed = load_prepared(prepared)
    source = open_data(data, options, known=fixed)
    with working(options, out) as work:
        statistics = accumulate(fixed, source, work)
        statistics.save(out, overwrite=overwrite)
    show(report(statistics, None, out, seconds=time.monotonic() - start), options["as_json"])
