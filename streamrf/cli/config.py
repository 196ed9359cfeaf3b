"""Settings in a file: `--config` reads options from it, `--save-config` writes those of a run.

A file has one table for each command, whose keys are the long names of its options without dashes::

    [train]
    data = ["jan.zarr", "feb.zarr"]
    D = 2000
    length-scale = 3.5

The command line wins over the file. ``streamrf.toml`` in the current folder is read by default.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from streamrf.cli.display import say

DEFAULT = Path("streamrf.toml")
NONE = "none"
OURS = ("config", "save_config")
PASSING = ("as_json", "quiet", "verbose", "overwrite", "resume")  # about one run, not about its result
SETTLED = "streamrf.settled"  # where a command leaves the settings that it chose


def with_config(command: click.Command) -> click.Command:
    """Add `--config` and `--save-config` to a command, unless it has them."""
    if any(param.name == "config" for param in command.params):
        return command
    command.params += [
        click.Option(
            ["--config"], metavar="FILE", is_eager=True, callback=_load,
            help="Read settings from this TOML file; streamrf.toml in this folder by default, 'none' for no file.",
        ),
        click.Option(["--save-config"], metavar="FILE", help="Write the settings of this run, to repeat it."),
    ]  # fmt: skip
    assert command.callback is not None
    command.callback = _saving(command, command.callback)
    return command


def _load(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Use the settings of the file as defaults of the options."""
    if value != NONE and (value or DEFAULT.exists()):
        path = Path(value or DEFAULT)
        table = read_table(path, ctx.command, needed=value is not None)
        ctx.default_map = {**(ctx.default_map or {}), **table}
        if table and value is None:
            say(f"settings from {path}", err=True)
    return value


def read_table(path: Path, command: click.Command, *, needed: bool) -> dict[str, Any]:
    """The table of a command, keyed by parameter."""
    import tomllib

    from streamrf.support.errors import InputError, StorageError

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from error
    if command.name not in document and needed:
        raise InputError(f"{path} has no table [{command.name}]; it has {', '.join(document) or 'none'}")
    table, names = document.get(command.name or "", {}), setting_names(command)
    unknown = [key for key in table if key.replace("_", "-") not in names]
    if unknown:
        raise InputError(f"{path}: {unknown[0]!r} is not a setting of `streamrf {command.name}`")
    params = {names[key.replace("_", "-")]: value for key, value in table.items()}
    return {str(param.name): [value] if _repeats(param, value) else value for param, value in params.items()}


def _repeats(param: click.Parameter, value: Any) -> bool:
    """Whether one value is given for an option that may be repeated."""
    return isinstance(param, click.Option) and param.multiple and isinstance(value, str)


def setting_names(command: click.Command) -> dict[str, click.Parameter]:
    """Parameters, keyed by their name in a file."""
    found = {}
    for param in command.params:
        if param.name not in OURS:
            name = (param.name or "") if isinstance(param, click.Argument) else param.opts[0].lstrip("-")
            found[name.replace("_", "-")] = param
    return found


def _saving(command: click.Command, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def wrapped(config: str | None = None, save_config: str | None = None, **params: Any) -> Any:
        from streamrf.support.storage.files import atomic_write, refuse_existing

        if save_config:
            refuse_existing(Path(save_config))
        ctx = click.get_current_context()
        given = given_settings(ctx)  # before the command runs
        result = run(**params)
        if save_config:
            settings = _used(given, _by_name(command, ctx.meta.get(SETTLED, {})))
            atomic_write(save_config, to_toml(command.name or "", settings).encode(), overwrite=False)
        return result

    return wrapped


def given_settings(ctx: click.Context) -> dict[str, Any]:
    """The settings given on the command line or in a file, keyed by their name in a file."""
    sources = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.DEFAULT_MAP)
    names = setting_names(ctx.command)
    return {
        name: ctx.params[param.name]
        for name, param in names.items()
        if param.name in ctx.params and param.name not in PASSING and ctx.get_parameter_source(param.name) in sources
    }


def _by_name(command: click.Command, settled: dict[str, Any]) -> dict[str, Any]:
    """Settings that the command chose, keyed by their name in a file, if they are options."""
    names = {param.name: name for name, param in setting_names(command).items()}
    return {names[key]: value for key, value in settled.items() if key in names and value is not None}


def _used(given: dict[str, Any], settled: dict[str, Any]) -> dict[str, Any]:
    """Given and chosen settings; a chosen length scale replaces --gamma."""
    stays = {name: value for name, value in given.items() if name != "gamma" or "length-scale" not in settled}
    return {**stays, **settled}


def to_toml(name: str, settings: dict[str, Any]) -> str:
    """One table, its keys in order."""
    lines = [f"{key} = {_value(value)}" for key, value in sorted(settings.items()) if value is not None]
    return "\n".join([f"[{name}]", *lines, ""])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(str(value), ensure_ascii=False)
