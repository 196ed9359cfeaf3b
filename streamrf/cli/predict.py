"""`streamrf predict`."""

from __future__ import annotations

import time
from typing import Any

import click

from streamrf.cli.options import data_options, open_data, print_json, run_options, shards_argument


@click.command("predict")
@click.argument("model", type=click.Path())
@shards_argument
@data_options
@click.option("--out", required=True, type=click.Path(), help="predictions.zarr, .parquet, .npy or .csv.")
@click.option("--overwrite", is_flag=True, help="Replace an output that is there already.")
@click.option("--proba", is_flag=True, help="Write the probability of each class too.")
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
    from streamrf.prediction import predict_rows, prediction_columns
    from streamrf.sinks import open_sink
    from streamrf.threads import Threads
    from streamrf.units import format_count

    as_json, quiet, proba, out = (options.pop(k) for k in ("as_json", "quiet", "proba", "out"))
    loaded = Model.load(model)
    source = open_data(data, options, need_targets=False, features=loaded.feature_names)
    columns = prediction_columns(loaded, proba)
    start = time.monotonic()
    with (
        Threads(options["threads"]) as threads,
        open_sink(out, source.n_rows, columns, overwrite=options["overwrite"]) as sink,
    ):
        reporter = make_reporter(quiet=quiet or as_json)
        rows = predict_rows(loaded, source, sink, threads=threads, reporter=reporter, proba=proba)
    seconds = time.monotonic() - start
    if as_json:
        print_json({"out": out, "rows": rows, "columns": [name for name, _ in columns], "seconds": seconds})
    else:
        click.echo(f"{format_count(rows)} rows to {out}: {rows / seconds:,.0f} rows/s")
