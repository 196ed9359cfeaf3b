"""`tables`: streamrf with nothing set beside boosted trees and xRFM on every real table: errors, time and memory.

Splits other than the first pool both parts of a table and draw parts of the same sizes. Test parts are read here alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchlib import honest_tables, ours
from benchlib.context import Context
from benchlib.environment import find
from benchlib.places import DATA
from benchlib.results import Cell, Results, judged, rounded
from benchlib.running import run as run_process
from benchlib.tables import once

MINUTES = "about an hour a split"
DEFAULTS = {"splits": 3}
TOYS = {"splits": 1}
OURS, CLASSES = "streamrf", "c-"  # and how the names of tables of classes begin
TREES = ("lightgbm", "xgboost", "catboost")
PEERS = (*TREES, "xrfm")
XRFM_ROWS = 50_000  # beyond, it takes too long on two cores
TIMEOUT = 1800.0
MISSING = "ModuleNotFoundError"
NEAR, FIRST, MEAN = 1.05, 0.65, 0.92  # what is asked for: ratio to the best tree at most, share of first places, mean


def run(context: Context) -> Results:
    results, s = context.open("tables"), context.settings(DEFAULTS, TOYS)
    results.suffix = ""  # the number of splits changes no cell
    for split in range(s.splits):
        for name, parts in tables(context, split).items():
            if context.wants(name):
                for entrant in (OURS, *PEERS):
                    key, classes = f"{name}/{split}/{entrant}", name.startswith(CLASSES)
                    results.cell(key, lambda p=parts, e=entrant, c=classes: measured(context, p(), e, classes=c))
    return results


def measured(context: Context, parts: tuple[Path, Path], entrant: str, *options: object, classes: bool = False) -> Cell:
    """``options`` are those of streamrf; peers are told whether the target is of ``classes``."""
    if entrant == OURS:
        return _ours(context, parts, *options)
    rows = pq.ParquetFile(parts[0]).metadata.num_rows
    if entrant == "xrfm" and rows > XRFM_ROWS:
        return {"ok": False, "why": f"not run above {XRFM_ROWS:,} rows"}
    about = (entrant, *map(str, parts), str(context.threads), "classes" if classes else "numbers")
    command = [str(find(context)), "-m", "benchlib.peers.whole_tables", *about]
    ended = run_process(command, timeout=TIMEOUT, threads=context.threads)
    if ended.ok:
        return rounded({"ok": True, **ended.json(), "wall": ended.seconds, "peak": ended.peak})
    return {"ok": False, "why": f"{entrant} is not installed"} if MISSING in ended.err else ours.failure(ended)


def _ours(context: Context, parts: tuple[Path, Path], *more: object) -> Cell:
    model = ours.model_of(context)
    shutil.rmtree(model, ignore_errors=True)
    model.parent.mkdir(parents=True, exist_ok=True)
    options = (*more, "--out", model, "--overwrite", "--no-checkpoint", *(ours.TOY_BLEND if context.quick else ()))
    ended = ours.streamrf(context, "train", parts[0], "--target", "target", *options, timeout=TIMEOUT)
    if not ended.ok:
        return ours.failure(ended)
    tested = ours.streamrf(context, "evaluate", model, parts[1])
    if not tested.ok:
        return ours.failure(tested)
    found, report = tested.json(), ended.json()
    short = {name: found[name] for name in ("error", "rmse", "log_loss", "auc") if found.get(name) is not None}
    reported = {name: (report["holdout"] or {}).get(name) for name in short}
    return rounded({
        "ok": True, **short, "reported": {name: value for name, value in reported.items() if value is not None},
        "map": report["map"], "seconds": report["seconds"]["total"], "wall": ended.seconds, "peak": ended.peak,
    })  # fmt: skip


# -- the tables


def tables(context: Context, split: int) -> dict[str, Any]:
    """By name, what makes the training and the test part."""
    if context.quick:
        return {place.name.split("-train")[0]: lambda p=place: (p, _test(p)) for place in honest_tables.toys(context)}
    shared = {p.name.removesuffix("-train.parquet"): p for p in sorted(honest_tables.FOLDER.glob("*-train.parquet"))}
    found: dict[str, Any] = {
        name: lambda p=place, n=name: _again(context, n, lambda: (p, _test(p)), split) for name, place in shared.items()
    }
    for name, (file, make) in OTHERS.items():
        if (DATA / file).exists():
            found[name] = lambda n=name, m=make: _again(context, n, lambda: _made(context, n, m), split)
    return found


def _test(train: Path) -> Path:
    return train.with_name(train.name.replace("-train", "-test"))


def _again(context: Context, name: str, parts: Any, split: int) -> tuple[Path, Path]:
    """The split as it is, or another of the same sizes."""
    if split == 0:
        return parts()
    folder = context.work / "tables" / f"{name}-split-{split}"

    def make(part: Path) -> None:
        train, test = (pq.read_table(each) for each in parts())
        whole = pa.concat_tables([train, test.cast(train.schema)])
        order = np.random.default_rng(split).permutation(len(whole))
        part.mkdir()
        pq.write_table(whole.take(order[: len(train)]), part / "train.parquet")
        pq.write_table(whole.take(order[len(train) :]), part / "test.parquet")

    folder = once(folder, make)
    return folder / "train.parquet", folder / "test.parquet"


def _made(context: Context, name: str, make: Any) -> tuple[Path, Path]:
    """Tables of other files, as parquet with a column `target`."""

    def write(part: Path) -> None:
        part.mkdir()
        for place, table in zip(("train", "test"), make(), strict=True):
            pq.write_table(table, part / f"{place}.parquet")

    folder = once(context.work / "tables" / f"{name}-parquet", write)
    return folder / "train.parquet", folder / "test.parquet"


def _parquet(file: str, target: str, share: float, *, leave: tuple[str, ...] = (), label: Any = None) -> Any:
    def make() -> tuple[pa.Table, pa.Table]:
        table = pq.read_table(DATA / file).drop_columns(list(leave))
        values = table[target].to_numpy(zero_copy_only=False)
        table = table.drop_columns([target]).append_column(
            "target", pa.array(values if label is None else label(values))
        )
        return _cut(table, share)

    return make


def _cut(table: pa.Table, share: float) -> tuple[pa.Table, pa.Table]:
    order = np.random.default_rng(0).permutation(len(table))
    cut = int(len(table) * share)
    return table.take(order[:cut]), table.take(order[cut:])


def _arrays(X: np.ndarray, y: np.ndarray) -> pa.Table:
    return pa.table({**{f"x{i}": X[:, i] for i in range(X.shape[1])}, "target": y})


def _npz(file: str, share: float) -> Any:
    def make() -> tuple[pa.Table, pa.Table]:
        data = np.load(DATA / file)
        if "Xt" in data:
            return _arrays(data["X"], data["y"]), _arrays(data["Xt"], data["yt"])
        return _cut(_arrays(data["X"], data["y"]), share)

    return make


def _kdd() -> tuple[pa.Table, pa.Table]:
    """Normal or attack; the labelled test file is tested on."""

    def part(file: str) -> pa.Table:
        table = pq.read_table(DATA / file)
        labels = np.where(table["label"].to_numpy(zero_copy_only=False) == "normal.", "normal", "attack")
        return table.drop_columns(["label"]).append_column("target", pa.array(labels))

    train = part("kddcup99_train10.parquet")
    return train.take(np.random.default_rng(0).permutation(len(train))), part("kddcup99_test.parquet")


LEAKS = ("subject#", "motor_UPDRS")
OTHERS: dict[str, tuple[str, Any]] = {
    "c-covtype2": ("covtype.parquet", _parquet("covtype.parquet", "Cover_Type", 0.9, label=lambda y: y == 2)),
    "c-covtype7": ("covtype.parquet", _parquet("covtype.parquet", "Cover_Type", 0.9)),
    "r-casp": ("casp.parquet", _parquet("casp.parquet", "RMSD", 0.9)),
    "c-a9a": ("a9a.npz", _npz("a9a.npz", 0.9)),
    "r-comp_activ": ("comp_activ.npz", _npz("comp_activ.npz", 0.8)),
    "r-parkinsons": ("parkinsons.parquet", _parquet("parkinsons.parquet", "total_UPDRS", 0.8, leave=LEAKS)),
    "r-wine": ("wine_white.parquet", _parquet("wine_white.parquet", "quality", 0.8)),
    "r-census_house": ("census_house_union.npz", _npz("census_house_union.npz", 0.8)),
    "c-kdd99": ("kddcup99_train10.parquet", _kdd),
}  # fmt: skip


# -- what it says


def lines(cells: dict[str, Cell]) -> list[str]:
    """The means over splits of each table, and what was asked for."""
    found = means(cells)
    rows = []
    for name, entrants in found.items():
        shown = ", ".join(f"{each} {figures['error']:.5g}" for each, figures in entrants.items())
        ratio = ratios({name: entrants}).get(name)
        rows.append(f"{name}: {shown}" + (f"; ratio to the best tree {ratio:.3f}" if ratio else ""))
    return [*rows, *verdicts(found)]


def ratios(found: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """By table, our error over that of the best of the trees."""
    best = {name: [each[t]["error"] for t in TREES if t in each] for name, each in found.items() if OURS in each}
    return {name: found[name][OURS]["error"] / min(errors) for name, errors in best.items() if errors}


def verdicts(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    known = np.array(list(ratios(found).values()))
    if not len(known):
        return []
    logs = [
        (each[OURS]["log_loss"], min(each[t]["log_loss"] for t in TREES if "log_loss" in each.get(t, {})))
        for each in found.values()
        if "log_loss" in each.get(OURS, {}) and any("log_loss" in each.get(t, {}) for t in TREES)
    ]
    first, mean = float((known <= 1).mean()), float(np.exp(np.log(known).mean()))
    said = [
        judged(f"first on {100 * first:.0f} % of {len(known)} tables (at least {100 * FIRST:.0f} %)", first >= FIRST),
        judged(f"largest ratio to the best tree {known.max():.3f} (at most {NEAR})", known.max() <= NEAR),
        judged(f"geometric mean of the ratio {mean:.3f} (at most {MEAN})", mean <= MEAN),
    ]
    if logs:
        share = float(np.mean([own <= best for own, best in logs]))
        text = f"log loss at most that of the best tree on {100 * share:.0f} % of {len(logs)} tables (at least 50 %)"
        said.append(judged(text, share >= 0.5))
    return said


def means(cells: dict[str, Cell]) -> dict[str, dict[str, dict[str, float]]]:
    """By table and entrant: the mean of each figure over the splits that are there."""
    grouped: dict[str, dict[str, list[Cell]]] = {}
    for key, cell in cells.items():
        name, _, entrant = key.split("/")
        if cell.get("ok"):
            grouped.setdefault(name, {}).setdefault(entrant, []).append(cell)
    return {name: {entrant: _mean(each) for entrant, each in by.items()} for name, by in grouped.items()}


def _mean(cells: list[Cell]) -> dict[str, float]:
    names = [name for name in ("error", "rmse", "log_loss", "auc", "wall", "peak") if name in cells[0]]
    found = {name: float(np.mean([cell[name] for cell in cells])) for name in names}
    return {**found, "error": found.get("error", found.get("rmse", np.nan))}
