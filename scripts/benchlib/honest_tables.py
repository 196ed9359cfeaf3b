"""`honest-tables`: what training reports beside the error on the test part, for every real table.

The training part is trained on with defaults. Tables are read from `tables` below the data.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from benchlib import honest, ours
from benchlib.context import Context
from benchlib.places import DATA
from benchlib.results import Cell, Results, rounded
from benchlib.tables import bends, into_classes, once

MINUTES = "about 15 minutes"
FOLDER = DATA / "tables"
TOYS = {"r-toy": 0, "c-toy": 3}  # classes


def run(context: Context) -> Results:
    results = context.open("honest-tables")
    places = toys(context) if context.quick else sorted(FOLDER.glob("*-train.parquet"))
    if not places:
        context.say(f"honest-tables: no tables in {FOLDER}")
    for train in places:
        if context.wants(name := train.name.removesuffix("-train.parquet")):
            results.cell(name, lambda place=train: measured(context, place))
    return results


def measured(context: Context, train: Path) -> Cell:
    """Trained with defaults; gaps, which some tables have, are medians."""
    test, model = train.with_name(train.name.replace("-train", "-test")), ours.model_of(context)
    shutil.rmtree(model, ignore_errors=True)
    model.parent.mkdir(parents=True, exist_ok=True)
    toy = ours.TOY_BLEND if context.quick else ()
    options = ("--out", model, "--overwrite", "--no-statistics", "--no-checkpoint", *toy)
    ended = ours.streamrf(context, "train", train, "--target", "target", "--missing", "median", *options, timeout=1800)
    if not ended.ok:
        return ours.failure(ended)
    tested = ours.streamrf(context, "evaluate", model, test)
    if not tested.ok:
        return ours.failure(tested)
    report = ended.json()
    cell = honest.compared(report["holdout"], tested.json())
    return rounded({"ok": True, "map": report["map"], **cell, "wall": ended.seconds})


def lines(cells: dict[str, Cell]) -> list[str]:
    done = [cell for cell in cells.values() if "inside" in cell]
    return [honest.inside_of(done).replace("problems", "tables"), honest.signs(done)] if done else []


def toys(context: Context) -> list[Path]:
    """Two made-up tables."""
    return [_toy(context.work / "tables" / f"{name}-train.parquet", classes) for name, classes in TOYS.items()]


def _toy(train: Path, classes: int) -> Path:
    for number, path in enumerate((train, train.with_name(train.name.replace("-train", "-test")))):
        once(path, lambda place, seed=number: _write(place, classes, seed))
    return train


def _write(path: Path, classes: int, seed: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    X = rng.standard_normal((800, 4))
    values = bends(X) + 0.3 * rng.standard_normal(800)
    columns = {f"x{j}": X[:, j] for j in range(4)}
    pq.write_table(pa.table({**columns, "target": into_classes(values, classes) if classes else values}), path)
