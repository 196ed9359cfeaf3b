"""`streamrf convert`."""

from __future__ import annotations

import time
from typing import Any

import click

from streamrf.cli.columns import conversion_column_options, pop_handling
from streamrf.cli.options import _names, memory_option, print_json


@click.command("convert")
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT", type=click.Path())
@click.option(
    "--from",
    "form",
    type=click.Choice(["csv", "jsonl", "arrow", "parquet", "libsvm", "npz", "hdf5", "npy", "zarr"]),
    help="Format of IN, where its ending does not tell.",
)
@click.option("--target", multiple=True, metavar="COLUMN", help="Target column; repeat for several outputs.")
@click.option("--features", metavar="A,B,...", help="Input columns; all but the target by default.")
@click.option("--exclude", metavar="A,B,...", help="Columns to leave out.")
@click.option("--x", default="X", show_default=True, help="Name of the input array (npz, hdf5, npy, zarr).")
@click.option("--y", default="y", show_default=True, help="Name of the target array, or column without --target.")
@conversion_column_options
@click.option(
    "--delimiter", metavar="CHAR", help="Between fields of CSV: a character or tab; told from line 1 by default."
)
@click.option("--header/--no-header", default=None, help="Whether CSV begins with names; told from line 1 by default.")
@click.option("--null", multiple=True, metavar="WORD", help="A word for missing in CSV, besides NA, null, ...")
@click.option("--n-features", type=int, metavar="N", help="Columns of a LIBSVM file, where its own rows have fewer.")
@click.option("--chunk-rows", type=int, metavar="N", help="Rows of a chunk or row group; about 16 MB by default.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="Type of X in zarr; as in IN by default.")
@memory_option
@click.option("--overwrite", is_flag=True, help="Replace an output that is there already.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def command(source: str, out: str, **options: Any) -> None:  # fmt: skip
    """Convert IN to OUT, chunked .zarr or .parquet, in bounded memory.

    IN is CSV, JSON lines or LIBSVM text (also .gz, .bz2, .xz), parquet, Arrow or Feather, npy, npz, HDF5 or zarr.
    Parquet keeps the columns as they are, to be coded in training; zarr holds numbers, and the coding with them.

    \b
    Examples:
      streamrf convert people.csv people.parquet
      streamrf convert people.csv.gz people.zarr --target income --missing median
      streamrf convert a9a.libsvm a9a.zarr --n-features 123
      streamrf convert images.h5 images.zarr --x train/X --y train/y --memory 2GB
    """
    from streamrf.cli.display import make_reporter
    from streamrf.data.convert import Conversion, convert
    from streamrf.support.units import format_count

    start = time.monotonic()
    as_json, quiet, overwrite = (options.pop(name) for name in ("as_json", "quiet", "overwrite"))
    reading = {name: options.pop(name) for name in ("delimiter", "header", "null", "n_features")}
    keep = options["missing"] == "keep"
    asked = Conversion(
        options={name: value for name, value in reading.items() if value not in (None, ())},
        handling=pop_handling(options), keep_missing=keep, target=list(options.pop("target")) or None,
        features=_names(options.pop("features")),
        exclude=_names(options.pop("exclude")) or [], **options,
    )  # fmt: skip
    made = convert(source, out, asked, overwrite=overwrite, reporter=make_reporter(quiet=quiet or as_json))
    seconds = time.monotonic() - start
    if as_json:
        print_json({**made, "seconds": seconds})
        return
    what = f"{format_count(made['rows'])} rows of {format_count(made['columns'])} columns"
    click.echo(f"{what} to {out}, {format_count(made['chunk_rows'])} rows a chunk, {seconds:.1f} s")
