"""Commands on statistics that were summed apart: `streamrf prepare`, `accumulate`, `merge` and `solve`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamrf.cli import options as shared
from streamrf.cli.display import say
from streamrf.cli.help import GroupedCommand
from streamrf.cli.recipe_options import make_recipe, recipe_options

if TYPE_CHECKING:
    from streamrf.models.model import Model
    from streamrf.training.update.statistics import Statistics

ridges_option = click.option(
    "--lambda", "ridge", type=float, multiple=True,
    help="Ridge penalty; generalised cross-validation (GCV) chooses among several, or among all by default.",
)  # fmt: skip


def _out_options(help: str, *, required: bool = True) -> Any:
    return shared.stack(click.option("--out", required=required, type=click.Path(), help=help), shared.overwrite_option)


def _place(options: shared.Options, default: str | Path = "") -> tuple[Path, bool]:
    """Where the result goes, and whether it may replace something; fails if there is something it may not."""
    from streamrf.support.storage.archive import check_target

    out, overwrite = Path(options["out"] or default), options["overwrite"]
    check_target(out, overwrite)
    return out, overwrite


@click.command("prepare", cls=GroupedCommand)
@shared.shards_argument
@shared.data_options
@shared.column_options
@recipe_options
@click.option("--classes", metavar="A,B,...", help="All labels, if this data may lack some.")
@shared.memory_option
@_out_options("Where it goes, such as recipe.prepared.")
@shared.run_options
def prepare_command(data: tuple[str, ...], **options: Any) -> None:
    """Fix recipe, scaling, map and target coding once, on DATA, so that several sites can start from the same map.

    \b
    Examples:
      streamrf prepare sample.zarr --D 5000 --out recipe.prepared
      streamrf prepare sample.parquet --target label --classes cat,dog,bird --out recipe.prepared
    """
    from streamrf.training.run import chosen
    from streamrf.training.update.changes import prepare
    from streamrf.training.update.statistics import save_prepared

    out, overwrite = _place(options)
    source, labels = shared.open_data(data, options), shared.listed(options["classes"])
    with shared.working(options) as work:
        prepared = prepare(source, make_recipe(options), work, classes=tuple(labels) if labels else None)
    save_prepared(prepared, out, overwrite=overwrite)
    facts = {"prepared": str(out), "classes": len(prepared.coding.classes) or None}
    settled = chosen(prepared.recipe)
    if options["as_json"]:
        shared.print_json({**facts, "digests": prepared.pipeline.digests(), "chosen": settled})
    else:
        show({**facts, **{f"chosen {name}": value for name, value in settled.items()}})


@click.command("accumulate")
@click.argument("prepared", type=click.Path())
@shared.shards_argument
@shared.data_options
@_out_options("Where the statistics go, such as site.stats.")
@shared.pass_options
def accumulate_command(prepared: str, data: tuple[str, ...], **options: Any) -> None:
    """Sum the statistics of DATA with the settings of PREPARED (or of a model or statistics), without solving.

    The statistics hold sums and a ledger of shards, and no row of the data.

    \b
    Examples:
      streamrf accumulate recipe.prepared north.zarr --out north.stats
      streamrf merge north.stats south.stats --out both.model
    """
    from streamrf.training.update.changes import accumulate
    from streamrf.training.update.statistics import load_prepared

    start, (out, overwrite) = time.monotonic(), _place(options)
    fixed = load_prepared(prepared)
    source = shared.open_data(data, options, known=fixed)
    with shared.working(options, out) as work:
        statistics = accumulate(fixed, source, work)
        statistics.save(out, overwrite=overwrite)
    answer(options, report(statistics, None, out, seconds=time.monotonic() - start))


@click.command("merge")
@click.argument("parts", nargs=-1, required=True, type=click.Path())
@_out_options("Where the model goes.")
@click.option("--minus", multiple=True, type=click.Path(), help="Statistics to subtract; may be repeated.")
@ridges_option
@click.option("--statistics-only", is_flag=True, help="Write statistics, and solve nothing.")
@shared.memory_option
@shared.run_options
def merge_command(parts: tuple[str, ...], **options: Any) -> None:
    """Make one model of PARTS: statistics, or models with theirs, that were summed apart. No data is read.

    Refused if map, scaling or target coding differ, or if two parts have rows in common. The order of the parts does
    not change a bit of the result.

    \b
    Examples:
      streamrf merge north.stats south.stats --out both.model
      streamrf merge window.model tuesday.stats --minus last-tuesday.stats --out window.model --overwrite
    """
    from streamrf.support.errors import InputError
    from streamrf.support.threads import Threads
    from streamrf.training.update.changes import combine
    from streamrf.training.update.statistics import check_budget

    minus = options["minus"]
    if options["statistics_only"] and options["ridge"]:
        raise InputError("--statistics-only solves nothing: leave out --lambda")
    out, overwrite = _place(options)
    check_budget([*parts, *minus], options["memory"], states=2)
    statistics = combine(parts, minus)
    with Threads(options["threads"]) as threads:
        model = None if options["statistics_only"] else statistics.solve(*options["ridge"], threads=threads)
    write(statistics, model, out, overwrite)
    answer(options, report(statistics, model, out, parts=len(parts), subtracted=len(minus)))


@click.command("solve")
@click.argument("statistics", type=click.Path())
@ridges_option
@click.option("--outputs", metavar="0,2,...", help="Only these targets, numbered from 0.")
@_out_options("Where the model goes; NAME.model by default.", required=False)
@click.option("--no-statistics", is_flag=True, help="Leave out the sums that allow update, forget and merge.")
@shared.memory_option
@shared.run_options
def solve_command(statistics: str, **options: Any) -> None:
    """Solve STATISTICS (or those of a model) with other lambdas or for fewer targets, without reading data.

    \b
    Examples:
      streamrf solve site.stats
      streamrf solve data.model --lambda 1e-5 --out softer.model
      streamrf solve data.model --lambda 1e-4 --lambda 1e-6 --outputs 0,2 --out two.model --json
    """
    from streamrf.support.threads import Threads
    from streamrf.training.update.statistics import Statistics, check_budget

    out, overwrite = _place(options, Path(statistics).with_suffix(".model"))
    check_budget([statistics], options["memory"], states=2 if options["outputs"] else 1)
    sums = Statistics.load(statistics)
    if options["outputs"]:
        sums = sums.select(shared.whole_numbers("--outputs", options["outputs"]))
    with Threads(options["threads"]) as threads:
        model = sums.solve(*options["ridge"], threads=threads)
    model.save(out, state=None if options["no_statistics"] else sums.state, overwrite=overwrite)
    answer(options, report(sums, model, out, outputs=sums.prepared.coding.outputs))


# -- results


def write(statistics: Statistics, model: Model | None, out: Path, overwrite: bool) -> None:
    """Write a model with its statistics, or the statistics alone."""
    if model is None:
        statistics.save(out, overwrite=overwrite)
    else:
        model.save(out, state=statistics.state, overwrite=overwrite)


def report(statistics: Statistics, model: Model | None, out: Path, **facts: Any) -> dict[str, Any]:
    """The `--json` object."""
    found: dict[str, Any] = {"statistics" if model is None else "model": str(out), **facts}
    found |= {"rows": statistics.rows, "shards": len(statistics.ledger.shards()), "dropped": statistics.dropped}
    if model is not None:
        found |= {"lambda": model.weights.ridge, "lambda_path": model.metadata.get("lambda_path")}
    return found | {"exact": statistics.exact, "statistics_digest": statistics.digest()}


def answer(options: shared.Options, found: dict[str, Any]) -> None:
    (shared.print_json if options["as_json"] else show)(found)


def show(found: dict[str, Any]) -> None:
    from streamrf.cli.display import print_table

    print_table([(name.replace("_", " "), _short(value)) for name, value in found.items() if value is not None])
    if not found.get("exact", True):
        say("float features: their sums are rounded, so the result is exact only up to rounding", err=True)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} tried"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
