"""Compiling ahead: what is in the cache, what a first run compiles beside its work, and what `warm` leaves to do."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from commands import PROJECT
from tables import smooth

from streamrf.recipe import BINNING, TREES, Recipe
from streamrf.support.compiled import SharedCache, is_cached, kernel
from streamrf.support.threads import ALONE
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


TOGETHER = """
import sys, time
from pathlib import Path
from numba.core import event
class Listener(event.Listener):
    def on_start(self, begun): print("compiled")
    def on_end(self, ended): pass
event.register("numba:compile", Listener())
from streamrf.support.compiled import kernel
from loops import doubled
compiled = kernel(doubled)
Path(sys.argv[1]).touch()
while not Path("go").exists(): time.sleep(0.001)
print(compiled(3))
"""


def test_of_two_processes_that_begin_together_one_compiles(tmp_path):
    (tmp_path / "loops.py").write_text("def doubled(x):\n    return 2 * x\n")
    env = {**os.environ, "PYTHONPATH": f"{PROJECT}{os.pathsep}{tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, name], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "other")
    ]
    while not all((tmp_path / name).exists() for name in ("one", "other")):
        assert all(each.poll() is None for each in both)
        time.sleep(0.01)
    (tmp_path / "go").touch()
    said = [each.communicate(timeout=60)[0].split() for each in both]
    assert sorted(said) == [["6"], ["compiled", "6"]]


def test_a_process_that_was_stopped_is_not_waited_for_without_end(tmp_path, monkeypatch):
    """What is compiled meanwhile is not saved: the other may save as well."""
    (tmp_path / "held.py").write_text("def doubled(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    from held import doubled

    monkeypatch.setattr(SharedCache, "PATIENCE", 0.05)
    with open(SharedCache(doubled).lock, "ab") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        assert kernel(doubled)(3) == 6
        assert not is_cached(doubled)
    assert kernel(doubled)(3) == 6
    assert is_cached(doubled)


@pytest.mark.parametrize(
    ("recipe", "needed"),
    [(Recipe(), ["landmarks", "landmarks", BINNING, TREES]), (Recipe(D=50), ["auto"]), (Recipe(map=BINNING), [BINNING]),
     (Recipe(map=TREES), [TREES])],
)  # fmt: skip
def test_beside_a_first_run_is_compiled_what_it_needs_last_things_first(recipe, needed, monkeypatch):
    done = []
    monkeypatch.setattr(warm, "is_cached", lambda function: False)
    monkeypatch.setattr(warm, "train_on", lambda source, recipe, threads: done.append(recipe.map))
    monkeypatch.setattr(sys, "argv", ["-c", json.dumps(recipe.to_json())])
    warm.compile_for()
    assert done == needed


def compilers():
    return [each for each in psutil.Process().children() if "compile_for" in " ".join(each.cmdline())]


def test_a_process_of_its_own_compiles_and_ends_with_the_run(monkeypatch):
    monkeypatch.setattr(warm, "is_cached", lambda function: False)
    monkeypatch.setattr(warm, "available_cores", lambda: 2)
    with warm.compiling(Recipe()):
        running = compilers()
    assert len(running) == 1
    assert compilers() == []
    assert not running[0].is_running()


@pytest.mark.parametrize("why", ["cached", "one core", "no room"])
def test_nothing_is_compiled_beside_a_run_that_needs_nothing_or_has_no_room_for_it(why, monkeypatch):
    monkeypatch.setattr(warm, "is_cached", lambda function: why == "cached")
    monkeypatch.setattr(warm, "available_cores", lambda: 1 if why == "one core" else 2)
    monkeypatch.setattr(warm.memory, "available", lambda: 0 if why == "no room" else warm.ROOM)
    with warm.compiling(Recipe()):
        assert compilers() == []


def test_what_a_first_run_lacks_is_compiled_beside_it(tmp_path):
    """In a cache of its own: all that the process beside it is for is there in the end, without the run's doing."""
    env = {**os.environ, "PYTHONPATH": str(PROJECT), "NUMBA_CACHE_DIR": str(tmp_path)}
    program = "from streamrf.training.warm import compile_for; compile_for()"
    subprocess.run([sys.executable, "-c", program, json.dumps(Recipe(map=TREES).to_json())], env=env, check=True)
    assert list(tmp_path.glob("*/*.grow_below-*.nbi"))


def test_runs_that_only_compile_are_not_told_of(caplog):
    with caplog.at_level(logging.DEBUG, "streamrf"):
        warm.train_on(warm.made_up(), warm.FOURIER, ALONE)
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
