"""The sections on tables in several forms, on categories of many levels, and on CSV files."""

from __future__ import annotations

from typing import Any

from benchlib import forms, zips
from benchlib.page.words import table

Found = dict[str, dict[str, Any]]


def several(found: Found) -> list[str]:
    cells = {name: cell for name, cell in found["forms"]["cells"].items() if cell.get("ok")}
    lines = [
        "Real tables with nothing set (their first rows), from parquet, CSV, pandas and polars. *Same bits*: equal",
        "sums and equal predictions. CSV has no types: where it cannot carry those of the table, another model comes",
        "out, the one of a parquet file with the types that CSV does carry.", "",
    ]  # fmt: skip
    typed = "CSV against parquet of its types"
    rows = [
        [name, str(c["rows"]), c["pandas"], c["polars"], c["CSV"], c.get("differing", ""), c.get(typed, "")]
        for name, c in cells.items()
    ]
    heads = ("table", "rows", "pandas", "polars", "CSV", "what CSV cannot carry", "CSV, same types")
    return [*lines, *table(heads, rows), "", *(f"- {line}" for line in forms.lines(cells))]


def levels(found: Found) -> list[str]:
    cells = {name: cell for name, cell in found["zips"]["cells"].items() if cell.get("ok")}
    rows = [[name, f"{c['rmse']:.4g}", _peak(c)] for name, c in cells.items()]
    lines = ["A made-up table with a zip code of 2,500 levels, 240,000 rows; 60,000 others test.", ""]
    return [*lines, *table(("", "RMSE", "peak"), rows), "", *(f"- {line}" for line in zips.lines(cells))]


def _peak(cell: dict[str, Any]) -> str:
    return f"{cell['peak'] / 1e6:.0f} MB" if "peak" in cell else ""


def text(found: Found) -> list[str]:
    cells = {name: cell for name, cell in found["csv"]["cells"].items() if cell.get("ok")}
    lines = ["A CSV file of numbers, text, dates and gaps: converted to parquet, and converted and trained.", ""]
    rows = [
        [f"{c['bytes'] / 1e9:.2g} GB, {c['rows']:,} rows", f"{c['rate against open_csv']:.2f}",
         f"{c['all against open_csv']:.2f}", f"{c['peak in GB']:.2f} GB"] for c in cells.values()
    ]  # fmt: skip
    heads = ("file", "conversion, rate against `pyarrow.csv.open_csv`", "with training", "peak")
    return [*lines, *table(heads, rows)]
