"""A progress bar in a terminal, plain lines elsewhere, and tables. Progress goes to stderr."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from typing import Any

import click

from streamrf.support import memory
from streamrf.support.progress import Reporter
from streamrf.support.redaction import without_credentials
from streamrf.support.settings import with_flags
from streamrf.support.units import format_bytes, format_count, format_seconds

PLAIN_EVERY = 10.0  # seconds between plain lines
# Control characters, and those that turn the direction of writing.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
SPARKS = "▁▂▃▄▅▆▇█"
MOST_CLASSES = 10  # that a table in a terminal has lines for
SPARK_COUNT, SPARK_EVERY = 20, 0.5  # bars, and seconds of each


def make_reporter(*, quiet: bool) -> Reporter:
    if quiet:
        return Reporter()
    plain = not sys.stderr.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown")
    return PlainReporter() if plain else TerminalReporter()


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


def in_flags(text: str, command: click.Command | None = None) -> str:
    """A text with its settings as flags of a command: the one that runs, unless another is named."""
    context = click.get_current_context(silent=True)
    command = command or (context.command if context else None)
    options = [each for each in command.params if isinstance(each, click.Option)] if command else []
    return with_flags(text, {each.name or "": each.opts[0] for each in options})


class PlainReporter(Reporter):
    """One line at a time, for logs."""

    wants_progress_error = True

    def note(self, text: str) -> None:
        self._say(in_flags(text))

    def planned(self, plan: Any) -> None:
        self._say(
            f"plan: {plan.solver}, {plan.passes} pass{'es' if plan.passes > 1 else ''} over the data, projected memory"
            f" {format_bytes(plan.projected)} of a budget of {format_bytes(plan.budget)}"
        )

    def tried(self, trial: Any) -> None:
        miss = "" if trial.misses is None else f", {100 * trial.misses:.2f} % wrong"
        size = f"grids {trial.grids:3d}       " if hasattr(trial, "grids") else f"D {trial.D:5d}  {trial.bits:8s}"
        self._say(
            f"pilot: {trial.scaling:9s} {trial.kernel:9s} length scale {trial.length_scale:8.4g}  {size}"
            f" {trial.rows:6d} rows: error {trial.error:.4f}{miss} ({trial.seconds:.2f} s)"
        )

    def settled(self, chosen: dict[str, Any]) -> None:
        self._say("settings: " + ", ".join(f"{k} {_short(v)}" for k, v in chosen.items() if v is not None))

    def started(self, what: str, rows: int, done: int) -> None:
        self._what, self._rows, self._first = what, rows, done
        self._begun = self._said = time.monotonic()
        self._done = done
        self._error_so_far = ""

    def progress_error(self, error: float, what: str) -> None:
        self._error_so_far = f", hold-out {what} {error:.4g} so far"

    def finished(self) -> None:
        """The last line is printed already."""

    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        complete, self._done = done == self._rows != self._done, done
        if time.monotonic() - self._said >= PLAIN_EVERY or complete:
            self._said = time.monotonic()
            self._say(self._line(done, checkpoint_age))

    def _line(self, done: int, checkpoint_age: float | None) -> str:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        rate = (done - self._first) / seconds
        left = format_seconds((self._rows - done) / rate) if rate else "?"
        saved = "" if checkpoint_age is None else f", saved {format_seconds(checkpoint_age)} ago"
        return (
            f"{self._what}: {format_count(done)} of {format_count(self._rows)} rows, {rate:,.0f} rows/s, {left} left,"
            f" {format_bytes(memory.resident())}{saved}{self._error_so_far}"
        )

    def _say(self, text: str) -> None:
        say(text, err=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sparkline(values: Any) -> str:
    """A bar for each value, from zero to the largest."""
    top = max(values, default=0)
    return "".join(SPARKS[round(value / top * (len(SPARKS) - 1))] for value in values) if top > 0 else ""


class Speeds:
    """Rows a second in the last intervals, for a sparkline."""

    def __init__(self, done: int) -> None:
        self._at, self._rows = time.monotonic(), done
        self.values: deque[float] = deque(maxlen=SPARK_COUNT)

    def advance(self, done: int) -> None:
        now = time.monotonic()
        if now - self._at >= SPARK_EVERY:
            self.values.append((done - self._rows) / (now - self._at))
            self._at, self._rows = now, done


class TerminalReporter(PlainReporter):
    """A live progress bar with a sparkline of the speed; notes scroll by above it."""

    def started(self, what: str, rows: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().started(what, rows, done)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>4.0f} % {task.fields[text]}"),
        )
        console = Console(stderr=True)
        self._speeds, self._sparks = Speeds(done), not console.legacy_windows and "utf" in console.encoding.lower()
        self._progress = Progress(*columns, console=console, transient=True)
        self._progress.start()
        click.get_current_context().call_on_close(self._progress.stop)  # after an error too: the cursor must come back
        self._task = self._progress.add_task(what, total=rows, completed=done, text="")

    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        self._last = self._line(done, checkpoint_age)
        self._speeds.advance(done)
        bars = f" {sparkline(self._speeds.values)}" if self._sparks and len(self._speeds.values) > 1 else ""
        text = self._last.split(": ", 1)[1].replace(" rows/s", f" rows/s{bars}", 1)
        self._progress.update(self._task, completed=done, text=text)

    def finished(self) -> None:
        self._progress.stop()
        if hasattr(self, "_last"):
            self._say(self._last)


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
    names = ("rows", "precision", "recall", "f1")
    title = "class" if few else f"worst {MOST_CLASSES} of {len(by_class)} classes"
    lines = [[str(each["class"]), *(_cell(each[name]) for name in names)] for each in (by_class if few else shown)]
    width = max(len(line[0]) for line in [*lines, [title]])
    say(f"\n{title.ljust(width)}" + "".join(name.rjust(12) for name in names))
    for label, *cells in lines:
        say(label.ljust(width) + "".join(cell.rjust(12) for cell in cells))


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
