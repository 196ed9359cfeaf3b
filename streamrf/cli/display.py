"""Which reporter a command has, and its tables. Progress goes to stderr."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import click

from streamrf.support.live import LineReporter, PlainReporter
from streamrf.support.progress import Reporter
from streamrf.support.redaction import without_credentials
from streamrf.support.settings import with_flags
from streamrf.support.units import format_count

# Control characters, and those that turn the direction of writing.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
MOST_CLASSES = 10  # that a table in a terminal has lines for


def make_reporter(*, quiet: bool, verbose: bool = False) -> Reporter:
    """Plain lines without a terminal; in one, an updating line, which is gone when the command ends."""
    if quiet:
        return Reporter()
    if not sys.stderr.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown"):
        return PlainReporter(verbose=verbose, words=_for_people)
    reporter = LineReporter(verbose=verbose, words=_for_people)
    if context := click.get_current_context(silent=True):
        context.call_on_close(reporter.clear)
    return reporter


def printable(text: str, *, lines: bool = True) -> str:
    """A text as a terminal may see it: what would move its cursor or change its colours is shown and not done, and
    credentials of addresses are left out. Without ``lines`` a line break is shown as well."""
    kept = "\n\t" if lines else "\t"
    return without_credentials("".join(c if c in kept or not _CONTROL.match(c) else _escaped(c) for c in text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def say(text: str = "", *, err: bool = False, lines: bool = True) -> None:
    """Print a text for people."""
    click.echo(printable(text, lines=lines), err=err)


def _for_people(text: str) -> str:
    return printable(in_flags(text))


def in_flags(text: str, command: click.Command | None = None) -> str:
    """A text with its settings as flags of a command: the one that runs, unless another is named."""
    context = click.get_current_context(silent=True)
    command = command or (context.command if context else None)
    options = [each for each in command.params if isinstance(each, click.Option)] if command else []
    return with_flags(text, {each.name or "": each.opts[0] for each in options})


def print_table(rows: list[tuple[str, str]]) -> None:
    """Names and values in two columns, on standard output."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"{name.ljust(width)}  {value}", lines=False)


def print_metrics(metrics: dict[str, Any], classes: tuple[Any, ...]) -> None:
    """What `evaluate` found: figures, the baseline, and for classes a line for each and the confusion."""
    figures = [(name.replace("_", " "), f"{v:.6g}") for name, v in metrics.items() if isinstance(v, (int, float))]
    print_table([*figures, ("baseline", baseline_text(metrics["baseline"]))])
    if classes:
        _print_classes(metrics["by_class"])
        _print_confusion(metrics["confusion"], classes)


def baseline_text(baseline: dict[str, Any]) -> str:
    """What one gets without a look at the inputs."""
    if "rmse" in baseline:
        return f"rmse {baseline['rmse']:.6g} (always the mean)"
    shares = f"log loss {baseline['log_loss']:.6g} (always the shares of the classes)"
    return f"error {baseline['error']:.6g} (always {baseline['class']}), {shares}"


def _print_classes(by_class: list[dict[str, Any]]) -> None:
    """Precision, recall and F1 of each class; of the worst, where there are many."""
    shown = sorted(by_class, key=lambda each: each["f1"] or 0.0)[:MOST_CLASSES]
    few = len(by_class) <= MOST_CLASSES
    names = [name for name in by_class[0] if name != "class"]
    title = "class" if few else f"worst {MOST_CLASSES} of {len(by_class)} classes"
    lines = [[str(each["class"]), *(_cell(each[name]) for name in names)] for each in (by_class if few else shown)]
    width = max(len(line[0]) for line in [*lines, [title]])
    widths = [max(12, len(name) + 3) for name in names]
    say(f"\n{title.ljust(width)}" + "".join(_spaced(names, widths)))
    for label, *cells in lines:
        say(label.ljust(width) + "".join(_spaced(cells, widths)))


def _spaced(cells: list[str], widths: list[int]) -> Iterator[str]:
    return (cell.replace("_", " ").rjust(width) for cell, width in zip(cells, widths, strict=True))


def _cell(value: float | None) -> str:
    """A count, a share, or nothing to divide by."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else format_count(value)


def _print_confusion(counts: list[list[float]], classes: tuple[Any, ...]) -> None:
    """Rows are the truth, columns the prediction."""
    labels, table = [str(label) for label in classes], [[f"{count:.10g}" for count in row] for row in counts]
    width = max(len(label) for label in [*labels, *(cell for row in table for cell in row), "truth"])
    say("\nconfusion (rows: truth, columns: prediction)")
    say(" ".join(text.rjust(width) for text in ["", *labels]))
    for label, row in zip(labels, table, strict=True):
        say(" ".join(text.rjust(width) for text in [label, *row]))
