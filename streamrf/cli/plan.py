"""`streamrf plan`."""

from __future__ import annotations

from typing import Any

import click

from streamrf.cli.options import (
    data_options,
    make_recipe,
    memory_option,
    open_data,
    print_json,
    recipe_options,
    run_options,
    shards_argument,
)


@click.command("plan")
@shards_argument
@data_options
@recipe_options
@memory_option
@run_options
def command(data: tuple[str, ...], **options: Any) -> None:
    """Say what training on DATA would take: memory, passes and time. No row is read.

    \b
    Examples:
      streamrf plan data.zarr --D 5000
      streamrf plan data.zarr --D 20000 --memory 8GB --json
    """
    from streamrf.calibrate import measure_rates
    from streamrf.plan import estimate_seconds, make_plan
    from streamrf.threads import Threads

    as_json, budget = options.pop("as_json"), options.pop("memory")
    count = options.pop("threads")
    options.pop("quiet")
    source = open_data(data, options)
    recipe = make_recipe(options)
    outputs = max(1, source.n_outputs)
    with Threads(count) as threads:
        plan = make_plan(source, recipe, outputs=outputs, threads=threads.count, budget=budget)
        rates = measure_rates("12" if recipe.bits == "auto" else recipe.bits, threads)
    plan.seconds = estimate_seconds(plan, source, recipe, outputs, rates)
    if as_json:
        print_json(plan.to_json())
    else:
        _show(source.describe(), plan)
    plan.check()


def _show(data: str, plan: Any) -> None:
    from streamrf.cli.display import print_table
    from streamrf.units import format_bytes, format_seconds

    rows = [("data", data), ("solver", plan.solver), ("why", plan.why), ("passes", str(plan.passes))]
    rows += [(f"memory, {stage}", format_bytes(size)) for stage, size in plan.stages.items()]
    rows += [("memory, projected", format_bytes(plan.projected)), ("memory, budget", format_bytes(plan.budget))]
    rows += [(f"time, {stage}", format_seconds(value)) for stage, value in plan.seconds.items()]
    print_table(rows)
