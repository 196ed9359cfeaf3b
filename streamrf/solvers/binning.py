"""Random binning: one pass of counts and targets, then conjugate gradients, one pass a step.

Rows that are held out stop the steps. Then they join: a few steps more, from the best solution so far, with all rows.
Every pass is an exact sum, and what happens between two passes is done in a fixed order, so that weights have the same
bits whatever the engine, the order of the rows, or where a run was stopped and resumed.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.data.split import NONE_HELD, Split
from streamrf.features.binning.index_cache import DISK, MEMORY, NOWHERE, BinIndexSource, end_run, indexer_of_run
from streamrf.features.binning.map import BinningMap, GammaWidths
from streamrf.features.binning.normal import ROWS_A_BLOCK, OccupiedBuckets, add_values, scores
from streamrf.features.settings import BINNING
from streamrf.features.targets import REGRESSION
from streamrf.solvers.base import Fitted, Run, Solver
from streamrf.solvers.conjugate_gradients import CGState, ConjugateGradients, jacobi
from streamrf.solvers.judging import as_read, by_role, calibrate, judge
from streamrf.solvers.passes import Kept
from streamrf.solvers.plan import PASS, SLACK, SOLVE, CachePlan, Part, Plan, Sizes, holdout_parts, reading_parts
from streamrf.solvers.rates import READ_RATE
from streamrf.statistics.bins import Bins, BinsProduct, BinsState
from streamrf.statistics.holdout import Holdout, HoldoutState, SampleState, under
from streamrf.statistics.scores import Calibration, Weights
from streamrf.support.errors import DataError, InputError
from streamrf.support.threads import Threads, seconds_of
from streamrf.support.units import format_bytes

STEPS = 150  # at most: held-out rows stop them, mostly after 4 to 30
BLIND_STEPS = 8  # where no row is held out
JOIN_STEPS = 2  # with all rows, after the best step: see docs/decisions/random-binning.md
TYPICAL_STEPS = 12  # to the best, to see that it was, and with all rows
VECTORS = 7  # numbers for each output and occupied bin: what conjugate gradients hold, and what a step makes
FEWEST_GRIDS, MOST_GRIDS, VISITS = 100, 400, 2e7  # grids times rows
FULL_BINS = 4  # rows for each bin of a grid
DISK_RATE = 1e9  # bytes a second, assumed: a local disk whose files are partly in memory
HASH_RATE = 2e9  # cells a second, assumed
FEWER_BINS = "lower `grids` or `table_bits`"


class Binning(Solver):
    """Counts and Z'y, then steps of conjugate gradients on the occupied bins."""

    name = "cg"
    maps = BINNING

    @classmethod
    def plan(cls, sizes: Sizes) -> Plan:
        source = sizes.source
        if source.has_weights:
            raise InputError(
                "random binning counts rows, which cannot have weights: use Fourier features (`map='auto'`)"
            )
        grids, bins = table_of(sizes)
        table, occupied, outputs = grids * bins, grids * min(bins, sizes.rows), sizes.outputs
        block = min(sizes.rows, ROWS_A_BLOCK) * (8 * grids + 8 * source.n_features + 24 * outputs + 16)
        parts = {
            "statistics": Part(8 * table * (outputs + 1) * 2, (PASS, SOLVE), FEWER_BINS),  # of rows to fit, and of all
            "product": Part(12 * table * outputs, (SOLVE,), FEWER_BINS),
            "vectors": Part(8 * occupied * (VECTORS * outputs + 3), (SOLVE,), FEWER_BINS),
            "weights": Part(16 * table * outputs, (SOLVE,), FEWER_BINS),
            "block": Part(block, (PASS, SOLVE), FEWER_BINS),
            **holdout_parts(sizes, extra=4 * grids),
        }
        room = sizes.budget - sizes.reserved - parts["statistics"].bytes
        reading, span_rows, span_bytes = reading_parts(sizes, room, span_rows=ROWS_A_BLOCK, extra=4 * grids)
        why = (
            "random binning is solved by conjugate gradients, one pass a step; hold-out rows stop it (about"
            f" {TYPICAL_STEPS} steps)"
        )
        passes = 1 + TYPICAL_STEPS + sizes.scaling_passes
        plan = Plan(sizes, cls.name, why, {**parts, **reading}, passes, span_rows, span_bytes)
        cache = choose_cache(sizes, grids, plan.room)
        held = Part(cache.bytes if cache.place == MEMORY else 0, (PASS, SOLVE), FEWER_BINS)
        return plan.with_parts(parts={"cache": held}, cache=cache)

    @classmethod
    def estimate(cls, plan: Plan) -> Mapping[str, float]:
        """Reading hides behind computing where it is faster."""
        sizes = plan.sizes
        grids, _ = table_of(sizes)
        n, outputs, (hash_rate, step_rate) = sizes.rows, sizes.outputs, _rates(sizes.threads)
        read, hashing = n * sizes.row_bytes / READ_RATE, n * grids * sizes.source.n_features / hash_rate
        step, place = n * grids * outputs / step_rate, plan.cache.place if plan.cache else NOWHERE
        fetch = {MEMORY: 0.0, DISK: 4.0 * n * grids / DISK_RATE, NOWHERE: read + hashing}[place]
        return {
            "pass": max(read, hashing + step * (outputs + 1) / outputs),
            "solve": TYPICAL_STEPS * max(step, fetch),
        }

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        assert isinstance(self.pipeline.map, BinningMap)
        self.map: BinningMap = self.pipeline.map
        cache = run.plan.cache
        place, limit = (cache.place, cache.limit) if cache else ("nowhere", 0)
        key = secrets.token_hex(8)
        self.indexer = indexer_of_run(self.pipeline.scaling, self.map, key, self.recipe.nan, place, limit, run.split)
        self.bin_indices = BinIndexSource(run.source, self.indexer)
        self.spare: list[np.ndarray] = []

    @property
    def ridge(self) -> float:
        """Of the weights of bins; the recipe's is for features whose squares sum to one."""
        return self.first_ridge * self.map.grids

    def fit(self) -> Fitted:
        try:
            return self._fit()
        finally:
            self.passes.engine.everywhere(partial(end_run, self.indexer.key))

    def _fit(self) -> Fitted:
        kept = self.passes.kept if self.passes.kept and self.passes.kept.document else None
        with self.run.timed("pass"):
            opening = Opened.load(kept.arrays, self._bins) if kept else self._first_pass()
        if opening.rows < 2:
            raise DataError(f"{opening.rows} usable rows: at least two are needed to fit a model")
        with self.run.timed("solve"):
            return self._solve(opening, kept)

    @property
    def _bins(self) -> Bins:
        return Bins(self.indexer, self.pipeline.coding)

    def _first_pass(self) -> Opened:
        state: HoldoutState[BinsState] = self.passes.sum(Holdout(self._bins, self.run.split, self.run.shard_starts))
        return Opened(state.sums, state.holdout.table())

    def _solve(self, opening: Opened, kept: Kept | None) -> Fitted:
        """Hold-out rows choose a step, others judge it, and then all of them are in."""
        choosing, judges = opening.by_role(self.run.split)
        if choosing is None or opening.sums.rows < 2:
            return self._blind(opening, kept)
        stage = kept.document["stage"] if kept else SEARCH
        if kept is None or stage == SEARCH:
            found = self._search(opening, choosing, kept)
        else:
            found = Found(kept.arrays[BEST], kept.document["steps"], kept.document["step"])
        weights = self._weights(opening.sums, found.best)
        calibration = calibrate(self.pipeline, [(weights, choosing)], self.threads, threshold=self.recipe.threshold)
        metrics = None
        if judges is not None:
            metrics = judge(self.pipeline, weights, judges, calibration, self.run.split, self.threads)
        self.reporter.detail(f"step {found.step} of {found.steps} is the best on the rows held out, which now join")
        weights, joined = self._join(opening, found, kept if stage == JOIN else None)
        fitted = self._fitted(weights, joined, calibration, metrics, found.steps + JOIN_STEPS, found.step)
        return replace(fitted, judges=judges)

    def _search(self, opening: Opened, choosing: Block, kept: Kept | None) -> Found:
        solver = Steps(self, opening.sums, SEARCH, opening.arrays(), split=self.run.split)
        cg = solver.begin(kept)
        unseen = Unseen(self, opening.sums, choosing)
        best = cg.run(STEPS, score=lambda V: unseen.error(solver.occupied, V))
        return Found(solver.occupied.expand(best, np.float64), cg.state.iteration, cg.state.best_iteration)

    def _join(self, opening: Opened, found: Found, kept: Kept | None) -> tuple[Weights, BinsState]:
        """Steps with all rows, from the best solution without those that were held out."""
        assert opening.holdout is not None
        rows = as_read(self.pipeline.coding, opening.holdout)
        everything = opening.sums.copy()
        self._bins.update(everything, rows, self.threads)
        arrays = {**opening.arrays(), BEST: found.best}
        solver = Steps(self, everything, JOIN, arrays, steps=found.steps, step=found.step)
        cg = solver.begin(kept, start=found.best)
        best = cg.run(JOIN_STEPS)
        return self._weights(everything, solver.occupied.expand(best, np.float64)), everything

    def _blind(self, opening: Opened, kept: Kept | None) -> Fitted:
        """So many steps, with nothing to judge them by."""
        sums = opening.sums
        if opening.holdout is not None:
            self._bins.update(sums, as_read(self.pipeline.coding, opening.holdout), self.threads)
        solver = Steps(self, sums, SEARCH, Opened(sums, None).arrays())
        best = solver.begin(kept).run(BLIND_STEPS)
        weights = self._weights(sums, solver.occupied.expand(best, np.float64))
        return self._fitted(weights, sums, None, None, BLIND_STEPS, BLIND_STEPS)

    def _weights(self, sums: BinsState, table: np.ndarray) -> Weights:
        coefficients = table.reshape(len(table), -1).astype(np.float32).T
        return Weights(coefficients, self.centre(sums), self.first_ridge)

    def centre(self, sums: BinsState) -> np.ndarray:
        """The mean target of each output, which the bins are to tell deviations from."""
        coding = self.pipeline.coding
        return sums.targets / sums.rows * coding.step + coding.offset

    def _fitted(
        self, weights: Weights, sums: BinsState, calibration: Calibration | None, metrics: Any, steps: int, best: int
    ) -> Fitted:
        facts = {
            "grids": self.map.grids, "slots": self.map.buckets,
            "steps": steps, "best_step": best, "cache": self.indexer.cache.place, **_fullness(sums),
        }  # fmt: skip
        metadata = {"holdout": metrics, "binning": facts}
        return Fitted(weights, sums.rows, sums.digest(), calibration, None, metadata)


