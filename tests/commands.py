"""Running `streamrf` as a user does: in this process where that is enough, in one of its own where it is not."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamrf.cli import main

PROJECT = Path(__file__).resolve().parents[1]
FAST = ("--D", "32", "--pilot", "none", "--length-scale", "2", "--bits", "8", "--lambda", "1e-4", "--threads", "1")


@dataclass
class Answer:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What stands on standard output, all of it, as one JSON object."""
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The one line on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


def streamrf(*args: object) -> Answer:
    """Run a command here, its output caught."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(arg) for arg in args])
        except SystemExit as end:
            code = int(end.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def done(*args: object) -> Answer:
    """Run a command that must end well."""
    answer = streamrf(*args)
    assert answer.code == 0, answer.err
    return answer


def start(
    *args: object, module: str = "streamrf", stderr: int = subprocess.PIPE, **environment: str
) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, args)],
        stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=PROJECT, env={**os.environ, **environment},
    )  # fmt: skip


def run_alone(*args: object, **environment: str) -> Answer:
    """Run a command in a process of its own to its end."""
    process = start(*args, **environment)
    out, err = process.communicate(timeout=240)
    return Answer(process.returncode, out, err)


def everything_in(folder: Path) -> set[str]:
    """Every path below a folder, hidden and temporary ones too."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
