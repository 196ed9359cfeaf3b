"""The options of the recipe, generated from its fields. Commands that need no recipe do not load it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from typing import Any

import click
from click.shell_completion import CompletionItem

from streamrf.cli.options import (
    F,
    Options,
    column_options,
    data_options,
    flag,
    holdout_options,
    memory_option,
    shards_argument,
    stack,
    weight_option,
)
from streamrf.features.kernels import make_kernel
from streamrf.recipe import AUTO, BINNING, BINNING_ONLY, BLEND, FOURIER_ONLY, NOT_OF_TREES, TREES, Recipe
from streamrf.support.errors import InputError
from streamrf.support.settings import about, flag_of, with_flags

MOST_SHOWN = 80  # characters of choices beside an option; the help text has longer lists
gamma_option = click.option(
    "--gamma", type=float, help="Width in scikit-learn's convention, instead of --length-scale."
)


class OneOf(click.ParamType):
    """A name that the recipe checks. Help shows the choices, and the shell completes them."""

    name = "name"

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        choices = f"[{'|'.join(self.names)}]"
        return choices if len(choices) <= MOST_SHOWN else None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completions(self.names, incomplete)


def completions(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def setting_option(setting: Field[Any]) -> Callable[[F], F]:
    """The option of one setting of the recipe, which declares all about it."""
    known, default = about(setting), setting.default
    names = known.allowed(default)
    types = (str, int, float)
    kind: Any = OneOf(names) if names else next((each for each in types if each.__name__ in setting.type), str)
    text, choices = with_flags(known.help), ", ".join(names)
    return click.option(
        flag_of(setting), setting.name, type=kind, default=default, show_default=default is not None,
        metavar=known.metavar, shell_complete=_completing(known.some) if known.some else None,
        help=f"{text} One of {choices}." if len(choices) > MOST_SHOWN else text,
    )  # fmt: skip


def _completing(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    return lambda ctx, param, incomplete: completions(names(), incomplete)


def settings_named(*names: str) -> Callable[[F], F]:
    """The options of some settings."""
    return stack(*(setting_option(each) for each in fields(Recipe) if each.name in names))


recipe_options = stack(*(setting_option(each) for each in fields(Recipe)), gamma_option)
task_option, nan_option = settings_named("task"), settings_named("nan")
training_options = stack(
    shards_argument, data_options, weight_option, holdout_options, column_options, recipe_options, memory_option
)


def make_recipe(options: Options) -> Recipe:
    """A Recipe from the recipe options; gamma becomes a length scale."""
    settings = {each.name: options[each.name] for each in fields(Recipe) if each.name in options}
    if options["gamma"] is not None:
        if settings["kernel"] == AUTO:
            raise InputError("--gamma is a different width for each kernel: name one, such as --kernel gaussian")
        kernel = make_kernel(settings["kernel"], length_scale=settings["length_scale"], gamma=options["gamma"])
        settings["length_scale"] = kernel.length_scale
    _check_map(settings)
    return Recipe(**settings)


def _check_map(settings: Options) -> None:
    """Refuse settings of a map that is not asked for."""
    given = [name for name in BINNING_ONLY if settings.get(name) is not None]
    if settings["map"] == BLEND:
        return
    if settings["map"] == TREES:
        for name in NOT_OF_TREES:
            if settings.get(name) not in (None, AUTO):
                raise InputError(f"{flag(name)} {settings[name]} is about other maps: --map trees does not have it")
        return
    if settings["map"] == BINNING or (given and settings["map"] == AUTO and settings["D"] is None):
        for name in FOURIER_ONLY:
            if settings.get(name) not in (None, AUTO):
                raise InputError(f"--{name} {settings[name]} is about Fourier features: --map binning has --grids")
    elif given:
        why = f"--map {settings['map']}" if settings["map"] != AUTO else f"--D {settings['D']}"
        raise InputError(
            f"{flag(given[0])} {settings[given[0]]} is about random binning, and {why} asks for Fourier features: give"
            " one of them"
        )
