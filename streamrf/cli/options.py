"""Options that several commands share, and what they mean to the library. Commands read them and change none."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamrf.cli.help import Place, complete_column
from streamrf.support.errors import InputError
from streamrf.support.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from streamrf.data.cache import Reading
    from streamrf.data.columns import Columns, Handling
    from streamrf.data.source import Source
    from streamrf.engines.cluster import ClusterEngine
    from streamrf.models.model import UntrainedModel
    from streamrf.support.progress import Reporter
    from streamrf.training.run import Settings
    from streamrf.training.update.changes import Work

F = Callable[..., Any]
Options = dict[str, Any]


class Parsed(click.ParamType):
    """A value in words of its own, such as a size (2GB) or a time (5min)."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name, self.parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return self.parse(value)


def stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


features_option = click.option(
    "--features",
    multiple=True,
    metavar="A,B,...",
    shell_complete=complete_column,
    help="Input columns; all but the target by default.",
)
exclude_option = click.option(
    "--exclude",
    multiple=True,
    metavar="A,B,...",
    shell_complete=complete_column,
    help="Columns to leave out, also as 'id_*'; repeat for more.",
)

reading_options = stack(
    click.option("--delimiter", metavar="CHAR",
                 help="Between fields of CSV: a character or tab; found in the first lines by default."),
    click.option("--header/--no-header", default=None,
                 help="Whether CSV begins with names; found in the first line by default."),
    click.option("--null", multiple=True, metavar="WORD", help="A word for missing in CSV, besides NA, null, ?, ..."),
    click.option("--encoding", metavar="NAME", help="Encoding of CSV, such as latin-1; UTF-8 by default."),
    click.option("--decimal", type=click.Choice([".", ","]), help="Decimal mark of CSV; a point by default."),
    click.option("--dates", multiple=True, metavar="[COLUMN=]ORDER",
                 help="Order of dates such as 31/12/2023 in CSV: DMY or MDY; none is needed where the year is first."),
)  # fmt: skip
cache_option = click.option(
    "--no-cache", is_flag=True, help="Keep no parquet file of CSV and JSON lines for the next run."
)
READING = ("delimiter", "header", "null", "encoding", "decimal", "dates")

data_options = stack(
    click.option("--x", default="X", show_default=True, help="Name of the input array (zarr, npy)."),
    click.option("--y", default="y", show_default=True, help="Name of the target array (zarr, npy)."),
    click.option("--target", multiple=True, metavar="COLUMN", shell_complete=complete_column,
                 help="Target column; repeat for several outputs."),
    features_option, exclude_option, reading_options, cache_option,
)  # fmt: skip

_CODING = (
    click.option("--categories", type=click.Choice(["auto", "onehot", "target", "ordinal", "error"]), default="auto",
                 show_default=True,
                 help="How to code text columns (tables); auto is onehot for few levels, target for many."),
    click.option("--max-levels", type=int, metavar="N",
                 help="Most distinct values of a one-hot (auto: 30) or ordinal category; 10,000 by default."),
    click.option("--categorical", metavar="A,B,...", shell_complete=complete_column,
                 help="Numeric columns that are categories."),
)  # fmt: skip

column_options = stack(
    *_CODING,
    click.option("--missing", type=click.Choice(["auto", "median", "error"]), default="auto", show_default=True,
                 help="Missing inputs (parquet): the median with a flag column (auto), or as --nan says (error)."),
)  # fmt: skip

conversion_column_options = stack(
    *_CODING,
    click.option("--missing", type=click.Choice(["auto", "median", "error", "keep"]), default="auto",
                 show_default=True,
                 help="Missing inputs: the median with a flag column (auto), an error, or kept as NaN (zarr)."),
)  # fmt: skip

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output, nothing else."
)
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
verbose_option = click.option("--verbose", "-v", is_flag=True, help="Show every trial and every detail of the run.")
threads_option = click.option("--threads", type=click.IntRange(min=1), help="Threads to use; all cores by default.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace existing output.")
run_options = stack(threads_option, json_option, quiet_option, verbose_option)

checkpoint_options = stack(
    click.option("--checkpoint", metavar="DIR", help="Where to write checkpoints; OUT.checkpoint by default."),
    click.option("--checkpoint-every", type=Parsed("time", parse_seconds), default="5min", show_default=True,
                 help="Time between checkpoints; longer where saving would take over 5 % of the run."),
    click.option("--no-checkpoint", is_flag=True, help="Write no checkpoints."),
    click.option("--resume", is_flag=True, help="Fail unless there is a checkpoint to resume from."),
)  # fmt: skip

