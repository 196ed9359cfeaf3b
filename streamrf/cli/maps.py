"""Which map the options ask for: Fourier features, random binning, or whichever of them the pilot finds better."""

from __future__ import annotations

from typing import Any

import click

DEFAULT_D = 2000
# What both maps have; where neither --map nor --D is given, any other setting asks for Fourier features.
SHARED = ("D", "map", "grids", "table_bits", "scaling", "task", "holdout", "nan", "seed")
NOT_OF_BINNING = {"D": "--grids", "form": "nothing in its place", "bits": "nothing in its place"}

grids_option = click.option(
    "--grids", type=int, metavar="P", help="--map binning: number of random grids (100 to 400, fewer for more rows)."
)
table_bits_option = click.option(
    "--table-bits", type=int, metavar="B", help="--map binning: 2^B slots for each grid (for a quarter of the rows)."
)


def settle_map(options: dict[str, Any], *, comparable: bool = True) -> None:
    """Fill in map and D. With neither given, the pilot compares Fourier features and random binning, if it may."""
    given = {name for name in ("grids", "table_bits") if options.get(name) is not None}
    if options["map"] == "auto" and options["D"] is None and (given or options["kernel"].startswith("bins:")):
        options["map"] = "binning"
    if options["map"] == "binning":
        _refuse_fourier(options)
    elif given:
        _refuse_grids(options, sorted(given)[0])
    elif options["map"] == "auto" and options["D"] is None and comparable and not _asks_for_fourier(options):
        options["map"] = "any"
    options["D"] = DEFAULT_D if options["D"] is None else options["D"]


def _asks_for_fourier(options: dict[str, Any]) -> bool:
    from dataclasses import fields

    from streamrf.recipe import Recipe

    settings = {field.name: field.default for field in fields(Recipe) if field.name not in SHARED}
    given = {name for name, default in settings.items() if options.get(name, default) != default}
    return bool(given) or options.get("gamma") is not None


def _refuse_fourier(options: dict[str, Any]) -> None:
    from streamrf.support.errors import InputError

    for name, instead in NOT_OF_BINNING.items():
        if options.get(name) not in (None, "auto"):
            raise InputError(f"--{name} {options[name]} is about Fourier features: --map binning has {instead}")


def _refuse_grids(options: dict[str, Any], name: str) -> None:
    from streamrf.support.errors import InputError

    what = f"--{name.replace('_', '-')} {options[name]}"
    why = f"--map {options['map']}" if options["map"] != "auto" else f"--D {options['D']}"
    raise InputError(f"{what} is about random binning, and {why} asks for Fourier features: give one of them")