def default_bits(rows: int) -> int:
    """Bins for a quarter of the rows: beyond it larger tables hardly help."""
    return int(np.clip(np.ceil(np.log2(max(1, rows) / FULL_BINS)), 8, 24))


def default_grids(rows: int) -> int:
    """100 grids, and up to 400 where rows are so few that they cost nothing."""
    return int(np.clip(VISITS / max(1, rows), FEWEST_GRIDS, MOST_GRIDS))


def table_of(sizes: Sizes) -> tuple[int, int]:
    """Grids, and bins of each: what was asked for, or what suits so many rows."""
    bits = sizes.recipe.table_bits or default_bits(sizes.rows)
    return sizes.recipe.grids or default_grids(sizes.rows), 1 << bits


def choose_cache(sizes: Sizes, grids: int, room: int) -> CachePlan:
    """In memory if they fit; else on disk, if reading them there is faster than making them again."""
    n, d = sizes.rows, sizes.source.n_features
    size = n * (4 * grids + 8 + (8 if sizes.recipe.nan == "drop" else 0))  # indices, keys, row numbers
    what = f"the bin indices of {n:,} rows take {format_bytes(size)}"
    if SLACK * size <= room:
        return CachePlan(MEMORY, size, size, f"{what}, which the budget has left")
    again, kept = sizes.row_bytes / READ_RATE + grids * d / HASH_RATE, 4 * grids / DISK_RATE
    free = shutil.disk_usage(tempfile.gettempdir()).free
    left = f"{what}, and the budget has {format_bytes(max(room, 0))} left"
    if kept < again and 1.1 * size <= free:
        return CachePlan(DISK, size, size, f"{left}: they are kept in a temporary file")
    why = "a disk would be no faster" if kept >= again else f"the temporary disk has {format_bytes(free)}"
    return CachePlan(NOWHERE, size, 0, f"{left}, and {why}: they are computed again in each pass")


