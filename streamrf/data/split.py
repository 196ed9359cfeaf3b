"""The wall between choosing and judging: every row has one role, fixed before anything is learned.

- JUDGE rows give the figure that is reported. They choose nothing.
- CHOOSE rows choose lambda, stop the steps and fit the calibration.
- FIT rows are all others. The pilot, learned maps and the scaling see no others.

A role is decided by a hash of the row's key and the seed, so it is the same in any order, chunk and process. The key is
a hash of the row's inputs, so that copies of a row are never on both sides; or the row's number, where a table has few
distinct rows; or a column of the user's, whose groups stay together or whose order decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np

from streamrf.data.source import Block
from streamrf.support.errors import DataError, FileFormatError

FIT, CHOOSE, JUDGE = 0, 1, 2
NUMBER, INPUTS, GROUP, ORDER = KEYS = ("number", "inputs", "group", "order")
OTHER_STREAM = 0x46_4F_4C_44  # folds must not depend on the roles
DISTINCT = 0.25  # of the rows, from which copies are worth keeping together


@dataclass(frozen=True)
class Split:
    """Shares of the rows that judge and choose, and the key that decides. Where keys are in order, rows from
    ``judge_from`` on judge, and those from ``choose_from`` on before them choose."""

    judge: float = 0.0
    choose: float = 0.0
    seed: int = 0
    key: str = NUMBER
    judge_from: float | None = None
    choose_from: float | None = None
    folds: int = 0  # of the rows that do not judge, which choose lambda in place of rows apart
    counted: int | None = None  # rows that rules of thumb went by, where they were counted
    choose_at: float = 0.0  # where the rows that choose begin, as a share beyond those that judge

    @property
    def holds(self) -> bool:
        """Whether any row may be held out."""
        return self.judge > 0 or self.choose > 0

    def keys(self, block: Block) -> np.ndarray:
        """(n,) uint64: equal keys have equal roles."""
        if self.key == NUMBER:
            return block.index.astype(np.uint64)
        if block.key is not None:
            return block.key
        if self.key == INPUTS:
            return input_keys(block.X)
        raise DataError("these rows were read without the column that decides which of them are held out")

    def roles(self, block: Block) -> np.ndarray:
        """(n,) int8: FIT, CHOOSE or JUDGE."""
        roles = np.zeros(len(block), np.int8)
        if not self.holds or not len(block):
            return roles
        if self.key == ORDER:
            keys, bounds = self.keys(block), (self.choose_from, self.judge_from)
            for role, bound in zip((CHOOSE, JUDGE), bounds, strict=True):
                if bound is not None:
                    roles[keys >= ordered(np.array([bound]))[0]] = role
            if not self.choose > 0:
                roles[roles == CHOOSE] = FIT
            return roles
        hashed, first = hash_rows(self.keys(block), self.seed), self.judge + self.choose_at
        roles[_below(hashed, first + self.choose)] = CHOOSE
        if self.choose_at > 0:
            roles[_below(hashed, first)] = FIT
        roles[_below(hashed, self.judge)] = JUDGE
        return roles

    def held(self, block: Block) -> np.ndarray:
        """Mask of the rows that are not FIT."""
        return self.roles(block) != FIT

    def folds_of(self, block: Block) -> np.ndarray:
        """The fold of each row, from 0 on, by the same keys."""
        return fold_of(self.keys(block), self.folds, self.seed)

    def judges_only(self) -> Split:
        """The same judges; every other row is fitted."""
        return replace(self, choose=0.0)

    def turned(self, turn: int, turns: int) -> Split:
        """The same judges; of the other rows, those of one of ``turns`` equal parts choose."""
        part = (1.0 - self.judge) / turns
        return replace(self, choose=part, choose_at=turn * part)

    def all_choose(self) -> Split:
        """The same judges; every other row chooses."""
        return self.turned(0, 1)

    def keyed(self, block: Block) -> Block:
        """A block that may lose its inputs and still knows its roles."""
        return block if block.key is not None or self.key == NUMBER else replace(block, key=self.keys(block))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Split:
        document = {"choose_at": 0.0, **document}  # older versions had no turns
        if set(document) != set(cls.__dataclass_fields__) or document["key"] not in KEYS:
            raise FileFormatError("these are not the roles of rows that this version knows: train again")
        return cls(**document)


NONE_HELD = Split()


def key_for(sample: Block) -> str:
    """INPUTS, unless so many rows of a sample have equal inputs that a split by inputs would mean nothing."""
    return INPUTS if different_rows(sample) >= DISTINCT * len(sample) else NUMBER


def different_rows(sample: Block) -> int:
    """How many have different inputs."""
    return len(np.unique(input_keys(sample.X)))


def merge_copies(rows: Block, targets: np.ndarray) -> Block:
    """Rows of equal inputs and targets (n, k) as one, with the sum of their weights, in an order of their own."""
    from streamrf.data.hashing import hash_values
    from streamrf.support.exact_sum import as_floats

    X, hashes = as_floats(rows.X), np.empty(len(rows), np.uint64)
    targets = np.ascontiguousarray(targets, np.float64)
    hash_values(X, targets, value_factors(X.shape[1] + targets.shape[1]), hashes, True)
    _, first, place = np.unique(hashes, return_index=True, return_inverse=True)
    different = rows.take(first)
    if len(first) == len(rows):
        return different
    return replace(different, weights=np.bincount(place.ravel(), rows.weights).astype(np.float64))


def fold_of(keys: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """The fold of each key, 0 to ``folds - 1``."""
    return (hash_rows(keys, seed ^ OTHER_STREAM) % np.uint64(folds)).astype(np.int64)


# -- keys


def input_keys(X: np.ndarray) -> np.ndarray:
    """(n,) uint64 of the inputs alone: equal numbers of any type are equal, -0.0 is 0.0, and any NaN is one."""
    from streamrf.data.hashing import hash_values  # late: what only reads or converts is spared the compiler
    from streamrf.support.exact_sum import as_floats

    X, keys = as_floats(X), np.empty(len(X), np.uint64)
    hash_values(X, np.zeros((len(X), 0)), value_factors(X.shape[1]), keys, True)
    return keys


def group_keys(values: np.ndarray) -> np.ndarray:
    """(n,) uint64 of the values of a column of numbers or text."""
    if values.dtype.kind in "biuf":
        return input_keys(values.reshape(len(values), -1))
    known, place = np.unique(np.array([str(value) for value in values], dtype=np.str_), return_inverse=True)
    digests = [int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little") for value in known.tolist()]
    return np.array(digests, np.uint64)[place]


def ordered(values: np.ndarray) -> np.ndarray:
    """(n,) uint64 in the order of the numbers."""
    bits = (np.asarray(values, np.float64) + 0.0).view(np.uint64)
    sign = np.uint64(1 << 63)
    return np.where(bits & sign, ~bits, bits | sign)


def from_ordered(key: int) -> float:
    """The number whose key this is."""
    bits = key ^ (1 << 63) if key >> 63 else ~key & (2**64 - 1)
    return float(np.array([bits], np.uint64).view(np.float64)[0])


# -- hashes


def hash_rows(keys: np.ndarray, seed: int) -> np.ndarray:
    """A 64-bit hash of each row's key: the same whatever the order, the chunks or the machine."""
    with np.errstate(over="ignore"):
        h = keys.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the splitmix64 finaliser
            h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return h ^ (h >> np.uint64(31))


def chosen_rows(index: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Mask of the rows that belong to a random ``share``: a hash of the row's number against a threshold."""
    return _below(hash_rows(index, seed), share)


def _below(hashed: np.ndarray, share: float) -> np.ndarray:
    if share <= 0 or share >= 1:
        return np.full(len(hashed), share >= 1)
    return hashed < np.uint64(share * (2**64 - 1))


@cache
def value_factors(count: int) -> np.ndarray:
    """(2, count) odd numbers, for the lower and the upper half of the bits of each column's value."""
    return (hash_rows(np.arange(2 * count), seed=0) >> np.uint64(32)).astype(np.uint32).reshape(2, count) | np.uint32(1)
