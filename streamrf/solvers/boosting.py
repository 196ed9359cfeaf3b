"""Trees: one pass keeps rows as bytes, then trees are grown on them in memory, until unseen rows say stop.

What is grown depends on the rows, the seed and, where it is tight, the budget: rows are put in order first, histograms
are exact sums, and every other sum is made in pieces that do not depend on threads. So any engine has the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.features.settings import TREES
from streamrf.features.trees.boosting import (
    MOST_VALUES,
    STYLES,
    TRIED,
    Boosting,
    most_leaves,
    most_trees,
    settled,
    tree_work,
)
from streamrf.features.trees.cutting import MIXTURES, table_bytes
from streamrf.features.trees.forest import Forest
from streamrf.features.trees.levels import FEWEST_LEVELS
from streamrf.features.trees.map import TreesMap
from streamrf.features.trees.scores import CLASSES, PIECE, SQUARES, Rows, in_units
from streamrf.solvers.base import Fitted, Run, Solver
from streamrf.solvers.judging import by_role, calibrate, judge, weighed
from streamrf.solvers.plan import PASS, SOLVE, Part, Plan, Sizes, holdout_parts, reading_parts
from streamrf.solvers.rates import READ_RATE
from streamrf.statistics.coded_rows import PIECE as ROWS_A_BLOCK
from streamrf.statistics.coded_rows import CodedRows, CodedState
from streamrf.statistics.holdout import Holdout, HoldoutState, SampleState
from streamrf.statistics.scores import Calibration, Weights
from streamrf.support.errors import DataError
from streamrf.support.threads import Threads, seconds_of

BLIND_TREES = 200  # where no row is held out
MOST_KEPT = 1_000_000  # rows: trees learn little from more
MEMORY_SHARE = 0.25  # of what the budget leaves
USUAL_TREES = 500  # after which unseen rows stop it, in the middle of tables, where outputs are few
MOVES = 8  # look-ups that a row takes to find its leaf, as a tree is grown and once more
STAGE, TREE_LIMITS = "growing trees", "tree_limits"
FEWER_COLUMNS = "leave out columns, or choose another `map`"


class Boosted(Solver):
    """One pass, then trees in memory."""

    name = "boosting"
    maps = TREES
    title = "boosted trees"

    @classmethod
    def plan(cls, sizes: Sizes) -> Plan:
        source, outputs = sizes.source, sizes.outputs
        kept = rows_kept(sizes)
        fitted = kept + sizes.held_out
        leaves = most_leaves(kept, outputs, loss_of(sizes.classes), values_kept(sizes))
        histograms = table_bytes(inputs_of(source.n_features), outputs, sizes.threads)
        parts = {
            "statistics": Part(kept * row_bytes(sizes), (PASS, SOLVE), FEWER_COLUMNS),
            "rows of trees": Part(fitted * grown_bytes(source.n_features, outputs), (SOLVE,), FEWER_COLUMNS),
            "histograms": Part(histograms, (SOLVE,), FEWER_COLUMNS),
            "weights": Part(leaf_bytes(outputs) * leaves, (SOLVE,), FEWER_COLUMNS),
            "block": Part(
                min(sizes.rows, ROWS_A_BLOCK) * (24 * source.n_features + 16 * outputs + 64), (PASS,), FEWER_COLUMNS
            ),
            **holdout_parts(sizes),
        }
        room = sizes.budget - sizes.reserved - parts["statistics"].bytes
        reading, span_rows, span_bytes = reading_parts(sizes, room)
        few = "" if kept >= sizes.rows else f" {kept:,} of the"
        why = f"one pass keeps{few} rows as bytes; trees are grown on them until unseen rows stop it"
        return Plan(sizes, cls.name, why, {**parts, **reading}, 1 + sizes.scaling_passes, span_rows, span_bytes)

    @classmethod
    def estimate(cls, plan: Plan) -> Mapping[str, float]:
        sizes = plan.sizes
        fitted = max(1, rows_kept(sizes) - sizes.held_out)
        most = most_trees(fitted, sizes.source.n_features, sizes.outputs)
        trees = most if sizes.outputs > MIXTURES else min(most, USUAL_TREES)
        return {
            "pass": sizes.rows * sizes.row_bytes / READ_RATE,
            "solve": tree_seconds(sizes, trees + len(STYLES) * TRIED, fitted, sizes.held_out),
        }

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        assert isinstance(self.pipeline.map, TreesMap)
        self.map: TreesMap = self.pipeline.map

    def fit(self) -> Fitted:
        with self.run.timed("pass"):
            state = self._kept_rows()
        if state.rows < 2:
            raise DataError(f"{state.rows} usable rows: at least two are needed to fit a model")
        with self.run.timed("solve"):
            return self._grown(state)

    def _kept_rows(self) -> HoldoutState[CodedState]:
        sizes = self.run.plan.sizes
        share = min(1.0, rows_kept(sizes) / max(sizes.rows, 1))
        rows = CodedRows(self.pipeline, share, self.recipe.seed, sizes.rows)
        return self.passes.sum(Holdout(rows, self.run.split, self.run.shard_starts))

    def _grown(self, state: HoldoutState[CodedState]) -> Fitted:
        choosing, judges = by_role(self.run.split, SampleState([*state.holdout.blocks]))
        coded, digest = state.sums.kept.table(), hashlib.sha256(bytes.fromhex(state.sums.digest()))
        state.sums.kept = SampleState()  # which would be in memory twice
        if coded is None:  # of a handful of rows all may be held out
            coded, choosing, judges = self._coded(state.holdout.table()), None, None
        fitted, unseen = self._rows(coded), self._rows(self._coded(choosing))
        if not len(fitted):
            raise DataError("no row to fit has a positive weight: check `sample_weight`")
        del coded
        unit, level = self._unit(fitted), max(float(fitted.weights.mean()), np.finfo(np.float64).tiny)
        rows, choosers = _in_units(fitted, unit, level), _in_units(unseen, unit, level) if unseen else None
        boosting = self._boosting(rows, choosers)
        most = most_trees(len(rows), boosting.lines(rows), len(unit))
        if choosers is None:
            most = min(most, BLIND_TREES)
        forest = boosting.grow(rows, choosers, most, lambda share: self.reporter.working(STAGE, share))
        self.reporter.working(STAGE, 1.0)
        pipeline = replace(self.pipeline, map=self.map.grown(forest))
        weights = self._weights(forest, unit)
        calibration, metrics = None, None
        if choosing is not None:
            known = Calibration.of_log_odds(len(unit))
            calibration = calibrate(
                pipeline, [(weights, choosing)], self.threads, self.run.weighting, self.recipe.threshold, known
            )
        if judges is not None:
            metrics = judge(pipeline, weights, judges, calibration, self.run.split, self.threads)
        held = [self._rows(self._coded(block)) for block in (choosing, judges) if block is not None]
        final = weights
        if held:  # the same cells, with the rows held out among those that give them values
            final = self._weights(boosting.refitted(forest, _in_units(fitted.and_(*held), unit, level)), unit)
        facts = {"trees": len(forest), "leaves": forest.most_leaves, "rows": len(fitted)}
        for array in (pipeline.map.to_parts()[1] | {"values": final.coefficients}).values():
            digest.update(np.ascontiguousarray(array).data)
        return Fitted(
            final, state.rows, digest.hexdigest(), calibration, None, {"holdout": metrics, "trees": facts},
            judges=judges, choosing=choosing, unseen=weights, pipeline=pipeline,
        )  # fmt: skip

    def _boosting(self, rows: Rows, unseen: Rows | None) -> Boosting:
        about = (self.map.loss, self.map.counts, self.recipe.seed, self.threads)
        values = values_kept(self.run.plan.sizes)
        if unseen is None:
            return Boosting(*about, levels=self.map.levels, values=values)
        return settled(*about, self.map.levels, rows, unseen, values)

    def _coded(self, block: Block | None) -> Block | None:
        """Rows that were held out, as bytes."""
        if block is None:
            return None
        return replace(block, X=np.ascontiguousarray(self.map.codes(self.pipeline.scaled(block.X)).T))

    def _rows(self, block: Block | None) -> Any:
        if block is None:
            return None
        block = weighed(self.pipeline.coding, block, self.run.weighting)
        if block.weights is not None:
            block = block.take(block.weights > 0)
        targets = block.targets.astype(np.float64)
        if self.map.loss != SQUARES:
            targets = (targets > 0).astype(np.float64)
        weights = np.ones(len(block)) if block.weights is None else np.asarray(block.weights, np.float64)
        return Rows(self.map.with_places(np.ascontiguousarray(block.X.T)), targets, weights)

    def _unit(self, rows: Rows) -> np.ndarray:
        """What the targets of each output are counted in: outputs count alike, whatever their units."""
        if self.map.loss != SQUARES:
            return np.ones(rows.targets.shape[1])
        return in_units(rows.targets, SQUARES)[1]

    def _weights(self, forest: Forest, unit: np.ndarray) -> Weights:
        return Weights((forest.coefficients * unit).astype(np.float32), forest.start * unit, self.first_ridge)


def _in_units(rows: Rows, unit: np.ndarray, level: float) -> Rows:
    """Targets in units of their own; weights in those of the mean row to fit."""
    return replace(rows, targets=rows.targets / unit, weights=rows.weights / level)


def tree_seconds(sizes: Sizes, trees: float, fitted: int, others: int) -> float:
    """Of growing so many trees on ``fitted`` rows, with ``others`` that judge them or join later."""
    looks = tree_work(fitted, sizes.source.n_features, sizes.outputs)
    return trees * (looks + MOVES * (fitted + others) * sizes.outputs) / _rate(sizes.threads)


def row_bytes(sizes: Sizes) -> int:
    """Of a row that is kept: its codes, targets, number and weight."""
    return sizes.source.n_features + 8 * sizes.outputs + 24


def inputs_of(columns: int) -> int:
    """Columns, and places of levels, of which each has three columns or more."""
    return columns + columns // FEWEST_LEVELS


def grown_bytes(columns: int, outputs: int) -> int:
    """Of a row that trees are grown on: its codes, alone, with the rows held out, and side by side; its targets,
    scores, derivatives and words."""
    return 3 * inputs_of(columns) + 72 * outputs + 64


def leaf_bytes(outputs: int) -> int:
    """Of a leaf and its node: values as they are grown, fitted again and served."""
    return 28 * outputs + 40


def tree_limits(sizes: Sizes) -> dict[str, int]:
    """What a run that is resumed must have again, whatever memory there is then."""
    return {"rows": rows_kept(sizes), "values": values_kept(sizes)}


def values_kept(sizes: Sizes) -> int:
    """Of all leaves, up to what a part of the budget holds."""
    if sizes.tree_limits:
        return sizes.tree_limits["values"]
    return int(min(MOST_VALUES, max(1, _room(sizes) // leaf_bytes(sizes.outputs)) * sizes.outputs))


def rows_kept(sizes: Sizes) -> int:
    """All of them, up to what is worth it and what a part of the budget holds."""
    if sizes.tree_limits:
        return min(sizes.rows, sizes.tree_limits["rows"])
    each = grown_bytes(sizes.source.n_features, sizes.outputs) + row_bytes(sizes)
    return int(max(min(sizes.rows, MOST_KEPT, _room(sizes) // each), min(sizes.rows, PIECE)))


def _room(sizes: Sizes) -> int:
    """A part of the budget, in steps: what this process happens to hold should not change the model."""
    room = max(0, int(MEMORY_SHARE * (sizes.budget - sizes.reserved)))
    step = 1 << max(0, room.bit_length() - 2)
    return room // step * step


@lru_cache(maxsize=4)
def _rate(threads: int) -> float:
    """Look-ups a second: a few trees on made-up rows, with as many cuts as columns of numbers have."""
    rng = np.random.default_rng(0)
    rows = Rows(rng.integers(0, 256, (16, 20_000)).astype(np.uint8), rng.standard_normal((20_000, 1)), np.ones(20_000))
    with Threads(threads) as pool:
        boosting = Boosting(SQUARES, np.full(16, 255), 0, pool)
        return 4 * tree_work(len(rows), 16, 1) / min(seconds_of(lambda: boosting.grow(rows, None, 4), 2))


def loss_of(classes: bool) -> str:
    """What trees minimise."""
    return CLASSES if classes else SQUARES
