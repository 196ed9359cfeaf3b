"""`streamrf predict`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from streamrf.cli.cluster import ClusterOptions, cluster_engine, cluster_options, pop_cluster
from streamrf.cli.options import data_options, open_data, print_json, run_options, shards_argument

if TYPE_CHECKING:
    from streamrf.data.writers import ColumnTypes, Writer
    from streamrf.models.model import Model
    from streamrf.support.progress import Reporter

STREAM = "-"


@click.command("predict")
@click.argument("model", type=click.Path())
@shards_argument
@data_options
@click.option(
    "--out",
    required=True,
    type=click.Path(allow_dash=True),
    help="predictions.zarr, .parquet, .npy, .csv, .jsonl or .arrow; - is standard output.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "arrow"]),
    default="csv",
    show_default=True,
    help="Format of standard input and output.",
)
@click.option("--overwrite", is_flag=True, help="Replace an output that is there already.")
@click.option("--proba", is_flag=True, help="Write the probability of each class too.")
@click.option("--std", is_flag=True, help="Write the standard deviation of each predicted number too.")
@cluster_options
@run_options
def command(model: str, data: tuple[str, ...], **options: Any) -> None:  # fmt: skip
    """Predict for every row of DATA with MODEL, in row order and bounded memory.

    DATA may also be a file of CSV, JSON lines or Arrow, or - for standard input: rows are predicted as they come,
    columns are found by their names, and every block that is written is flushed.

    \b
    Examples:
      streamrf predict data.model new.zarr --out predictions.zarr
      streamrf predict data.model jan.parquet feb.parquet --out predictions.csv --proba
      streamrf predict data.model new.csv --out predictions.csv
      tail -f rows.jsonl | streamrf predict data.model - --format jsonl --out - | consumer
    """
    from streamrf.cli.display import make_reporter
    from streamrf.data.columns import describe_unknown
    from streamrf.models.model import Model
    from streamrf.models.predict import prediction_columns
    from streamrf.support.units import format_count

    as_json, quiet, proba, out = (options.pop(k) for k in ("as_json", "quiet", "proba", "out"))
    _check_streams(data, out, as_json)
    form = _stream_form(data, options["form"])
    if form:
        _refuse_parts(options)
    loaded, cluster = Model.load(model), pop_cluster(options)
    if options.pop("std"):
        _attach_uncertainty(loaded, model, options["threads"])
    columns = prediction_columns(loaded, proba)
    reporter = make_reporter(quiet=quiet or as_json)
    job = _Job(loaded, columns, proba, out, options, reporter)
    start = time.monotonic()
    rows, unknown = job.stream(data[0], form) if form else job.source(data, cluster)
    seconds = time.monotonic() - start
    if unknown:
        reporter.note(describe_unknown(unknown))
    if as_json:
        names = [name for name, _ in columns]
        print_json({"out": out, "rows": rows, "columns": names, "unknown_levels": unknown, "seconds": seconds})
    elif out != STREAM:
        click.echo(f"{format_count(rows)} rows to {out}: {rows / seconds:,.0f} rows/s")


def _attach_uncertainty(model: Model, path: str, count: int | None) -> None:
    from streamrf.models.uncertainty import attach_posterior
    from streamrf.support.threads import Threads

    with Threads(count) as threads:
        attach_posterior(model, path, threads)


def _check_streams(data: tuple[str, ...], out: str, as_json: bool) -> None:
    from streamrf.support.errors import InputError

    if STREAM in data and len(data) > 1:
        raise InputError(f"standard input (-) cannot be combined with other data: {len(data)} inputs are named")
    if out == STREAM and as_json:
        raise InputError("--out - and --json both write to standard output: give only one of them")


def _refuse_parts(options: dict[str, Any]) -> None:
    """Rows as they come are predicted here, and their columns are found by the names that the model knows."""
    from streamrf.support.errors import InputError

    names = ("workers", "scheduler", "tls_ca", "tls_cert", "tls_key", "target", "features", "exclude")
    given = next((name for name in names if options[name]), None)
    if given:
        raise InputError(
            f"--{given.replace('_', '-')} is for tables that are read in parts (zarr, parquet, npy), not for rows as"
            " they come (CSV, JSON lines, Arrow, standard input): leave it out, or use streamrf convert first"
        )


def _stream_form(data: tuple[str, ...], asked: str) -> str | None:
    """The format of data that comes row after row; None for tables that are read in parts."""
    from streamrf.data.readers import stream_format

    if data == (STREAM,):
        return asked
    return stream_format(data[0]) if len(data) == 1 else None


class _Job:
    """One prediction, wherever the rows come from and go to."""

    def __init__(
        self, model: Model, columns: ColumnTypes, proba: bool, out: str, options: dict[str, Any], reporter: Reporter
    ) -> None:
        self.model, self.columns, self.proba, self.out = model, columns, proba, out
        self.options, self.reporter = options, reporter

    def stream(self, location: str, form: str) -> tuple[int, dict[str, int]]:
        """Rows as they come."""
        from streamrf.data.readers import arriving_tables
        from streamrf.data.writers import UNKNOWN, write_blocks
        from streamrf.models.predict import PredictedColumns
        from streamrf.models.predict_stream import StreamBlocks, stream_columns
        from streamrf.support.threads import Threads

        where = "standard input" if location == STREAM else location
        blocks = StreamBlocks(self.model, arriving_tables(location, form, stream_columns(self.model), where), where)
        with Threads(self.options["threads"]) as threads, self._writer(UNKNOWN) as writer:
            rows = write_blocks(PredictedColumns(self.model, self.proba), blocks, writer, threads)
        return rows, blocks.unknown

    def source(self, data: tuple[str, ...], cluster: ClusterOptions) -> tuple[int, dict[str, int]]:
        """Tables that are read in parts, here or by a cluster."""
        from streamrf.models.predict import predict_rows
        from streamrf.support.threads import Threads

        source = open_data(data, self.options, need_targets=False, known=self.model)
        shared = bool(cluster["scheduler"] or cluster["workers"])
        with (
            Threads(self.options["threads"]) as threads,
            cluster_engine(cluster, self.reporter, threads=threads.count) as engine,
            self._writer(source.n_rows, shared=shared) as writer,
        ):
            rows = predict_rows(
                self.model, source, writer, threads=threads, reporter=self.reporter, proba=self.proba, engine=engine
            )
        return rows, dict(source.unknown_levels)

    def _writer(self, n_rows: int, *, shared: bool = False) -> Writer:
        from streamrf.data.writers import open_shared_writer, open_writer

        if self.out == STREAM and not shared:
            from streamrf.data.writers.encoded import STREAMS

            return STREAMS[self.options["form"]](sys.stdout.buffer, self.columns)
        open_output = open_shared_writer if shared else open_writer
        return open_output(self.out, n_rows, self.columns, overwrite=self.options["overwrite"])
