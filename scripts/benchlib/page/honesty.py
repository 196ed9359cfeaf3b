"""The section on reported figures beside those of fresh rows."""

from __future__ import annotations

from typing import Any

from benchlib import honest
from benchlib.page.words import table
from benchlib.results import Cell

Found = dict[str, dict[str, Any]]
SIZES = ((0, 1000), (1000, 10_000), (10_000, 1_000_000))


def problems(found: Found) -> list[str]:
    cells = [cell for cell in found["honest"]["cells"].values() if "inside" in cell]
    lines = [
        "Generated problems, each another draw of rows (200 to 50,000), columns, classes (up to 50), noise, map, D",
        "(100 to 1,000) and weights, trained with defaults otherwise. The figure that training reports, with its 95 %",
        "interval, is compared with the same figure on 50,000 fresh rows.", "",
    ]  # fmt: skip
    if not cells:
        return lines
    rows = [[name, str(len(part)), str(sum(c["inside"] for c in part)), f"{_better(part)}"]
            for name, part in _groups(cells).items() if part]  # fmt: skip
    heads = ("problems", "count", "within the interval", "reported better than fresh")
    return [*lines, *table(heads, rows), "", *(f"- {line}" for line in honest.lines(found["honest"]["cells"]))]


def _better(cells: list[Cell]) -> int:
    return sum(cell["reported"] < cell["fresh"] for cell in cells)


def _groups(cells: list[Cell]) -> dict[str, list[Cell]]:
    groups = {"all": cells}
    for low, high in SIZES:
        name = f"{low:,} to {high:,} rows" if low and high < 1e6 else f"below {high:,} rows" if not low else "more rows"
        groups[name] = [cell for cell in cells if low <= cell["rows"] < high]
    groups["numbers"] = [cell for cell in cells if not cell["classes"]]
    groups["two classes"] = [cell for cell in cells if cell["classes"] == 2]
    groups["more classes"] = [cell for cell in cells if cell["classes"] > 2]
    groups["weighted"] = [cell for cell in cells if cell["weighted"]]
    for name in ("supervised", "binning"):
        groups[name] = [cell for cell in cells if cell["map"] == name]
    return groups


def tables(found: Found) -> list[str]:
    cells = {name: cell for name, cell in found["honest-tables"]["cells"].items() if "inside" in cell}
    rows = [[name, f"{c['reported']:.4g}", f"{c['low']:.4g} to {c['high']:.4g}", f"{c['fresh']:.4g}",
             f"{c['reported'] / c['fresh'] - 1:+.1%}"] for name, c in cells.items()]  # fmt: skip
    lines = ["Real tables: what training on the training part reports, and the error on the test part.", ""]
    heads = ("table", "reported", "95 % interval", "test", "difference")
    return [*lines, *table(heads, rows), "", f"- {honest.signs(list(cells.values()))}"] if cells else lines