def on_workers(plan: Plan) -> Plan:
    """With bin indices in the memory of the workers, as far as each has some left; their disks are left alone."""
    cache, needs = plan.cache, plan.workers
    if cache is None or needs is None:
        return plan
    limit = 0 if needs.limit is None else int(0.8 * needs.limit) - needs.projected
    if limit <= 0:
        why = "workers have no memory left for bin indices: each pass computes them again"
        return replace(plan, cache=CachePlan(NOWHERE, cache.bytes, 0, why))
    why = f"each worker keeps up to {format_bytes(limit)} of the bin indices it computes"
    return replace(plan, cache=CachePlan(MEMORY, cache.bytes, limit, why))


@lru_cache(maxsize=4)
def _rates(threads: int) -> tuple[float, float]:
    """Cells hashed (rows x grids x columns), and look-ups and sums (rows x grids x outputs), in a second: short runs
    of the real kernels on made-up rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((65_536, 10)).astype(np.float32)
    map = BinningMap.draw(GammaWidths(), 10, 16, 15, 0)
    with Threads(threads) as pool:
        indices = map.indices(X, threads=pool)
        table = rng.integers(-1000, 1000, (1, 16, map.buckets)).astype(np.int32)
        totals = np.zeros(table.shape, np.int64)

        def step() -> None:
            add_values(indices, scores(indices, table, pool, np.int32), totals, pool)

        hashing = min(seconds_of(lambda: map.indices(X, indices, pool), 3))
        return X.size * 16 / hashing, indices.size / min(seconds_of(step, 3))


def _fullness(sums: BinsState) -> dict[str, Any]:
    """Slots that have rows, and from their number how many bins there must be, had each gone to a random slot."""
    grids, slots = sums.counts.shape
    occupied = np.count_nonzero(sums.counts, axis=1)
    bins = np.log1p(-np.minimum(occupied, slots - 0.5) / slots) / np.log1p(-1.0 / slots)
    return {
        "occupied": float(occupied.sum() / (grids * slots)),
        "empty": float(1 - occupied.sum() / (grids * slots)),
        "bins": float(bins.mean()),
        "colliding": float(max(0.0, 1 - occupied.sum() / bins.sum())),
    }


SEARCH, JOIN = "search", "join"
CG, BEST = "cg.", "best"


@dataclass
class Opened:
    """What the first pass brought: sums of the rows to fit, and those that were held out."""

    sums: BinsState
    holdout: Block | None

    @property
    def rows(self) -> int:
        return self.sums.rows + (0 if self.holdout is None else len(self.holdout))

    def by_role(self, split: Split) -> tuple[Block | None, Block | None]:
        """Those that choose, and those that judge."""
        return by_role(split, SampleState([] if self.holdout is None else [self.holdout]))

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold."""
        sample = SampleState([] if self.holdout is None else [self.holdout])
        return {**self.sums.arrays(), **sample.arrays()}

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray], bins: Bins) -> Opened:
        return cls(bins.load(arrays), SampleState.load(arrays).table())


