"""The command line. ``main`` turns errors into a message and an exit code; commands are imported when called."""

from __future__ import annotations

import difflib
import importlib
import os
import shlex
import sys
import tempfile
import traceback
import warnings
from typing import Any

import click

from streamrf.cli.config import with_config
from streamrf.cli.display import in_flags, printable, say
from streamrf.support import __version__
from streamrf.support.errors import StreamRFError
from streamrf.support.progress import Interrupted, termination_interrupts

# Name, the module that defines it, and one line of help, which is all that `streamrf --help` needs.
_COMMANDS = (
    ("convert", "convert", "Convert CSV, LIBSVM, HDF5, ... to chunked zarr or parquet."),
    ("train", "train", "Train a model on a table of any size."),
    ("predict", "predict", "Predict for every row of new data."),
    ("evaluate", "predict", "Measure a model on data with known targets."),
    ("update", "update", "Add new shards to a model, exactly."),
    ("forget", "update", "Remove shards from a model, exactly."),
    ("merge", "statistics", "Make one model of statistics that were summed apart."),
    ("prepare", "statistics", "Fix recipe, scaling and map, so that sites start alike."),
    ("accumulate", "statistics", "Sum the statistics of data, without solving."),
    ("solve", "statistics", "Solve with other lambdas or fewer targets, without reading data."),
    ("plan", "train", "Estimate memory, passes and time of a run, without reading a row."),
    ("compare", "compare", "Compare feature maps on a sample: errors, time, a picture."),
    ("report", "inspect", "Write a page of pictures about a model."),
    ("importance", "importance", "Show which columns predictions depend on, and how."),
    ("export", "inspect", "Write a model as ONNX, or as a page of numpy."),
    ("inspect", "inspect", "Show what is in a model or a data set."),
    ("warm", "warm", "Compile the kernels now, so that no run waits for it."),
)
_MODULES = {name: module for name, module, _ in _COMMANDS}


class Stopped(StreamRFError):
    """A run that was interrupted between two blocks."""

    exit_code = Interrupted.exit_code


class LazyGroup(click.Group):
    """Imports the module of a command when it is called, so `streamrf --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _MODULES:
            return None
        module = importlib.import_module(f"streamrf.cli.{_MODULES[name]}")
        return with_config(getattr(module, f"{name}_command"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A slip of the pen is answered with the nearest name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], _MODULES, 1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"No such command '{args[0]}'.{meant}", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Errors in the words of the command. An interrupt keeps its message: click makes it a bare Abort otherwise."""
        try:
            return super().invoke(ctx)
        except Interrupted as stop:
            raise Stopped(stop) from stop
        except StreamRFError as error:
            error.args = (in_flags(str(error), self.get_command(ctx, ctx.invoked_subcommand or "")),)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, _, text in _COMMANDS])


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
    """Entry point: known errors become one sentence and their exit code."""
    try:
        with termination_interrupts(), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            given = sys.argv[1:] if args is None else args
            return cli.main(args=args, prog_name="streamrf", standalone_mode=False, obj=tuple(given))
    except StreamRFError as error:
        say(f"streamrf: {error}", err=True, lines=False)
        if isinstance(error, Stopped):
            say(f"continue with: {shlex.join(['streamrf', *(args or sys.argv[1:])])}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _show_usage(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        say("streamrf: stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:  # a reader such as head closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        say(f"streamrf: {error.strerror or error}: {error.filename or ''}".rstrip(": "), err=True)
        sys.exit(8)
    except MemoryError as error:
        say(f"streamrf: out of memory ({error}): set a budget with --memory, or lower --D", err=True)
        sys.exit(6)
    except Exception as error:  # a fault of ours: one sentence for people, and all we know for whoever mends it
        say(f"streamrf: {_last_words(error, args or sys.argv[1:])}", err=True, lines=False)
        sys.exit(StreamRFError.exit_code)


def _last_words(error: Exception, args: list[str]) -> str:
    """Write the traceback to a log that only this user can read; the sentence says where it is."""
    text = "".join(traceback.format_exception(error))
    what = f"unexpected {type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
    try:
        handle, place = tempfile.mkstemp(prefix="streamrf-", suffix=".log")
        with open(handle, "w", encoding="utf-8") as log:
            log.write(printable(f"streamrf {__version__}: {shlex.join(args)}\n\n{text}"))
    except OSError:
        return f"{what} (the log could not be written); please report it"
    return f"{what}; please report it, with the log {place}"


def _show_usage(error: click.ClickException) -> None:
    """A usage error in one sentence; `streamrf` alone shows its help."""
    message = error.format_message()
    if "\n" in message:
        error.show()
        return
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "streamrf"
    say(f"streamrf: {message} Try '{where} --help'.", err=True)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"streamrf: warning: {in_flags(str(message))}", err=True)
