"""Learns the coding of columns in one pass over those that need it: levels of categories, medians of numbers.

A median is exact up to SAMPLE_ROWS rows (fewer where there are many columns); beyond, it is that of a sample of about
so many rows, chosen by a hash of the row's number, so that it does not depend on how the table is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamrf.data.columns.arrow import as_levels, as_numbers, raw_type, role_of
from streamrf.data.columns.document import DATE, MAX_FEATURES, NUMBER, ORDINAL, Column, Columns
from streamrf.data.columns.handling import Handling
from streamrf.data.readers.frame import Frame
from streamrf.support.errors import DataError

SAMPLE_ROWS = 200_000
SAMPLE_BYTES = 64 << 20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Told = Callable[[int], None]


def needs_coding(schema: Any, names: Sequence[str], handling: Handling) -> bool:
    """Whether these columns are anything but plain numbers to be taken as they are."""
    roles = {role_of(schema.field(name).type) for name in names}
    return roles != {"number"} or handling.missing == "median" or bool(handling.categorical)


def learn_columns(frame: Frame, names: Sequence[str], handling: Handling, told: Told = lambda rows: None) -> Columns:
    """The coding of these columns of a frame; ``told`` hears how many rows have been read."""
    roles = column_roles(frame, names, handling)
    scans = {name: _scan(name, role, frame, handling) for name, role in roles.items()}
    read = [name for name, scan in scans.items() if scan.looks]
    if read:
        _pass_over(frame, read, scans, told)
    columns = Columns(tuple(scan.column() for scan in scans.values()), _dtype(frame.schema, roles), handling)
    columns.check_unique()
    if columns.width > MAX_FEATURES:
        raise DataError(
            f"the columns of {frame.location} would become {columns.width:,} features, and {MAX_FEATURES:,} are allowed"
        )
    return columns


def _pass_over(frame: Frame, read: list[str], scans: dict[str, Any], told: Told) -> None:
    numbers = sum(isinstance(scans[name], _NumberScan) for name in read)
    sample = _Sampler(frame.n_rows, numbers)
    done = 0
    for batch in frame.batches(read):
        kept = sample.rows(done, len(batch))
        for name in read:
            scans[name].update(batch.column(name), done, kept)
        done += len(batch)
        told(done)


def column_roles(frame: Frame, names: Sequence[str], handling: Handling) -> dict[str, str]:
    """``number``, ``date`` or ``category`` for each column, or a sentence about the one that cannot be used."""
    for name in handling.categorical:
        if name not in names:
            raise DataError(f"--categorical {name}: {frame.location} has no such feature")
    roles = {name: role_of(frame.schema.field(name).type) for name in names}
    for name, role in roles.items():
        if role is None:
            kind = frame.schema.field(name).type
            raise DataError(
                f"column '{name}' of {frame.location} is of type {kind}, which is neither numeric nor text nor a date:"
                f" leave it out with --exclude {name}"
            )
    texts = [name for name, role in roles.items() if role == "text"]
    if texts and handling.categories == "error":
        raise DataError(not_numeric(frame, texts))
    return {name: "category" if name in texts or name in handling.categorical else str(roles[name]) for name in names}


def not_numeric(frame: Frame, texts: list[str]) -> str:
    return (
        f"column '{texts[0]}' of {frame.location} is of type {frame.schema.field(texts[0]).type}, which is not"
        f" numeric{frame.origin(texts[0])}: code it with --categories onehot (or auto), or leave it out with"
        f" --exclude {','.join(texts)}"
    )


def _scan(name: str, role: str, frame: Frame, handling: Handling) -> Any:
    if role == "category":
        return _LevelScan(name, frame, handling)
    return _NumberScan(name, DATE if role == "date" else NUMBER, handling.missing == "median", frame)


def _dtype(schema: Any, roles: dict[str, str]) -> str:
    """float32 where that holds every number: floats and whole numbers of up to 16 bits, and categories."""
    for name, role in roles.items():
        stored = schema.field(name).type
        stored = stored.value_type if pa.types.is_dictionary(stored) else stored
        narrow = role == "category" or (role == "number" and not pa.types.is_decimal(stored) and _is_narrow(stored))
        if not narrow:
            return "float64"
    return "float32"


def _is_narrow(stored: Any) -> bool:
    bits = stored.bit_width
    return bits <= 32 if pa.types.is_floating(stored) else bits <= 16


class _Sampler:
    """Which rows of a batch count for medians: all where there is room for them."""

    def __init__(self, n_rows: int | None, columns: int) -> None:
        room = min(SAMPLE_ROWS, SAMPLE_BYTES // (8 * max(1, columns)))
        share = 1.0 if n_rows is None else min(1.0, room / max(1, n_rows))
        self._bound = None if share == 1.0 else np.uint64(share * 2**64)

    def rows(self, start: int, count: int) -> Any:
        if self._bound is None:
            return slice(None)
        with np.errstate(over="ignore"):
            mixed = np.arange(start, start + count, dtype=np.uint64) * _GOLDEN
            mixed = (mixed ^ (mixed >> np.uint64(32))) * _GOLDEN
        return mixed < self._bound


class _NumberScan:
    """Missing values and the median; nothing is read where missing values are to stay."""

    def __init__(self, name: str, kind: str, median: bool, frame: Frame) -> None:
        self.name, self.kind, self.looks, self._where = name, kind, median, frame.location
        self._missing = 0
        self._kept: list[np.ndarray] = []

    def update(self, values: Any, start: int, kept: Any) -> None:
        numbers = as_numbers(values).astype(np.float64, copy=False)
        missing = np.isnan(numbers)
        self._missing += int(missing.sum())
        kept_numbers = numbers[kept]
        self._kept.append(kept_numbers[~np.isnan(kept_numbers)])

    def column(self) -> Column:
        if not self.looks:
            return Column(self.name, self.kind)
        known = np.concatenate([np.empty(0), *self._kept])
        known = known[np.isfinite(known)]
        if not len(known):
            raise DataError(
                f"column '{self.name}' of {self._where} has no values: leave it out with --exclude {self.name}"
            )
        return Column(self.name, self.kind, fill=float(np.median(known)), flag=self._missing > 0)


class _LevelScan:
    """The different values of a category, as long as they are few."""

    looks = True

    def __init__(self, name: str, frame: Frame, handling: Handling) -> None:
        self.name, self._frame, self._handling = name, frame, handling
        self._of = raw_type(frame.schema.field(name).type)
        self._counts: Counter[str] = Counter()
        self._missing = 0

    def update(self, values: Any, start: int, kept: Any) -> None:
        levels = as_levels(values)
        self._missing += levels.null_count
        for entry in pc.value_counts(levels.drop_null()).to_pylist():
            self._counts[entry["values"]] += entry["counts"]
        if len(self._counts) > self._handling.limit:
            raise self._too_many(start + len(levels))

    def _too_many(self, rows: int) -> DataError:
        return DataError(
            f"column '{self.name}' of {self._frame.location} is not numeric, and as a category it has"
            f" {len(self._counts):,} different values in its first {rows:,} rows, where {self._handling.limit:,} are"
            f" allowed{self._frame.origin(self.name)}: leave it out with --exclude {self.name}, or allow more with"
            " --max-levels"
        )

    def column(self) -> Column:
        if not self._counts:
            raise DataError(
                f"column '{self.name}' of {self._frame.location} has no values: leave it out with --exclude {self.name}"
            )
        levels = tuple(sorted(self._counts))
        flag = self._missing > 0 and self._handling.missing == "median"
        fill = None
        if self._handling.missing == "median":
            fill = float(levels.index(_commonest(self._counts))) if self._handling.style == ORDINAL else 0.0
        return Column(self.name, self._handling.style, levels, fill, flag, self._of)


def _commonest(counts: Counter[str]) -> str:
    """Of equally common ones the first in order: the answer must not depend on the order of rows."""
    return min(counts, key=lambda level: (-counts[level], level))
