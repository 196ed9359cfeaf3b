"""Options that several commands share, and what they mean to the library."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from streamrf.features.kernels import make_kernel
from streamrf.recipe import AUTO, BINNING, Recipe
from streamrf.support.errors import InputError
from streamrf.support.settings import about, flag_of
from streamrf.support.units import parse_bytes, parse_seconds
from streamrf.training.run import FOURIER_ONLY

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


class OneOf(click.ParamType):
    """A name that the recipe checks; here it is shown, and completed by the shell."""

    name = "name"

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self.names)}]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self.names if name.startswith(incomplete)]


def setting_option(setting: Field[Any]) -> Callable[[F], F]:
    """The option of one setting of the recipe: everything about it is said there."""
    known, default = about(setting), setting.default
    names = known.allowed(default)
    kind: Any = OneOf(names) if names else next((each for each in (int, float) if each.__name__ in setting.type), str)
    return click.option(
        flag_of(setting), setting.name, type=kind, default=default, show_default=default is not None,
        metavar=known.metavar, help=known.help,
    )  # fmt: skip


def settings_named(*names: str) -> Callable[[F], F]:
    """The options of some settings."""
    return _stack(*(setting_option(each) for each in fields(Recipe) if each.name in names))


recipe_options = _stack(*(setting_option(each) for each in fields(Recipe)), gamma_option)
task_option, nan_option = settings_named("task"), settings_named("nan")

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


def make_recipe(options: dict[str, Any]) -> Recipe:
    """A Recipe from the recipe options; gamma becomes a length scale."""
    gamma = options.pop("gamma")
    if gamma is not None:
        if options["kernel"] == AUTO:
            raise InputError("--gamma means another width for each kernel: name one, such as --kernel gaussian")
        kernel = make_kernel(options["kernel"], length_scale=options["length_scale"], gamma=gamma)
        options["length_scale"] = kernel.length_scale
    _check_map(options)
    return Recipe(**options)


def _check_map(options: dict[str, Any]) -> None:
    """Refuse what was given for a map that is not asked for."""
    given = [name for name in ("grids", "table_bits") if options.get(name) is not None]
    if options["map"] == BINNING or (given and options["map"] == AUTO and options["D"] is None):
        for name in FOURIER_ONLY:
            if options.get(name) not in (None, AUTO):
                raise InputError(f"--{name} {options[name]} is about Fourier features: --map binning has --grids")
    elif given:
        what = f"--{given[0].replace('_', '-')} {options[given[0]]}"
        why = f"--map {options['map']}" if options["map"] != AUTO else f"--D {options['D']}"
        raise InputError(f"{what} is about random binning, and {why} asks for Fourier features: give one of them")


def make_settings(options: dict[str, Any], out: Path) -> Any:
    """How the pass is carried out, from the run, memory and checkpoint options."""
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
