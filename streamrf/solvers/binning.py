"""Random binning: one pass of counts and targets, then conjugate gradients, one pass a step.

Rows that are held out stop the steps. Then they join: a few steps more, from the best solution so far, with all rows.
Every pass is an exact sum, and what happens between two passes is done in a fixed order, so that weights have the same
bits whatever the engine, the order of the rows, or where a run was stopped and resumed.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from streamrf.data.source import Block
from streamrf.features.binning.index_cache import DISK, MEMORY, NOWHERE, end_run, indexer_of_run
from streamrf.features.binning.layout import words_of
from streamrf.features.binning.map import BinningMap, GammaWidths
from streamrf.features.binning.normal import ROWS_A_BLOCK, add_values, scores
from streamrf.features.binning.numbering import Numbering
from streamrf.features.settings import BINNING
from streamrf.solvers.base import Fitted, Run, Solver
from streamrf.solvers.bin_groups import MIXTURES, Groups, Unseen
from streamrf.solvers.bin_stages import BLIND, CHOOSE, JOIN, SEARCH, Opened, Stages, Verdict
from streamrf.solvers.judging import calibrate, judge
from streamrf.solvers.passes import Kept
from streamrf.solvers.plan import PASS, SLACK, SOLVE, CachePlan, Part, Plan, Sizes, holdout_parts, reading_parts
from streamrf.solvers.rates import READ_RATE
from streamrf.statistics.bins import Bins, BinsState, RowIntegers, count_dtype
from streamrf.statistics.holdout import Holdout, HoldoutState
from streamrf.statistics.scores import Calibration, Weights
from streamrf.support import memory
from streamrf.support.errors import DataError
from streamrf.support.threads import Threads, seconds_of
from streamrf.support.units import format_bytes

STEPS = 150  # at most: held-out rows stop them, mostly after 4 to 30
BLIND_STEPS = 8  # where no row is held out
JOIN_STEPS = 2  # with all rows, after the best step: see docs/decisions/random-binning.md
TYPICAL_STEPS = 12  # to the best, to see that it was, and with all rows
VECTORS = 7  # numbers for each output and occupied bin in a trial of the pilot: what steps hold, and what one makes
GROUP_BYTES = 96 * 2**20  # outputs are solved together up to here, where passes over few of them cost no more
RIDGE = 0.03  # of z(x)'z(x) / P = 1; early stopping does most of the regularising
FEWEST_GRIDS, MOST_GRIDS, VISITS = 100, 400, 2e7  # grids times rows
MANY_ROWS, MANY_GRIDS, MANY_VISITS = 20_000, 800, 8e7  # grids times rows and outputs, where rows can bear more
FULL_BINS = 4  # rows for each bin of a grid
DISK_RATE = 1e9  # bytes a second, assumed: a local disk whose files are partly in memory
HASH_RATE = 2e9  # cells a second, assumed
FEWER_BINS = "lower `grids` or `table_bits`"


class Binning(Solver):
    """Counts and Z'y, then steps of conjugate gradients on the occupied bins."""

    name = "cg"
    maps = BINNING
    why = (
        "random binning is solved by conjugate gradients, one pass a step; hold-out rows stop it (about"
        f" {TYPICAL_STEPS} steps)"
    )
    passes_of_a_group = TYPICAL_STEPS
    tables: ClassVar[int] = 1  # of weights of all outputs, that are alive
    sampled: ClassVar[int] = 0  # rows to fit, that are kept beside those that are held out

    @classmethod
    def plan(cls, sizes: Sizes) -> Plan:
        source, outputs = sizes.source, sizes.outputs
        grids, bins = table_of(sizes)
        block = min(sizes.rows, ROWS_A_BLOCK) * (8 * grids + 8 * source.n_features + 16) + cls._scores_bytes(sizes)
        numbered = grids * (min(bins, sizes.rows) + 1)
        parts = {
            "statistics": Part(count_dtype(sizes.rows).itemsize * grids * bins, (PASS,), FEWER_BINS),
            "weights": Part(4 * cls.tables * numbered * outputs + grids * bins // 4, (SOLVE,), FEWER_BINS),
            "block": Part(block, (PASS, SOLVE), FEWER_BINS),
            **cls.group_parts(numbered, 1, outputs),
            **holdout_parts(sizes, extra=4 * grids, folded=min(cls.sampled, sizes.rows)),
        }
        room = sizes.budget - sizes.reserved - parts["statistics"].bytes
        reading, span_rows, span_bytes = reading_parts(sizes, room, span_rows=ROWS_A_BLOCK, extra=4 * grids)
        plan = Plan(sizes, cls.name, cls.why, {**parts, **reading}, 0, span_rows, span_bytes)
        cache = choose_cache(sizes, grids, plan.room)
        held = Part(cache.bytes if cache.place == MEMORY else 0, (PASS, SOLVE), FEWER_BINS)
        plan = plan.with_parts(parts={"cache": held}, cache=cache)
        group = _outputs_at_once(plan, partial(cls.group_parts, numbered, outputs=outputs))
        passes = 1 + cls.passes_of_a_group * -(-outputs // group) + sizes.scaling_passes
        parts = cls.group_parts(numbered, group, outputs)
        return plan.with_parts(parts=parts, passes=passes, outputs_at_once=group)

    @classmethod
    def group_parts(cls, bins: int, group: int, outputs: int) -> dict[str, Part]:
        """What so many outputs at once take, or mixtures before them: the sums of a pass; solution, residual and
        direction, and the diagonal."""
        mixed = min(MIXTURES, outputs)
        return {
            "totals": Part(8 * bins * max(2 * group, mixed + 1), (SOLVE,), FEWER_BINS),
            "vectors": Part(bins * (12 * max(group, mixed) + 8), (SOLVE,), FEWER_BINS),
        }

    @classmethod
    def _scores_bytes(cls, sizes: Sizes) -> int:
        """Of the scores of a block, and what is made of them."""
        return min(sizes.rows, ROWS_A_BLOCK) * 40 * sizes.outputs

    @classmethod
    def estimate(cls, plan: Plan) -> Mapping[str, float]:
        """Reading hides behind computing where it is faster."""
        sizes = plan.sizes
        grids, bins = table_of(sizes)
        n, outputs, (hash_rate, step_rate) = sizes.rows, sizes.outputs, _rates(sizes.threads)
        read, hashing = n * sizes.row_bytes / READ_RATE, n * grids * sizes.source.n_features / hash_rate
        step, place = cls._looked_up(plan) * n * grids / step_rate, plan.cache.place if plan.cache else NOWHERE
        fetch = {MEMORY: 0.0, DISK: 2.0 * n * words_of(grids, bins) / DISK_RATE, NOWHERE: read + hashing}[place]
        return {
            "pass": max(read, hashing + step / (2 * outputs)),
            "solve": cls.passes_of_a_group * max(step, fetch * -(-outputs // plan.outputs_at_once)),
        }

    @classmethod
    def _looked_up(cls, plan: Plan) -> float:
        """Values that a row looks up in each grid, and adds, in passes over all groups."""
        return plan.sizes.outputs

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        assert isinstance(self.pipeline.map, BinningMap)
        cache, rows = run.plan.cache, run.source.n_rows
        place, limit = (cache.place, cache.limit) if cache else (NOWHERE, 0)
        self.key = secrets.token_hex(8)
        self.rows = RowIntegers(self.pipeline.coding, run.weighting, rows)
        self.indexer = indexer_of_run(
            self.pipeline.scaling, self.pipeline.map, self.key, self.recipe.nan, place, limit, run.split, self.rows
        )

    def fit(self) -> Fitted:
        try:
            return self._fit()
        finally:
            self.passes.engine.everywhere(partial(end_run, self.key))

    def _fit(self) -> Fitted:
        kept = self.passes.kept if self.passes.kept and self.passes.kept.document else None
        memory.give_back()  # what the pilot had
        with self.run.timed("pass"):
            opened = Opened.load(kept.arrays) if kept else self._first_pass()
        if opened.rows < 2:
            raise DataError(f"{opened.rows} usable rows: at least two are needed to fit a model")
        self._number(opened.numbering)
        with self.run.timed("solve"):
            return self._solve(opened, kept)

    def _first_pass(self) -> Opened:
        rows = self.run.source.n_rows
        bins, share = Bins(self.indexer, self.pipeline.coding, rows), min(1.0, self.sampled / max(rows, 1))
        holdout = Holdout(bins, self.run.split, self.run.shard_starts, share)
        state: HoldoutState[BinsState] = self.passes.sum(holdout)
        numbering = Numbering.of(state.sums.counts)
        return Opened(numbering, state.sums.rows, state.holdout.table(), state.sample.table())

    def _number(self, numbering: Numbering) -> None:
        """From now on there are only bins that have rows."""
        self.indexer = self.indexer.numbered(numbering)
        self.pipeline = replace(self.pipeline, map=self.indexer.map)
        memory.give_back()  # indices of slots

    def _solve(self, opened: Opened, kept: Kept | None) -> Fitted:
        """Hold-out rows choose a step for each output, others judge it, and then all of them are in."""
        choosing, judges = opened.by_role(self.run.split)
        groups, most = Groups(self, opened, kept), max(1, self.run.plan.outputs_at_once)
        if choosing is None or opened.fitted < 2:
            groups.run(BLIND, most, BLIND_STEPS)
            return self._fitted(groups, groups.facts(BLIND_STEPS))
        if groups.place.stage != JOIN:
            self._search(groups, most, choosing)
            groups.verdict = self._verdict(groups, choosing, judges)
            self._now_join()
        groups.run(JOIN, most, JOIN_STEPS)
        facts = groups.facts(int(groups.limits(JOIN, JOIN_STEPS).max()))
        return replace(self._fitted(groups, facts), judges=judges, choosing=choosing)

    def _now_join(self) -> None:
        self.reporter.detail("the rows held out now join")
        memory.give_back()  # steps of the search

    def _search(self, groups: Groups, most: int, choosing: Block) -> None:
        """Until the rows that choose say stop; all of several classes make as many steps as their mixtures."""
        score = Unseen(self, groups, choosing).errors
        if not groups.mixes:
            groups.run(SEARCH, most, STEPS, score)
            return
        if groups.place.stage == CHOOSE or groups.place.chosen is None:
            groups.run(CHOOSE, MIXTURES, STEPS, score)
            groups.spare.clear()
            memory.give_back()  # steps of the mixtures, which are more than one group may have
        assert groups.place.chosen is not None
        groups.run(SEARCH, most, groups.place.chosen)

    def _verdict(self, stages: Stages[Any], choosing: Block, judges: Block | None) -> Verdict:
        weights = stages.weights()
        calibration = self.calibrated(weights, choosing)
        kept = replace(weights, coefficients=weights.coefficients.copy()) if self.run.stacked else None
        metrics = None
        if judges is not None:
            metrics = judge(self.pipeline, weights, judges, calibration, self.run.split, self.threads)
        return Verdict(calibration, metrics, kept)

    def calibrated(self, weights: Weights, choosing: Block) -> Calibration | None:
        unseen = [(weights, choosing)]
        return calibrate(self.pipeline, unseen, self.threads, self.run.weighting, self.recipe.threshold)

    def _fitted(self, stages: Stages[Any], told: dict[str, Any]) -> Fitted:
        numbering, slots = stages.opened.numbering, self.indexer.map.buckets
        facts = {
            "grids": self.indexer.map.grids, "slots": slots, **told, "cache": self.indexer.cache.place,
            **_fullness(numbering, slots),
        }  # fmt: skip
        verdict = stages.verdict
        metadata = {"holdout": verdict.metrics, "binning": facts}
        return Fitted(
            stages.weights(), stages.opened.rows, stages.place.digest(numbering), verdict.calibration, None, metadata,
            unseen=verdict.unseen, pipeline=self.pipeline,
        )  # fmt: skip


def default_bits(rows: int) -> int:
    """Bins for a quarter of the rows: beyond it larger tables hardly help."""
    return int(np.clip(np.ceil(np.log2(max(1, rows) / FULL_BINS)), 8, 24))


def default_grids(rows: int, outputs: int = 1) -> int:
    """100 to 400, and up to 800 of larger tables with few outputs: fewer for more rows."""
    usual = np.clip(VISITS / max(1, rows), FEWEST_GRIDS, MOST_GRIDS)
    many = min(MANY_VISITS / (rows * outputs), MANY_GRIDS) if rows >= MANY_ROWS else 0
    return int(max(usual, many))


def table_of(sizes: Sizes) -> tuple[int, int]:
    """Grids, and bins of each: what was asked for, or what suits so many rows."""
    bits = sizes.recipe.table_bits or default_bits(sizes.rows)
    return sizes.recipe.grids or default_grids(sizes.rows, sizes.outputs), 1 << bits


def _outputs_at_once(plan: Plan, parts: Callable[[int], dict[str, Part]]) -> int:
    """As many outputs as the budget allows, by the parts of so many. Where bin indices are in memory, fewer do: passes
    over them cost what their outputs cost, and memory that is not needed is not taken."""
    outputs = plan.sizes.outputs

    def taken(group: int) -> int:
        return sum(part.bytes for part in parts(group).values())

    room, each = plan.room, taken(outputs + 1) - taken(outputs)
    if plan.sizes.local and plan.cache is not None and plan.cache.place == MEMORY:
        room = min(room, GROUP_BYTES - taken(1))
    return int(np.clip(1 + room // int(SLACK * each), 1, outputs))


def choose_cache(sizes: Sizes, grids: int, room: int) -> CachePlan:
    """In memory if they fit; else on disk, if reading them there is faster than making them again."""
    n, d = sizes.rows, sizes.source.n_features
    words = 2 * words_of(grids, table_of(sizes)[1])
    size = n * (words + 24 + 8 * (1 if sizes.classes else sizes.outputs))  # beside them numbers, keys, weights, targets
    what = f"the bin indices of {n:,} rows take {format_bytes(size)}"
    if SLACK * size <= room:
        return CachePlan(MEMORY, size, size, f"{what}, which the budget has left")
    again, kept = sizes.row_bytes / READ_RATE + grids * d / HASH_RATE, words / DISK_RATE
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


def _fullness(numbering: Numbering, slots: int) -> dict[str, Any]:
    """Slots that have rows, and from their number how many bins there must be, had each gone to a random slot."""
    occupied, every = numbering.occupied, len(numbering.occupied) * slots
    bins = np.log1p(-np.minimum(occupied, slots - 0.5) / slots) / np.log1p(-1.0 / slots)
    return {
        "occupied": float(occupied.sum() / every),
        "empty": float(1 - occupied.sum() / every),
        "bins": float(bins.mean()),
        "colliding": float(max(0.0, 1 - occupied.sum() / bins.sum())),
    }