cluster_options = stack(
    click.option("--scheduler", metavar="ADDRESS",
                 help="Use a Dask cluster: tcp://HOST:8786, tls://..., or the scheduler's file."),
    click.option("--workers", type=click.IntRange(min=1), help="Start this many worker processes on this machine."),
    click.option("--tls-ca", metavar="FILE", help="Certificate of the authority, for tls:// schedulers."),
    click.option("--tls-cert", metavar="FILE", help="Our certificate, for tls:// schedulers."),
    click.option("--tls-key", metavar="FILE", help="The key of our certificate."),
)  # fmt: skip

memory_option = click.option(
    "--memory", type=Parsed("size", parse_bytes), help="Budget such as 2GB; 80 % of free memory by default."
)
weight_option = click.option(
    "--sample-weight", metavar="NAME", help="Array (zarr, npy) or column (parquet) of weights."
)
holdout_options = stack(
    click.option("--holdout-by", metavar="COLUMN", help="Column whose groups are never on both sides of the hold-out."),
    click.option(
        "--holdout-after", metavar="COLUMN[=VALUE]",
        help="Column, such as a date, whose last rows judge; with a value, those after it.",
    ),
)  # fmt: skip
shards_argument = click.argument("data", nargs=-1, required=True, type=Place())
model_argument = click.argument("model", type=click.Path())
pass_options = stack(memory_option, checkpoint_options, cluster_options, run_options)


# -- data


def open_data(
    data: tuple[str, ...],
    options: Options,
    *,
    need_targets: bool | None = True,
    known: UntrainedModel | None = None,
    reporter: Reporter | None = None,
    scan_rows: int | None = None,
    shows: bool = False,
) -> Source:
    """The source that the data options describe.

    The model ``known`` fills in what is not given: features, their coding, targets. Without it, columns that are not
    plain numbers are scanned (``scan_rows`` of their rows, or all) and coded as the column options say. ``shows``
    prints a table of its columns first.
    """
    from streamrf.data.columns import known_choice
    from streamrf.data.open import learn_coding, open_source
    from streamrf.data.source import check_reading

    reading = make_reading(options, known)
    place, keeps = readable_data(data, reading, reporter or reporter_for(options))
    defaults: Options = known_choice(known)
    choice = {
        "y": options["y"], "target": list(options["target"]) or defaults.get("target"),
        "features": list(options["features"]) or defaults.get("features"),
        "exclude": list(options["exclude"]), "need_targets": need_targets,
        "sample_weight": options.get("sample_weight"),
    }  # fmt: skip
    columns: Columns | None = defaults.get("columns")
    if shows:
        _show_columns(place, choice, reporter or reporter_for(options))
    if known is None:
        columns = learn_coding(place, make_handling(options), reporter, rows=scan_rows, **choice)
    keys: Options = {name: options[name] for name in ("holdout_by", "holdout_after") if options.get(name)}
    if "=" in keys.get("holdout_after", ""):
        keys["holdout_after"] = tuple(keys["holdout_after"].rsplit("=", 1))
    source = open_source(place, x=options["x"], columns=columns, **choice, **keys)
    source.keeps, source.reading = (*source.keeps, *keeps), source.reading or reading.meanings
    _refuse_arrays(options, source)
    check_reading(source, options.get("memory"))
    return source


def _show_columns(place: Any, choice: Options, reporter: Reporter) -> None:
    """What was understood of a table, before it is used."""
    from streamrf.data.columns import names_of
    from streamrf.data.open import raw_columns

    table = raw_columns(place)
    if table is not None:
        from streamrf.data.overview import overview, overview_lines

        targets = names_of(choice["target"] or choice["y"])
        reporter.note("\n".join(overview_lines(overview(table, targets))))


def readable_data(data: Sequence[str], reading: Reading, reporter: Reporter) -> tuple[Any, list[object]]:
    """What was named, with files of text as parquet; and folders that must live as long as it is used."""
    from streamrf.data.open import readable

    return readable(list(data) if len(data) > 1 else data[0], reading, reporter)


def make_reading(options: Options, known: UntrainedModel | None = None) -> Reading:
    """How files of text are read: as the options say, and where they say nothing as a model was trained."""
    from streamrf.data.cache import Reading

    return Reading(reading_given(options), not options.get("no_cache"), known.reading if known else {})


