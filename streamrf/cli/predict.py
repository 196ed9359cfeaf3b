"""`streamrf predict` and `streamrf evaluate`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from streamrf.cli import options as shared
from streamrf.cli.display import say
from streamrf.cli.recipe_options import nan_option

if TYPE_CHECKING:
    from streamrf.data.writers import ColumnTypes, Writer
    from streamrf.models.model import Model
    from streamrf.models.predict import Kept, PredictedColumns

STREAM = "-"
CLUSTER = ("workers", "scheduler", "tls_ca", "tls_cert", "tls_key")


@click.command("evaluate")
@shared.model_argument
@shared.shards_argument
@shared.data_options
@shared.weight_option
@nan_option
@shared.cluster_options
@shared.run_options
def evaluate_command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Measure MODEL on DATA with known targets, beside a baseline that knows none of the inputs.

    \b
    Examples:
      streamrf evaluate data.model test.zarr
      streamrf evaluate data.model test.parquet --json
      streamrf evaluate data.model test.parquet --sample-weight people
    """
    from streamrf.cli.display import print_metrics
    from streamrf.data.columns import describe_unknown
    from streamrf.models.model import Model
    from streamrf.models.predict import evaluate_rows

    loaded = Model.load(model)
    source = shared.open_data(data, options, known=loaded)
    with shared.working(options) as work:
        metrics = evaluate_rows(
            loaded, source, threads=work.threads, reporter=work.reporter, nan=options["nan"],
            engine=work.settings.engine,
        )  # fmt: skip
        if source.unknown_levels:
            work.reporter.note(describe_unknown(source.unknown_levels))
    if options["as_json"]:
        shared.print_json(metrics)
    else:
        print_metrics(metrics, loaded.coding.classes)


@click.command("predict")
@shared.model_argument
@shared.shards_argument
@shared.data_options
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
@shared.overwrite_option
@click.option("--keep", multiple=True, metavar="COLUMN",
              help="Also write this column of the data, such as an id; 'all' is every one.")  # fmt: skip
@click.option("--escape-formulas", is_flag=True, help="Put a quote before text in CSV that a spreadsheet would run.")
@click.option("--proba", is_flag=True, help="Also write the probability of each class.")
@click.option("--std", is_flag=True, help="Also write the standard deviation of each predicted number.")
@shared.cluster_options
@shared.run_options
def predict_command(model: str, data: tuple[str, ...], **options: Any) -> None:  # fmt: skip
    """Predict for every row of DATA with MODEL, in row order and bounded memory.

    DATA may also be a file of CSV, JSON lines or Arrow, or - for standard input. Rows are then predicted as they come,
    columns are matched by name, and every block is flushed.

    \b
    Examples:
      streamrf predict data.model new.zarr --out predictions.zarr
      streamrf predict data.model jan.parquet feb.parquet --out predictions.csv --proba
      streamrf predict data.model new.csv --out predictions.csv --keep id
      tail -f rows.jsonl | streamrf predict data.model - --format jsonl --out - | consumer
    """
    from streamrf.data.columns import describe_unknown
    from streamrf.models.model import Model
    from streamrf.models.predict import prediction_columns
    from streamrf.models.uncertainty import attach_posterior
    from streamrf.support.threads import Threads
    from streamrf.support.units import format_count

    out, as_json = options["out"], options["as_json"]
    _check_streams(data, out, as_json)
    _check_formulas(options)
    form = _stream_form(data, options)
    if form:
        _refuse_parts(options)
    loaded = Model.load(model)
    if options["std"]:
        with Threads(options["threads"]) as threads:
            attach_posterior(loaded, model, threads)
    prediction_columns(loaded, options["proba"])  # fails early where there are no probabilities
    job, start = _Job(loaded, options), time.monotonic()
    rows, unknown = job.stream(data[0], form) if form else job.source(data)
    seconds = time.monotonic() - start
    if unknown:
        shared.reporter_for(options).note(describe_unknown(unknown))
    if as_json:
        names = [name for name, _ in job.columns]
        shared.print_json({"out": out, "rows": rows, "columns": names, "unknown_levels": unknown, "seconds": seconds})
    elif out != STREAM:
        say(f"{format_count(rows)} rows to {out}: {rows / seconds:,.0f} rows/s")


def _check_streams(data: tuple[str, ...], out: str, as_json: bool) -> None:
    from streamrf.support.errors import InputError

    if STREAM in data and len(data) > 1:
        raise InputError(f"standard input (-) cannot be combined with other data: {len(data)} inputs are named")
    if out == STREAM and as_json:
        raise InputError("--out - and --json both write to standard output: give only one of them")


