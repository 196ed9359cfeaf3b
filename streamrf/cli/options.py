"""Options that several commands share, and what they mean to the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from streamrf.units import parse_bytes, parse_seconds

F = Callable[..., Any]


class Bytes(click.ParamType):
    """A size such as 2GB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return parse_bytes(value)


class Seconds(click.ParamType):
    """A time such as 5min."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return parse_seconds(value)


def _stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


data_options = _stack(
    click.option("--x", default="X", show_default=True, help="Name of the input array (zarr, npy)."),
    click.option("--y", default="y", show_default=True, help="Name of the target array (zarr, npy)."),
    click.option(
        "--target", multiple=True, metavar="COLUMN", help="Target column (parquet); repeat for several outputs."
    ),
    click.option("--features", metavar="A,B,...", help="Input columns (parquet); all but the target by default."),
    click.option("--exclude", metavar="A,B,...", help="Columns to leave out (parquet)."),
)

recipe_options = _stack(
    click.option("--D", "D", type=int, default=2000, show_default=True, help="Number of random features."),
    click.option("--kernel", default="auto", show_default=True,
                 help="auto, gaussian, laplacian, cauchy, matern12, matern32, matern52 or matern:NU."),
    click.option("--length-scale", type=float, help="Width of the kernel; the pilot chooses it by default."),
    click.option("--gamma", type=float, help="Width in scikit-learn's convention, instead of --length-scale."),
    click.option("--map", "map", default="auto", show_default=True,
                 help="How frequencies are drawn: auto, mc, orthogonal, sorf, fastfood, halton, sobol, lattice,"
                      " digital-net, moment-matched, weighted, aligned; or learned: ekal-sample, ekal-cluster,"
                      " supervised."),
    click.option("--form", type=click.Choice(["phase", "pairs"]), default="phase", show_default=True,
                 help="cos(w'x + b), or cos and sin pairs."),
    click.option("--scaling", default="auto", show_default=True,
                 help="auto, none, standard, minmax, quantile, log or pca."),
    click.option("--bits", default="auto", show_default=True,
                 help="Precision of features: auto, 8, 12, float32 or float64."),
    click.option("--lambda", "ridge", type=float, help="Ridge penalty; chosen on hold-out rows by default."),
    click.option("--task", type=click.Choice(["auto", "regression", "classification"]), default="auto",
                 show_default=True, help="Numbers or classes; told from the targets by default."),
    click.option("--holdout", type=float, help="Share of rows that choose lambda (a tenth, at most 20,000 rows)."),
    click.option("--cv", type=int, metavar="K", help="Choose lambda by K-fold cross-validation, in the same one pass."),
    click.option("--nan", type=click.Choice(["error", "drop"]), default="error", show_default=True,
                 help="What to do with rows that have NaN or infinite values."),
    click.option("--pilot", type=click.Choice(["auto", "none"]), default="auto", show_default=True,
                 help="Choose settings on a sample of rows, or use the documented defaults."),
    click.option("--seed", type=int, default=0, show_default=True,
                 help="Another number draws other features, sample and hold-out rows."),
)  # fmt: skip

run_options = _stack(
    click.option("--threads", type=click.IntRange(min=1), help="Threads to use; all cores by default."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, nothing else."),
    click.option("--quiet", is_flag=True, help="Show no progress."),
)

checkpoint_options = _stack(
    click.option("--checkpoint", metavar="DIR", help="Where to keep unfinished work; OUT.checkpoint by default."),
    click.option("--checkpoint-every", type=Seconds(), default="5min", show_default=True,
                 help="Time between two saves; later where saving would take over 5 % of the run."),
    click.option("--no-checkpoint", is_flag=True, help="Keep no unfinished work."),
    click.option("--resume", is_flag=True, help="Insist on continuing: without a checkpoint this is an error."),
)  # fmt: skip

memory_option = click.option("--memory", type=Bytes(), help="Budget such as 2GB; 80 % of what is free by default.")
shards_argument = click.argument("data", nargs=-1, required=True)


def open_data(
    data: tuple[str, ...], options: dict[str, Any], *, need_targets: bool | None = True, features: Any = None
) -> Any:
    """The source that the data options describe; ``features`` from a model stand in for missing ones."""
    from streamrf.sources import open_source

    return open_source(
        list(data) if len(data) > 1 else data[0],
        x=options.pop("x"), y=options.pop("y"), target=list(options.pop("target")) or None,
        features=_names(options.pop("features")) or features, exclude=_names(options.pop("exclude")) or (),
        need_targets=need_targets,
    )  # fmt: skip


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] if text else None


def make_recipe(options: dict[str, Any]) -> Any:
    """A Recipe from the recipe options; gamma becomes a length scale."""
    from streamrf.errors import InputError
    from streamrf.kernels import make_kernel
    from streamrf.recipe import Recipe

    gamma = options.pop("gamma")
    if gamma is not None:
        if options["kernel"] == "auto":
            raise InputError("--gamma means another width for each kernel: name one, such as --kernel gaussian")
        kernel = make_kernel(options["kernel"], length_scale=options["length_scale"], gamma=gamma)
        options["length_scale"] = kernel.length_scale
    return Recipe(**options)


def make_settings(options: dict[str, Any], out: Path) -> Any:
    """How the pass is carried out, from the run, memory and checkpoint options."""
    from streamrf.checkpoint import Checkpoint
    from streamrf.errors import InputError
    from streamrf.training import Settings

    place, none = options.pop("checkpoint"), options.pop("no_checkpoint")
    checkpoint = None if none else place or out.with_name(out.name + ".checkpoint")
    if options.pop("resume") and not (checkpoint and Checkpoint(checkpoint).exists()):
        raise InputError(f"--resume: there is no checkpoint at {checkpoint}; leave --resume out to start anew")
    return Settings(
        threads=options.pop("threads"), memory=options.pop("memory"),
        checkpoint_every=options.pop("checkpoint_every"), checkpoint=checkpoint,
    )  # fmt: skip


def print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, allow_nan=False))
