"""Leaves of trees as features: each tree puts a row in one leaf, and z(x) says which leaves it is in.

The cut points of the columns are fixed before the first pass, by a sample; which of them trees cut at is known once
they are grown. Scores of classes are log odds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamrf.features.base import Arrays, FeatureMap, RowScorer
from streamrf.features.precision import make_precision
from streamrf.features.trees.forest import NEVER, Cells, Forest
from streamrf.features.trees.growth import ROWS_A_BLOCK, add_node_scores, add_scores
from streamrf.features.trees.levels import MOST_LEVELS, Levels
from streamrf.features.trees.scores import CLASSES, SQUARES
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import Threads

MOST_CUTS = 255  # of a column: codes are bytes
MOST_DEPTH = 16
MOST_NODES = (1 << 15) - 1  # so that leaves are numbered below 2^16
ROWS_A_TASK = 16 * ROWS_A_BLOCK
CUTS, COLUMNS, THRESHOLDS = "trees.cuts", "trees.columns", "trees.thresholds"
NODES = ("trees.node_columns", "trees.node_thresholds", "trees.children")
LEVELS = ("trees.level_group", "trees.level_place")


def cut_points(X: np.ndarray) -> np.ndarray:
    """(columns, 255) float32 in rising order, between neighbouring values of a sample: all of few values; of many, half
    by how many rows lie between and half by how far values are apart, so that long tails are parted too; infinite where
    a column has fewer."""
    found = np.full((X.shape[1], MOST_CUTS), np.inf, np.float32)
    for j, column in enumerate(X.T):
        values, counts = np.unique(column.astype(np.float32), return_counts=True)
        last = np.arange(len(values) - 1)  # below each cut
        if len(last) > MOST_CUTS:
            rows = np.minimum(counts[:-1], len(column) / MOST_CUTS)  # a value of many rows takes one code
            gaps = np.sqrt(np.diff(values.astype(np.float64)))
            last = np.union1d(_evenly(rows, MOST_CUTS // 2), _evenly(gaps, MOST_CUTS - MOST_CUTS // 2))
        below, above = values[last], values[last + 1]
        with np.errstate(over="ignore"):  # where it is infinite, the value before the next one is taken
            middle = below + (above - below) / 2
        found[j, : len(last)] = np.minimum(middle, np.nextafter(above, np.float32(-np.inf)))
    return found


def _evenly(amounts: np.ndarray, count: int) -> np.ndarray:
    """Places that part these amounts into parts of about the same sum."""
    level = np.cumsum(amounts)
    return np.minimum(np.searchsorted(level, np.linspace(0, level[-1], count + 2)[1:-1]), len(level) - 1)


@dataclass(frozen=True, eq=False)
class Nodes:
    """Trees whose nodes have cuts of their own: as many for all, of which some are out of reach."""

    columns: np.ndarray  # (P, nodes) int32
    thresholds: np.ndarray  # (P, nodes) float32
    children: np.ndarray  # (P, nodes, 2) uint16: later nodes, or leaves, which are numbered after the nodes

    @classmethod
    def none(cls) -> Nodes:
        return cls(np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32), np.zeros((0, 1, 2), np.uint16))

    @classmethod
    def of(cls, trees: Sequence[Cells], cuts: np.ndarray) -> Nodes:
        """Cuts of bytes become thresholds."""
        if not trees:
            return cls.none()
        most = max(len(cells.columns) for cells in trees)
        columns, thresholds = np.zeros((len(trees), most), np.int32), np.full((len(trees), most), np.inf, np.float32)
        children = np.full((len(trees), most, 2), most, np.uint16)
        for tree, cells in enumerate(trees):
            assert cells.children is not None
            count = len(cells.columns)
            columns[tree, :count] = cells.columns
            thresholds[tree, :count] = _thresholds(cuts, cells.columns, cells.cuts)
            children[tree, :count] = cells.children + (most - count) * (cells.children >= count)
        return cls(columns, thresholds, children)

    @property
    def leaves(self) -> int:
        return self.columns.shape[1] + 1

    @property
    def depth(self) -> int:
        """Steps after which every row is in a leaf."""
        depth, trees = np.zeros((len(self.columns), 2 * self.leaves - 1), np.int64), np.arange(len(self.columns))
        for node in range(self.columns.shape[1] - 1, -1, -1):  # those below it come first
            below = [depth[trees, self.children[:, node, side]] for side in (0, 1)]
            depth[:, node] = 1 + np.maximum(*below)
        return int(depth[:, 0].max(initial=0))

    def leaf(self, X: np.ndarray) -> np.ndarray:
        """(n, P)."""
        trees, inner = np.arange(len(self.columns)), self.columns.shape[1]
        node = np.zeros((len(X), len(trees)), np.int64)
        for _ in range(self.depth):
            at = np.minimum(node, inner - 1)
            beyond = np.take_along_axis(X, self.columns[trees, at], axis=1) > self.thresholds[trees, at]
            node = np.where(node < inner, self.children[trees, at, beyond.astype(np.int64)], node)
        return node - inner


def _thresholds(cuts: np.ndarray, columns: np.ndarray, places: np.ndarray) -> np.ndarray:
    found = cuts[columns, np.minimum(places, MOST_CUTS - 1)]
    return np.where(places < NEVER, found, np.float32(np.inf))


@dataclass(frozen=True, eq=False)
class TreesMap(FeatureMap):
    """Symmetric trees of one depth, then trees of nodes; none until they are grown. Inputs are columns of rows, and
    after them the places of categories' levels."""

    kind = "trees"
    precision = make_precision("8")  # zeros and ones

    cuts: np.ndarray  # (d + categories, 255) float32
    loss: str
    columns: np.ndarray  # (P, depth) int32
    thresholds: np.ndarray  # (P, depth) float32
    nodes: Nodes
    levels: Levels

    @classmethod
    def ungrown(
        cls, X: np.ndarray, loss: str, hidden: Sequence[int] = (), targets: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> TreesMap:  # fmt: skip
        """With the cut points of a sample; ``hidden`` columns have none. By targets (n, k) levels get their places."""
        cuts = cut_points(X)
        cuts[list(hidden)] = np.inf
        levels = Levels.none(X.shape[1])
        if targets is not None:
            levels = Levels.learned(cuts[:, 0] < X, targets, weights, np.isfinite(cuts).sum(axis=1) == 1)
        more = np.full((levels.count, MOST_CUTS), np.inf, np.float32)
        for line, members in zip(more, levels.members, strict=True):
            line[: len(members)] = np.arange(len(members)) + 0.5
        return cls._bare(np.concatenate([cuts, more]), loss, levels)

    @classmethod
    def _bare(cls, cuts: np.ndarray, loss: str, levels: Levels) -> TreesMap:
        return cls(cuts, loss, np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32), Nodes.none(), levels)

    def untrained(self) -> TreesMap:
        return self._bare(self.cuts, self.loss, self.levels)

    def grown(self, forest: Forest) -> TreesMap:
        symmetric = forest.of_kind(symmetric=True)
        columns, thresholds = np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32)
        if symmetric:
            columns, places = (np.stack([getattr(cells, name) for cells in symmetric]) for name in ("columns", "cuts"))
            thresholds = self.cuts[columns, places]
        nodes = Nodes.of(forest.of_kind(symmetric=False), self.cuts)
        return TreesMap(self.cuts, self.loss, columns, thresholds, nodes, self.levels)

    def __reduce__(self) -> tuple[object, ...]:
        return TreesMap, (self.cuts, self.loss, self.columns, self.thresholds, self.nodes, self.levels)

    @property
    def n_inputs(self) -> int:
        return len(self.levels.group)

    @property
    def trees(self) -> int:
        return len(self.columns) + len(self.nodes.columns)

    @property
    def leaves(self) -> int:
        """Of one symmetric tree."""
        return 1 << self.columns.shape[1]

    @property
    def n_symmetric(self) -> int:
        """Leaves of all symmetric trees."""
        return len(self.columns) * self.leaves

    @property
    def n_features(self) -> int:
        return self.n_symmetric + len(self.nodes.columns) * self.nodes.leaves

    @property
    def amplitudes(self) -> np.ndarray:
        return np.full(self.n_features, max(self.trees, 1) ** -0.5)

    @cached_property
    def counts(self) -> np.ndarray:
        """How many cut points each column has."""
        return np.isfinite(self.cuts).sum(axis=1)

    def cut_counts(self) -> np.ndarray:
        """(d + categories,) how many cuts of all trees are in each input; those that part no rows do not count."""
        grown = [(self.columns, self.thresholds), (self.nodes.columns, self.nodes.thresholds)]
        columns = np.concatenate([columns[np.isfinite(thresholds)] for columns, thresholds in grown])
        return np.bincount(columns, minlength=self.n_inputs + self.levels.count)

    def codes(self, X: np.ndarray) -> np.ndarray:
        """(d, n) bytes: how many cut points each value is beyond."""
        self._check(X)
        lines = (
            np.searchsorted(cuts[:count], column)
            for column, cuts, count in zip(X.T, self.cuts, self.counts, strict=False)  # places have none of their own
        )
        return np.stack([line.astype(np.uint8) for line in lines]) if self.n_inputs else np.empty((0, len(X)), np.uint8)

    def with_places(self, codes: np.ndarray) -> np.ndarray:
        """(d + categories, n) bytes."""
        return np.concatenate([codes, self.levels.places(codes > 0)]) if self.levels.count else codes

    def inputs(self, X: np.ndarray) -> np.ndarray:
        """(n, d + categories) float32: what thresholds are compared with."""
        self._check(X)
        X = np.ascontiguousarray(X, np.float32)
        if not self.levels.count:
            return X
        places = self.levels.places((self.cuts[: self.n_inputs, 0] < X).T)
        return np.concatenate([X, places.T.astype(np.float32)], axis=1)

    def _check(self, X: np.ndarray) -> None:
        if X.shape[1] != self.n_inputs:
            raise MismatchError(f"the trees are for {self.n_inputs} columns, and the rows have {X.shape[1]}")

    def compute(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        out[: len(X), : self.n_features] = 0
        X = self.inputs(X)
        sides = X[:, self.columns] > self.thresholds  # (n, P, depth)
        leaf = sides @ (1 << np.arange(self.columns.shape[1])[::-1]) + self.leaves * np.arange(len(self.columns))
        below = self.n_symmetric + self.nodes.leaf(X) + self.nodes.leaves * np.arange(len(self.nodes.columns))
        np.put_along_axis(out[: len(X)], np.concatenate([leaf, below], axis=1), 1, axis=1)

    def scorer(self, coefficients: np.ndarray, intercept: np.ndarray) -> RowScorer:
        return TreesScorer(self, coefficients, intercept)

    def to_parts(self) -> tuple[JSON, Arrays]:
        arrays = {CUTS: self.cuts, COLUMNS: self.columns, THRESHOLDS: self.thresholds}
        if len(self.nodes.columns):
            nodes = self.nodes.columns, self.nodes.thresholds, self.nodes.children
            arrays |= dict(zip(NODES, nodes, strict=True))
        if self.levels.count:
            arrays |= dict(zip(LEVELS, (self.levels.group, self.levels.place), strict=True))
        return {"kind": self.kind, "loss": self.loss}, arrays

    @classmethod
    def from_parts(cls, document: JSON, arrays: Arrays) -> TreesMap:
        cuts, columns, thresholds = (arrays.get(name) for name in (CUTS, COLUMNS, THRESHOLDS))
        loss = document.get("loss")
        if cuts is None or columns is None or thresholds is None or loss not in (SQUARES, CLASSES):
            raise FileFormatError("the model's trees are damaged: cuts, columns or thresholds are missing")
        if cuts.dtype != np.float32 or cuts.ndim != 2 or cuts.shape[1] != MOST_CUTS or np.isnan(cuts).any():
            raise FileFormatError("the model's trees are damaged: their cuts are not those of columns")
        _check_cuts(columns, thresholds, cuts, MOST_DEPTH)
        nodes, levels = Nodes.none(), Levels.none(len(cuts))
        if any(name in arrays for name in NODES):
            nodes = _nodes([arrays.get(name) for name in NODES], cuts)
        if any(name in arrays for name in LEVELS):
            levels = _levels([arrays.get(name) for name in LEVELS], cuts)
        assert isinstance(loss, str)
        return cls(cuts, loss, columns, thresholds, nodes, levels)


def _check_cuts(columns: np.ndarray, thresholds: np.ndarray, cuts: np.ndarray, most: int) -> None:
    if (columns.dtype, thresholds.dtype) != (np.int32, np.float32) or columns.ndim != 2:
        raise FileFormatError("the model's trees are damaged: their shapes or types do not fit together")
    if columns.shape != thresholds.shape or not 1 <= columns.shape[1] <= most or np.isnan(thresholds).any():
        raise FileFormatError("the model's trees are damaged: a depth or a cut is out of range")
    if columns.size and not (columns.min() >= 0 and columns.max() < len(cuts)):
        raise FileFormatError(f"the model's trees are damaged: a cut in a column that is none of {len(cuts)}")


def _nodes(parts: list[np.ndarray | None], cuts: np.ndarray) -> Nodes:
    columns, thresholds, children = parts
    if columns is None or thresholds is None or children is None or children.dtype != np.uint16:
        raise FileFormatError("the model's trees are damaged: nodes are missing, or of another type")
    _check_cuts(columns, thresholds, cuts, MOST_NODES)
    count = columns.shape[1]
    if children.shape != (*columns.shape, 2) or (children.size and children.max() > 2 * count):
        raise FileFormatError("the model's trees are damaged: nodes lead to leaves that are not there")
    if (children <= np.arange(count)[:, None]).any():  # which may have no end
        raise FileFormatError("the model's trees are damaged: a node leads back")
    return Nodes(columns, thresholds, children)


def _levels(parts: list[np.ndarray | None], cuts: np.ndarray) -> Levels:
    group, place = parts
    if group is None or place is None or group.dtype != np.int32 or place.dtype != np.int32 or group.ndim != 1:
        raise FileFormatError("the model's trees are damaged: places of levels are missing")
    levels = Levels(group, place)
    if group.shape != place.shape or group.min(initial=-1) < -1 or place.min(initial=0) < 0:
        raise FileFormatError("the model's trees are damaged: places of levels do not fit together")
    if place.max(initial=0) > MOST_LEVELS or len(group) + levels.count != len(cuts):
        raise FileFormatError("the model's trees are damaged: places of levels are not those of their columns")
    return levels


class TreesScorer:
    """Sums in float64, tree after tree, whatever the block."""

    def __init__(self, map: TreesMap, coefficients: np.ndarray, intercept: np.ndarray) -> None:
        self.map, self.intercept = map, np.asarray(intercept, np.float64)
        values, outputs = np.ascontiguousarray(coefficients, np.float32), len(self.intercept)
        self.values = values[: map.n_symmetric].reshape(len(map.columns), map.leaves, outputs)
        self.below = values[map.n_symmetric :].reshape(len(map.nodes.columns), map.nodes.leaves, outputs)

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64; of classes, log odds."""
        map = self.map
        X, nodes = map.inputs(X), map.nodes
        out = np.tile(self.intercept, (len(X), 1))

        def task(start: int) -> None:
            stop = min(start + ROWS_A_TASK, len(X))
            add_scores(X, map.columns, map.thresholds, self.values, start, stop, out)
            add_node_scores(X, nodes.columns, nodes.thresholds, nodes.children, self.below, start, stop, out)

        threads.each(task, range(0, len(X), ROWS_A_TASK))
        return out
