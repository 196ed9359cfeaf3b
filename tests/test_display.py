"""What people see while a run goes on: lines, a sparkline, the hold-out error so far; and what the logger gets."""

import io
import logging
import os
import pty
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from commands import FAST, PROJECT, done
from tables import labelled, smooth, write_zarr

from streamrf import Recipe
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Span
from streamrf.data.split import Split, chosen_rows
from streamrf.engines.base import Pass
from streamrf.solvers import passes as progress_error
from streamrf.solvers.passes import ProgressError, first_rows
from streamrf.statistics.gram import Gram
from streamrf.statistics.holdout import Holdout, SampleState
from streamrf.support import live
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE
from streamrf.training.pilot.choice import Trial
from streamrf.training.run import train
from streamrf.training.update.changes import accumulate, prepare

QUICK = Recipe(D=32, pilot="none", length_scale=2.0, bits="8", ridge=1e-4)


class Curious(Reporter):
    wants_progress_error = True

    def __init__(self):
        self.seen = []

    def progress_error(self, error, what):
        self.seen.append((error, what))


def partial_pass(X, y):
    prepared = prepare(ArraySource(X, y), QUICK)
    gram = Gram.on_this_machine(prepared.scaling, prepared.map, prepared.coding, 1)
    job = Pass.start(Holdout(gram, Split(choose=0.3)), ArraySource(X, y))
    job.statistic.update(job.state, ArraySource(X, y).read(Span(0, len(X))), ALONE)
    return prepared, job


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_the_progress_error_is_the_error_of_the_sums_so_far(classes):
    X, y = smooth(600) if classes is None else labelled(600, classes=classes)
    prepared, job = partial_pass(X, y)
    held = chosen_rows(np.arange(600), 0.3, 0)
    model = accumulate(prepared, ArraySource(X[~held], y[~held])).solve(1e-4)
    scores = model.scores(X[held], ALONE)
    if classes is None:
        expected = np.sqrt(np.mean((scores[:, 0] - y[held]) ** 2))
    else:
        guesses = scores[:, 0] > 0 if classes == 2 else scores.argmax(axis=1)
        expected = np.mean(guesses != y[held])
    found = ProgressError(prepared.pipeline, prepared.recipe.ridge, Curious()).error(job.state)
    assert found == pytest.approx(expected, rel=1e-9)


def test_looking_takes_a_hundredth_of_the_time():
    prepared, job = partial_pass(*smooth(600))
    now, cost, looks = [0.0], 2.0, Curious()
    watch = ProgressError(prepared.pipeline, prepared.recipe.ridge, looks, clock=lambda: now[0])

    def slow(state):
        now[0] += cost
        return 1.0

    watch.error = slow
    for _ in range(100_000):
        now[0] += 0.05
        watch(job)
    spent = cost * len(looks.seen)
    assert len(looks.seen) > 10
    assert spent / now[0] <= 1.01 * progress_error.SHARE


def test_nobody_looks_where_it_is_dear_or_unwanted():
    prepared, job = partial_pass(*smooth(600))
    assert ProgressError(prepared.pipeline, prepared.recipe.ridge, Reporter()).due == float("inf")
    many = Curious()
    large = prepare(ArraySource(*smooth(200)), QUICK.with_(D=progress_error.MOST_FEATURES + 1))
    assert ProgressError(large.pipeline, large.recipe.ridge, many).due == float("inf")
    few = Holdout(job.statistic.statistic, Split(choose=0.01)).zero()
    assert ProgressError(prepared.pipeline, prepared.recipe.ridge, many).error(few) is None


def test_the_rows_that_are_looked_at_stay_the_same():
    sample = SampleState()
    for start in range(0, 90, 30):
        rows = np.arange(start, start + 30)
        sample.add(Block(rows[:, None] * 1.0, rows[:, None] * 2.0, rows))
    assert first_rows(sample, 50).index.tolist() == list(range(50))
    assert len(sample.blocks) == 3
    assert first_rows(SampleState(), 50) is None


def test_a_run_shows_its_error_so_far(monkeypatch):
    monkeypatch.setattr(progress_error, "FIRST", 0.0)
    monkeypatch.setattr(progress_error, "FLOPS", 1e15)
    looks = Curious()
    train(ArraySource(*smooth(40_000)), QUICK, reporter=looks)
    assert looks.seen
    assert looks.seen[0][1] == "RMSE"


# -- lines


def test_sparklines():
    assert live.sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert live.sparkline([]) == live.sparkline([0, 0]) == ""


def test_plain_lines_name_the_error_so_far(capsys, monkeypatch):
    monkeypatch.setattr(live, "PLAIN_EVERY", 0.0)
    reporter = live.PlainReporter()
    reporter.started("training", 1000, 0)
    reporter.advanced(400, None)
    reporter.progress_error(0.12345, "RMSE")
    reporter.advanced(1000, 3.0)
    first, second = capsys.readouterr().err.splitlines()
    assert "400 of 1,000 rows" in first
    assert "hold-out" not in first
    assert second.endswith("saved 3.0 s ago, hold-out RMSE 0.1235 so far")


class Page(io.StringIO):
    """What stands there in the end: a carriage return goes back to the start of the line, and nothing wraps."""

    def lines(self):
        return [self._left(line) for line in self.getvalue().split("\n")]

    @staticmethod
    def _left(line):
        shown = ""
        for state in line.split("\r"):
            shown = state + shown[len(state) :]
        return shown.rstrip()


