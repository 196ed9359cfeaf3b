"""`streamrf evaluate`."""

from __future__ import annotations

from typing import Any

import click

from streamrf.cli.cluster import cluster_engine, cluster_options, pop_cluster
from streamrf.cli.options import data_options, nan_option, open_data, print_json, run_options, shards_argument


@click.command("evaluate")
@click.argument("model", type=click.Path())
@shards_argument
@data_options
@nan_option
@cluster_options
@run_options
def command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Measure MODEL on DATA with known targets.

    \b
    Examples:
      streamrf evaluate data.model test.zarr
      streamrf evaluate data.model test.parquet --json
    """
    from streamrf.cli.display import make_reporter, print_confusion, print_table
    from streamrf.data.columns import describe_unknown
    from streamrf.models.model import Model
    from streamrf.models.predict import evaluate_rows
    from streamrf.support.threads import Threads

    as_json, quiet, nan = (options.pop(k) for k in ("as_json", "quiet", "nan"))
    loaded = Model.load(model)
    source = open_data(data, options, known=loaded)
    reporter = make_reporter(quiet=quiet or as_json)
    with (
        Threads(options["threads"]) as threads,
        cluster_engine(pop_cluster(options), reporter, threads=threads.count) as engine,
    ):
        metrics = evaluate_rows(loaded, source, threads=threads, reporter=reporter, nan=nan, engine=engine)
    if source.unknown_levels:
        reporter.note(describe_unknown(source.unknown_levels))
    if as_json:
        print_json(metrics)
        return
    print_table([(name, f"{value:.6g}") for name, value in metrics.items() if isinstance(value, (int, float))])
    if "confusion" in metrics:
        print_confusion(metrics["confusion"], loaded.coding.classes)
