"""`streamrf predict`."""

from __future__ import annotations

import time
from typing import Any

import click

from streamrf.cli.cluster import cluster_engine, cluster_options, pop_cluster
from streamrf.cli.options import data_options, open_data, print_json, run_options, shards_argument


@click.command("predict")
@click.argument("model", type=click.Path())
@shards_argument
@data_options
@click.option("--out", required=True, type=click.Path(), help="predictions.zarr, .parquet, .npy or .csv.")
@click.option("--overwrite", is_flag=True, help="Replace an output that is there already.")
@click.option("--proba", is_flag=True, help="Write the probability of each class too.")
@cluster_options
@run_options
def command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Predict for every row of DATA with MODEL, in row order and bounded memory.

    \b
    Examples:
      streamrf predict data.model new.zarr --out predictions.zarr
      streamrf predict data.model jan.parquet feb.parquet --out predictions.csv --proba
    """
    from streamrf.cli.display import make_reporter
    from streamrf.model import Model
    from streamrf.prediction import predict_elsewhere, predict_rows, prediction_columns
    from streamrf.sinks import open_sink
    from streamrf.sinks.parts import open_parts
    from streamrf.threads import Threads
    from streamrf.units import format_count

    as_json, quiet, proba, out = (options.pop(k) for k in ("as_json", "quiet", "proba", "out"))
    loaded = Model.load(model)
    source = open_data(data, options, need_targets=False, features=loaded.feature_names)
    columns = prediction_columns(loaded, proba)
    cluster, reporter = pop_cluster(options), make_reporter(quiet=quiet or as_json)
    opened = open_parts if cluster["scheduler"] or cluster["workers"] else open_sink
    output = opened(out, source.n_rows, columns, overwrite=options["overwrite"])
    start = time.monotonic()
    with (
        Threads(options["threads"]) as threads,
        cluster_engine(cluster, reporter, threads=threads.count) as engine,
        output as sink,
    ):
        if engine:
            rows = predict_elsewhere(loaded, source, sink, engine=engine, reporter=reporter, proba=proba)
        else:
            rows = predict_rows(loaded, source, sink, threads=threads, reporter=reporter, proba=proba)
    seconds = time.monotonic() - start
    if as_json:
        print_json({"out": out, "rows": rows, "columns": [name for name, _ in columns], "seconds": seconds})
    else:
        click.echo(f"{format_count(rows)} rows to {out}: {rows / seconds:,.0f} rows/s")
