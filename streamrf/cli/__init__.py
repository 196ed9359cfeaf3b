"""The command line. One place turns errors into a message and an exit code; commands load when they are called."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import warnings
from typing import Any

import click

from streamrf.cli.config import with_config
from streamrf.support import __version__
from streamrf.support.errors import StreamRFError, with_flags
from streamrf.support.progress import Interrupted

COMMANDS = {
    "convert": "Convert CSV, LIBSVM, HDF5, ... to chunked zarr or parquet.",
    "train": "Train a model on a table of any size.",
    "predict": "Predict for every row of new data.",
    "evaluate": "Measure a model on data with known targets.",
    "update": "Let new shards join a model.",
    "forget": "Take shards out of a model, exactly.",
    "merge": "Make one model of statistics that were summed apart.",
    "prepare": "Fix recipe, scaling and map, so that sites start alike.",
    "accumulate": "Sum the statistics of data, without solving.",
    "solve": "Other lambdas or fewer targets, without touching the data.",
    "plan": "Say what a run would take, without reading a row.",
    "compare": "Compare feature maps on a sample: errors, time, a picture.",
    "report": "Draw a page of pictures about a model.",
    "export": "Write a model as ONNX, or as a page of numpy.",
    "inspect": "Show what is in a model or a data set.",
}


class Stopped(StreamRFError):
    """A run that ended between two blocks because it was asked to."""

    exit_code = Interrupted.exit_code


class LazyGroup(click.Group):
    """Commands live in modules of their own, imported when called: `streamrf --help` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return with_config(importlib.import_module(f"streamrf.cli.{name}").command)

    def invoke(self, ctx: click.Context) -> Any:
        """Keep the words of an interrupt: click makes a bare Abort of every KeyboardInterrupt."""
        try:
            return super().invoke(ctx)
        except Interrupted as stop:
            raise Stopped(stop) from stop

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="streamrf")
def cli() -> None:
    """Kernel machines for tables larger than memory: random features, exact sums, one pass.

    \b
    Examples:
      streamrf train data.zarr --D 5000
      streamrf evaluate data.model test.zarr
      streamrf predict data.model new.parquet --out predictions.parquet
    """
    from streamrf.support.memory import limit_heaps

    limit_heaps()


def main(args: list[str] | None = None) -> Any:
    """Entry point: errors we know become one sentence and their exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return cli.main(args=args, prog_name="streamrf", standalone_mode=False)
    except StreamRFError as error:
        click.echo(f"streamrf: {with_flags(str(error))}", err=True)
        if isinstance(error, Stopped):
            click.echo(f"continue with: {shlex.join(['streamrf', *(args or sys.argv[1:])])}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _show_usage(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("streamrf: stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:  # a reader such as head has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        click.echo(f"streamrf: {error.strerror or error}: {error.filename or ''}".rstrip(": "), err=True)
        sys.exit(8)
    except MemoryError as error:
        click.echo(f"streamrf: out of memory ({error}): set a budget with --memory, or lower --D", err=True)
        sys.exit(6)


def _show_usage(error: click.ClickException) -> None:
    """A slip on the command line in one sentence; `streamrf` alone shows its help."""
    message = error.format_message()
    if "\n" in message:
        error.show()
        return
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "streamrf"
    click.echo(f"streamrf: {message} Try '{where} --help'.", err=True)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"streamrf: warning: {with_flags(str(message))}", err=True)
