"""Parts of `cluster`: dask collections against the path of the same files, and an adaptive cluster that grows.

Ways take turns on the same two workers, and the best of each counts. Rows/s are of the whole run, from naming the data
to the model, and of the pass that sums. A collection is computed anew by every pass where ``recomputed``, and else kept
in the memory of the workers, as `streamrf.train` does where it fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streamrf
from benchlib.results import Cell
from benchlib.tables import generated, once
from streamrf.cli.connection import Address, connect
from streamrf.data.columns import Handling
from streamrf.data.source import Source
from streamrf.engines.base import Engine, Next, Pass
from streamrf.engines.cluster import ClusterEngine
from streamrf.training.run import train

FILE_ROWS = 100_000
MOST_SECONDS = 120.0  # that an adaptive cluster is given; a toy gives up sooner
TOY_SECONDS = 3.0

Way = Callable[[], streamrf.Trained]


def mixed(folder: Path, rows: int) -> Path:
    """A folder of parquet: ten numbers, text, categories, a date, and a price with noise."""
    return once(folder / f"mixed-{rows}.parquet", lambda part: _write_mixed(part, rows))


def _write_mixed(folder: Path, rows: int) -> None:
    folder.mkdir()
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        rng, n = np.random.default_rng([7, number]), min(FILE_ROWS, rows - start)
        columns: dict[str, Any] = {f"x{j}": rng.standard_normal(n, dtype=np.float32) for j in range(10)}
        columns["city"] = rng.choice(np.array(["Rome", "Oslo", "Bern", "Graz"]), n)
        columns["shop"] = rng.choice(np.array([f"shop {i}" for i in range(25)]), n)
        columns["day"] = np.datetime64("2024-01-01", "s") + rng.integers(0, 40_000_000, n).astype("m8[s]")
        columns["price"] = np.sin(2 * columns["x0"]) + columns["x1"] * columns["x2"] + 0.3 * rng.standard_normal(n)
        pq.write_table(pa.table(columns), folder / f"part-{number:04}.parquet", row_group_size=FILE_ROWS)


def compare_collections(folder: Path, s: SimpleNamespace) -> Cell:
    """The same files by their path and as dask collections, on two workers."""
    import dask.array as da
    import dask.dataframe as dd

    table, store = mixed(folder, s.rows), generated(folder / f"collected-{s.rows}.zarr", s.rows, 20, chunk=FILE_ROWS)
    recipe = streamrf.Recipe(D=s.collected_D, pilot="none", length_scale=3.0, bits="8", ridge=1e-5)
    with connect(Address(workers=2, threads=2)) as client:
        client.wait_for_workers(2)
        engine = ClusterEngine(client)
        settings = streamrf.Settings(engine=engine)

        def frame() -> Any:
            return dd.read_parquet(table)

        def arrays() -> tuple[Any, Any]:
            return da.from_zarr(str(store / "X")), da.from_zarr(str(store / "y"))

        def recomputed(data: Any, **options: Any) -> streamrf.Trained:
            return train(streamrf.open_source(data, **options), recipe, settings)

        ways: dict[str, Way] = {
            "parquet, path": lambda: streamrf.train(str(table), recipe, settings, target="price"),
            "parquet, recomputed": lambda: recomputed(frame(), target="price", columns=Handling()),
            "parquet, kept": lambda: streamrf.train(frame(), recipe, settings, target="price"),
            "zarr, path": lambda: streamrf.train(str(store), recipe, settings),
            "zarr, recomputed": lambda: recomputed(arrays()),
            "zarr, kept": lambda: streamrf.train(arrays(), recipe, settings),
        }
        for way in ways.values():
            way()
        runs = [{name: _timed(way, engine) for name, way in ways.items()} for _ in range(s.repeats)]
    whole = {name: s.rows / min(run[name][0] for run in runs) for name in ways}
    summing = {name: s.rows / min(run[name][1] for run in runs) for name in ways}
    digests = {form: {run[name][2] for run in runs for name in ways if name.startswith(form)} for form in FORMS}
    return {
        "ok": True, "D": s.collected_D, "rows": s.rows, "rows_per_second": whole, "summed_per_second": summing,
        "cpu_seconds": {name: min(run[name][3] for run in runs) for name in ways},
        "same_model": all(len(found) == 1 for found in digests.values()),
        **{f"{form}_{how}": whole[f"{form}, {how}"] / whole[f"{form}, path"] for form in FORMS for how in HOW},
    }  # fmt: skip


FORMS, HOW = ("parquet", "zarr"), ("recomputed", "kept")


def _timed(way: Way, engine: Engine) -> tuple[float, float, str, float]:
    """Seconds of all and of the pass, a digest of what came of it, and seconds of all processors."""
    cpu, start = cpu_seconds(engine), time.perf_counter()
    trained = way()
    seconds, weights = time.perf_counter() - start, trained.model.weights.coefficients.tobytes()
    digest = f"{trained.model.metadata['statistics_digest']}{hash(weights)}"
    return seconds, trained.seconds["pass"], digest, cpu_seconds(engine) - cpu


def cpu_seconds(engine: Engine) -> float:
    """Of all that take part: on a machine that others use, it says more than the clock."""
    there = engine.client.run(time.process_time).values() if isinstance(engine, ClusterEngine) else ()
    return time.process_time() + sum(there)


def grow(source: Source, statistic: Any, least: float) -> Cell:
    """An adaptive cluster of one worker to three: seconds from the first pass until all three are there."""
    from distributed import Client, LocalCluster

    reached: list[float] = []
    most = MOST_SECONDS if least else TOY_SECONDS
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        cluster.adapt(minimum=1, maximum=3)
        start = time.perf_counter()

        def watch(job: Pass[Any], pending: int) -> Next:
            seconds = time.perf_counter() - start
            if len(client.scheduler_info(n_workers=-1)["workers"]) >= 3:
                reached.append(seconds)
            return Next.STOP if reached or seconds > most else Next.CONTINUE

        while not reached and time.perf_counter() - start < most:
            ClusterEngine(client).run(Pass.start(statistic, source), watch)
    seconds = min(reached, default=MOST_SECONDS)
    return {"ok": True, "reached": bool(reached), "rows": source.n_rows, "seconds_to_three": seconds}
