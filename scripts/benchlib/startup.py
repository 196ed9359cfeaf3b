"""`startup`: how long `streamrf --help` and `import streamrf` take, against `import numpy`."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchlib.context import Context
from benchlib.results import Cell, Results, rounded
from streamrf.support.threads import in_turn

MINUTES = "some seconds"
COMMANDS = {
    "import numpy": ("-c", "import numpy"),
    "import streamrf": ("-c", "import streamrf"),
    "streamrf --help": ("-m", "streamrf", "--help"),
    "streamrf train --help": ("-m", "streamrf", "train", "--help"),
    "import the estimators": ("-c", "from streamrf import KernelRegressor"),
}
LIMITS = {"import streamrf": ("at most", 0.5), "streamrf --help": ("at most", 0.3)}  # seconds


def run(context: Context) -> Results:
    results = context.open("startup")
    results.cell("seconds", lambda: measure(1 if context.quick else 7))
    return results


def measure(repeats: int) -> Cell:
    seconds = in_turn({name: partial(start, *arguments) for name, arguments in COMMANDS.items()}, repeats)
    ratio = {name: value / seconds["import numpy"] for name, value in seconds.items()}
    return rounded({"ok": True, **seconds, "ratio": ratio})


def start(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
