"""`streamrf report`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from streamrf.cli.options import data_options, open_data, print_json, run_options


@click.command("report")
@click.argument("model", type=click.Path())
@click.option("--data", multiple=True, metavar="PATH", help="Rows with targets to look at; may be repeated.")
@click.option("--out", type=click.Path(), help="Where the page goes; MODEL.html by default.")
@click.option("--png", type=click.Path(), metavar="DIR", help="Write each picture as a PNG there too.")
@click.option("--overwrite", is_flag=True, help="Replace a report that is there already.")
@data_options
@run_options
def command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Draw a report on MODEL: one HTML file with pictures inside, readable in light and dark, without a network.

    With --data it also shows errors, a learning curve and what the model looks at, from a sample of those rows. Rows
    that the model was trained on are taken out of its sums first, exactly, so that their errors are honest.

    \b
    Examples:
      streamrf report data.model
      streamrf report data.model --data test.zarr --out report.html
      streamrf report data.model --data test.zarr --png pictures
    """
    from streamrf.models.model import Model
    from streamrf.reports.report import check_report, make_report
    from streamrf.support.threads import Threads

    start, out = time.monotonic(), Path(options["out"] or f"{model.rstrip('/')}.html")
    check_report(out, overwrite=options["overwrite"])
    source = open_data(data, options, known=Model.load(model)) if data else None
    with Threads(options["threads"]) as threads:
        made = make_report(model, source, threads=threads)
    made.save(out, overwrite=options["overwrite"])
    if options["png"]:
        made.save_pictures(options["png"], overwrite=options["overwrite"])
    seconds = time.monotonic() - start
    if options["as_json"]:
        sections = [section.name for section in made.sections]
        print_json({"report": str(out), "sections": sections, "pictures": made.pictures, "seconds": seconds})
    elif not options["quiet"]:
        click.echo(f"{out}: {len(made.pictures)} pictures")
