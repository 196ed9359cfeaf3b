"""`streamrf convert`."""

from __future__ import annotations

import time
from typing import Any

import click

from streamrf.cli import options as shared
from streamrf.cli.display import say

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
@shared.features_option
@shared.exclude_option
@click.option("--x", default="X", show_default=True, help="Name of the input array (npz, hdf5, npy, zarr).")
@click.option("--y", default="y", show_default=True, help="Name of the target array, or column without --target.")
@shared.conversion_column_options
@shared.reading_options
@click.option("--n-features", type=int, metavar="N", help="Columns of a LIBSVM file, if its own rows have fewer.")
@click.option("--chunk-rows", type=int, metavar="N", help="Rows of a chunk or row group; about 16 MB by default.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="Type of X in zarr; as in IN by default.")
@shared.memory_option
@shared.overwrite_option
@shared.json_option
@shared.quiet_option
def convert_command(source: str, out: str, **options: Any) -> None:  # fmt: skip
    """Convert IN to OUT, chunked .zarr or .parquet, in bounded memory.

    IN is CSV, JSON lines or LIBSVM text (also .gz, .bz2, .xz), parquet, Arrow or Feather, npy, npz, HDF5 or zarr;
    a folder or a pattern of files of text becomes one table.
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
    lines = {} if options["n_features"] is None else {"n_features": options["n_features"]}
    asked = Conversion(
        options={**shared.reading_given(options), **lines},
        handling=shared.make_handling(options), keep_missing=options["missing"] == "keep",
        target=list(options["target"]) or None, features=list(options["features"]) or None,
        exclude=list(options["exclude"]), **{name: options[name] for name in KEPT},
    )  # fmt: skip
    made = convert(source, out, asked, overwrite=options["overwrite"], reporter=shared.reporter_for(options))
    seconds = time.monotonic() - start
    if options["as_json"]:
        shared.print_json({**made, "seconds": seconds})
        return
    what = f"{format_count(made['rows'])} rows of {format_count(made['columns'])} columns"
    say(f"{what} to {out}, {format_count(made['chunk_rows'])} rows a chunk, {seconds:.1f} s")