def reading_given(options: Options) -> Options:
    """The options of readers that were given."""
    return {name: options[name] for name in READING if options.get(name) not in (None, ())}


# Options that choose or code columns, and their defaults.
_OF_COLUMNS = {
    "target": (), "features": (), "exclude": (), "categories": "auto", "max_levels": None, "categorical": None,
    "missing": "auto",
}  # fmt: skip


def _refuse_arrays(options: Options, source: Source) -> None:
    """Refuse to choose or code columns of an array, which is read whole."""
    array = source.first_array()
    given = [name for name, default in _OF_COLUMNS.items() if options.get(name, default) != default]
    if given and array is not None:
        raise InputError(
            f"{flag(given[0])} is about columns of parquet files, and {array.location} is not parquet: name its arrays"
            f" with --x and --y, or convert it first: streamrf convert {array.location} OUT.parquet"
        )


def make_handling(options: Options) -> Handling:
    """How columns that are not plain numbers are to be coded."""
    from streamrf.data.columns import Handling

    missing = options.get("missing", "auto")
    if missing == "auto" and options.get("nan", "auto") != "auto":
        missing = "error"  # who says what becomes of rows with gaps wants them not to be filled
    return Handling(
        options.get("categories", "auto"), "error" if missing == "keep" else missing, options.get("max_levels"),
        tuple(listed(options.get("categorical")) or ()),
    )  # fmt: skip


def listed(text: str | None) -> list[str] | None:
    """The parts of a list with commas, those that have one in quotes; None if there are none."""
    parts = next(csv.reader([text or ""], skipinitialspace=True), [])
    return [part.strip() for part in parts if part.strip()] or None


def whole_numbers(option: str, text: str) -> list[int]:
    """The value of an option that lists whole numbers."""
    parts = listed(text)
    if not parts or not all(part.isdecimal() for part in parts):
        raise InputError(f"{option} must be whole numbers separated by commas, such as 0,2 or 50,100, not {text}")
    return [int(part) for part in parts]


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# -- the run


def reporter_for(options: Options) -> Reporter:
    from streamrf.cli.display import make_reporter

    quiet = bool(options.get("quiet") or options.get("as_json"))
    return make_reporter(quiet=quiet, verbose=bool(options.get("verbose")))


def make_settings(options: Options, out: Path | None = None) -> Settings:
    """How the pass is carried out, from the run, memory and checkpoint options."""
    from streamrf.training.pilot.log import can_resume
    from streamrf.training.run import Settings

    settings = Settings(threads=options["threads"], memory=options.get("memory"), clear=False)
    if out is None or "checkpoint" not in options:
        return settings
    if not options["no_checkpoint"]:
        settings.checkpoint = options["checkpoint"] or out.with_name(out.name + ".checkpoint")
    settings.checkpoint_every = options["checkpoint_every"]
    if options["resume"] and not (settings.checkpoint and can_resume(settings.checkpoint)):
        raise InputError(f"--resume: there is no checkpoint at {settings.checkpoint}; leave it out to start a new run")
    return settings


@contextmanager
def working(options: Options, out: Path | None = None) -> Iterator[Work]:
    """Threads, reporter and settings, the engine of a cluster if there is one, and a checkpoint that success clears."""
    from streamrf.support.threads import Threads
    from streamrf.training.run import clear_checkpoint
    from streamrf.training.update.changes import Work

    settings, reporter = make_settings(options, out), reporter_for(options)
    with Threads(settings.threads) as threads, cluster_engine(options, reporter, threads.count) as settings.engine:
        yield Work(threads, settings, reporter)
    clear_checkpoint(settings)


@contextmanager
def cluster_engine(options: Options, reporter: Reporter, threads: int) -> Iterator[ClusterEngine | None]:
    """The engine of the cluster that the options name; None without them, and Dask is not loaded."""
    address = {name: options.get(name) for name in ("scheduler", "workers", "tls_ca", "tls_cert", "tls_key")}
    if not (address["scheduler"] or address["workers"]):
        if any(address.values()):
            raise InputError("certificates are for a cluster: give --scheduler tls://HOST:PORT too")
        yield None
        return
    from streamrf.cli.connection import Address, connect
    from streamrf.engines.cluster import ClusterEngine

    with connect(Address(**address, threads=threads, memory=options.get("memory"))) as client:
        engine = ClusterEngine(client)
        reporter.note(engine.describe())
        yield engine


def print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, allow_nan=False))
