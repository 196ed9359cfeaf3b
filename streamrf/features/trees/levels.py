"""Columns that are the levels of one category, put in the order of their targets: one more input for each category.

A one-hot column parts one level from all others. Beside it trees have the level's place among the others, by the mean
of the target, so that one cut parts all high levels from all low ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

MOST_LEVELS = 255  # of a category: places are bytes, and 0 is none of them
FEWEST_LEVELS = 3  # two have no order that one column would not give
PRIOR = 5.0  # rows with the mean of all that each level has beside its own


@dataclass(frozen=True, eq=False)
class Levels:
    """The group of each input (-1: none), and its place in the group, from 1 on (0: none)."""

    group: np.ndarray  # (d,) int32
    place: np.ndarray  # (d,) int32

    @classmethod
    def none(cls, inputs: int) -> Levels:
        return cls(np.full(inputs, -1, np.int32), np.zeros(inputs, np.int32))

    @classmethod
    def learned(cls, on: np.ndarray, targets: np.ndarray, weights: np.ndarray | None, binary: np.ndarray) -> Levels:
        """From which inputs (n, d) are on in a sample, of which ``binary`` have one cut, and targets (n, k)."""
        found = cls.none(on.shape[1])
        weights = np.ones(len(on)) if weights is None else np.asarray(weights, np.float64)
        groups = [group for group in _exclusive(on, binary) if FEWEST_LEVELS <= len(group) <= MOST_LEVELS]
        for number, group in enumerate(groups):
            found.group[group] = number
            found.place[group[_order(on[:, group], targets, weights)]] = np.arange(1, len(group) + 1)
        return found

    @property
    def count(self) -> int:
        return int(self.group.max(initial=-1)) + 1

    @cached_property
    def members(self) -> list[np.ndarray]:
        """Inputs of each group, by their places."""
        groups = (np.flatnonzero(self.group == number) for number in range(self.count))
        return [group[np.argsort(self.place[group])] for group in groups]

    def places(self, on: np.ndarray) -> np.ndarray:
        """(groups, n) bytes, of inputs (d, n) that are on or not: more than one of a group add up."""
        found = np.zeros((self.count, on.shape[1]), np.int32)
        for line, members in zip(found, self.members, strict=True):
            for place, j in enumerate(members, 1):
                np.add(line, place, out=line, where=on[j])
        return found.clip(0, MOST_LEVELS).astype(np.uint8)


def _exclusive(on: np.ndarray, binary: np.ndarray) -> list[np.ndarray]:
    """Neighbouring inputs of which no row has two."""
    found: list[list[int]] = []
    taken, last = np.zeros(len(on), bool), -2
    for j in np.flatnonzero(binary).tolist():
        if j != last + 1 or (taken & on[:, j]).any():
            found.append([])
            taken = np.zeros(len(on), bool)
        found[-1].append(j)
        taken = taken | on[:, j]
        last = j
    return [np.array(group) for group in found]


def _order(on: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Levels by their mean targets, from low to high; of several outputs, by the one that levels tell most of."""
    level = np.where(on.any(axis=1), on.argmax(axis=1), on.shape[1])
    rows = np.bincount(level, weights, on.shape[1] + 1)[:-1]
    means, told = [], []
    for y in targets.T:
        mean = (weights * y).sum() / max(weights.sum(), np.finfo(np.float64).tiny)
        sums = np.bincount(level, weights * (y - mean), on.shape[1] + 1)[:-1]
        means.append(sums / (rows + PRIOR))
        told.append((sums * means[-1]).sum() / max((weights * (y - mean) ** 2).sum(), np.finfo(np.float64).tiny))
    return np.argsort(means[int(np.argmax(told))], kind="stable")
