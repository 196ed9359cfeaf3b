"""The runnable blocks of the documentation, and the small tables that their commands name.

Every fenced block is `python`, `console`, `bash`, `text` or `json`. The first three are run; one that cannot be is
marked by a comment in the line before it, ``<!-- no-run: reason -->``. In a console block, lines after `$ ` are
commands. A table or a model that a command names and that nobody has made is made, small, by the harness; a command
that is to fail ends with `# exits with 6`.
"""

from __future__ import annotations

import re
import shlex
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from commands import FAST, PROJECT, done
from pyarrow import csv
from tables import smooth, write_zarr

LANGUAGES = ("python", "console", "bash", "text", "json")
RUN = ("python", "console", "bash")
OUTPUTS = ("--out", "--plot", "--checkpoint", "--figure", "--report", "--onnx", "--numpy")
ROWS = 1200
COLUMNS = ("a", "b", "c", "d", "e", "f")


@dataclass(frozen=True)
class Block:
    """One fenced block: where it begins, its language, its text, and why it is not run."""

    line: int
    language: str
    text: str
    excuse: str | None

    def commands(self) -> list[str]:
        """The commands of a console or bash block, continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def pages() -> list[Path]:
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    found, lines, start = [], page.read_text(encoding="utf-8").splitlines(), None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
            continue
        language = lines[start].strip().removeprefix("```")
        found.append(Block(start + 1, language, "\n".join(lines[start + 1 : number]), _excuse(lines[start - 1])))
        start = None
    assert start is None, f"{page}: the block at line {start} has no end"
    return found


def _excuse(line_before: str) -> str | None:
    match = re.fullmatch(r"\s*<!-- no-run: (.*\S) -->\s*", line_before)
    return match[1] if match else None


def make_programs(folder: Path) -> None:
    """`streamrf` and `python` for blocks that a shell runs."""
    folder.mkdir()
    for name, arguments in (("streamrf", "-m streamrf"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (folder / name).chmod(0o755)


def make_what_is_missing(command: str) -> None:
    """Tables, arrays and models that the command reads and that are not there."""
    words = shlex.split(command, comments=True)
    words = words[:3] if words[:2] == ["streamrf", "convert"] else words  # what comes after IN is made by it
    for before, word in zip(["", *words], words, strict=False):
        if before not in OUTPUTS and not Path(word).exists():
            _make(Path(word))


def _make(path: Path) -> None:
    X, y = smooth(ROWS, seed=zlib.crc32(path.name.encode()))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zarr":
        write_zarr(path, X, y, chunk=400)
    elif path.suffix == ".parquet" and "*" not in path.name:
        pq.write_table(_table(X, y), path)
    elif path.suffix == ".csv":
        csv.write_csv(_table(X, y), path)
    elif path.suffix == ".model":
        _make(data := path.with_name(f"behind-{path.stem}.zarr"))
        done("train", data, *FAST, "--out", path, "--quiet")


def _table(X: np.ndarray, y: np.ndarray) -> pa.Table:
    columns = {name: X[:, j] for j, name in enumerate(COLUMNS)}
    return pa.table({**columns, "y": y, "price": y + X[:, 0]})
