"""`streamrf report`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from streamrf.cli.options import data_options, open_data, print_json, run_options


@click.command("report")
@click.argument("model", type=click.Path())
@click.option("--data", multiple=True, metavar="PATH", help="Rows with targets to judge the model on; may be repeated.")
@click.option("--out", type=click.Path(), help="The page to write; MODEL.html by default.")
@click.option("--png", type=click.Path(), metavar="DIR", help="Also write each picture as a PNG file to DIR.")
@click.option("--overwrite", is_flag=True, help="Replace an existing report.")
@data_options
@run_options
def command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Write a report on MODEL: one HTML file with its pictures inside, in light and dark, that needs no network.

    --data adds errors, a learning curve and the most important inputs, from a sample of those rows. Rows that the
    model was trained on are first removed from its sums, exactly, so that their errors are hold-out errors.

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
