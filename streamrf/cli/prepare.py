"""`streamrf prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamrf.cli.columns import column_options
from streamrf.cli.options import (
    data_options,
    make_recipe,
    memory_option,
    open_data,
    recipe_options,
    run_options,
    shards_argument,
)


@click.command("prepare")
@shards_argument
@data_options
@column_options
@recipe_options
@click.option("--classes", metavar="A,B,...", help="All labels there will ever be, where this data may lack some.")
@memory_option
@click.option("--out", required=True, type=click.Path(), help="Where it goes, such as recipe.prepared.")
@click.option("--overwrite", is_flag=True, help="Replace what is at --out already.")
@run_options
def command(data: tuple[str, ...], **options: Any) -> None:
    """Fix recipe, scaling, map and target coding once, on DATA, so that several sites can start from the same map.

    \b
    Examples:
      streamrf prepare sample.zarr --D 5000 --out recipe.prepared
      streamrf prepare sample.parquet --target label --classes cat,dog,bird --out recipe.prepared
    """
    from streamrf.cli.display import make_reporter
    from streamrf.cli.statistics import show
    from streamrf.support.storage.archive import check_target
    from streamrf.support.threads import Threads
    from streamrf.training.run import Settings, chosen
    from streamrf.training.update.changes import Work, prepare
    from streamrf.training.update.statistics import save_prepared

    as_json, quiet, classes = (options.pop(name) for name in ("as_json", "quiet", "classes"))
    out, overwrite = Path(options.pop("out")), options.pop("overwrite")
    check_target(out, overwrite)
    settings = Settings(threads=options.pop("threads"), memory=options.pop("memory"))
    source = open_data(data, options)
    labels = tuple(label.strip() for label in classes.split(",")) if classes else None
    with Threads(settings.threads) as threads:
        work = Work(threads, settings, make_reporter(quiet=quiet or as_json))
        prepared = prepare(source, make_recipe(options), work, classes=labels)
    save_prepared(prepared, out, overwrite=overwrite)
    facts = {
        "prepared": str(out),
        "classes": len(prepared.coding.classes) or None,
        "digests": prepared.pipeline.digests(),
    }
    if as_json:
        show({**facts, "chosen": chosen(prepared.recipe)}, as_json)
    else:
        settled = {f"chosen {name}": value for name, value in chosen(prepared.recipe).items()}
        show({**facts, "digests": None, **settled}, as_json)
