"""`streamrf train` and `streamrf plan`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamrf.cli import options as shared
from streamrf.cli.config import SETTLED
from streamrf.cli.help import GroupedCommand
from streamrf.cli.recipe_options import make_recipe, training_options

if TYPE_CHECKING:
    from streamrf.data.source import Source
    from streamrf.models.model import Model
    from streamrf.recipe import Recipe
    from streamrf.reports.bounds import Assessment, Promise
    from streamrf.solvers.plan import Plan
    from streamrf.training.run import Trained

BESIDE = "auto"  # --report without a name
SCAN_ROWS = 100_000  # of text columns and labels alone: their levels become inputs and outputs
WORTH_TELLING = 1.1  # times the least time


@click.command("train", cls=GroupedCommand)
@training_options
@click.option("--out", type=click.Path(), help="Where the model goes; NAME.model beside the data by default.")
@shared.overwrite_option
@click.option(
    "--no-statistics",
    is_flag=True,
    help="Leave out the sums that allow update, forget and merge. Then --solver auto takes the fastest solver.",
)
@click.option("--report", is_flag=False, flag_value=BESIDE, metavar="[FILE]",
              help="Also write a report on the model: an HTML file, OUT.html by default.")  # fmt: skip
@shared.checkpoint_options
@shared.cluster_options
@shared.run_options
def train_command(data: tuple[str, ...], **options: Any) -> None:
    """Train a model on DATA (CSV, JSON lines, parquet, zarr or npy; several files are one table).

    By default landmarks, random binning and trees are trained, with settings that a pilot chooses on a sample of rows,
    and blended by rows that none has seen. --D sets the number of Fourier features, which are trained alone: the pilot
    chooses scaling, kernel, width and precision, one pass sums the exact statistics, and hold-out rows choose the ridge
    penalty. With --map binning the pilot chooses a width for each column, and each step of the
    solver is a pass.

    \b
    Examples:
      streamrf train sales.csv --target price
      streamrf train data.zarr
      streamrf train data.zarr --D 5000
      streamrf train data.zarr --map binning --grids 50
      streamrf train table.parquet --target price --D 2000 --memory 2GB
      streamrf train jan.zarr feb.zarr --out months.model --json
      streamrf train data.zarr --report --save-config run.toml
      streamrf train --config run.toml
      streamrf train s3://bucket/data.zarr --D 5000 --scheduler tcp://head:8786
    """
    from streamrf.support.storage.archive import check_target
    from streamrf.training.run import Training
    from streamrf.training.warm import compiling

    out, overwrite = Path(options["out"] or default_out(data[0])), options["overwrite"]
    keep_statistics = not options["no_statistics"]
    check_target(out, overwrite)
    page = report_place(options["report"], out, overwrite)
    recipe = make_recipe(options)
    with compiling(recipe):
        source = shared.open_data(data, options, reporter=shared.reporter_for(options), shows=True)
        with shared.working(options, out) as work:
            work.settings.keeps, work.settings.keep_sums = out if keep_statistics else None, keep_statistics
            result = Training(source, recipe, work.settings, work.reporter, work.threads).run()
            typed = command_line(click.get_current_context().obj or ())
            model = replace(result.model, metadata={**result.model.metadata, "command": typed})
            model.save(out, state=result.state if keep_statistics else None, overwrite=overwrite)
            if page:
                from streamrf.reports.report import make_report

                make_report(out, result.source, threads=work.threads).save(page, overwrite=overwrite)
    click.get_current_context().meta[SETTLED] = settled(result.model)
    report = {**summary(out, result), "report": str(page) if page else None}
    if options["as_json"]:
        shared.print_json(report)
    else:
        from streamrf.cli.summary import show

        same = sys.stdout.isatty() and sys.stderr.isatty()  # the run itself has told there
        show(report, verbose=options["verbose"], warned=same and not options["quiet"])


def command_line(args: Sequence[str]) -> str:
    """What was typed, for the report, without secrets in addresses."""
    from streamrf.support.redaction import without_credentials

    return without_credentials(shlex.join(["streamrf", *args]))


def report_place(asked: str | None, out: Path, overwrite: bool) -> Path | None:
    """Where the report goes. Fails now, not after training, if it cannot be drawn or written."""
    if asked is None:
        return None
    from streamrf.reports.report import check_report

    page = out.with_name(f"{out.name}.html") if asked == BESIDE else Path(asked)
    check_report(page, overwrite=overwrite)
    return page


def settled(model: Model) -> dict[str, Any]:
    """The settings that reproduce the model bit for bit; ``pilot`` stays as given. A blend is asked for again, as its
    members are chosen apart: by its name where all were trained. Where the pilot left some out, and trees are among the
    others, what was asked for is asked for again, as which inputs trees see was chosen too."""
    from streamrf.recipe import ANY, BLEND, TREES, Recipe
    from streamrf.solvers.stacking import SOLVERS
    from streamrf.training.pilot.blend import TRAINED
    from streamrf.training.run import idle

    recipe, asked = model.recipe, model.metadata["asked"]
    trained = model.metadata.get(TRAINED, ())
    if asked["map"] == ANY and 0 < len(trained) < len(SOLVERS) and (recipe.map == BLEND or TREES in trained):
        return {name: value for name, value in asked.items() if name not in ("pilot", "D")}
    if recipe.map == BLEND:
        size = {name: getattr(recipe, name) for name in ("map", "D", "grids", "table_bits")}
        recipe = Recipe.from_json({**asked, **size, "budget": None})
    return {name: value for name, value in recipe.to_json().items() if name != "pilot" and name not in idle(recipe)}


def default_out(data: str) -> str:
    """data.zarr -> data.model, part-*.parquet -> part-all.model: beside the data, or here if the data is remote."""
    from streamrf.data.locations import without_query

    pattern = r"[*?]+|\[[^]]*\]"
    path = re.sub(r"\.(gz|bz2|xz|zst)$", "", without_query(data).rstrip("/"), flags=re.IGNORECASE)
    name = path.rpartition("/")[2]
    folder = path[: len(path) - len(name)]
    stem = re.sub(pattern, "all", name).rsplit(".", 1)[0] or "data"
    return f"{stem}.model" if "://" in data or re.search(pattern, folder) else f"{folder}{stem}.model"


def summary(out: Path, result: Trained) -> dict[str, Any]:
    """The `--json` object."""
    from streamrf.support import memory
    from streamrf.training.run import chosen

    model, metadata = result.model, result.model.metadata
    return {
        "model": str(out), "rows": metadata["rows"], "map": model.map.kind, "D": model.map.n_features,
        "bits": model.recipe.bits, "chosen": chosen(model.recipe), "seconds": result.seconds,
        "memory": {"projected": result.plan.projected, "peak": memory.peak(), "budget": result.plan.budget},
        "holdout": metadata["holdout"], "cross_validation": metadata.get("cross_validation"),
        "warnings": metadata["warnings"], "binning": metadata.get("binning"), "learning": metadata.get("learning"),
        "larger_budget": metadata.get("larger_budget"), "members": metadata.get("members"),
        "trees": metadata.get("trees"), "dropped": metadata["dropped"],
        **({"lambda_by_output": metadata["lambda_by_output"]} if "lambda_by_output" in metadata else {}),
        "statistics_digest": metadata["statistics_digest"],
    }  # fmt: skip


# -- plan


@click.command("plan", cls=GroupedCommand)
@training_options
@click.option("--epsilon", type=float, help="Say which D keeps the kernel error below this. Reads a sample of rows.")
@click.option("--delta", type=float, default=0.01, show_default=True, help="Probability that the bound may fail.")
@click.option("--errors", is_flag=True, help="Run the pilot, and show the error to expect of larger budgets of time.")
@shared.cluster_options
@shared.run_options
def plan_command(data: tuple[str, ...], **options: Any) -> None:
    """Estimate the memory, passes and time of training on DATA from sizes and the speed of this machine.

    No row is read, but for the first targets where they may be classes. With nothing set, the pilot finds out how many
    landmarks are enough: times are those of all that it may take, and beside them those of the fewest.

    With --workers or --scheduler, also what each worker would hold, and what the smallest of them has.

    --epsilon reads a sample of rows, as the pilot does. It gives the diameter of the data, on which the bound of Rahimi
    and Recht depends, and the measured error of D features.

    --errors reads a sample of rows too and runs the pilot on it: the errors of its trials tell what a larger --budget
    would bring.

    \b
    Examples:
      streamrf plan data.zarr --D 5000
      streamrf plan table.parquet --target price --errors
      streamrf plan data.zarr --D 20000 --memory 8GB --json
      streamrf plan data.zarr --D 20000 --scheduler tcp://head:8786
      streamrf plan data.zarr --epsilon 0.05 --kernel gaussian --length-scale 3
    """
    from dataclasses import replace

    from streamrf.reports.bounds import assess
    from streamrf.support.progress import Reporter
    from streamrf.support.threads import Threads
    from streamrf.training.plan import estimate_run, least_plan, likely_targets, plan_run

    epsilon = options["epsilon"]
    source = shared.open_data(data, options, scan_rows=SCAN_ROWS)
    recipe = make_recipe(options)
    with Threads(options["threads"]) as threads:
        with shared.cluster_engine(options, Reporter(), threads.count) as engine:
            sizes: shared.Options = {"threads": threads.count, "budget": options["memory"], "local": engine is None}
            plan = plan_run(source, recipe, **likely_targets(source, recipe.task, SCAN_ROWS), **sizes)
            plan = replace(plan, workers=engine.needs(plan.bytes) if engine else None)
        # what does not fit is refused below, and not measured either
        error = None if epsilon is None or not plan.fits else assess(source, recipe, epsilon, options["delta"], threads)
        plan = replace(plan, seconds=estimate_run(plan), least_seconds=estimate_run(least_plan(plan)))
    curve = _error_curve(source, recipe, plan, options) if options["errors"] else None
    if options["as_json"]:
        found = {"kernel_error": error and error.to_json(), "error_curve": curve}
        shared.print_json(plan.to_json() | {name: value for name, value in found.items() if value is not None})
    else:
        _show_plan(source.describe(), plan, error, curve or [])
    plan.check()


def _error_curve(source: Source, recipe: Recipe, plan: Plan, options: shared.Options) -> list[dict[str, Any]]:
    """Run the pilot and return the error that its trials expect of each budget."""
    from streamrf.solvers.stacking import Stacking
    from streamrf.support.errors import InputError
    from streamrf.training.pilot.size import ERROR_CURVE
    from streamrf.training.run import Training

    if plan.solver != Stacking.name:
        raise InputError(
            f"--errors compares budgets of the default blend, and this plan ({plan.solver}) has a fixed size: leave out"
            " --D, --map and other settings of a single map"
        )
    plan.check()
    with shared.working(options) as work:
        untrained = Training(source, recipe, work.settings, work.reporter, work.threads).prepare()
    return untrained.metadata.get(ERROR_CURVE, [])


def _show_plan(data: str, plan: Plan, error: Assessment | None, curve: list[dict[str, Any]]) -> None:
    from streamrf.cli.display import print_table
    from streamrf.support.units import format_bytes

    rows = [("data", data), ("solver", plan.solver), ("why", plan.why), ("passes", str(plan.passes))]
    rows += [("bin indices", plan.cache.why)] if plan.cache else []
    rows += [(f"memory, {stage}", format_bytes(size)) for stage, size in plan.stages.items()]
    rows += [("memory, projected", format_bytes(plan.projected)), ("memory, budget", format_bytes(plan.budget))]
    rows += [(f"time, {stage}", _time(value, plan.least_seconds[stage])) for stage, value in plan.seconds.items()]
    rows += [("workers", plan.workers.describe())] if plan.workers else []
    print_table([*rows, *(_error_rows(error) if error else []), *map(_budget_row, curve)])


def _budget_row(found: dict[str, Any]) -> tuple[str, str]:
    from streamrf.support.units import format_count

    error = f"expected error {found['error']:.3g} (1 is that of a model without inputs)"
    return f"--budget {found['budget']:.0f}s", f"{format_count(found['features'])} landmarks, {error}"


def _time(seconds: float, least: float) -> str:
    from streamrf.support.units import format_seconds

    few = f", or {format_seconds(least)} if few landmarks are enough" if seconds > WORTH_TELLING * least else ""
    return format_seconds(seconds) + few


def _error_rows(found: Assessment) -> list[tuple[str, str]]:
    """The bounds of theory and the measured error."""
    measured, above = found.measured, 100 * found.measured.share_above_epsilon
    settings = f"{found.kernel}, length scale {found.length_scale:.4g} on {found.scaling} inputs"
    figures = f"relative {measured.relative:.3g}, largest {measured.largest:.3g}"
    return [
        ("error, kernel", f"{settings}, diameter {found.diameter:.4g} ({found.sample_rows:,} rows read)"),
        ("error, Claim 1", _promise(found, found.claim_1, "all pairs at once")),
        ("error, Hoeffding", _promise(found, found.hoeffding, "any one pair")),
        ("error, measured", f"D = {found.D:,} ({found.map}, {found.form}): {figures}, {above:.3g} % of pairs above"
                            f" {found.epsilon:g} ({measured.rows:,} rows)"),
    ]  # fmt: skip


def _promise(found: Assessment, promise: Promise, pairs: str) -> str:
    if promise.D is None:
        return f"says nothing: {promise.reason}"
    chance = f"with probability {100 * (1 - found.delta):.4g} %"
    here = f"D = {found.D:,} keeps them below {promise.epsilon_at_D:.3g}"
    return f"D = {promise.D:,} keeps {pairs} below {found.epsilon:g} {chance}; {here}"
