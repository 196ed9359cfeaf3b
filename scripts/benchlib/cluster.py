"""`cluster`: two workers against one and against two threads, 10,000 chunks against 100, dask collections against the
path of the same files, and an adaptive cluster that grows from one worker to three.

Workers are started and warm before the clock runs: a pass over a few rows has compiled what there is to compile.
Engines take turns, and the best of each counts.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from benchlib.collected import compare_collections, cpu_seconds, grow
from benchlib.context import Context
from benchlib.parts import gram
from benchlib.results import Cell, Results
from benchlib.tables import generated
from streamrf.cli.connection import Address, connect
from streamrf.data.open import open_source
from streamrf.data.source import Source
from streamrf.data.split import Split
from streamrf.engines.base import Engine, Next, Pass
from streamrf.engines.cluster import ClusterEngine
from streamrf.engines.local import LocalEngine
from streamrf.statistics.holdout import Holdout
from streamrf.support import memory
from streamrf.support.threads import Threads

MINUTES = "about a quarter of an hour"
DEFAULTS = {"D": 5000, "bits": "8", "least": 60.0, "repeats": 2, "few": 100, "many": 10_000, "chunk": 1000,
            "rows": 2_000_000, "collected_D": 500}  # fmt: skip
TOYS = {"D": 256, "least": 0.0, "repeats": 1, "few": 2, "many": 20, "chunk": 200, "rows": 4000, "collected_D": 50}
LIMITS = {"speedup": ("at least", 1.9), "parquet_recomputed": ("at least", 0.8), "parquet_kept": ("at least", 0.8),
          "same_model": ("at least", True), "seconds_to_three": ("at most", 20.0),
          "overhead": ("at most", 1.15), "ratio": ("at most", 1.2), "cpu_ratio": ("at most", 1.2),
          "same_bits": ("at least", True), "long_enough": ("at least", True)}  # fmt: skip
INPUTS = 54


class Timed(NamedTuple):
    """A pass."""

    seconds: float
    digest: str  # of its sums
    grew: int  # bytes, of this process
    cpu: float  # seconds, of this process (with a scheduler in it) and of all workers


def run(context: Context) -> Results:
    results, s = context.open("cluster"), context.settings(DEFAULTS, TOYS)
    if context.wants("engines"):
        results.cell("engines", lambda: compare_engines(context.work / "tables", s))
    if context.wants("chunks"):
        results.cell("chunks", lambda: compare_chunks(context.work / "tables", s))
    if context.wants("collections"):
        results.cell("collections", lambda: compare_collections(context.work / "tables", s))
    if context.wants("adaptive"):
        small = table(context.work / "tables", 400_000 if s.least else 8000, INPUTS, 4000)
        results.cell("adaptive", lambda: grow(small, statistic_of(small, s.D, s.bits), s.least))
    return results


def table(folder: Path, rows: int, inputs: int, chunk: int) -> Source:
    return open_source(generated(folder / f"pass-{rows}-{inputs}-{chunk}.zarr", rows, inputs, chunk=chunk))


def statistic_of(source: Source, D: int, bits: str) -> Holdout:
    return Holdout(gram(source.read(source.chunks()[0]).X, D, bits, 2), Split())


@contextmanager
def workers(count: int) -> Iterator[ClusterEngine]:
    """What ``--workers`` starts, each with one thread."""
    with connect(Address(workers=count, threads=count)) as client:
        client.wait_for_workers(count)
        yield ClusterEngine(client)


def time_pass(engine: Engine, statistic: Any, source: Source) -> Timed:
    gc.collect()
    before = most = memory.resident()

    def watch(_: Pass[Any], pending: int) -> Next:
        nonlocal most
        most = max(most, memory.resident())
        return Next.CONTINUE

    cpu, start = cpu_seconds(engine), time.perf_counter()
    state = engine.run(Pass.start(statistic, source), watch)
    seconds = time.perf_counter() - start
    return Timed(seconds, state.digest(), most - before, cpu_seconds(engine) - cpu)


def time_in_turns(engines: dict[str, Engine], statistic: Any, source: Source, repeats: int) -> dict[str, list[Timed]]:
    rounds = [{name: time_pass(engine, statistic, source) for name, engine in engines.items()} for _ in range(repeats)]
    return {name: [found[name] for found in rounds] for name in engines}


def compare_engines(folder: Path, s: SimpleNamespace) -> Cell:
    """One worker, two workers, and two threads without workers, on a pass of at least ``least`` seconds."""
    small = table(folder, 40_000 if s.least else 8000, INPUTS, 4000)
    statistic = statistic_of(small, s.D, s.bits)
    with workers(1) as one, workers(2) as two, Threads(2) as threads:
        engines: dict[str, Engine] = {"one worker": one, "two workers": two, "two threads": LocalEngine(threads)}
        warm = time_in_turns(engines, statistic, small, 2)
        rate = small.n_rows / warm["two workers"][-1][0]
        rows = max(100_000, int(rate * s.least * 1.1)) if s.least else 16_000
        found = time_in_turns(engines, statistic, table(folder, rows, INPUTS, 20_000), s.repeats)
    best = {name: min(runs).seconds for name, runs in found.items()}
    return {
        "ok": True, "D": s.D, "bits": s.bits, "rows": rows, "seconds": best,
        "same_bits": len({timed.digest for runs in found.values() for timed in runs}) == 1,
        "long_enough": best["two workers"] >= s.least,
        "speedup": best["one worker"] / best["two workers"], "overhead": best["two workers"] / best["two threads"],
    }  # fmt: skip


def compare_chunks(folder: Path, s: SimpleNamespace, D: int = 64) -> Cell:
    """Few chunks and many: of the same size, and the same rows in larger chunks; microseconds a row and memory."""
    rows = s.many * s.chunk
    sizes = {
        f"{s.few:,} chunks": (s.few * s.chunk, s.chunk), f"{s.many:,} chunks": (rows, s.chunk),
        f"{s.few:,} large chunks": (rows, rows // s.few),
    }  # fmt: skip
    tables = {}
    with workers(2) as engine, Threads(2) as threads:
        engines: dict[str, Engine] = {"cluster": engine, "local": LocalEngine(threads)}
        for name, (rows, chunk) in sizes.items():
            source = table(folder, rows, 8, chunk)
            statistic = statistic_of(source, D, "8")
            time_in_turns(engines, statistic, source, 1)
            times = time_in_turns(engines, statistic, source, s.repeats)
            tables[name] = {"rows": rows, "chunks": len(source.chunks()), "grew": max(t.grew for t in times["cluster"]),
                            "cpu": 1e6 * min(t.cpu for t in times["cluster"]) / rows,
                            **{place: 1e6 * min(runs).seconds / rows for place, runs in times.items()}}  # fmt: skip
    few, many, large = tables.values()
    return {"ok": True, "D": D, "chunk_rows": s.chunk, "tables": tables, "ratio": many["cluster"] / few["cluster"],
            "cpu_ratio": many["cpu"] / few["cpu"],
            "ratio_same_rows": many["cluster"] / large["cluster"],
            "ratio_same_rows_local": many["local"] / large["local"]}  # fmt: skip
