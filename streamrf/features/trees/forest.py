"""Trees as they are grown: cuts of bytes, the leaves that they lead to, and the values of these."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

NEVER = 255  # a cut that no byte is beyond


@dataclass(frozen=True, eq=False)
class Cells:
    """The cuts of one tree. A symmetric one has a cut for each depth. Else ``children`` says where a row goes from each
    node on either side of its cut: to a later node, or to a leaf, which are numbered after the nodes."""

    columns: np.ndarray  # (depth,) or (nodes,) int32
    cuts: np.ndarray
    children: np.ndarray | None = None  # (nodes, 2) int32

    @property
    def leaves(self) -> int:
        return 1 << len(self.columns) if self.children is None else len(self.columns) + 1

    @property
    def steps(self) -> np.ndarray:
        """(nodes + leaves, 4) uint32 of a tree with children: column, cut and where a row goes on either side; leaves
        lead to themselves."""
        assert self.children is not None
        nodes = np.arange(2 * len(self.columns) + 1, dtype=np.uint32)
        found = np.stack([np.zeros_like(nodes), np.full_like(nodes, NEVER), nodes, nodes], axis=1)
        inner = found[: len(self.columns)]
        inner[:, 0], inner[:, 1], inner[:, 2:] = self.columns, self.cuts, self.children
        return found


@dataclass
class Forest:
    """Trees in the order of their growth, and what their leaves add to the scores."""

    start: np.ndarray  # (k,)
    cells: list[Cells] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)  # (leaves, k) of each tree

    def __len__(self) -> int:
        return len(self.cells)

    def first(self, count: int) -> Forest:
        return Forest(self.start, self.cells[:count], self.values[:count])

    @property
    def most_leaves(self) -> int:
        """Of one tree."""
        return max((cells.leaves for cells in self.cells), default=0)

    def of_kind(self, *, symmetric: bool) -> list[Cells]:
        return [cells for cells in self.cells if (cells.children is None) == symmetric]

    @property
    def coefficients(self) -> np.ndarray:
        """(leaves of all trees, k): symmetric trees first, and as many leaves for all trees of a kind."""
        parts = [np.zeros((0, len(self.start)))]
        for symmetric in (True, False):
            most = max((cells.leaves for cells in self.of_kind(symmetric=symmetric)), default=0)
            for cells, values in zip(self.cells, self.values, strict=True):
                if (cells.children is None) == symmetric:
                    parts += [values, np.zeros((most - len(values), len(self.start)))]
        return np.concatenate(parts)


def best_nodes(columns: np.ndarray, gains: np.ndarray, most: int) -> np.ndarray:
    """Nodes of a heap (column -1: not cut) that stay if cuts are made one by one, the largest gain first, until there
    are ``most`` leaves; in rising order."""
    cut = np.flatnonzero(columns >= 0)
    if len(cut) < most:
        return cut
    falls = dict(zip(cut.tolist(), (-gains[cut]).tolist(), strict=True))
    waiting, kept = [(falls[0], 0)], list[int]()
    while len(kept) < most - 1:
        node = heapq.heappop(waiting)[1]
        kept.append(node)
        for child in (2 * node + 1, 2 * node + 2):
            if child in falls:
                heapq.heappush(waiting, (falls[child], child))
    return np.sort(np.array(kept))


def cells_of_heap(columns: np.ndarray, cuts: np.ndarray, kept: np.ndarray) -> Cells:
    """A tree of some nodes of a heap; of none, one whose rows are all in one leaf."""
    if not len(kept):
        return Cells(np.zeros(1, np.int32), np.full(1, NEVER, np.int32), np.array([[1, 2]], np.int32))
    number = np.full(2 * len(columns) + 1, -1)
    number[kept] = np.arange(len(kept))
    children = number[2 * kept[:, None] + np.array([1, 2])]
    leaf = children < 0
    children[leaf] = len(kept) + np.arange(leaf.sum())
    return Cells(columns[kept].astype(np.int32), cuts[kept].astype(np.int32), children.astype(np.int32))