@dataclass
class Found:
    """What the search ended with."""

    best: np.ndarray  # (k, P, buckets)
    steps: int
    step: int  # at which the best was


class Steps:
    """One system of normal equations, whose products are passes over the data. Before each, its place is kept."""

    def __init__(
        self, solver: Binning, sums: BinsState, stage: str, arrays: dict[str, np.ndarray],
        *, split: Split = NONE_HELD, **facts: Any,
    ) -> None:  # fmt: skip
        self.solver, self.sums, self.split = solver, sums, split
        self.document, self.arrays = {"stage": stage, **facts}, arrays
        self.occupied = OccupiedBuckets.of(sums.counts)
        self.table = np.zeros(sums.totals.shape, np.int32)
        self.cg: ConjugateGradients | None = None

    def begin(self, kept: Kept | None, start: np.ndarray | None = None) -> ConjugateGradients:
        """At zero or at ``start``, or where an earlier run was stopped."""
        ridge, diagonal = self.solver.ridge, self.occupied.compress(self.sums.counts[None])[0]
        preconditioner = jacobi(diagonal, ridge)
        saved = under(kept.arrays, CG) if kept else {}
        if saved:
            self.cg = ConjugateGradients(self, ridge, preconditioner, CGState.load(saved))
        else:
            first = None if start is None else self.occupied.compress(start)
            self.cg = ConjugateGradients.begin(self, self._right_hand_side(diagonal), ridge, preconditioner, first)
        return self.cg

    def _right_hand_side(self, diagonal: np.ndarray) -> np.ndarray:
        """Z'(y - centre)."""
        coding = self.solver.pipeline.coding
        shift = (self.solver.centre(self.sums) - coding.offset) / coding.step
        return (self.occupied.compress(self.sums.totals) - diagonal * shift[:, None]) * coding.step[:, None]

    def product(self, V: np.ndarray) -> np.ndarray:
        """(Z'Z) V, for V as ``rounded`` gives it: one pass."""
        self._keep()
        solver = self.solver
        _, scale = self.occupied.integers(V, self.table)
        statistic = BinsProduct(solver.indexer, self.table, self.split, solver.spare)
        state = solver.passes.sum(statistic, self._title(), source=solver.bin_indices)
        image = self.occupied.compress(state.totals) / scale
        solver.spare.append(state.totals)
        return image

    def rounded(self, V: np.ndarray) -> np.ndarray:
        return self.occupied.rounded(V)

    def _keep(self) -> None:
        state = {} if self.cg is None else {CG + name: array for name, array in self.cg.state.arrays().items()}
        self.solver.passes.keep(self.document, {**self.arrays, **state})

    def _title(self) -> str:
        number = 0 if self.cg is None else self.cg.state.iteration + 1
        return f"step {number}" if self.document["stage"] == SEARCH else f"joining step {number}"


class Unseen:
    """The rows that choose, by their bins: the unexplained share of their variance."""

    def __init__(self, solver: Binning, sums: BinsState, rows: Block) -> None:
        self.threads, self.reporter = solver.threads, solver.reporter
        self.indices = solver.indexer.indices(rows.X, solver.threads)
        self.deviations = rows.targets - solver.centre(sums)
        squares = (self.deviations**2).sum(axis=0)
        weigh = solver.pipeline.coding.task == REGRESSION  # outputs in units of their own count alike
        self.weights = 1.0 / np.where(squares > 0, squares, 1.0) if weigh else np.ones(len(squares))
        self.total = max(float((squares * self.weights).sum()), np.finfo(np.float64).tiny)

    def error(self, occupied: OccupiedBuckets, V: np.ndarray) -> float:
        predicted = scores(self.indices, occupied.expand(V, np.float32), self.threads).T
        error = float((((predicted - self.deviations) ** 2).sum(axis=0) * self.weights).sum() / self.total)
        self.reporter.detail(f"hold-out squared error {error:.5f} of the variance")
        return error
