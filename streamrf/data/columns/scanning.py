"""What one pass over raw columns finds out: levels and how many, medians, which circles of a date vary.

A median is exact up to SAMPLE_ROWS rows (fewer where there are many columns); beyond, it is that of a sample of about
so many rows, chosen by a hash of the row's number, so that it does not depend on how the table is cut. Memory is
bounded: levels are listed up to a limit, and beyond it only their number is estimated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamrf.data.columns import (
    DATE,
    FEW_LEVELS,
    LISTED_LEVELS,
    NUMBER,
    ONEHOT,
    ORDINAL,
    PERIODS,
    TARGET,
    Column,
    Handling,
    RawTable,
)
from streamrf.data.columns.encoding import as_levels, as_numbers, hash_texts, raw_type
from streamrf.support.errors import DataError

SAMPLE_ROWS = 200_000
SAMPLE_BYTES = 64 << 20
BUCKETS = 1 << 17  # of levels that are too many to list
FEW_VALUES = 100  # of a number that may be a code, or go round
IDENTIFIER = 0.9  # of the values are different
FEWEST_ROWS = 2  # of a level that is listed for its target: one row can say nothing about itself
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Kept: TypeAlias = slice | np.ndarray  # which rows of a batch


class Sampler:
    """Which rows of a batch count for medians: all where there is room for them."""

    def __init__(self, n_rows: int | None, columns: int) -> None:
        room = min(SAMPLE_ROWS, SAMPLE_BYTES // (8 * max(1, columns)))
        share = 1.0 if n_rows is None else min(1.0, room / max(1, n_rows))
        self._bound = None if share == 1.0 else np.uint64(share * 2**64)

    def rows(self, start: int, count: int) -> Kept:
        if self._bound is None:
            return slice(None)
        with np.errstate(over="ignore"):
            mixed = np.arange(start, start + count, dtype=np.uint64) * _GOLDEN
            mixed = (mixed ^ (mixed >> np.uint64(32))) * _GOLDEN
        return mixed < self._bound


class Scan(ABC):
    """What is found out about one column."""

    reads = True  # whether it must see values at all
    why = ""  # of a column that cannot be used, once all is read: what is wrong with it

    def __init__(self, name: str) -> None:
        self.name, self.missing = name, 0

    @abstractmethod
    def update(self, values: pa.Array, kept: Kept) -> None:
        """See some values; ``kept`` of them count for medians."""

    @abstractmethod
    def add(self, other: Self) -> None:
        """See what another scan has seen of other rows."""

    @abstractmethod
    def column(self) -> Column | None:
        """The coding, or None where ``why`` says why there is none."""


class NumberScan(Scan):
    """Missing values, the median, and what varies in a date; nothing is read where missing values are to stay."""

    def __init__(self, name: str, stored: pa.DataType, kind: str, fills: bool) -> None:
        super().__init__(name)
        self.kind, self._stored, self._fills = kind, stored, fills
        self.reads = fills or kind == DATE
        self.infinite = 0
        self._kept: list[np.ndarray] = []
        self._values: pa.Array | None = _in_arrow(np.empty(0))  # None once there are many

    def update(self, values: pa.Array, kept: Kept) -> None:
        numbers = as_numbers(values).astype(np.float64, copy=False)
        known = np.isfinite(numbers)
        gone = len(numbers) - int(known.sum())
        if gone:
            self.missing += gone
            self.infinite += int(np.isinf(numbers).sum())
        self._kept.append(numbers[kept][known[kept]])
        if self._values is not None and self.kind == NUMBER:
            seen = pa.chunked_array([self._values, _in_arrow(numbers[known])])
            self._values = pc.unique(seen)
            if len(self._values) > FEW_VALUES:
                self._values = None

    def add(self, other: Self) -> None:
        self.missing += other.missing
        self.infinite += other.infinite
        self._kept += other._kept

    def column(self) -> Column | None:
        if not self.reads:
            return Column(self.name, self.kind)
        known = np.concatenate([np.empty(0), *self._kept])
        if not len(known):
            self.why = "has no values"
            return None
        parts = _circles(known, self._stored) if self.kind == DATE else ()
        if not self._fills:
            return Column(self.name, self.kind, parts=parts)
        fill = float(np.median(known))
        return Column(self.name, self.kind, fill=fill, flag=self.missing > 0, parts=parts, values=self._few())

    def _few(self) -> tuple[float, ...]:
        """The values of a number that has few: of two, a line says all."""
        if self._values is None or self.kind != NUMBER or len(self._values) < 3:
            return ()
        return tuple(sorted(self._values.to_pylist()))


def _in_arrow(numbers: np.ndarray) -> pa.Array:
    """As ``pa.array`` of float64, which loads pandas where that is installed."""
    return pa.Array.from_buffers(pa.float64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _circles(days: np.ndarray, stored: pa.DataType) -> tuple[str, ...]:
    """The periods that a date goes round: the hour where it varies, the others where a week or half a year is seen."""
    if pa.types.is_duration(stored):
        return ()
    hours = days - np.floor(days)
    spans = {"hour": float(np.ptp(hours)) > 0, "weekday": np.ptp(days) >= 7, "day of year": np.ptp(days) >= 183}
    return tuple(name for name in PERIODS if spans[name])


class LevelScan(Scan):
    """The different values of a category with their rows, as long as they can be listed."""

    def __init__(self, name: str, table: RawTable, handling: Handling, *, asked: bool) -> None:
        super().__init__(name)
        self._where, self._origin, self._handling, self._asked = table.location, table.origin(name), handling, asked
        self._of = raw_type(table.schema.field(name).type)
        self._counts: Counter[str] = Counter()
        self._many: DistinctCount | None = None
        self._rows = 0

    def update(self, values: pa.Array, kept: Kept) -> None:
        levels = as_levels(values)
        self._rows += len(levels)
        self.missing += levels.null_count
        levels = levels.drop_null()
        if self._many is not None:
            self._many.update(levels)
            return
        for entry in pc.value_counts(levels).to_pylist():
            self._counts[entry["values"]] += entry["counts"]
        if len(self._counts) > self._most:
            self._give_up_listing()

    def add(self, other: Self) -> None:
        self._rows += other._rows
        self.missing += other.missing
        self._counts += other._counts
        if self._many is not None:
            self._many.update(pa.array(list(self._counts), pa.string()))
            self._counts.clear()
        elif len(self._counts) > self._most or other._many is not None:
            self._give_up_listing()
        if self._many is not None and other._many is not None:
            np.maximum(self._many.ranks, other._many.ranks, out=self._many.ranks)

    @property
    def _most(self) -> int:
        return LISTED_LEVELS if self._handling.categories in ("auto", "target") else self._handling.limit

    def _give_up_listing(self) -> None:
        if self._handling.categories not in ("auto", "target"):
            raise self._too_many()
        self._many = DistinctCount()
        self._many.update(pa.array(list(self._counts), pa.string()))
        self._counts.clear()

    def _too_many(self) -> DataError:
        return DataError(
            f"column '{self.name}' of {self._where} is not numeric, and as a category it has"
            f" {len(self._counts):,} different values in its first {self._rows:,} rows, where {self._most:,} are"
            f" allowed{self._origin}: leave it out with `exclude={[self.name]}`, or allow more"
            " with `max_levels`"
        )

    def column(self) -> Column | None:
        values = self._rows - self.missing
        distinct = len(self._counts) if self._many is None else min(self._many.estimate(), values)
        if not distinct:
            self.why = "has no values"
        elif self._is_identifier(distinct, values):
            about = f"{distinct:,}" if self._many is None else f"about {distinct:,}"
            self.why = f"is an identifier: {about} different values in {values:,} rows{self._origin}"
        if self.why:
            return None
        kind = self._kind(distinct)
        fills = self._handling.fills
        if kind == TARGET:
            return self._by_target(0.0 if fills else None)
        levels = tuple(sorted(self._counts))
        fill = (float(levels.index(_commonest(self._counts))) if kind == ORDINAL else 0.0) if fills else None
        return Column(self.name, kind, levels, fill, self.missing > 0 and fills, self._of)

    def _kind(self, distinct: int) -> str:
        asked = self._handling.categories
        if asked in (ONEHOT, ORDINAL, TARGET):
            return asked
        return ONEHOT if distinct <= self._handling.limit else TARGET

    def _is_identifier(self, distinct: int, values: int) -> bool:
        free = self._handling.categories == "auto" and not self._asked
        return free and distinct > max(FEW_LEVELS, self._handling.limit) and distinct >= IDENTIFIER * values

    def _by_target(self, fill: float | None) -> Column:
        levels = tuple(sorted(level for level, rows in self._counts.items() if rows >= FEWEST_ROWS))
        if self._many is not None or not levels:
            return Column(self.name, TARGET, fill=fill, of=self._of, buckets=BUCKETS)
        return Column(self.name, TARGET, levels, fill, of=self._of)


def _commonest(counts: Counter[str]) -> str:
    """Of equally common ones the first in order: the answer must not depend on the order of rows."""
    return min(counts, key=lambda level: (-counts[level], level))


class DistinctCount:
    """How many different texts there are, to a percent, in 16 KB and in any order (HyperLogLog)."""

    BITS = 14

    def __init__(self) -> None:
        self.ranks = np.zeros(1 << self.BITS, np.int8)

    def update(self, texts: pa.Array) -> None:
        hashes = hash_texts(texts)
        rest = (hashes & np.uint64(2 ** (64 - self.BITS) - 1)).astype(np.float64)
        zeros = 64 - self.BITS - np.frexp(rest)[1]
        np.maximum.at(self.ranks, (hashes >> np.uint64(64 - self.BITS)).astype(np.int64), (zeros + 1).astype(np.int8))

    def estimate(self) -> int:
        m = len(self.ranks)
        found = 0.7213 / (1 + 1.079 / m) * m * m / float(np.exp2(-self.ranks.astype(np.float64)).sum())
        empty = int((self.ranks == 0).sum())
        return round(m * math.log(m / empty) if found < 2.5 * m and empty else found)
