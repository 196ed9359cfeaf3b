"""A run in words: plain lines for logs, and one updating line for terminals and notebooks."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from streamrf.support import memory
from streamrf.support.progress import Reporter
from streamrf.support.redaction import without_credentials
from streamrf.support.units import format_bytes, format_count, format_seconds

PLAIN_EVERY = 10.0  # seconds between plain lines
DRAW_EVERY = 0.1  # seconds between two states of the updating line
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_COUNT, SPARK_EVERY = 20, 0.5  # bars, and seconds of each
BAR = 20  # characters
WIDEST = 240  # of the updating line, where nothing says how wide the page is


class PlainReporter(Reporter):
    """One line at a time, for logs. ``verbose`` adds every trial and every detail."""

    wants_progress_error = True

    def __init__(
        self, *, verbose: bool = False, words: Callable[[str], str] = without_credentials, stream: TextIO | None = None
    ) -> None:
        self.verbose, self._words, self._stream = verbose, words, stream
        self._what, self._begun, self._error_so_far = "", 0.0, ""
        self._trials = 0

    # -- sentences

    def note(self, text: str) -> None:
        self._say(text)

    def detail(self, text: str) -> None:
        if self.verbose:
            self.note(text)

    def planned(self, plan: Any) -> None:
        self._say(
            f"plan: {plan.solver}, {plan.passes} pass{'es' if plan.passes > 1 else ''} over the data, projected memory"
            f" {format_bytes(plan.projected)} of a budget of {format_bytes(plan.budget)}"
        )
        if plan.others:  # there was a choice
            self._say(f"solver: {plan.solver}; {plan.why}")

    def tried(self, trial: Any) -> None:
        self._trials += 1
        if not self.verbose:
            return
        miss = "" if trial.misses is None else f", {100 * trial.misses:.2f} % wrong"
        size = f"grids {trial.grids:3d}       " if hasattr(trial, "grids") else f"D {trial.D:5d}  {trial.bits:8s}"
        self._say(
            f"pilot: {trial.scaling:9s} {trial.kernel:9s} length scale {trial.length_scale:8.4g}  {size}"
            f" {trial.rows:6d} rows: error {trial.error:.4f}{miss} ({trial.seconds:.2f} s)"
        )

    def settled(self, chosen: dict[str, Any]) -> None:
        self.detail("settings: " + ", ".join(f"{k} {_short(v)}" for k, v in chosen.items() if v is not None))

    # -- stages

    def working(self, what: str, share: float | None) -> None:
        """Every so often a line, and one when all is done."""
        if what != self._what:
            self._what, self._begun = what, time.monotonic()
            self._said = self._begun
        ended, due = share == 1, time.monotonic() - self._said >= PLAIN_EVERY
        if share and (due or (ended and self._trials)):
            self._said = time.monotonic()
            self._say(f"{what}: {self._of_share(share)}")
        if ended:
            self._what, self._trials = "", 0

    def _of_share(self, share: float) -> str:
        taken = time.monotonic() - self._begun
        trials = f"{self._trials} trials" if self._trials else f"{share:.0%}"
        left = format_seconds(taken * (1 - share) / share) if share else "?"
        return f"{trials} in {format_seconds(taken)}" if share >= 1 else f"{trials}, about {left} left"

    def started(self, what: str, rows: int, done: int) -> None:
        self._what, self._rows, self._first = what, rows, done
        self._trials = 0  # those before a pass are of no stage after it
        self._begun = self._said = time.monotonic()
        self._done = done
        self._error_so_far = ""

    def progress_error(self, error: float, what: str) -> None:
        self._error_so_far = f", hold-out {what} {error:.4g} so far"

    def finished(self) -> None:
        """The last line is printed already."""

    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        repeats = self._what[-1:].isdigit() and not self.verbose  # steps of a solver, each a pass
        complete, self._done = done == self._rows != self._done and not repeats, done
        if time.monotonic() - self._said >= PLAIN_EVERY or complete:
            self._said = time.monotonic()
            self._say(f"{self._what}: {self._of_rows(done, checkpoint_age)}")

    def _of_rows(self, done: int, checkpoint_age: float | None, sparks: str = "") -> str:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        rate = (done - self._first) / seconds
        left = format_seconds((self._rows - done) / rate) if rate else "?"
        saved = "" if checkpoint_age is None else f", saved {format_seconds(checkpoint_age)} ago"
        return (
            f"{format_count(done)} of {format_count(self._rows)} rows, {rate:,.0f} rows/s{sparks}, {left} left,"
            f" {format_bytes(memory.resident())}{saved}{self._error_so_far}"
        )

    def _say(self, text: str) -> None:
        print(self._words(text), file=self._stream or sys.stderr, flush=True)


class LineReporter(PlainReporter):
    """One line that is written over and over, whatever the stage. Sentences scroll by above it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown, self._drawn = 0, 0.0  # characters that stand there, and since when
        stream = self._stream or sys.stderr
        self._pretty = "utf" in (getattr(stream, "encoding", None) or "utf-8").lower()

    def started(self, what: str, rows: int, done: int) -> None:
        super().started(what, rows, done)
        self._speeds = Speeds(done)
        self._draw(f"{what} {self._bar(done / rows if rows else 0.0)}", at_once=True)
        self._drawn = 0.0  # the first rows are shown at once

    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        self._speeds.advance(done)
        drawn = self._pretty and len(self._speeds.values) > 1
        sparks = f" {sparkline(self._speeds.values)}" if drawn else ""
        self._last = f"{self._what}: {self._of_rows(done, checkpoint_age)}"
        bar = self._bar(done / self._rows if self._rows else 0.0)
        text = f"{self._what} {bar} {self._of_rows(done, checkpoint_age, sparks)}"
        self._draw(text, at_once=done == self._rows)

    def finished(self) -> None:
        self.clear()
        if self.verbose and hasattr(self, "_last"):
            self._say(self._last)

    def working(self, what: str, share: float | None) -> None:
        first = what != self._what
        if first:
            self._what, self._begun = what, time.monotonic()
        if share is None:
            self._draw(f"{what} ...", at_once=True)
        elif share >= 1:
            self.clear()
            if self._trials:
                self.detail(f"{what}: {self._of_share(share)}")
            self._what, self._trials = "", 0
        else:
            self._draw(f"{what} {self._bar(share)} {self._of_share(share) if share else ''}", at_once=first)

    def _bar(self, share: float) -> str:
        full, empty = ("━", "╌") if self._pretty else ("#", "-")
        filled = int(BAR * min(share, 1.0))
        return f"{full * filled}{empty * (BAR - filled)} {100 * min(share, 1.0):3.0f} %"

    def _draw(self, text: str, *, at_once: bool = False) -> None:
        """The new state of the line, within the width of the terminal: one that wraps could not be written over."""
        now = time.monotonic()
        if not at_once and now - self._drawn < DRAW_EVERY:
            return
        self._drawn = now
        text = text.rstrip()[: shutil.get_terminal_size((WIDEST, 24)).columns - 1]
        self._write(f"\r{text.ljust(self._shown)}")
        self._shown = len(text)

    def clear(self) -> None:
        """Nothing stays of the line, after an error too."""
        if self._shown:
            self._write(f"\r{' ' * self._shown}\r")
            self._shown = 0

    def _say(self, text: str) -> None:
        self.clear()
        super()._say(text)

    def _write(self, text: str) -> None:
        stream = self._stream or sys.stderr
        stream.write(text)
        stream.flush()


def reporter_for(verbose: int) -> Reporter:
    """For Python: nothing, one updating line (1), or every detail (2), on standard output, which notebooks show."""
    if not verbose:
        return Reporter()
    updates = sys.stdout.isatty() or _in_notebook()
    return (LineReporter if updates else PlainReporter)(verbose=verbose > 1, stream=sys.stdout)


def _in_notebook() -> bool:
    """A running kernel, not only its package: programs that start kernels load that too."""
    kernels = sys.modules.get("ipykernel.kernelapp")
    return kernels is not None and kernels.IPKernelApp.initialized()


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
