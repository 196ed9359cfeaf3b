"""`limits`: our product, map and reading beside what this machine can do at most, measured in the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import zarr

from benchlib import peak
from benchlib.context import Context
from benchlib.parts import fourier, syrk
from benchlib.results import Cell, Results, rounded
from benchlib.tables import CHUNK, generated
from streamrf.data.open import open_source
from streamrf.statistics.gram_kernels import LIMITS, PRODUCT_ROWS, Layout, choose_product, proven_products
from streamrf.support.threads import Threads, in_turn

MINUTES = "about 4 minutes"
INPUTS = 54


def run(context: Context) -> Results:
    results = context.open("limits")
    sizes = (256,) if context.quick else (1000, 2000, 5000, 10_000)
    results.cell("peak", lambda: machine_peak(context))
    for D in sizes:
        if context.wants("gram"):
            results.cell(f"gram/{D}", lambda D=D: gram_rates(context, D))
    for D in sizes[:3]:
        if context.wants("map"):
            results.cell(f"map/{D}", lambda D=D: map_rates(context, D))
    if context.wants("reading"):
        results.cell("reading", lambda: reading_rates(context))
    return results


def machine_peak(context: Context) -> Cell:
    """Multiply-adds in registers, and bytes from memory: the two lines of a roofline."""
    repeats = 2 if context.quick else 7
    return rounded(peak.measure(context.threads, repeats, 1 << 16 if context.quick else 1 << 24))


def gram_rates(context: Context, D: int) -> Cell:
    """Billions of operations a second of the full product 2 n D^2: BLAS in floats, ours in integers."""
    rows = 512 if context.quick else PRODUCT_ROWS
    rng, layout = np.random.default_rng(0), Layout(D)
    Z = rng.standard_normal((rows, D), dtype=np.float32)
    totals = np.zeros(layout.length, np.int64)
    with Threads(context.threads) as threads:
        works = {"ssyrk": syrk("ssyrk", Z, threads), "dsyrk": syrk("dsyrk", Z.astype(np.float64), threads)}
        for bits in (8, 12):
            block = rng.integers(-LIMITS[bits], LIMITS[bits] + 1, (rows, D))
            for name, product in proven_products(bits).items():
                held = np.ascontiguousarray(block, product.dtype)
                works[f"{bits} bits, {name}"] = lambda p=product, Z=held: p.add(Z, layout, totals, threads)
        seconds = in_turn(works, 2 if context.quick else 5)
    return rounded({"rows": rows, "D": D, "gops": {k: 2e-9 * rows * D * D / s for k, s in seconds.items()}})


def map_rates(context: Context, D: int) -> Cell:
    """Features a second: our map to integers beside sgemm and a cosine of numpy."""
    rows = 512 if context.quick else 16_384
    X = np.random.default_rng(0).standard_normal((rows, INPUTS), dtype=np.float32)
    W, b = np.random.default_rng(1).standard_normal((INPUTS, D), dtype=np.float32) / 7, np.zeros(D, np.float32)
    features = fourier(D, INPUTS)
    with Threads(context.threads) as threads:
        Z = np.empty((rows, D), np.float32)

        def plain() -> None:
            with threads.blas():
                np.matmul(X, W, out=Z)
            np.add(Z, b, out=Z)
            np.cos(Z, out=Z)

        integers = np.empty((rows, features.width), choose_product(8, threads.count).dtype)

        def ours() -> None:
            features.compute(X, integers, threads)

        seconds = in_turn({"sgemm and cosine": plain, "ours": ours}, 2 if context.quick else 5)
    return rounded({"rows": rows, "D": D, "features": {k: rows * D / s for k, s in seconds.items()}})


def reading_rates(context: Context) -> Cell:
    """Bytes a second of our sources beside bare loops of zarr and pyarrow over the same files."""
    rows = 5000 if context.quick else 1_000_000
    table = generated(context.work / "tables" / f"read-{rows}" / "train.zarr", rows, INPUTS)
    columns = as_parquet(table)

    def ours(path: Path, **options: Any) -> Callable[[], object]:
        source = open_source(str(path), **options)
        return lambda: [source.read(span) for span in source.chunks()]

    def bare_zarr() -> None:
        group = zarr.open_group(str(table), mode="r")
        for start in range(0, rows, CHUNK):
            _ = group["X"][start : start + CHUNK], group["y"][start : start + CHUNK]

    def bare_parquet() -> None:
        for batch in parquet.ParquetFile(columns).iter_batches(CHUNK):
            np.stack([column.to_numpy() for column in batch.columns], axis=1)

    works = {"zarr": ours(table), "bare zarr": bare_zarr, "parquet": ours(columns, target="y"),
             "bare pyarrow": bare_parquet}  # fmt: skip
    seconds = in_turn(works, 2 if context.quick else 3)
    size = rows * (INPUTS + 1) * 4
    return rounded({"rows": rows, "bytes": size, "rate": {name: size / value for name, value in seconds.items()}})


def as_parquet(table: Path) -> Path:

    path = table.with_suffix(".parquet")
    if not path.exists():
        group = zarr.open_group(str(table), mode="r")
        X = group["X"][:]
        names = {f"x{j}": X[:, j] for j in range(X.shape[1])}
        parquet.write_table(pa.table({**names, "y": group["y"][:]}), path, row_group_size=CHUNK)
    return path
