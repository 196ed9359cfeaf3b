"""`forms`: every real table with nothing set, from parquet, CSV, a pandas and a polars DataFrame, to the same model.

The first rows of each training part are trained on, evaluated and predicted in all four forms. Where CSV cannot carry a
type (32-bit numbers, text of digits, text that stands for a gap), the types that CSV does carry are written to parquet
and trained on as well. Tables are read from `tables` below the data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from benchlib.context import Context
from benchlib.honest_tables import FOLDER
from benchlib.results import Cell, Results, rounded
from benchlib.tables import bends

MINUTES = "about 15 minutes"
DEFAULTS = {"rows": 2500}
TOYS = {"rows": 400}
SAME = 1e-5  # of the spread of predictions


def run(context: Context) -> Results:
    results, s = context.open("forms"), context.settings(DEFAULTS, TOYS)
    tables = {"toy": _toy} if context.quick else {place.name: place for place in sorted(FOLDER.glob("*-train.parquet"))}
    if not tables:
        context.say(f"forms: no tables in {FOLDER}")
    for name, place in tables.items():
        if context.wants(name := name.removesuffix("-train.parquet")):
            results.cell(name, lambda place=place: measured(context, place, s.rows))
    return results


def measured(context: Context, place: Any, rows: int) -> Cell:
    """The forms whose sums have the bits of parquet's, and how far the predictions of the others are off."""
    table = place(rows) if callable(place) else pq.read_table(place).slice(0, rows)
    folder = context.work / "forms"
    folder.mkdir(parents=True, exist_ok=True)
    found = {form: _trained(make(table, folder), context) for form, make in FORMS.items()}
    first, differing = found["parquet"], differences(table)
    cell: Cell = {"ok": True, "rows": len(table), "map": first["map"], "digest": first["digest"][:12]}
    cell |= {form: _compared(first, each) for form, each in found.items() if form != "parquet"}
    if differing:
        typed = _trained(_parquet(_read_by_arrow(_csv(table, folder)), folder), context)
        cell |= {"differing": differing, "CSV against parquet of its types": _compared(typed, found["CSV"])}
    return rounded(cell)


def _trained(data: Any, context: Context) -> dict[str, Any]:
    import streamrf

    recipe = streamrf.Recipe(D=16, pilot="none") if context.quick else streamrf.Recipe()
    model = streamrf.train(data, recipe, streamrf.Settings(threads=context.threads), target="target").model
    figures = streamrf.evaluate(model, data)
    predictions = np.asarray(streamrf.predict(model, data))
    return {
        "map": model.recipe.map, "digest": model.metadata["statistics_digest"], "predictions": predictions,
        "figure": figures.get("rmse", figures.get("error")),
    }  # fmt: skip


def _compared(one: dict[str, Any], other: dict[str, Any]) -> str:
    """In words for the page."""
    if one["digest"] == other["digest"] and (one["predictions"] == other["predictions"]).all():
        return "same bits"
    off = _off(one["predictions"], other["predictions"])
    if off <= SAME:
        return "same predictions"
    return f"{off:.1e} off, {one['figure']:.4g} and {other['figure']:.4g}"


def _off(one: np.ndarray, other: np.ndarray) -> float:
    """Of numbers the largest difference in units of their spread; of classes the share that differs."""
    if one.dtype.kind != "f":
        return float((one.astype(str) != other.astype(str)).mean())
    return float(np.abs(one - other).max() / max(one.std(), 1e-300))


def differences(table: pa.Table) -> str:
    """What CSV cannot carry of a table."""
    kinds = {
        "32-bit numbers": [field.name for field in table.schema if field.type == pa.float32()],
        "text of digits": [name for name in _texts(table) if _has(table[name], r"^[+-]?[0-9.]+$")],
        "text for gaps": [name for name in _texts(table) if _has(table[name], r"^(\?|-|NA|N/A|None|null|nan|)$")],
    }
    return "; ".join(f"{what} ({len(names)} columns)" for what, names in kinds.items() if names)


def _texts(table: pa.Table) -> list[str]:
    return [
        field.name for field in table.schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    ]


def _has(column: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(column, pattern)).as_py())


def _parquet(table: pa.Table, folder: Path) -> str:
    pq.write_table(table, folder / "table.parquet")
    return str(folder / "table.parquet")


def _csv(table: pa.Table, folder: Path) -> str:
    pa.csv.write_csv(table, folder / "table.csv")
    return str(folder / "table.csv")


def _read_by_arrow(path: str) -> pa.Table:
    """With the types that another reader finds, and the words for gaps that ours knows."""
    from streamrf.data.readers.text_types import NULLS

    return pa.csv.read_csv(
        path, convert_options=pa.csv.ConvertOptions(null_values=list(NULLS), strings_can_be_null=True)
    )


def _pandas(table: pa.Table, folder: Path) -> Any:
    return table.to_pandas()


def _polars(table: pa.Table, folder: Path) -> Any:
    import polars

    return polars.from_arrow(table)


FORMS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "parquet": _parquet, "CSV": _csv, "pandas": _pandas, "polars": _polars,
}  # fmt: skip


def lines(cells: dict[str, Cell]) -> list[str]:
    """How many tables have the same model in each form."""
    done = [cell for cell in cells.values() if cell.get("ok")]
    said = [f"{form}: {_same(done, form)} of {len(done)} tables as parquet" for form in FORMS if form != "parquet"]
    typed = [cell for cell in done if "differing" in cell]
    name = "CSV against parquet of its types"
    return said + ([f"{name}: {_same(typed, name)} of {len(typed)} of the others"] if typed else [])


def _same(cells: list[Cell], form: str) -> int:
    return sum(cell[form].startswith("same") for cell in cells)


def _toy(rows: int) -> pa.Table:
    """Numbers, text, gaps and dates."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 4))
    when = np.datetime64("2024-01-01") + rng.integers(0, 700, rows).astype("timedelta64[D]")
    columns = {f"x{j}": pa.array(X[:, j], mask=rng.random(rows) < 0.1 * (j == 2)) for j in range(4)}
    town = pa.array(rng.choice(["Rome", "Oslo", "Bern"], rows), mask=rng.random(rows) < 0.1)
    narrow = pa.array(rng.standard_normal(rows), pa.float32())
    return pa.table({**columns, "town": town, "when": pa.array(when), "narrow": narrow, "target": bends(X)})
