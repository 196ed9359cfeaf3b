"""`streamrf convert`."""

from __future__ import annotations

import time
from typing import Any

import click

from streamrf.cli import options as shared

KEPT = ("x", "y", "form", "chunk_rows", "dtype", "memory")  # options that a Conversion has under the same name


@click.command("convert")
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT", type=click.Path())
@click.option(
    "--from",
    "form",
    help="Format of IN, if its ending does not tell.",
    type=click.Choice(["csv", "jsonl", "arrow", "parquet", "libsvm", "npz", "hdf5", "npy", "zarr"]),
)
@click.option("--target", multiple=True, metavar="COLUMN", help="Target column; repeat for several outputs.")
@click.option("--features", metavar="A,B,...", help="Input columns; all but the target by default.")
@click.option("--exclude", metavar="A,B,...", help="Columns to leave out.")
@click.option("--x", default="X", show_default=True, help="Name of the input array (npz, hdf5, npy, zarr).")
@click.option("--y", default="y", show_default=True, help="Name of the target array, or column without --target.")
@shared.conversion_column_options
@click.option(
    "--delimiter", metavar="CHAR", help="Between fields of CSV: a character or tab; read from line 1 by default."
)
@click.option("--header/--no-header", default=None, help="Whether CSV begins with names; read from line 1 by default.")
@click.option("--null", multiple=True, metavar="WORD", help="A word for missing in CSV, besides NA, null, ...")
@click.option("--n-features", type=int, metavar="N", help="Columns of a LIBSVM file, if its own rows have fewer.")
@click.option("--chunk-rows", type=int, metavar="N", help="Rows of a chunk or row group; about 16 MB by default.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="Type of X in zarr; as in IN by default.")
@shared.memory_option
@shared.overwrite_option
@shared.json_option
@shared.quiet_option
def convert_command(source: str, out: str, **options: Any) -> None:  # fmt: skip
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
    from streamrf.data.convert import Conversion, convert
    from streamrf.support.units import format_count

    start = time.monotonic()
    reading = {name: options[name] for name in ("delimiter", "header", "null", "n_features")}
    asked = Conversion(
        options={name: value for name, value in reading.items() if value not in (None, ())},
        handling=shared.make_handling(options), keep_missing=options["missing"] == "keep",
        target=list(options["target"]) or None, features=shared.listed(options["features"]),
        exclude=shared.listed(options["exclude"]) or [], **{name: options[name] for name in KEPT},
    )  # fmt: skip
    made = convert(source, out, asked, overwrite=options["overwrite"], reporter=shared.reporter_for(options))
    seconds = time.monotonic() - start
    if options["as_json"]:
        shared.print_json({**made, "seconds": seconds})
        return
    what = f"{format_count(made['rows'])} rows of {format_count(made['columns'])} columns"
    click.echo(f"{what} to {out}, {format_count(made['chunk_rows'])} rows a chunk, {seconds:.1f} s")
