"""`streamrf merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamrf.cli.options import memory_option, run_options
from streamrf.cli.statistics import ridges_option


@click.command("merge")
@click.argument("parts", nargs=-1, required=True, type=click.Path())
@click.option("--out", required=True, type=click.Path(), help="Where the model goes.")
@click.option("--overwrite", is_flag=True, help="Replace what is at --out already.")
@click.option("--minus", multiple=True, type=click.Path(), help="Statistics to subtract; may be repeated.")
@ridges_option
@click.option("--statistics-only", is_flag=True, help="Write statistics, and solve nothing.")
@memory_option
@run_options
def command(parts: tuple[str, ...], **options: Any) -> None:
    """Make one model of PARTS: statistics, or models with theirs, that were summed apart. No data is read.

    Refused where map, scaling or target coding differ, or where rows are in two of the parts. The bits do not depend on
    the order of the parts.

    \b
    Examples:
      streamrf merge north.stats south.stats --out both.model
      streamrf merge window.model tuesday.stats --minus last-tuesday.stats --out window.model --overwrite
    """
    from streamrf.cli.statistics import report, show, write
    from streamrf.support.errors import InputError
    from streamrf.support.storage.archive import check_target
    from streamrf.support.threads import Threads
    from streamrf.training.update.changes import combine
    from streamrf.training.update.statistics import check_budget

    out, overwrite = Path(options["out"]), options["overwrite"]
    if options["statistics_only"] and options["ridge"]:
        raise InputError("--statistics-only solves nothing, so there is no place for --lambda")
    check_target(out, overwrite)
    check_budget([*parts, *options["minus"]], options["memory"], states=2)
    statistics = combine(parts, options["minus"])
    with Threads(options["threads"]) as threads:
        model = None if options["statistics_only"] else statistics.solve(*options["ridge"], threads=threads)
    write(statistics, model, out, overwrite)
    show(report(statistics, model, out, parts=len(parts), subtracted=len(options["minus"])), options["as_json"])
