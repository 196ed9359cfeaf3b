"""Compiling ahead: what is in the cache, what a first run compiles behind its reading, and what `warm` leaves to do."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from commands import PROJECT
from tables import smooth

from streamrf.recipe import BINNING, TREES, Recipe
from streamrf.support.compiled import is_cached, kernel
from streamrf.training import warm

# Runs a command, and prints what numba compiles meanwhile and every compiled function that there is in the end.
COUNTED = """
import gc, sys
from numba.core import event
from numba.core.dispatcher import Dispatcher
class Listener(event.Listener):
    def on_start(self, begun): print("compiled", begun.data["dispatcher"].py_func.__qualname__)
    def on_end(self, ended): pass
event.register("numba:compile", Listener())
from streamrf.cli import main
main(sys.argv[1:])
for each in gc.get_objects():
    if isinstance(each, Dispatcher):
        for signature in each.signatures: print("has", each.py_func.__module__, each.py_func.__qualname__, signature)
"""


def test_a_kernel_is_cached_once_it_ran_and_until_its_file_changes(tmp_path, monkeypatch):
    path = tmp_path / "loops.py"
    path.write_text("def doubled(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    from loops import doubled

    compiled = kernel(doubled)
    assert not is_cached(compiled)
    assert compiled(3) == 6
    assert is_cached(compiled)
    os.utime(path, (time.time() + 60, time.time() + 60))
    assert not is_cached(compiled)


@pytest.fixture
def steps(monkeypatch):
    """The small runs that are made to compile; they wait until they are let go."""
    done, go = [], threading.Event()

    def train_on(source, recipe, threads):
        go.wait(10)
        done.append(recipe.map)

    monkeypatch.setattr(warm, "train_on", train_on)
    return done, go


def compiler():
    return next((each for each in threading.enumerate() if each.name == "streamrf-compiler"), None)


@pytest.mark.parametrize(
    ("recipe", "needed"),
    [(Recipe(), ["landmarks", BINNING, TREES]), (Recipe(D=50), ["auto"]), (Recipe(map=BINNING), [BINNING]),
     (Recipe(map=TREES), [TREES])],
)  # fmt: skip
def test_a_first_run_compiles_what_it_needs_beside_its_work(recipe, needed, steps, monkeypatch):
    done, go = steps
    monkeypatch.setattr(warm, "is_cached", lambda function: False)
    with warm.compiling(recipe):
        running = compiler()
        go.set()
        running.join(10)
    assert done == needed


def test_a_run_that_ends_early_waits_for_no_more_than_what_is_begun(steps, monkeypatch):
    done, go = steps
    monkeypatch.setattr(warm, "is_cached", lambda function: False)
    with warm.compiling(Recipe()):
        running = compiler()
    go.set()
    running.join(10)
    assert done == ["landmarks"]


def test_nothing_is_compiled_that_the_cache_has(monkeypatch):
    monkeypatch.setattr(warm, "is_cached", lambda function: True)
    with warm.compiling(Recipe()):
        assert compiler() is None


def test_runs_that_only_compile_are_not_told_of(caplog):
    with caplog.at_level(logging.DEBUG, "streamrf"):
        warm.train_on(warm.made_up(), warm.FOURIER, warm.ALONE)
    assert not caplog.records


def counted(*args, folder):
    """What a command compiles in a process of its own, and what is compiled in the end."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *args], capture_output=True, text=True, check=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    return [line for line in lines if line.startswith("compiled ")], {x for x in lines if x.startswith("has streamrf.")}


def test_after_warm_a_default_run_compiles_nothing(tmp_path):
    """The cache is that of all tests, which spares compiling for this one alone: what others left there does not count,
    as all that a run takes from it must be what `warm` made or took as well."""
    X, y = smooth(600)
    names = ",".join(["y", *(f"x{j}" for j in range(X.shape[1]))])
    np.savetxt(tmp_path / "rows.csv", np.column_stack([y, X]), delimiter=",", header=names, comments="")
    _, warmed = counted("warm", "--quiet", folder=tmp_path)
    assert len(warmed) > 20
    for options in ((), ("--map", "trees", "--overwrite")):
        run = ("train", "rows.csv", "--target", "y", "--out", "rows.model", "--quiet", *options)
        compiled, used = counted(*run, folder=tmp_path)
        assert compiled == []
        assert used
        assert used - warmed == set()
