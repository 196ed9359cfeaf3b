"""Results that are written as soon as they are there: a run that is broken off goes on where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchlib.machine import describe

Cell = dict[str, Any]
DETAILS = ("ok", "scores", "settings", "holdout", "why")  # what a line leaves out


@dataclass
class Results:
    """The cells of one benchmark and the machine they were measured on, in one JSON file."""

    path: Path
    again: bool = False
    say: Callable[[str], None] = print
    suffix: str = ""  # of the names of cells
    cells: dict[str, Cell] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=describe)
    done: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.cells = read(self.path)["cells"]

    def cell(self, name: str, measure: Callable[[], Cell]) -> Cell:
        """The cell of that name: as it is there, or measured now and written."""
        name += self.suffix
        if name in self.cells and (not self.again or name in self.done):
            self.say(f"{name}: is there")
            return self.cells[name]
        start = time.perf_counter()
        self.cells[name] = measure()
        self.done.add(name)
        self.write()
        self.say(f"{name}: {summary(self.cells[name])} ({time.perf_counter() - start:.0f} s)")
        return self.cells[name]

    def document(self) -> dict[str, Any]:
        return {"machine": self.machine, "cells": dict(sorted(self.cells.items()))}

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")
        beside.replace(self.path)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def rounded(value: Any, digits: int = 6) -> Any:
    """Floats to so many digits that count: what is below them is noise, and long to read."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, list | tuple) else value


def summary(cell: Cell) -> str:
    """The short figures of a cell in one line."""
    if cell.get("ok") is False:
        return f"failed, {cell['why']}"
    short = {key: value for key, value in cell.items() if key not in DETAILS and _is_short(value)}
    return ", ".join(_figure(*pair) for pair in short.items())


def _is_short(value: Any) -> bool:
    return isinstance(value, int | float | str) or (
        isinstance(value, dict) and all(isinstance(each, int | float) for each in value.values())
    )


def _figure(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{name} ({', '.join(_figure(*pair) for pair in value.items())})"
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def judged(text: str, reached: bool) -> str:
    """What was asked for, and whether it was reached."""
    return f"{'yes' if reached else 'NO '}  {text}"


def verdicts(cells: dict[str, Cell], limits: dict[str, tuple[str, float]]) -> list[str]:
    """Every figure of the cells that has a limit, beside it."""
    found = [(key, name, cell[name]) for key, cell in cells.items() for name in limits if name in cell]
    return [judged(f"{key}, {name}: {value:.3g} ({' '.join(map(str, limits[name]))})",
                   value >= limits[name][1] if limits[name][0] == "at least" else value <= limits[name][1])
            for key, name, value in found]  # fmt: skip
