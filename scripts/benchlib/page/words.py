"""Figures as words, and tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchlib.contest import PEERS, TITLES
from benchlib.results import Cell
from benchlib.sets import SETS


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A table; columns after the first ``left`` stand to the right."""
    marks = ["---"] * left + ["---:"] * (len(heads) - left)
    return ["| " + " | ".join(row) + " |" for row in (heads, marks, *rows)]


def seconds(value: float) -> str:
    if value < 10:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.0f} min"


def size(value: float) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def error(value: float, name: str) -> str:
    """As the task counts: per cent of classes, or the root mean squared error."""
    return f"{100 * value:.2f} %" if name in SETS and SETS[name].classes else f"{value:.4g}"


def shown(cell: Cell, name: str) -> str:
    return f"{error(cell['error'], name)} in {seconds(cell['train'])}"


def times(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def called(name: str) -> str:
    """The title within a sentence."""
    return TITLES[name].replace("**", "")


def joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def of_task(cells: dict[str, Cell], task: str) -> dict[str, Cell]:
    """Cells of one task by contestant, searches left out."""
    parts = {key.partition("/")[2]: cell for key, cell in cells.items() if key.startswith(f"{task}/")}
    return {name: parts[name] for name in TITLES if name in parts}


def finished(cells: dict[str, Cell]) -> dict[str, Cell]:
    return {name: cell for name, cell in cells.items() if cell["ok"]}


def is_ours(name: str) -> bool:
    return name not in PEERS


def machine_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """What it was measured on; more than one machine is said so."""
    machines: dict[str, list[str]] = {}
    for name, result in found.items():
        machines.setdefault(_machine(result["machine"]), []).append(name)
    if len(machines) == 1:
        return [f"**Measured on** {next(iter(machines))}", *_versions(found)]
    lines = [f"**{', '.join(f'`{name}`' for name in names)} measured on** {words}" for words, names in machines.items()]
    return [*lines, *_versions(found)]


def _machine(m: dict[str, Any]) -> str:
    sets = ", ".join(m["instructions"]) or "none of the vector instructions we look for"
    return f"{m['cpu']}, {m['cores']} cores, {m['memory'] / 1e9:.0f} GB ({sets}), {m['system']}, Python {m['python']}."


def _versions(found: dict[str, dict[str, Any]]) -> list[str]:
    versions: dict[str, str] = {}
    for result in found.values():
        versions |= result["machine"]["versions"] | result["machine"].get("peers", {})
    words = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    return ["", f"**Versions** {words}."] if words else []
