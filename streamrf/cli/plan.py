"""`streamrf plan`."""

from __future__ import annotations

from typing import Any

import click

from streamrf.cli.cluster import cluster_engine, cluster_options, pop_cluster
from streamrf.cli.columns import column_options
from streamrf.cli.options import (
    data_options,
    make_recipe,
    memory_option,
    open_data,
    print_json,
    recipe_options,
    run_options,
    shards_argument,
    weight_option,
)

LOOK_ROWS = 100_000  # of text columns alone: their levels become inputs


@click.command("plan")
@shards_argument
@data_options
@weight_option
@column_options
@recipe_options
@memory_option
@click.option("--epsilon", type=float, help="Say what D a kernel error below this asks for. Reads a sample of rows.")
@click.option("--delta", type=float, default=0.01, show_default=True, help="The chance that theory may be wrong.")
@cluster_options
@run_options
def command(data: tuple[str, ...], **options: Any) -> None:
    """Say what training on DATA would take: memory, passes and time. No row is read.

    With --workers or --scheduler it also says what each worker would hold, and what the smallest of them has.

    With --epsilon a sample of rows is read, as the pilot does: for the diameter of the data, on which the bound of
    Rahimi and Recht depends, and to measure the error that D features really make.

    \b
    Examples:
      streamrf plan data.zarr --D 5000
      streamrf plan data.zarr --D 20000 --memory 8GB --json
      streamrf plan data.zarr --D 20000 --scheduler tcp://head:8786
      streamrf plan data.zarr --epsilon 0.05 --kernel gaussian --length-scale 3
    """
    from dataclasses import replace

    from streamrf.reports.bounds import assess
    from streamrf.support.progress import Reporter
    from streamrf.support.threads import Threads
    from streamrf.training.plan import estimate_run, plan_run

    as_json, budget = options.pop("as_json"), options.pop("memory")
    count, epsilon, delta = (options.pop(name) for name in ("threads", "epsilon", "delta"))
    options.pop("quiet")
    cluster = pop_cluster(options)
    source = open_data(data, options, look=LOOK_ROWS)
    recipe = make_recipe(options)
    outputs = max(1, source.n_outputs)
    with Threads(count) as threads:
        with cluster_engine(cluster, Reporter(), threads=threads.count, memory=budget) as engine:
            sizes = {"threads": threads.count, "budget": budget, "local": engine is None}
            plan = plan_run(source, recipe, outputs=outputs, **sizes)
            plan = replace(plan, workers=engine.needs(plan.reserved, plan.bytes) if engine else None)
        # what does not fit is refused below, and not measured either
        error = None if epsilon is None or not plan.fits else assess(source, recipe, epsilon, delta, threads)
        plan = replace(plan, seconds=estimate_run(plan))
    if as_json:
        print_json(plan.to_json() | ({"kernel_error": error.to_json()} if error else {}))
    else:
        _show(source.describe(), plan, error)
    plan.check()


def _show(data: str, plan: Any, error: Any) -> None:
    from streamrf.cli.display import print_table
    from streamrf.support.units import format_bytes, format_seconds

    rows = [("data", data), ("solver", plan.solver), ("why", plan.why), ("passes", str(plan.passes))]
    rows += [("bin indices", plan.cache.why)] if plan.cache else []
    rows += [(f"memory, {stage}", format_bytes(size)) for stage, size in plan.stages.items()]
    rows += [("memory, projected", format_bytes(plan.projected)), ("memory, budget", format_bytes(plan.budget))]
    rows += [(f"time, {stage}", format_seconds(value)) for stage, value in plan.seconds.items()]
    rows += [("workers", plan.workers.describe())] if plan.workers else []
    print_table(rows + (_error_rows(error) if error else []))


def _error_rows(found: Any) -> list[tuple[str, str]]:
    """Theory and measurement, in words that say which error each is about."""
    measured, above = found.measured, 100 * found.measured.share_above_epsilon
    settings = f"{found.kernel}, length scale {found.length_scale:.4g} on {found.scaling} inputs"
    figures = f"relative {measured.relative:.3g}, largest {measured.largest:.3g}"
    return [
        ("error, kernel", f"{settings}, diameter {found.diameter:.4g} ({found.sample_rows:,} rows read)"),
        ("error, Claim 1", _promise(found, found.claim_1, "all pairs at once")),
        ("error, Hoeffding", _promise(found, found.hoeffding, "any one pair")),
        (
            "error, measured",
            f"D = {found.D:,} ({found.map}, {found.form}): {figures}, {above:.3g} % of pairs above {found.epsilon:g}"
            f" ({measured.rows:,} rows)",
        ),
    ]


def _promise(found: Any, promise: Any, pairs: str) -> str:
    if promise.D is None:
        return f"says nothing: {promise.reason}"
    chance = f"with probability {100 * (1 - found.delta):.4g} %"
    here = f"D = {found.D:,} keeps them below {promise.epsilon_at_D:.3g}"
    return f"D = {promise.D:,} keeps {pairs} below {found.epsilon:g} {chance}; {here}"
