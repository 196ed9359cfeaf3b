"""Sections on limits of the machine and on growth."""

from __future__ import annotations

from typing import Any

from benchlib.growth import AXES, NAMES, sentences
from benchlib.page.words import seconds, size, table
from benchlib.results import Cell

Found = dict[str, dict[str, Any]]


def numbered(cells: dict[str, Cell], axis: str) -> list[Cell]:
    """The cells of an axis, in order of its values."""
    chosen = {int(key.partition("/")[2]): cell for key, cell in cells.items() if key.startswith(f"{axis}/")}
    return [chosen[value] for value in sorted(chosen)]


# -- limits


def limits(found: Found) -> list[str]:
    cells = found["limits"]["cells"]
    lines = ["Rates of the parts, each beside a reference that was timed in turn with it.", ""]
    if (peak := cells.get("peak")) and numbered(cells, "gram"):
        lines += ["![Roofline](pictures/benchmarks-roofline.png)", "", *_gram(cells, peak), ""]
    if numbered(cells, "map"):
        lines += [*_map(cells), ""]
    return lines + (_reading(cells["reading"]) if "reading" in cells else [])


def _gram(cells: dict[str, Cell], peak: Cell) -> list[str]:
    grams = numbered(cells, "gram")
    names = list(grams[0]["gops"])
    rows = [[name, *(f"{gram['gops'][name]:.0f}" for gram in grams)] for name in names]
    tops = ", ".join(f"{value:.0f} ({name})" for name, value in peak["gops"].items())
    return [
        "**The Gram product**, in billions of operations a second, the whole product counted (2 n D²) though only",
        f"half of it is done. Measured peaks of multiply-add instructions in registers: {tops}; so twice as much is",
        "the most that can stand in the table.",
        "", *table(("product", *(f"D = {gram['D']:,}" for gram in grams)), rows), "", *_gram_words(grams[-1], peak),
    ]  # fmt: skip


def best_of(gops: dict[str, float], bits: int) -> tuple[str, float]:
    name = max((each for each in gops if each.startswith(f"{bits} bits")), key=lambda each: gops[each])
    return name, gops[name]


def _gram_words(gram: Cell, peak: Cell) -> list[str]:
    lines = []
    for bits in (8, 12):
        name, rate = best_of(gram["gops"], bits)
        top = 2 * peak["gops"].get(f"{bits} bits", peak["gops"]["12 bits"])
        words = ", ".join(f"{rate / gram['gops'][each]:.1f} times `{each}`" for each in ("ssyrk", "dsyrk"))
        lines.append(f"- {name} at D = {gram['D']:,}: {words}, {rate / top:.0%} of the integer peak.")
    return lines


def _map(cells: dict[str, Cell]) -> list[str]:
    maps = numbered(cells, "map")
    rows = [[name, *(f"{each['features'][name] / 1e9:.2f}" for each in maps)] for name in maps[0]["features"]]
    last = maps[-1]["features"]
    ratio = last["ours"] / last["sgemm and cosine"]
    return [
        "**The map**, in billions of features a second (54 columns):", "",
        *table(("", *(f"D = {each['D']:,}" for each in maps)), rows), "",
        f"- Ours runs at {ratio:.2f} times the rate of sgemm and a cosine at D = {maps[-1]['D']:,}.",
    ]  # fmt: skip


def _reading(cell: Cell) -> list[str]:
    rate = cell["rate"]
    rows = [[name, f"{value / 1e9:.2f} GB/s"] for name, value in rate.items()]
    return [
        f"**Reading** {cell['rows']:,} rows of 54 columns, as the pass does it and in a bare loop:", "",
        *table(("", "rate"), rows), "",
        f"- Our sources read zarr at {rate['zarr'] / rate['bare zarr']:.2f} times the rate of a bare loop, parquet at"
        f" {rate['parquet'] / rate['bare pyarrow']:.2f} times.",
    ]  # fmt: skip


# -- growth


def growth(found: Found) -> list[str]:
    cells = found["growth"]["cells"]
    lines = ["Training at fixed settings (8 bits, one λ, no pilot) on generated tables.", "",
             "![Growth](pictures/benchmarks-growth.png)"]  # fmt: skip
    for axis in AXES:
        if each := [cell for cell in numbered(cells, axis) if cell["ok"]]:
            lines += ["", f"### {heading(axis)}", "", *_axis(axis, each), "",
                      *(f"- {line}" for line in sentences(axis, cells))]  # fmt: skip
    return lines


def heading(axis: str) -> str:
    words = NAMES.get(axis, axis)
    return words[0].upper() + words[1:]


def _axis(axis: str, cells: list[Cell]) -> list[str]:
    first = cells[0]
    fixed = [f"{first[name]:,} {NAMES[name]}" for name in ("rows", "D", "inputs") if name != axis]
    rows = [
        [f"{cell[axis]:,}", *(seconds(cell[part]) for part in ("pass", "solve", "total")),
         *(size(cell[part]) for part in ("peak", "projected"))]
        for cell in cells
    ]  # fmt: skip
    heads = (axis, "pass", "solve", "whole", "peak memory", "projected")
    return [f"With {', '.join(fixed)}:", "", *table(heads, rows)]
