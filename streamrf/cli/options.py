"""Options that several commands share, and what they mean to the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from streamrf.cli.maps import grids_option, settle_map, table_bits_option
from streamrf.support.units import parse_bytes, parse_seconds

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

gamma_option = click.option(
    "--gamma", type=float, help="Width in scikit-learn's convention, instead of --length-scale."
)
task_option = click.option(
    "--task", type=click.Choice(["auto", "regression", "classification"]), default="auto", show_default=True,
    help="Numbers or classes; told from the targets by default.",
)  # fmt: skip
nan_option = click.option(
    "--nan", type=click.Choice(["error", "drop"]), default="error", show_default=True,
    help="What to do with rows that have NaN or infinite values.",
)  # fmt: skip

recipe_options = _stack(
    click.option("--D", "D", type=int, help="Number of random Fourier features (2000 where these are used)."),
    click.option("--kernel", default="auto", show_default=True,
                 help="auto, gaussian, laplacian, cauchy, matern12, matern32, matern52 or matern:NU; --map binning has"
                      " laplacian and bins:SHAPE."),
    click.option("--length-scale", type=float, help="Width of the kernel; the pilot chooses it by default."),
    gamma_option,
    click.option("--map", "map", default="auto", show_default=True,
                 help="auto compares Fourier features and random binning, and with --D or any setting of Fourier"
                      " features draws those. Or how frequencies are drawn: mc, orthogonal, sorf, fastfood, halton,"
                      " sobol, lattice,"
                      " digital-net, moment-matched, weighted, aligned; or learned: ekal-sample, ekal-cluster,"
                      " supervised. Or binning: random grids instead."),
    grids_option,
    table_bits_option,
    click.option("--form", type=click.Choice(["auto", "phase", "pairs"]), default="auto", show_default=True,
                 help="cos(w'x + b), or cos and sin pairs; auto is pairs for learned frequencies."),
    click.option("--metric", type=click.Choice(["none", "diagonal", "full", "learned"]), default="none",
                 show_default=True, help="Learn which columns (diagonal) or directions (full) of the inputs matter;"
                                         " learned takes the best of none, diagonal and full."),
    click.option("--landmarks", type=int, metavar="N",
                 help="Learned maps: rows that are compared with one another at a step (50 to 256)."),
    click.option("--learning-iterations", type=int, metavar="T",
                 help="Learned maps: how often weights, or the predictor, are fitted anew."),
    click.option("--learning-steps", type=int, metavar="S", help="Learned maps: steps of descent after each fit."),
    click.option("--weight-decay", type=float, help="Learned maps: penalty on their weights (0.1)."),
    click.option("--eta", type=float,
                 help="--map supervised: share of the kernel's loss beside that of the prediction (0 or 10, tried)."),
    click.option("--prediction-loss", type=click.Choice(["auto", "squared", "hinge", "logistic"]), default="auto",
                 show_default=True, help="--map supervised: what frequencies are learned by; auto goes with --loss."),
    click.option("--scaling", default="auto", show_default=True,
                 help="auto, none, standard, minmax, quantile, log or pca."),
    click.option("--bits", default="auto", show_default=True,
                 help="Precision of features: auto, 7, 8, 12, float32 or float64."),
    click.option("--lambda", "ridge", type=float, help="Ridge penalty; chosen on hold-out rows by default."),
    click.option("--solver", type=click.Choice(["auto", "cholesky", "cg", "newton", "sgd"]), default="auto",
                 show_default=True, help="cholesky sums a D x D matrix in one pass; cg passes over the rows some twenty"
                                         " times instead; newton and sgd are for other losses."),
    click.option("--preconditioner", type=click.Choice(["auto", "sample", "nystrom"]), default="auto",
                 show_default=True, help="What speeds up cg and newton: the factor of a sample of rows, or a sketch."),
    click.option("--loss", type=click.Choice(["squared", "hinge", "squared-hinge", "logistic", "huber", "quantile"]),
                 default="squared", show_default=True, help="What is minimised."),
    click.option("--quantile", type=float, default=0.5, show_default=True,
                 help="--loss quantile: the quantile to predict."),
    click.option("--huber-epsilon", type=float, default=1.35, show_default=True,
                 help="--loss huber: residuals beyond so many of their robust deviations count linearly."),
    click.option("--class-weight", type=click.Choice(["balanced"]),
                 help="Let every class count for as much, however few rows it has."),
    click.option("--epochs", type=int, help="--solver sgd: most passes over the rows (10); hold-out rows stop them."),
    click.option("--parts", "shards", type=int,
                 help="--solver sgd: parts of the rows that run side by side and are averaged (1)."),
    task_option,
    click.option("--holdout", type=float, help="Share of rows that choose lambda (a tenth, at most 20,000 rows)."),
    click.option("--cv", type=int, metavar="K", help="Choose lambda by K-fold cross-validation, in the same one pass."),
    nan_option,
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
weight_option = click.option(
    "--sample-weight", metavar="NAME", help="Array (zarr, npy) or column (parquet) of weights."
)
shards_argument = click.argument("data", nargs=-1, required=True)


def open_data(
    data: tuple[str, ...],
    options: dict[str, Any],
    *,
    need_targets: bool | None = True,
    known: Any = None,
    features: Any = None,
    reporter: Any = None,
    look: int | None = None,
) -> Any:
    """The source that the data options describe.

    ``known``, a model or what was prepared for one, stands in for what is not said: features, their coding, targets.
    Without it, columns that are not plain numbers are looked at (``look`` rows of them, or all), and coded as the
    column options ask.
    """
    from streamrf.cli.columns import asked_of_columns, pop_handling, refuse_arrays
    from streamrf.data.columns import known_choice
    from streamrf.data.open import learn_coding, open_source

    place: Any = list(data) if len(data) > 1 else data[0]
    spoken = asked_of_columns(options)
    x, handling, standing = options.pop("x"), pop_handling(options), known_choice(known)
    asked = {
        "y": options.pop("y"), "target": list(options.pop("target")) or standing.get("target"),
        "features": _names(options.pop("features")) or standing.get("features") or features,
        "exclude": _names(options.pop("exclude")) or (), "need_targets": need_targets,
    }  # fmt: skip
    columns, weight = standing.get("columns"), options.pop("sample_weight", None)
    if known is None and features is None:
        columns = learn_coding(place, handling, reporter, rows=look, sample_weight=weight, **asked)
    source = open_source(place, x=x, columns=columns, sample_weight=weight, **asked)
    refuse_arrays(spoken, source)
    return source


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] if text else None


def make_recipe(options: dict[str, Any], *, comparable: bool = True) -> Any:
    """A Recipe from the recipe options; gamma becomes a length scale. ``comparable``: random binning would do too."""
    from streamrf.features.kernels import make_kernel
    from streamrf.recipe import Recipe
    from streamrf.support.errors import InputError

    settle_map(options, comparable=comparable)
    gamma = options.pop("gamma")
    if gamma is not None:
        if options["kernel"] == "auto":
            raise InputError("--gamma means another width for each kernel: name one, such as --kernel gaussian")
        kernel = make_kernel(options["kernel"], length_scale=options["length_scale"], gamma=gamma)
        options["length_scale"] = kernel.length_scale
    return Recipe(**options)


def make_settings(options: dict[str, Any], out: Path) -> Any:
    """How the pass is carried out, from the run, memory and checkpoint options."""
    from streamrf.support.errors import InputError
    from streamrf.support.storage.checkpoint import Checkpoint
    from streamrf.training.run import Settings

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
