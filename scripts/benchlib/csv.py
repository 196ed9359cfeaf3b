"""`csv`: a CSV larger than the budget, converted and trained, against `pyarrow.csv.open_csv` alone on the same file.

The table has numbers, text of few and of many levels, dates and gaps. It is made for the run and removed after it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from benchlib import ours
from benchlib.context import Context
from benchlib.results import Cell, Results, rounded
from benchlib.running import Ended
from benchlib.running import run as run_process

MINUTES = "about 10 minutes"
DEFAULTS = {"gigabytes": 5.0, "D": 500, "memory": "1GB"}  # D = 0: nothing set
TOYS = {"gigabytes": 0.0005, "D": 32, "memory": "4GB"}  # the toy runs in a process that has loaded much else
LIMITS = {"rate against open_csv": ("at least", 0.5), "peak in GB": ("at most", 1.0)}
TIMEOUT = 3600
BLOCK = 100_000  # rows
ALONE = """
import sys, pyarrow.csv as c
print(sum(map(len, c.open_csv(sys.argv[1], convert_options=c.ConvertOptions(strings_can_be_null=True)))))
"""
CONVERSION = """
import sys
from streamrf.data.cache import Reading, as_parquet
from streamrf.support.progress import Reporter
as_parquet([sys.argv[1]], Reading(cache=False), Reporter())
"""


def run(context: Context) -> Results:
    results, s = context.open("csv"), context.settings(DEFAULTS, TOYS)
    results.cell("table", lambda: measured(context, s))
    return results


def measured(context: Context, s: SimpleNamespace) -> Cell:
    """Each in a process of its own: read by pyarrow alone, before and after; converted; converted and trained."""
    with tempfile.TemporaryDirectory(prefix="streamrf-csv-", dir=_made(context.work)) as folder:
        path = Path(folder, "table.csv")
        rows = write(path, round(1e9 * s.gigabytes))
        size = ("--D", s.D) if s.D else ()
        asked = ("--target", "y", "--memory", s.memory, *size, "--no-cache", *(ours.TOY if context.quick else ()))
        before, converted = alone(context, ALONE, path), alone(context, CONVERSION, path)
        trained = ours.streamrf(context, "train", path, *asked, "--out", f"{path}.model", timeout=TIMEOUT)
        ended = [before, converted, trained, alone(context, ALONE, path)]
        failed = [each for each in ended if not each.ok]
        return ours.failure(failed[0]) if failed else cell_of(path.stat().st_size, rows, *ended)


def cell_of(size: int, rows: int, before: Ended, converted: Ended, trained: Ended, after: Ended) -> Cell:
    """Rates in MB of text a second."""
    report, alone = trained.json(), min(before.seconds, after.seconds)
    taken = {"open_csv": alone, "conversion": converted.seconds, "all": trained.seconds}
    speeds = {name: size / 1e6 / seconds for name, seconds in taken.items()}
    return rounded({
        "ok": True, "bytes": size, "rows": rows, "D": report["D"],
        "rate against open_csv": alone / converted.seconds, "all against open_csv": alone / trained.seconds,
        "peak in GB": max(converted.peak, trained.peak) / 1e9, "MB a second": speeds,
        "seconds": {**taken, **report["seconds"]}, "holdout": ours.short(report["holdout"] or {}),
    })  # fmt: skip


def alone(context: Context, program: str, path: Path) -> Ended:
    return run_process([sys.executable, "-c", program, str(path)], timeout=TIMEOUT, threads=context.threads)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(path: Path, size: int) -> int:
    """Rows of mixed columns until the file has so many bytes; how many there are."""
    rows, options = 0, pa.csv.WriteOptions(include_header=True, quoting_style="needed")
    with open(path, "wb") as file:
        while file.tell() < size:
            table = block(rows, min(BLOCK, 1000 if size < 1e6 else BLOCK))
            pa.csv.write_csv(table, file, options)
            rows, options.include_header = rows + len(table), False
    return rows


def block(first: int, rows: int) -> pa.Table:
    """Some rows, told by the number of the first of them."""
    rng = np.random.default_rng(first)
    X = np.round(rng.standard_normal((rows, 6)), 5)
    shop, kind = rng.integers(0, 5000, rows), rng.integers(0, 12, rows)
    amount, minutes = rng.integers(0, 10_000, rows), rng.integers(0, 3 * 365 * 24 * 60, rows)
    y = np.sin(X[:, 0] + X[:, 1]) + (shop % 17) / 10 + 0.2 * (kind % 3) + 0.3 * rng.standard_normal(rows)
    names = {f"x{j}": _with_gaps(X[:, j], rng, 0.2 if j == 5 else 0.0) for j in range(6)}
    when = pc.cast(pa.array(np.datetime64("2021-01-01T00:00", "s") + minutes.astype("timedelta64[m]")), pa.string())
    texts = {
        "shop": _texts(shop, "shop no. {}", 5000), "kind": _texts(kind, "kind {}", 12),
        "note": _texts(amount % 97, "a few words, of which {} is the last", 97),
    }  # fmt: skip
    return pa.table({**names, "amount": amount, "when": when, **texts, "y": np.round(y, 4)})


def _with_gaps(values: np.ndarray, rng: np.random.Generator, share: float) -> pa.Array:
    return pa.array(values, mask=rng.random(len(values)) < share)


def _texts(codes: np.ndarray, form: str, levels: int) -> pa.Array:
    return pa.array([form.format(level) for level in range(levels)]).take(pa.array(codes))
