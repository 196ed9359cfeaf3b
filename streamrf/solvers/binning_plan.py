"""What a run of random binning will take: memory by stage, where slots are kept between passes, and time.

Arithmetic on sizes only, as in ``plan``; the one thing looked at is how much room a local disk has.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streamrf.data.source import Source, work_spans
from streamrf.engines.local import AHEAD
from streamrf.features.binning.index_cache import DISK, MEMORY, NOWHERE
from streamrf.features.binning.map import BinningMap, GammaWidths
from streamrf.features.binning.normal import ROWS_A_BLOCK, add_values, scores
from streamrf.recipe import Recipe
from streamrf.solvers.plan import (
    COMPILED,
    DEFAULT_BUDGET_SHARE,
    LEAST_SPAN_BYTES,
    MOST_SPAN_BYTES,
    SCORE_COPIES,
    SLACK,
    Plan,
    holdout_share,
)
from streamrf.solvers.rates import READ_RATE
from streamrf.support import memory
from streamrf.support.threads import Threads
from streamrf.support.units import format_bytes
from streamrf.training.pilot.fourier import budget_seconds, sample_rows
from streamrf.training.pilot.widths import PILOT_GRIDS, default_bits, default_grids

STAGES = {  # the parts that are alive in each
    "pilot": ("pilot", "sample"),
    "pass": ("statistics", "block", "reading", "hold-out rows", "cache"),
    "solve": (
        "statistics", "product", "vectors", "weights", "block", "reading", "hold-out rows", "judging", "cache",
    ),
}  # fmt: skip
CURES = {
    **dict.fromkeys(("statistics", "product", "vectors", "weights", "block", "pilot"), "lower --grids or --table-bits"),
    **dict.fromkeys(("reading", "sample"), "store the data in smaller chunks, or with fewer columns"),
    **dict.fromkeys(("hold-out rows", "judging"), "hold out fewer rows with --holdout"),
}
VECTORS = 7  # numbers for each output and occupied slot: what conjugate gradients hold, and what a step makes
TYPICAL_STEPS = 12  # to the best, to see that it was, and with all rows
DISK_RATE = 1e9  # bytes a second, assumed: a local disk whose files are partly in memory
HASH_RATE = 2e9  # cells a second, assumed
TRIAL_BYTES = 256 * 2**20  # of the one trial of the pilot that is compared with other maps
TRIAL_GRIDS = 100


@dataclass(frozen=True)
class CachePlan:
    """Where slots are kept between passes, up to how many bytes, and why."""

    place: str
    bytes: int  # what all rows take
    limit: int  # what one process may keep
    why: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def settled_sizes(recipe: Recipe, rows: int) -> Recipe:
    """The recipe with its grids and slots: what was asked for, or what suits so many rows."""
    return recipe.with_(grids=recipe.grids or default_grids(rows), table_bits=recipe.table_bits or default_bits(rows))


def plan_binning(
    source: Source, recipe: Recipe, *, outputs: int, threads: int, budget: int | None, classes: bool = False,
    reserved: int | None = None,
) -> Plan:  # fmt: skip
    """Sizes from shapes alone; nothing is read."""
    reserved = reserved or memory.resident() + COMPILED
    budget = budget or reserved + int(DEFAULT_BUDGET_SHARE * memory.available())
    recipe = settled_sizes(recipe, source.n_rows)
    parts = _parts(source, recipe, outputs)
    span_bytes = int(np.clip((budget - reserved - parts["statistics"]) // 8, LEAST_SPAN_BYTES, MOST_SPAN_BYTES))
    spans = work_spans(source, ROWS_A_BLOCK, span_bytes)
    waiting = 1 + AHEAD
    parts["reading"] = max(
        source.read_bytes(span) + waiting * (source.block_bytes(span) + 4 * _grids(recipe) * len(span))
        for span in spans
    )
    room = budget - _projected(reserved, parts)
    cache = choose_cache(source, recipe, room)
    parts["cache"] = cache.bytes if cache.place == MEMORY else 0
    stages = {name: _alive(reserved, parts, alive) for name, alive in STAGES.items()}
    share, passes = holdout_share(recipe, source.n_rows), 1 + TYPICAL_STEPS + (recipe.scaling == "minmax")
    why = "random binning is solved by conjugate gradients, one pass a step; hold-out rows stop it (about" + (
        f" {TYPICAL_STEPS} steps)"
    )
    return Plan(
        budget, reserved, parts, stages, ROWS_A_BLOCK, span_bytes, share, passes, "cg", why,
        alive=STAGES, cures=CURES, cache=cache,
    )  # fmt: skip


def _grids(recipe: Recipe) -> int:
    assert recipe.grids is not None
    return recipe.grids


def _slots(recipe: Recipe) -> int:
    assert recipe.table_bits is not None
    return 1 << recipe.table_bits


def _parts(source: Source, recipe: Recipe, outputs: int) -> dict[str, int]:
    grids, n, d = _grids(recipe), source.n_rows, source.n_features
    table, occupied = grids * _slots(recipe), grids * min(_slots(recipe), n)
    held = int(n * holdout_share(recipe, n))
    sample = min(n, sample_rows(n, d * source.x_dtype.itemsize, recipe))
    return {
        "statistics": 8 * table * (outputs + 1) * 2,  # of the rows to fit, and of all
        "product": 12 * table * outputs,
        "vectors": 8 * occupied * (VECTORS * outputs + 3),
        "weights": 16 * table * outputs,
        "block": min(n, ROWS_A_BLOCK) * (8 * grids + 8 * d + 24 * outputs + 16),
        "hold-out rows": held * (8 * outputs + 8 + 8 * d + 4 * grids),
        "judging": held * 8 * outputs * SCORE_COPIES,
        "pilot": 0 if recipe.pilot == "none" else pilot_bytes(sample, d, outputs),
        "sample": 3 * sample * d * max(4, source.x_dtype.itemsize),
        "reading": 0,
        "cache": 0,
    }


def pilot_bytes(rows: int, d: int, outputs: int) -> int:
    """The largest trial of the pilot, and the sample in two scalings."""
    slots = 1 << default_bits(rows)
    search = PILOT_GRIDS * slots * _trial_bytes(min(outputs, 3))
    compared = trial_grids(rows, outputs, TRIAL_GRIDS) * slots * _trial_bytes(outputs)
    return max(search, compared) + rows * (12 * d + 4 * TRIAL_GRIDS + 24 * outputs)


def _trial_bytes(outputs: int) -> int:
    """For each slot: counts, totals and vectors."""
    return 24 + 8 * (VECTORS + 3) * outputs


def trial_grids(rows: int, outputs: int, grids: int) -> int:
    """Grids of the trial that is compared with other maps: those of the run, where that is cheap."""
    most = TRIAL_BYTES // (_trial_bytes(outputs) << default_bits(rows))
    return int(np.clip(min(most, grids), 1, TRIAL_GRIDS))


def _alive(reserved: int, parts: dict[str, int], names: tuple[str, ...]) -> int:
    return reserved + int(SLACK * sum(parts[name] for name in names))


def _projected(reserved: int, parts: dict[str, int]) -> int:
    return max(_alive(reserved, parts, names) for names in STAGES.values())


def choose_cache(source: Source, recipe: Recipe, room: int) -> CachePlan:
    """In memory if they fit; else on disk, if reading them there is faster than making them again."""
    grids, n = _grids(recipe), source.n_rows
    size = n * (4 * grids + (8 if recipe.nan == "drop" else 0))
    what = f"the slots of {n:,} rows take {format_bytes(size)}"
    if SLACK * size <= room:
        return CachePlan(MEMORY, size, size, f"{what}, which the budget has left")
    row = source.n_features * source.x_dtype.itemsize
    again, kept = row / READ_RATE + grids * source.n_features / HASH_RATE, 4 * grids / DISK_RATE
    free = shutil.disk_usage(tempfile.gettempdir()).free
    left = f"{what}, and the budget has {format_bytes(max(room, 0))} left"
    if kept < again and 1.1 * size <= free:
        return CachePlan(DISK, size, size, f"{left}: they are kept in a temporary file")
    why = "a disk would be no faster" if kept >= again else f"the temporary disk has {format_bytes(free)}"
    return CachePlan(NOWHERE, size, 0, f"{left}, and {why}: they are made again in each pass")


def cache_on_workers(plan: Plan) -> CachePlan:
    """In the memory of the workers, as far as each has some left; their disks are left alone."""
    cache, needs = plan.cache, plan.workers
    limit = 0 if needs.limit is None else int(0.8 * needs.limit) - needs.projected
    if limit <= 0:
        return CachePlan(NOWHERE, cache.bytes, 0, "workers have no memory left for slots: each pass makes them again")
    return CachePlan(MEMORY, cache.bytes, limit, f"each worker keeps up to {format_bytes(limit)} of the slots it makes")


@dataclass(frozen=True)
class BinningRates:
    """Work done in a second, by all threads together."""

    hashing: float  # cells: rows times grids times columns
    passing: float  # look-ups and sums: rows times grids times outputs


def measure_binning(threads: Threads) -> BinningRates:
    """Short runs of the real kernels on made-up rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((65_536, 10)).astype(np.float32)
    map = BinningMap.draw(GammaWidths(), 10, 16, 15, 0)
    indices = map.indices(X, threads=threads)
    table = rng.integers(-1000, 1000, (1, 16, map.slots)).astype(np.int32)
    totals = np.zeros(table.shape, np.int64)
    hashing = _best(lambda: map.indices(X, indices, threads))
    passing = _best(lambda: add_values(indices, scores(indices, table, threads, np.int32), totals, threads))
    return BinningRates(X.size * 16 / hashing, indices.size / passing)


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times[1:])  # the first may have been compiling


def estimate_binning(plan: Plan, source: Source, recipe: Recipe, outputs: int, rates: BinningRates) -> dict[str, float]:
    """Time of each stage; reading hides behind computing where it is faster."""
    n, d, grids = source.n_rows, source.n_features, _grids(settled_sizes(recipe, source.n_rows))
    read, hashing = n * d * source.x_dtype.itemsize / READ_RATE, n * grids * d / rates.hashing
    step = n * grids * outputs / rates.passing
    fetch = {MEMORY: 0.0, DISK: 4.0 * n * grids / DISK_RATE, NOWHERE: read + hashing}[plan.cache.place]
    seconds = {
        "pilot": 0.0 if recipe.pilot == "none" else budget_seconds(n, recipe.D),
        "pass": max(read, hashing + step * (outputs + 1) / outputs),
        "solve": TYPICAL_STEPS * max(step, fetch),
    }
    seconds["total"] = sum(seconds.values())
    return seconds
