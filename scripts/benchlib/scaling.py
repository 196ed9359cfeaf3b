"""`scaling`: what a pass costs on 1 to 1,000 workers: constants measured here, the rest simulated; docs/scaling.md.

Measured on one core: the map and the Gram product (seconds a row at several D), adding two states, moving a state from
one worker process to another by loopback, giving a task, and factoring a matrix. `scripts/bench page` rewrites the
tables of docs/scaling.md, which stand between markers, and its picture.
"""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.linalg as sla
from scipy.optimize import nnls

from benchlib.context import Context
from benchlib.machine import describe
from benchlib.parts import gram
from benchlib.results import Cell, Results, rounded
from benchlib.simulated import Costs, even_shares, simulate, speeds_of, state_bytes
from streamrf.data.source import Block
from streamrf.engines.cluster.passes import BATCH
from streamrf.support.threads import Threads, seconds_of

MINUTES = "about 3 minutes"
DEFAULTS = {"rows": 100_000_000, "measured": (250, 500, 1000, 2000, 5000), "sizes": (500, 2000, 5000, 20_000),
            "workers": (1, 10, 100, 1000), "tasks": 500}  # fmt: skip
TOYS = {"rows": 1_000_000, "measured": (64, 128), "sizes": (500, 2000), "workers": (1, 10), "tasks": 20}
LIMITS = {"busy": ("at least", 0.8)}
INPUTS = 54


def run(context: Context) -> Results:
    results, s = context.open("scaling"), context.settings(DEFAULTS, TOYS)
    constants = results.cell("constants", lambda: rounded(measure(s.measured, s.tasks), 10))
    results.cell("simulated", lambda: rounded(simulated(constants, s), 10))
    return results


def measure(sizes: tuple[int, ...], tasks: int) -> Cell:
    """Everything the model needs, from this machine."""
    rows = {D: seconds_a_row(D) for D in sizes}
    return {
        "ok": True, "cpu": describe()["cpu"], "inputs": INPUTS,
        "map": {str(D): found[0] for D, found in rows.items()},
        "gram": {str(D): found[1] for D, found in rows.items()},
        "row_model": fit_rows({D: sum(found) for D, found in rows.items()}),
        "adding": adding_rate(max(sizes)), "factoring": factoring_rate(min(2000, max(sizes))),
        **cluster_rates(max(sizes), tasks),
    }  # fmt: skip


def seconds_a_row(D: int, rows: int = 8192) -> tuple[float, float]:
    """Scaling and map of one row at 8 bits on one thread, and then its product with itself."""
    X = np.random.default_rng(0).standard_normal((rows, INPUTS), dtype=np.float32)
    statistic = gram(X, D, "8", 1)
    scaling, features, block = statistic.scaling, statistic.map, Block(X, X[:, 0].astype(float), np.arange(rows))
    out, state = features.block(rows, statistic.product.dtype, 0), statistic.zero()
    with Threads(1) as threads:
        scaled = features.precision.inputs
        mapping = min(seconds_of(lambda: features.compute(scaling.transform(X, scaled), out, threads), 5))
        whole = min(seconds_of(lambda: statistic.update(state, block, threads), 5))
    return mapping / rows, max(whole - mapping, 0.0) / rows


def fit_rows(rows: dict[int, float]) -> list[float]:
    """``a D + b D^2``, least relative squares: the map is linear in D, the product quadratic."""
    D, seconds = np.array(list(rows), float), np.array(list(rows.values()))
    return nnls(np.stack([D, D**2], axis=1) / seconds[:, None], np.ones(len(D)))[0].tolist()


def adding_rate(D: int) -> float:
    """Bytes of a state copied and added to in a second: what a merge does once both are there."""
    first, second = (np.ones(state_bytes(D) // 8, np.int64) for _ in range(2))

    def add() -> None:
        total = first.copy()
        total += second

    return first.nbytes / min(seconds_of(add, 5))


def factoring_rate(D: int) -> float:
    """Operations a second of a Cholesky factorisation, counted as D^3 / 3."""
    A = np.asfortranarray(np.eye(D) + 1.0 / D)
    with Threads(1) as threads, threads.blas():
        return D**3 / 3 / min(seconds_of(lambda: sla.lapack.dpotrf(A, lower=1, overwrite_a=0), 3))


def cluster_rates(D: int, tasks: int) -> dict[str, float]:
    """Of two worker processes: seconds from one to the other, bytes/s between them, seconds a task keeps us busy."""
    from distributed import Client, LocalCluster, wait

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.ERROR)
    with cluster, Client(cluster) as client:
        here, there = list(client.scheduler_info(n_workers=-1)["workers"])[:2]

        def move(count: int) -> float:
            made = client.submit(np.ones, count, np.int64, workers=[here], pure=False)
            made.result()
            start = time.perf_counter()
            client.submit(np.ndarray.sum, made, workers=[there], pure=False).result()
            return time.perf_counter() - start

        def hand_out() -> float:
            """Processor time of this process, in which both the driver and the scheduler are: workers share its cores,
            so seconds on the clock would count their work as well. They go out in batches, as those of a pass do."""
            start, futures = time.process_time(), []
            for begin in range(0, tasks, BATCH):
                futures += client.map(int, range(begin, min(begin + BATCH, tasks)), pure=False)
            wait(futures)
            return time.process_time() - start

        move(1)
        tiny, large = (min(move(count) for _ in range(5)) for count in (1, state_bytes(D) // 8))
        moving, task = state_bytes(D) / max(large - tiny, 1e-9), min(hand_out() for _ in range(3)) / tasks
        return {"latency": tiny, "moving": moving, "task": task}


def simulated(constants: dict[str, Any], s: SimpleNamespace) -> Cell:
    """Passes at several D on several numbers of workers, and at D = 2,000 on workers of unequal speed.

    ``busy`` is the share of their time that most workers spend on rows at D = 5,000.
    """
    times = {
        str(D): {str(count): simulate(Costs.at(constants, D), s.rows, speeds_of(count)) for count in s.workers}
        for D in s.sizes
    }
    hundred = min(100, max(s.workers))
    one_slow = np.where(np.arange(hundred) == 0, 0.1, 1.0)
    speeds = {"all equal": np.ones(hundred), "unequal, some stragglers": speeds_of(hundred), "one at a tenth": one_slow}
    costs = Costs.at(constants, 2000)
    balance = {
        name: {**simulate(costs, s.rows, values), "even_shares": even_shares(costs, s.rows, values)}
        for name, values in speeds.items()
    }
    most = times[str(5000 if 5000 in s.sizes else max(s.sizes))][str(max(s.workers))]
    busy = most["ideal"] / most["seconds"]
    return {"ok": True, "rows": s.rows, "times": times, "busy": busy, "balance": balance, "balance_workers": hundred}
