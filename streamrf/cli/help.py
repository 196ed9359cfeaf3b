"""Help for people in a hurry: the common options first, the others by group; and what the shell may complete."""

from __future__ import annotations

import csv
import textwrap
from dataclasses import fields
from typing import Any

import click
from click.shell_completion import CompletionItem

COMMON = ("target", "exclude", "out", "overwrite", "D", "map", "loss", "memory", "report", "verbose")
GROUPS = {  # of options that are no settings of a recipe, which declares its own; all others are about the run
    "data": ("target", "features", "exclude", "x", "y", "sample_weight", "delimiter", "header", "null", "encoding",
             "decimal", "dates", "no_cache"),
    "columns": ("categories", "max_levels", "categorical", "missing", "keep"),
    "model": ("gamma",),
    "solver": (),
    "run": (),
    "cluster": ("scheduler", "workers", "tls_ca", "tls_cert", "tls_key"),
}  # fmt: skip
_ALL = "streamrf.help-all"


class GroupedCommand(click.Command):
    """A command with many options: `--help` explains the common ones and names the rest, `--help-all` explains all."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), _HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = grouped(self)
        if ctx.meta.get(_ALL):
            for group, options in groups.items():
                with formatter.section(f"Options: {group}"):
                    formatter.write_dl(_records(ctx, options))
            return
        known = {option.name: option for options in groups.values() for option in options}
        common = [known[name] for name in COMMON if name in known]
        with formatter.section("Common options"):
            formatter.write_dl([*_records(ctx, common), *_records(ctx, [_HELP_ALL])])
        with formatter.section("More options"):
            for group, options in groups.items():
                _name_flags(formatter, group, [each.opts[0] for each in options if each not in common])


def _name_flags(formatter: click.HelpFormatter, group: str, flags: list[str]) -> None:
    """The flags of a group, none of them broken in two."""
    lines = textwrap.wrap(" ".join(flags), formatter.width - 12, break_on_hyphens=False)
    for number, line in enumerate(lines):
        formatter.write(f"  {'' if number else group:8} {line}\n")


def _records(ctx: click.Context, options: list[click.Option]) -> list[tuple[str, str]]:
    return [record for option in options if (record := option.get_help_record(ctx))]


def grouped(command: click.Command) -> dict[str, list[click.Option]]:
    """The options of a command by their groups."""
    from streamrf.recipe import Recipe
    from streamrf.support.settings import about

    group_of = {each.name: about(each).group for each in fields(Recipe)}
    group_of |= {name: group for group, names in GROUPS.items() for name in names}
    found: dict[str, list[click.Option]] = {group: [] for group in GROUPS}
    for param in command.params:
        if isinstance(param, click.Option):
            found[group_of.get(param.name or "", "run")].append(param)
    return {group: options for group, options in found.items() if options}


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Explain every option."
)


# -- completion


class Place(click.ParamType):
    """A file, a folder or an address; the shell completes the first two."""

    name = "place"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def complete_column(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The columns of the first table on the line, if it is a file of this machine that tells them at once."""
    before, comma, begun = incomplete.rpartition(",")
    words = ctx.params.get("data") or ctx.args  # where an option still lacks its value, click leaves words there
    names = _column_names(next(iter(words), ""))
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(begun)]


def _column_names(path: Any) -> list[str]:
    try:
        if str(path).endswith(".parquet"):
            from pyarrow.parquet import read_schema

            return list(read_schema(path).names)
        if str(path).endswith((".csv", ".tsv")):
            with open(path, encoding="utf-8-sig", newline="") as stream:
                line = stream.readline(100_000)
            return next(csv.reader([line], delimiter=max(",;\t|", key=line.count)), [])
    except (OSError, ValueError, csv.Error):  # the shell must not see a word of it
        pass
    return []
