"""Options about columns that are not plain numbers, and the coding they ask for."""

from __future__ import annotations

from typing import Any

import click

from streamrf.cli.options import _names, _stack

_COMMON = (
    click.option("--categories", type=click.Choice(["auto", "onehot", "ordinal", "error"]), default="auto",
                 show_default=True, help="What becomes of text columns (tables); auto is onehot."),
    click.option("--max-levels", type=int, metavar="N",
                 help="Different values a category may have; 100 by default, 10,000 for ordinal."),
    click.option("--categorical", metavar="A,B,...", help="Columns of numbers that are categories."),
)  # fmt: skip

column_options = _stack(
    *_COMMON,
    click.option("--missing", type=click.Choice(["error", "median"]), default="error", show_default=True,
                 help="Missing inputs (parquet): left to --nan, or the median with a flag column."),
)  # fmt: skip

conversion_column_options = _stack(
    *_COMMON,
    click.option("--missing", type=click.Choice(["error", "median", "keep"]), default="error", show_default=True,
                 help="Missing inputs: refused, the median with a flag column, or kept as NaN (zarr)."),
)  # fmt: skip

# Options that choose or code columns, and what they are where nothing is asked.
_SILENT = {
    "target": (), "features": None, "exclude": None, "categories": "auto", "max_levels": None, "categorical": None,
    "missing": "error",
}  # fmt: skip


def asked_of_columns(options: dict[str, Any]) -> list[str]:
    """Which options about columns were given."""
    return [f"--{name.replace('_', '-')}" for name, silent in _SILENT.items() if options.get(name, silent) != silent]


def refuse_arrays(asked: list[str], source: Any) -> None:
    """InputError where columns are to be chosen or coded and a part of the source is an array, which is read whole."""
    from streamrf.support.errors import InputError

    array = source.first_array()
    if asked and array is not None:
        raise InputError(
            f"{asked[0]} is about columns of parquet files, and {array.location} is not parquet: name its arrays with"
            f" --x and --y, or make parquet of it first, streamrf convert {array.location} OUT.parquet"
        )


def pop_handling(options: dict[str, Any]) -> Any:
    """What the column options ask for; taken out of the others."""
    from streamrf.data.columns import Handling

    missing = options.pop("missing", "error")
    return Handling(
        options.pop("categories", "auto"), "error" if missing == "keep" else missing, options.pop("max_levels", None),
        tuple(_names(options.pop("categorical", None)) or ()),
    )  # fmt: skip
