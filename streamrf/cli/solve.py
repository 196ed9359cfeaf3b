"""`streamrf solve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamrf.cli.options import memory_option, run_options
from streamrf.cli.statistics import ridges_option


@click.command("solve")
@click.argument("statistics", type=click.Path())
@ridges_option
@click.option("--outputs", metavar="0,2,...", help="Only these targets, numbered from 0.")
@click.option("--out", type=click.Path(), help="Where the model goes; NAME.model by default.")
@click.option("--overwrite", is_flag=True, help="Replace what is at --out already.")
@click.option("--no-statistics", is_flag=True, help="Leave out the sums that allow update, forget and merge.")
@memory_option
@run_options
def command(statistics: str, **options: Any) -> None:
    """Solve STATISTICS (or a model with its own) at other lambdas or for fewer targets, without touching the data.

    \b
    Examples:
      streamrf solve site.stats
      streamrf solve data.model --lambda 1e-5 --out softer.model
      streamrf solve data.model --lambda 1e-4 --lambda 1e-6 --outputs 0,2 --out two.model --json
    """
    from streamrf.cli.statistics import report, show
    from streamrf.support.storage.archive import check_target
    from streamrf.support.threads import Threads
    from streamrf.training.update.statistics import Statistics, check_budget

    out = Path(options["out"] or Path(statistics).with_suffix(".model"))
    check_target(out, options["overwrite"])
    check_budget([statistics], options["memory"], states=2 if options["outputs"] else 1)
    sums = Statistics.load(statistics)
    if options["outputs"]:
        sums = sums.select(_numbers(options["outputs"]))
    with Threads(options["threads"]) as threads:
        model = sums.solve(*options["ridge"], threads=threads)
    model.save(out, state=None if options["no_statistics"] else sums.state, overwrite=options["overwrite"])
    show(report(sums, model, out, outputs=sums.prepared.coding.outputs), options["as_json"])


def _numbers(text: str) -> list[int]:
    from streamrf.support.errors import InputError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--outputs {text}: numbers such as 0,2 are wanted")
    return [int(part) for part in parts]
