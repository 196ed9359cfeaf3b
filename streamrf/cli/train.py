"""`streamrf train`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from streamrf.cli.cluster import cluster_engine, cluster_options, pop_cluster
from streamrf.cli.columns import column_options
from streamrf.cli.config import SETTLED
from streamrf.cli.options import (
    checkpoint_options,
    data_options,
    make_recipe,
    make_settings,
    memory_option,
    open_data,
    print_json,
    recipe_options,
    run_options,
    shards_argument,
    weight_option,
)

BESIDE = "auto"  # --report without a name


@click.command("train")
@shards_argument
@data_options
@weight_option
@column_options
@recipe_options
@memory_option
@click.option("--out", type=click.Path(), help="Where the model goes; NAME.model beside the data by default.")
@click.option("--overwrite", is_flag=True, help="Replace a model that is there already.")
@click.option("--no-statistics", is_flag=True, help="Leave out the sums that allow update, forget and merge.")
@click.option("--report", is_flag=False, flag_value=BESIDE, metavar="[FILE]",
              help="Draw a report of the model too: an HTML file, OUT.html if it is not named.")  # fmt: skip
@checkpoint_options
@cluster_options
@run_options
def command(data: tuple[str, ...], **options: Any) -> None:
    """Train a model on DATA (zarr, parquet or npy; several shards are one table).

    With nothing else set, a pilot on a sample of rows compares Fourier features and random binning. With --D it chooses
    scaling, kernel, width and precision of so many Fourier features, one pass sums the exact statistics, and hold-out
    rows choose the ridge penalty. With --map binning it chooses a width for each column, and each step is a pass.

    \b
    Examples:
      streamrf train data.zarr
      streamrf train data.zarr --D 5000
      streamrf train data.zarr --map binning --grids 50
      streamrf train table.parquet --target price --D 2000 --memory 2GB
      streamrf train jan.zarr feb.zarr --out months.model --json
      streamrf train data.zarr --report --save-config run.toml
      streamrf train --config run.toml
      streamrf train s3://bucket/data.zarr --D 5000 --scheduler tcp://head:8786
    """
    from streamrf.cli.display import make_reporter
    from streamrf.support.storage.archive import check_target
    from streamrf.support.threads import Threads
    from streamrf.training.run import Training

    as_json, quiet, overwrite, keep = (options.pop(k) for k in ("as_json", "quiet", "overwrite", "no_statistics"))
    out = Path(options.pop("out") or default_out(data[0]))
    check_target(out, overwrite)
    page = report_place(options.pop("report"), out, overwrite)
    settings, cluster = make_settings(options, out), pop_cluster(options)
    settings.keeps = None if keep else out
    reporter = make_reporter(quiet=quiet or as_json)
    source = open_data(data, options, reporter=reporter)
    recipe = make_recipe(options)
    with (
        Threads(settings.threads) as threads,
        cluster_engine(cluster, reporter, threads=threads.count, memory=settings.memory) as settings.engine,
    ):
        training = Training(source, recipe, settings, reporter, threads)
        result = training.run()
        result.model.save(out, state=None if keep else result.state, overwrite=overwrite)
        training.clear_checkpoint()
        if page:
            draw_report(page, out, source, threads, overwrite)
    click.get_current_context().meta[SETTLED] = settled(result.model.recipe)
    report = {**summary(out, result), "report": str(page) if page else None}
    if as_json:
        print_json(report)
    else:
        show(report)


def report_place(asked: str | None, out: Path, overwrite: bool) -> Path | None:
    """Where the report goes; that it can be drawn and written is asked before minutes are spent."""
    if asked is None:
        return None
    from streamrf.reports.report import check_report

    page = out.with_name(f"{out.name}.html") if asked == BESIDE else Path(asked)
    check_report(page, overwrite=overwrite)
    return page


def draw_report(page: Path, out: Path, source: Any, threads: Any, overwrite: bool) -> None:
    from streamrf.reports.report import make_report

    make_report(out, source, threads=threads).save(page, overwrite=overwrite)


def settled(recipe: Any) -> dict[str, Any]:
    """The settings that lead to the same bits again; whether there is a pilot stays as it was asked for."""
    from streamrf.training.run import idle

    return {name: value for name, value in recipe.to_json().items() if name != "pilot" and name not in idle(recipe)}


def default_out(data: str) -> str:
    """data.zarr -> data.model, part-*.parquet -> part-all.model: beside the data, or here where the data is remote."""
    from streamrf.data.locations import without_query

    pattern = r"[*?]+|\[[^]]*\]"
    path = without_query(data).rstrip("/")
    name = path.rpartition("/")[2]
    folder = path[: len(path) - len(name)]
    stem = re.sub(pattern, "all", name).rsplit(".", 1)[0] or "data"
    return f"{stem}.model" if "://" in data or re.search(pattern, folder) else f"{folder}{stem}.model"


def summary(out: Path, result: Any) -> dict[str, Any]:
    """The `--json` object."""
    from streamrf.support import memory
    from streamrf.training.run import chosen

    story = result.model.metadata
    return {
        "model": str(out), "rows": story["rows"], "map": result.model.map.kind, "D": result.model.map.n_features,
        "bits": result.model.recipe.bits,
        "chosen": chosen(result.model.recipe), "seconds": result.seconds,
        "memory": {"projected": result.plan.projected, "peak": memory.peak(), "budget": result.plan.budget},
        "holdout": story["holdout"], "cross_validation": story.get("cross_validation"),
        "binning": story.get("binning"), "learning": story.get("learning"), "dropped": story["dropped"],
        "statistics_digest": story["statistics_digest"],
    }  # fmt: skip


def _cross_validation(found: dict[str, Any] | None) -> list[tuple[str, str]]:
    if not found:
        return []
    error = f"{found['mean_squared_error']:.5g} ± {found['spread']:.2g} over {found['folds']} folds"
    gcv = f", GCV {found['gcv']:.5g}" if found["gcv"] is not None else ""
    return [("squared error", error + gcv)]


def _fourier(report: dict[str, Any]) -> list[tuple[str, str]]:
    chosen = report["chosen"]
    return [
        ("features", f"{report['D']} ({chosen['map']}, {report['bits']} bits)"),
        ("kernel", f"{chosen['kernel']}, length scale {chosen['length_scale']:.4g} on {chosen['scaling']} inputs"),
    ]


def _binning(found: dict[str, Any], chosen: dict[str, Any]) -> list[tuple[str, str]]:
    """Grids, how full their slots are, and the steps it took."""
    widths = found["length_scales"]
    bins = f"{found['bins']:,.0f} a grid, {found['empty']:.0%} of slots empty, {found['colliding']:.1%} of bins collide"
    return [
        ("map", f"random binning, {found['grids']} grids of {found['slots']:,} slots"),
        (
            "kernel",
            f"{chosen['kernel']}, length scales {min(widths):.3g} to {max(widths):.3g} on {chosen['scaling']} inputs",
        ),
        ("bins", bins),
        ("steps", f"{found['steps']} of conjugate gradients, slots kept {_place(found['cache'])}"),
    ]


def _place(cache: str) -> str:
    return {"memory": "in memory", "disk": "on disk"}.get(cache, "nowhere")


def show(report: dict[str, Any]) -> None:
    from streamrf.cli.display import print_table
    from streamrf.support.units import format_bytes, format_count, format_seconds
    from streamrf.training.pilot.choice import learning_rows

    chosen, seconds, memory = report["chosen"], report["seconds"], report["memory"]
    rows = [
        ("model", report["model"]),
        ("rows", format_count(report["rows"])),
        *(_binning(report["binning"], chosen) if report["binning"] else _fourier(report)),
        ("lambda", f"{chosen['ridge']:.3g}"),
        *((f"hold-out {name.replace('_', ' ')}", f"{value:.5g}") for name, value in (report["holdout"] or {}).items()
          if isinstance(value, float)),
        *_cross_validation(report["cross_validation"]),
        *learning_rows(report["learning"]),
        ("time", ", ".join(f"{name} {format_seconds(value)}" for name, value in seconds.items())),
        ("memory", f"peak {format_bytes(memory['peak'])}, projected {format_bytes(memory['projected'])},"
                   f" budget {format_bytes(memory['budget'])}"),
        ("statistics", report["statistics_digest"][:16]),
        *([("report", report["report"])] if report.get("report") else []),  # a strict forget draws none
    ]  # fmt: skip
    print_table(rows)
