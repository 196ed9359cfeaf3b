"""`startup`: how long help and imports take, and how much longer a first run takes than a second."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchlib.context import Context
from benchlib.results import Cell, Results, rounded
from benchlib.running import run as run_alone
from streamrf.support.threads import in_turn

MINUTES = "about 2 minutes"
COMMANDS = {
    "import numpy": ("-c", "import numpy"),
    "import streamrf": ("-c", "import streamrf"),
    "streamrf --help": ("-m", "streamrf", "--help"),
    "streamrf train --help": ("-m", "streamrf", "train", "--help"),
    "import the estimators": ("-c", "from streamrf import KernelRegressor"),
}
LIMITS = {  # seconds
    "import streamrf": ("at most", 0.5),
    "streamrf --help": ("at most", 0.3),
    "streamrf train --help": ("at most", 0.5),
    "first run waits": ("at most", 4.0),
    "first run after warm waits": ("at most", 0.5),
}
ROWS, COLUMNS = 2000, 5


def run(context: Context) -> Results:
    results = context.open("startup")
    results.cell("seconds", lambda: measure(1 if context.quick else 7))
    for run in range(1 if context.quick else 3):
        results.cell(f"train/{run}", lambda: first_and_second(context))
    return results


def measure(repeats: int) -> Cell:
    seconds = in_turn({name: partial(start, *arguments) for name, arguments in COMMANDS.items()}, repeats)
    ratio = {name: value / seconds["import numpy"] for name, value in seconds.items()}
    return rounded({"ok": True, **seconds, "ratio": ratio})


def start(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def first_and_second(context: Context) -> Cell:
    """Seconds of `train` on a small table: where nothing is compiled yet, again, and after `streamrf warm`."""
    options = ("--D", "50", "--pilot", "none") if context.quick else ()
    with tempfile.TemporaryDirectory() as folder:
        small_table(Path(folder) / "small.csv")
        first, second = (trained(context, folder, "fresh", *options) for _ in range(2))
        warm = alone(context, folder, "warm", "warm")
        after = trained(context, folder, "warm", *options)
    return rounded({
        "rows": ROWS, "first": first, "second": second, "streamrf warm": warm, "first after warm": after,
        "first run waits": first - second, "first run after warm waits": after - second,
    })  # fmt: skip


def small_table(path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS))
    y = np.sin(X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.standard_normal(ROWS)
    names = ",".join([*(f"x{j}" for j in range(COLUMNS)), "y"])
    np.savetxt(path, np.column_stack([X, y]), delimiter=",", header=names, comments="", fmt="%.6f")


def trained(context: Context, folder: str, cache: str, *options: str) -> float:
    where = ("--target", "y", "--out", f"{folder}/small.model", "--overwrite", "--no-cache", "--quiet")
    return alone(context, folder, cache, "train", f"{folder}/small.csv", *where, *options)


def alone(context: Context, folder: str, cache: str, *arguments: str) -> float:
    """Seconds of a command in a process of its own, with a cache of kernels of its own."""
    command = [sys.executable, "-m", "streamrf", *arguments]
    ended = run_alone(command, timeout=600, threads=context.threads, NUMBA_CACHE_DIR=f"{folder}/{cache}")
    if not ended.ok:
        raise RuntimeError(ended.why)
    return ended.seconds
