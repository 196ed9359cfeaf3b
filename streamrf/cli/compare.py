"""`streamrf compare`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from streamrf.cli import options as shared
from streamrf.cli.display import say
from streamrf.cli.recipe_options import gamma_option, make_recipe, nan_option, task_option

if TYPE_CHECKING:
    from streamrf.reports.comparison import Cell, Comparison


@click.command("compare")
@shared.shards_argument
@shared.data_options
@shared.column_options
@click.option("--maps", metavar="A,B,...", help="Maps to compare, or binning. By default all that are not learned.")
@click.option("--D", "D", default="50,100,200,400", show_default=True, metavar="N,N,...", help="Numbers of features.")
@click.option(
    "--kernel",
    default="gaussian",
    show_default=True,
    help="gaussian, laplacian, cauchy, matern12, matern32, matern52 or matern:NU.",
)
@click.option("--length-scale", type=float, help="Width of the kernel; by default its median value is 1/e.")
@gamma_option
@click.option("--scaling", default="standard", show_default=True, help="none, standard, minmax, quantile, log or pca.")
@click.option(
    "--form",
    type=click.Choice(["phase", "pairs"]),
    default="pairs",
    show_default=True,
    help="cos and sin pairs (two features a frequency), or cos(w'x + b).",
)
@click.option("--bits", default="12", show_default=True, help="Precision of features: 7, 8, 12, float32 or float64.")
@click.option("--rows", type=int, default=2000, show_default=True, help="Rows to fit on, and as many to measure on.")
@click.option("--seeds", type=int, default=3, show_default=True, help="Draws of each map.")
@click.option("--seed", type=int, default=0, show_default=True, help="The first seed.")
@task_option
@nan_option
@click.option(
    "--landmarks", metavar="N,N,...", help="Numbers of landmarks for learned maps; --plot draws errors against them."
)
@click.option("--plot", type=click.Path(), metavar="FILE", help="Draw errors against D: a .png, .svg or .pdf file.")
@click.option(
    "--frequencies", type=click.Path(), metavar="FILE", help="Draw the frequencies of --maps, coloured by weight."
)
@shared.overwrite_option
@shared.run_options
def compare_command(data: tuple[str, ...], **options: Any) -> None:  # fmt: skip
    """Compare feature maps on a sample of DATA.

    For each map and number of features: the relative error of its kernel, the hold-out error of a small ridge fit, and
    the time per row on one thread.

    \b
    Examples:
      streamrf compare data.zarr
      streamrf compare data.zarr --maps mc,orthogonal,sobol --D 50,100,200 --plot errors.svg
      streamrf compare table.parquet --target price --kernel laplacian --json
      streamrf compare data.zarr --D 100 --landmarks 10,50,250 --plot landmarks.svg
      streamrf compare data.zarr --maps mc,ekal-cluster --D 400 --frequencies frequencies.png
    """
    from streamrf.cli.display import in_flags
    from streamrf.reports.comparison import compare
    from streamrf.reports.plots import check_picture
    from streamrf.support.threads import Threads

    plot, drawn, overwrite = options["plot"], options["frequencies"], options["overwrite"]
    Ds = shared.whole_numbers("--D", options["D"])
    landmarks = None if options["landmarks"] is None else shared.whole_numbers("--landmarks", options["landmarks"])
    for picture in filter(None, (plot, drawn)):
        check_picture(picture, overwrite=overwrite)
    source = shared.open_data(data, options)
    recipe = make_recipe({**options, "D": Ds[0], "map": "auto", "landmarks": None})
    with Threads(options["threads"]) as threads:
        found = compare(
            source, recipe, kinds=shared.listed(options["maps"]), Ds=Ds, seeds=options["seeds"], rows=options["rows"],
            landmarks=landmarks, threads=threads, reporter=shared.reporter_for(options),
        )  # fmt: skip
    found = replace(found, skipped={kind: in_flags(reason) for kind, reason in found.skipped.items()})
    _draw(found, plot, drawn, overwrite)
    if options["as_json"]:
        shared.print_json({"data": source.describe(), **found.to_json(), "plot": plot, "frequencies": drawn})
    else:
        show(found, plot, drawn)


def _draw(found: Comparison, plot: str | None, drawn: str | None, overwrite: bool) -> None:
    """Write the pictures that the options ask for."""
    if not (plot or drawn):
        return
    from streamrf.reports.comparison_plots import comparison_figure, landmarks_figure, spectra, spectra_figure
    from streamrf.reports.plots import save

    if plot:
        swept = any(cell.landmarks for cell in found.cells)
        save((landmarks_figure if swept else comparison_figure)(found), plot, overwrite=overwrite)
    if drawn and found.bench is not None:
        kinds, D = list(dict.fromkeys(cell.map for cell in found.cells)), max(cell.D for cell in found.cells)
        save(spectra_figure(spectra(found.bench, kinds, D, found.seeds[0])), drawn, overwrite=overwrite)


def show(found: Comparison, plot: str | None, drawn: str | None = None) -> None:
    """For each D a block of lines, the smallest kernel error first."""
    from streamrf.support.units import format_seconds

    kernel = found.kernel
    say(
        f"{kernel.label} kernel, length scale {kernel.length_scale:.4g} on {found.recipe.scaling} inputs, features as"
        f" {found.recipe.form}, fitted on {found.rows['fitted']} rows, measured on {found.rows['measured']} others,"
        f" {len(found.seeds)} seeds, {format_seconds(found.seconds)}\n"
    )
    metric = "hold-out wrong" if found.metric == "error" else "hold-out RMSE"
    say(f"{'D':>7}  {'map':17} {'kernel error':>17} {metric:>21} {'us/row':>8}")
    places = _places(cell.holdout_error.mean for cell in found.cells)
    for D in sorted({cell.D for cell in found.cells}):
        for cell in sorted((c for c in found.cells if c.D == D), key=lambda c: c.kernel_error.mean):
            say(_line(cell, places))
        say()
    for kind, reason in found.skipped.items():
        say(f"left out: {kind}: {reason}")
    for picture in filter(None, (plot, drawn)):
        say(f"picture: {picture}")


def _places(values: Iterable[float]) -> int:
    """Decimals that give the largest of these four digits."""
    largest = max(values)
    return max(0, 3 - math.floor(math.log10(largest))) if largest > 0 else 3


def _line(cell: Cell, places: int) -> str:
    kernel, holdout = cell.kernel_error, cell.holdout_error
    error = f"{holdout.mean:.{places}f} ± {holdout.deviation:.{places}f}"
    name = cell.map if cell.landmarks is None else f"{cell.map} {cell.landmarks}"
    return f"{cell.D:7d}  {name:17} {kernel.mean:8.4f} ± {kernel.deviation:.4f} {error:>21} {cell.microseconds:8.3f}"