def test_the_line_is_written_over_and_leaves_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(live, "DRAW_EVERY", 0.0)
    page = Page()
    reporter = live.LineReporter(stream=page)
    reporter.working("pilot", 0.25)
    assert page.lines()[-1].startswith("pilot ━━━━━╌")
    assert " left" in page.lines()[-1]
    reporter.note("something was found")
    reporter.working("pilot", 1.0)
    reporter.started("training", 1000, 0)
    reporter.advanced(500, None)
    assert page.lines()[-1].startswith("training ━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌  50 % 500 of 1,000 rows")
    assert max(len(state) for line in page.getvalue().split("\n") for state in line.split("\r")) < 60
    reporter.finished()
    assert page.lines() == ["something was found", ""]


def trial(**settings):
    return Trial("standard", "gaussian", 2.0, 64, "8", 500, error=0.25, **settings)


@pytest.mark.parametrize("verbose", [False, True])
def test_trials_are_shown_to_those_who_ask(capsys, verbose):
    reporter = live.PlainReporter(verbose=verbose)
    for share in (0.5, 1.0):
        reporter.tried(trial())
        reporter.working("pilot", share)
    said = capsys.readouterr().err.splitlines()
    assert sum("length scale" in line for line in said) == 2 * verbose
    assert said[-1].startswith("pilot: 2 trials in ")


def test_trials_before_a_pass_are_of_no_stage_after_it(capsys):
    """A search without a line of its own was told of as `solving: 12 trials`."""
    reporter = live.PlainReporter()
    reporter.tried(trial())
    reporter.started("training", 100, 0)
    reporter.finished()
    reporter.working("solving", 0.5)
    reporter.working("solving", 1.0)
    assert "trials" not in capsys.readouterr().err


class Shares(Reporter):
    """Checks that a stage only goes forward, and ends."""

    def __init__(self):
        self.stages = {}

    def working(self, what, share):
        self.stages.setdefault(what, []).append(share)


def test_the_pilot_says_how_far_it_is():
    shown = Shares()
    train(ArraySource(*smooth(400)), Recipe(D=32), reporter=shown)
    train(ArraySource(*smooth(400)), Recipe(map="blend", D=32, grids=4), reporter=shown)
    for stage in ("pilot", "pilot of landmarks", "pilot of random binning"):
        shares = shown.stages[stage]
        assert shares == sorted(shares)
        assert len(shares) > 3
        assert 0 < shares[0] < 0.5
        assert shares[-1] == 1.0
        assert shares[-2] < 1.0
    assert shown.stages["solving"][-1] == 1.0


def on_terminal(*arguments, terminal="xterm-256color", both=False):
    """What a command says on a terminal, on standard output too if ``both``."""
    main, other = pty.openpty()
    command = [sys.executable, "-m", "streamrf", *map(str, arguments)]
    environment = {**os.environ, "TERM": terminal, "NO_COLOR": "1", "COLUMNS": "160"}
    out = other if both else subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=out, stderr=other, cwd=PROJECT, env=environment)
    os.close(other)
    said = io.BytesIO()
    while True:
        try:
            said.write(os.read(main, 65536))
        except OSError:  # the other end is closed: that is how a pty says it is over
            break
    assert process.wait() == 0
    os.close(main)
    return said.getvalue().decode()


@pytest.mark.parametrize("terminal", ["xterm-256color", "dumb"])
def test_a_terminal_gets_a_bar_and_a_dumb_one_lines(tmp_path, terminal):
    data = write_zarr(tmp_path / "rows.zarr", *smooth(60_000), chunk=20_000)
    text = on_terminal("train", data, *FAST, "--out", tmp_path / "m.model", terminal=terminal)
    assert ("training: 60,000 of 60,000 rows" in text) == (terminal == "dumb")
    assert ("\rtraining ━" in text) == (terminal != "dumb")
    assert ("━" in text) == (terminal != "dumb")
    assert not re.search(r"\x1b\[[0-9;]*3[1-7]m", text)  # NO_COLOR is heeded


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_a_warning_shows_once_on_a_terminal(tmp_path, quiet):
    X, _ = smooth(2000)
    data = write_zarr(tmp_path / "rows.zarr", X, X[:, 0] * 1.0, chunk=2000)
    options = (*FAST, "--length-scale", "0.2", "--out", tmp_path / "m.model", *quiet)
    assert on_terminal("train", data, *options, both=True).count("plain linear ridge") == 1


def test_speeds_are_of_the_last_intervals(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    speeds = live.Speeds(0)
    for step in range(1, 101):
        now[0] = step * 0.25
        speeds.advance(step * 100)
    assert list(speeds.values) == [400.0] * live.SPARK_COUNT


# -- the logger


def test_the_library_logs_and_prints_nothing(caplog, capsys):
    with caplog.at_level(logging.DEBUG, logger="streamrf"):
        train(ArraySource(*smooth(300)), QUICK)
    assert any("300 rows" in record.getMessage() for record in caplog.records)
    assert {record.name for record in caplog.records} == {"streamrf"}
    assert capsys.readouterr() == ("", "")


def test_quiet_is_quiet(tmp_path):
    data = write_zarr(tmp_path / "rows.zarr", *smooth(300))
    assert done("train", data, *FAST, "--quiet", "--json", "--out", tmp_path / "m.model").err == ""