def _check_formulas(options: shared.Options) -> None:
    from streamrf.support.errors import InputError

    out = options["out"]
    if options["escape_formulas"] and not (options["form"] == "csv" if out == STREAM else out.lower().endswith(".csv")):
        raise InputError(f"`escape_formulas` is about CSV, and the output is {out}: leave it out")


def _refuse_parts(options: shared.Options) -> None:
    """Refuse options for tables: streams are predicted in this process, and their columns are matched by name."""
    from streamrf.support.errors import InputError

    names = (*CLUSTER, "target", "features", "exclude")
    given = next((name for name in names if options[name]), None)
    if given:
        raise InputError(
            f"--{given.replace('_', '-')} is for tables that are read in parts (zarr, parquet, npy), not for streams of"
            " rows (CSV, JSON lines, Arrow, standard input): leave it out, or use streamrf convert first"
        )


def _stream_form(data: tuple[str, ...], options: shared.Options) -> str | None:
    """The format of a stream of rows; None for tables that are read in parts, or converted to such tables first."""
    from streamrf.data.locations import is_pattern
    from streamrf.data.readers import stream_format

    if data == (STREAM,):
        return options["form"]
    if len(data) > 1 or is_pattern(data[0]) or any(options[name] for name in CLUSTER):
        return None
    return stream_format(data[0])


class _Job:
    """One prediction, wherever the rows come from and go to."""

    columns: ColumnTypes = ()  # of the output, once the data is open

    def __init__(self, model: Model, options: shared.Options) -> None:
        self.model, self.options = model, options

    def stream(self, location: str, form: str) -> tuple[int, dict[str, int]]:
        """Rows as they come."""
        from streamrf.data.readers import arriving_tables
        from streamrf.data.writers import UNKNOWN, write_blocks
        from streamrf.models.predict_stream import StreamBlocks, stream_columns
        from streamrf.support.threads import Threads

        where, keep = "standard input" if location == STREAM else location, self.options["keep"]
        given = shared.reading_given(self.options) | ({"keeps": True} if keep else {})
        trained = self.model.reading
        tables = arriving_tables(location, form, stream_columns(self.model), where, trained_reading=trained, **given)
        blocks = StreamBlocks(self.model, tables, where, keep)
        made = self._predicted(blocks if keep else None)
        with Threads(self.options["threads"]) as threads, self._writer(UNKNOWN) as writer:
            rows = write_blocks(made, blocks, writer, threads)
        return rows, blocks.unknown

    def source(self, data: tuple[str, ...]) -> tuple[int, dict[str, int]]:
        """Tables that are read in parts, here or by a cluster."""
        from streamrf.models.predict import KeptOfSource, predict_rows

        source = shared.open_data(data, self.options, need_targets=False, known=self.model)
        made = self._predicted(KeptOfSource(source, self.options["keep"]) if self.options["keep"] else None)
        with shared.working(self.options) as work:
            engine: Any = work.settings.engine  # a cluster's, which can write, or None
            with self._writer(source.n_rows, shared=engine is not None) as writer:
                rows = predict_rows(
                    made, source, writer, threads=work.threads, reporter=work.reporter, engine=engine
                )  # fmt: skip
        return rows, dict(source.unknown_levels)

    def _predicted(self, kept: Kept | None) -> PredictedColumns:
        from streamrf.models.predict import PredictedColumns
        from streamrf.support.errors import InputError

        made = PredictedColumns(self.model, self.options["proba"], kept, self.options["escape_formulas"])
        self.columns = made.types()
        text = next((name for name, dtype in kept.types if dtype.kind == "U"), None) if kept else None
        if text is not None and self.options["out"].rstrip("/").lower().endswith((".zarr", ".npy")):
            raise InputError(
                f"column '{text}' is text, which cannot be kept in {self.options['out']}: write .parquet or .csv"
            )
        return made

    def _writer(self, n_rows: int, *, shared: bool = False) -> Writer:
        from streamrf.data.writers import open_shared_writer, open_writer

        out = self.options["out"]
        if out == STREAM and not shared:
            from streamrf.data.writers.encoded import STREAMS

            return STREAMS[self.options["form"]](sys.stdout.buffer, self.columns)
        open_output = open_shared_writer if shared else open_writer
        return open_output(out, n_rows, self.columns, overwrite=self.options["overwrite"])
