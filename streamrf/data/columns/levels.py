"""What is learned of the target for each level of a category: exact sums, and the codes that come of them.

Sums are kept for each fold of the rows. A row that is in the sums is coded by those of the other folds, so that its own
target never enters its code; any other row by those of all. Everything is integers until a code is made of them.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streamrf.support.errors import FileFormatError

FOLDS = 5
MAX_OUTPUTS = 10  # columns of one category
MAX_ENTRIES = 1 << 24  # of a table of sums
MANY_ROWS = 30  # of a level, whose own row then counts for little
LEAST_SMOOTHING, MOST_SMOOTHING = 0.1, 1e6  # rows


@dataclass(frozen=True)
class LevelTable:
    """Rows and sums of the target by fold and level.

    ``names`` say what each sum is of. A sum is of whole numbers, each of which stands for ``offset + step * number``.
    ``smoothing`` is how many rows the mean over all rows counts for beside those of a level. Where rows have weights,
    the rows are sums of whole weights, on average ``unit`` for a row.
    """

    names: tuple[str, ...]
    offset: tuple[float, ...]
    step: tuple[float, ...]
    smoothing: tuple[float, ...]
    places: int  # levels, then all that are not listed, then missing values
    packed: str  # (folds, places, 1 + outputs) int64, compressed, as text
    unit: float = 1.0

    @classmethod
    def of(cls, names: tuple[str, ...], offset: np.ndarray, step: np.ndarray, sums: np.ndarray,
           squares: list[int], unit: float = 1.0) -> LevelTable:  # fmt: skip
        """From sums by fold and place, (folds, places, 1 + outputs), and for each output the sum of squares."""
        levels = np.delete(sums.sum(axis=0), -2, axis=0)
        smoothing = [smoothing_of(levels[:, 0], levels[:, k + 1], square, unit) for k, square in enumerate(squares)]
        scale = tuple(map(float, offset)), tuple(map(float, step))
        return cls(names, *scale, tuple(smoothing), sums.shape[1], _pack(sums), unit)

    @cached_property
    def sums(self) -> np.ndarray:
        """(folds, places, 1 + outputs) int64: rows, then the sum of each output."""
        return _unpack(self.packed, (FOLDS, self.places, 1 + len(self.names)))

    @cached_property
    def codes(self) -> np.ndarray:
        """(folds + 1, places, outputs + 1) float64: smoothed means, and the logarithm of the rows.

        Of the first ``folds`` each is without that fold, the last is of all. Levels of many rows are coded by all of
        them in every fold: codes that differ from fold to fold tell the fold, and with it what was left out of them,
        which costs more than the small part that a row has in its own code. A level that is not listed has the mean
        over all rows, as one has that was never seen.
        """
        total = self.sums.sum(axis=0)
        many = total[:, :1] >= MANY_ROWS * self.unit
        without = np.concatenate([total - self.sums, total[None]])
        overall = without.sum(axis=1, keepdims=True).astype(np.float64)
        without = np.where(many, total, without)
        without[:, -2] = 0
        rows, sums = without[..., :1] / self.unit, without[..., 1:] / self.unit
        prior = overall[..., 1:] / np.maximum(overall[..., :1], 1.0)
        prior = np.where(many, prior[-1:], prior)
        m = np.array(self.smoothing)
        means = np.array(self.offset) + np.array(self.step) * ((sums + m * prior) / (rows + m))
        counts = np.broadcast_to(plain_log2(1.0 + rows[-1]), (*rows.shape[:2], 1))
        return np.concatenate([means, counts], axis=2)

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, document: object) -> LevelTable:
        """What ``to_json`` described; anything that cannot be that is a FileFormatError."""
        if not isinstance(document, Mapping) or {*document, "unit"} != set(cls.__dataclass_fields__):
            raise FileFormatError("damaged coding of columns: sums of levels have other parts")
        names, places = document["names"], document["places"]
        good = isinstance(names, list) and 1 <= len(names) <= MAX_OUTPUTS and all(isinstance(n, str) for n in names)
        if not good or type(places) is not int or not 2 <= places <= MAX_ENTRIES // (FOLDS * (1 + len(names))):
            raise FileFormatError("damaged coding of columns: sums of levels have no names or too many places")
        numbers = {name: _numbers(document[name], len(names)) for name in ("offset", "step", "smoothing")}
        (unit,) = _numbers([document.get("unit", 1.0)], 1)  # files of the first version have none
        if not isinstance(document["packed"], str) or min(*numbers["smoothing"], unit) <= 0:
            raise FileFormatError("damaged coding of columns: sums of levels are not there")
        made = cls(tuple(names), places=places, packed=document["packed"], unit=unit, **numbers)
        if (made.sums[..., 0] < 0).any():
            raise FileFormatError("damaged coding of columns: a level has less than no rows")
        return made


def smoothing_of(rows: np.ndarray, sums: np.ndarray, square: float, unit: float = 1.0) -> float:
    """Empirical Bayes: the variance within levels over that between them, from exact sums.

    That is what makes the smoothed mean of a level the best linear guess at its true mean, where levels are drawn from
    one distribution. Between them there is no less than none, and within no less than none.
    """
    seen = rows > 0
    n, s, square = (rows[seen] / unit).tolist(), (sums[seen] / unit).tolist(), square / unit
    total, levels = sum(n), len(n)
    if levels < 2 or total <= levels:
        return MOST_SMOOTHING if levels != 1 else LEAST_SMOOTHING
    mean = sum(s) ** 2 / total
    of_levels = math.fsum(b * b / a for a, b in zip(n, s, strict=True))
    within = max(0.0, square - of_levels) / (total - levels)
    spread = total - sum(a * a for a in n) / total
    between = (of_levels - mean - (levels - 1) * within) / spread
    if between <= within / MOST_SMOOTHING:
        return MOST_SMOOTHING
    return max(LEAST_SMOOTHING, within / between)


def beyond_line(values: np.ndarray, rows: np.ndarray, sums: np.ndarray, square: float) -> float:
    """By how much the mean of each value explains more of the target than a line through the values: shares of its
    variance, the first corrected for how many values there are."""
    seen = rows > 0
    v, n, s = values[seen], rows[seen].astype(np.float64), sums[seen].astype(np.float64)
    total = float(n.sum())
    if len(v) < 3 or total <= len(v):
        return 0.0
    mean = float(s.sum()) / total
    variance = square - mean * float(s.sum())
    if variance <= 0:
        return 0.0
    away, rise = v - float((n * v).sum()) / total, s - n * mean
    within = (variance - float((rise**2 / n).sum())) / (total - len(v))
    line = float((rise * away).sum()) ** 2 / float((n * away**2).sum())
    return 1.0 - within * (total - 1) / variance - line / variance


def plain_log2(values: np.ndarray) -> np.ndarray:
    """The logarithm to base 2, straight between powers of two: the same bits on every machine."""
    mantissa, exponent = np.frexp(values)
    return exponent + 2.0 * mantissa - 2.0


def fold_of(rows: np.ndarray) -> np.ndarray:
    """The fold of each row, 0 to ``FOLDS - 1``, by a hash of its number alone."""
    with np.errstate(over="ignore"):
        h = rows.astype(np.uint64) + np.uint64(0xD1B54A32D192ED03)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the splitmix64 finaliser
            h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return ((h ^ (h >> np.uint64(31))) % np.uint64(FOLDS)).astype(np.int64)


def place_among(values: Sequence[float], numbers: np.ndarray) -> np.ndarray:
    """Where numbers stand among a few sorted values; the place after the last for those that do not."""
    known, numbers = np.array(values), numbers.astype(np.float64, copy=False)
    found = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.where(known[found] == numbers, found, len(known))


def _pack(sums: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(sums, "<i8").tobytes(), 6)).decode("ascii")


def _unpack(text: str, shape: tuple[int, ...]) -> np.ndarray:
    size = 8 * math.prod(shape)
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), size + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise FileFormatError(f"damaged coding of columns: sums of levels cannot be read ({error})") from None
    if len(data) != size:
        raise FileFormatError(f"damaged coding of columns: sums of levels take {len(data)} bytes, not {size}")
    return np.frombuffer(data, "<i8").astype(np.int64).reshape(shape)


def _numbers(values: object, count: int) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != count:
        raise FileFormatError("damaged coding of columns: sums of levels have no scale")
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values):
        raise FileFormatError("damaged coding of columns: sums of levels have no scale")
    return tuple(map(float, values))
