"""`startup`: how long `streamrf --help` and `import streamrf` take, against `import numpy`."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchlib.context import Context
from benchlib.results import Cell, Results, judged, rounded
from streamrf.clocks import in_turn

MINUTES = "some seconds"
COMMANDS = {
    "import numpy": ("-c", "import numpy"),
    "import streamrf": ("-c", "import streamrf"),
    "streamrf --help": ("-m", "streamrf", "--help"),
    "streamrf train --help": ("-m", "streamrf", "train", "--help"),
    "import the estimators": ("-c", "from streamrf import KernelRegressor"),
}
LIMITS = {"import streamrf": 0.5, "streamrf --help": 0.3}  # seconds


def run(context: Context) -> Results:
    results, repeats = context.open("startup"), 1 if context.quick else 7
    works = {name: partial(start, *arguments) for name, arguments in COMMANDS.items()}
    results.cell("startup", lambda: rounded({"ok": True, "seconds": in_turn(works, repeats)}))
    return results


def start(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def lines(cells: dict[str, Cell]) -> list[str]:
    found = cells["startup"]["seconds"]
    told = [f"{name}: {value:.3f} s, {value / found['import numpy']:.2f} times import numpy"
            for name, value in found.items()]  # fmt: skip
    return told + [judged(f"{name}: at most {limit} s", found[name] <= limit) for name, limit in LIMITS.items()]
