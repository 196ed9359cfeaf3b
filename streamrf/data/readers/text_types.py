"""What columns of text hold: their types are found from all values, a block at a time, and nothing is guessed.

The type of a column is the join of the types of its blocks, so it does not depend on where blocks end. What could mean
two things stays text, with a finding that says why: ``01067``, ``0,123`` and ``31/12/2023``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streamrf.support.errors import InputError

NULLS = (
    "", "NA", "N/A", "n/a", "NaN", "nan", "-nan", "-NaN", "null", "NULL", "None", "#N/A", "#NA", "<NA>", "?", "-",
)  # fmt: skip
TEXT = pa.string()
TIME, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
TRIED = (pa.int64(), pa.float64(), TIME, UTC, pa.bool_())
ORDERS = ("DMY", "MDY", "YMD")
ORDER = b"dates"  # in the metadata of a field: the order of day, month and year
YEAR_FIRST = {ORDER: b"YMD"}
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_COMMA = r"^[+-]?\d*,\d+$"
_POINT = r"^[+-]?\d*\.\d+$"
_DATE = r"^\d{1,2}[/.-]\d{1,2}[/.-]\d{4}([ T]\d{1,2}:\d{2}(:\d{2})?)?$"
_YEAR_FIRST = r"^\d{4}[/.-]\d{1,2}[/.-]\d{1,2}([ T].*)?$"
_THOUSANDS = r"^[+-]?\d{1,3}([., ']\d{3})+([.,]\d+)?$"
_HALF_DAY = r"^\d{1,2}[/.-]\d{1,2}[/.-]\d{4} \d{1,2}:\d{2}(:\d{2})? ?[AaPp][Mm]$"
_UNREAD = {"thousands": "has marks between thousands", "half day": "has a time of twelve hours"}  # by no option
_LEADING_ZERO = r"^[+-]?0[0-9xX]"
_MOSTLY = 0.8  # a column of so many numbers was meant to be one


@dataclass(frozen=True)
class Spelling:
    """How numbers and dates are written: ``decimal`` is a point or a comma, ``dates`` an order by column.

    The order under the name "" is that of all other columns.
    """

    decimal: str = "."
    dates: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, decimal: str | None, dates: str | Sequence[str] | Mapping[str, str] | None) -> Spelling:
        """From what users write: ``DMY``, ``COLUMN=MDY``, or a list or a mapping of these."""
        if decimal not in (None, ".", ","):
            raise InputError(f"`decimal={decimal!r}`: must be . or ,")
        texts = [dates] if isinstance(dates, str) else list(dates or ())
        pairs = dates if isinstance(dates, Mapping) else dict(text.rpartition("=")[::2] for text in texts)
        wrong = [order for order in pairs.values() if order.upper() not in ORDERS]
        if wrong:
            raise InputError(f"`dates={wrong[0]!r}`: must be {', '.join(ORDERS)}, or COLUMN=ORDER")
        return cls(decimal or ".", {name: order.upper() for name, order in pairs.items()})

    def order(self, name: str) -> str | None:
        return self.dates.get(name, self.dates.get(""))


class Finding(NamedTuple):
    """Why a column is text, with the first value that made it so."""

    why: str  # numbers, dates, zeros, comma, point, order, thousands or half day
    line: int
    value: str

    def half_sentence(self) -> str:
        """For messages about the column."""
        if self.why in ("numbers", "dates"):
            return f" (its values are {self.why} but for {self.value!r} in line {self.line:,} and perhaps more)"
        cure = reading_of(self.value, "," if self.why == "point" else ".")
        return f" (it has values such as {self.value!r}, in line {self.line:,}{cure and f': {cure}'})"

    def sentence(self, name: str, spelling: Spelling) -> str:
        value, line = repr(self.value), f"line {self.line:,}"
        kind = {"numbers": "a number", "dates": "a date"}.get(self.why)
        if kind:
            return f"column '{name}' is read as text: {value} in {line} is not {kind}"
        if self.why in _UNREAD:
            return f"column '{name}' is read as text: {value} ({line}) {_UNREAD[self.why]}, which no option reads"
        if self.why == "zeros":
            return f"column '{name}' is read as text: values such as {value} ({line}) begin with a zero"
        if self.why == "point":
            fix = reading_of(self.value, ",")
            return f"column '{name}' is read as text: {value} ({line}) has no decimal comma: {fix}"
        order = spelling.order(name) if self.why == "order" else None
        if order is not None:
            fix = next((f": `dates='{name}={each}'` reads it" for each in orders_of(self.value)), "")
            return f"column '{name}' is read as text: {value} ({line}) is no {order} date{fix}"
        return f"column '{name}' is read as text, as {value} ({line}) could mean two things: {reading_of(self.value)}"


def reading_of(value: str, decimal: str = ".") -> str:
    """Which option reads a value that stands for a number or a date in some countries; empty for any other."""
    if decimal == "," and re.search(_POINT, value):
        return "`decimal='.'` reads it as a number"
    if re.search(_COMMA, value):
        return "`decimal=','` reads it as a number"
    return "`dates='DMY'` (or MDY) reads dates" if re.search(_DATE, value) else ""


def orders_of(value: str) -> list[str]:
    """In which orders of day, month and year it is a date."""
    return [order for order in ORDERS if _dates(pa.array([value], TEXT), order) is not None]


def parsed(values: pa.Array, kind: pa.Field, decimal: str = ".") -> pa.Array | None:
    """Text as values of the type of a field; None where some value is not of it."""
    if pa.types.is_null(kind.type):
        return pa.nulls(len(values)) if values.null_count == len(values) else None
    if pa.types.is_string(kind.type):
        return values
    if pa.types.is_integer(kind.type) or pa.types.is_floating(kind.type):
        return _numbers(values, kind.type, decimal)
    if pa.types.is_boolean(kind.type):
        words = pc.utf8_lower(values)
        known = pc.is_in(words, value_set=pa.array(["true", "false"]), skip_nulls=False)
        return None if _any(pc.and_(pc.invert(known), values.is_valid())) else pc.equal(words, "true")
    order = (kind.metadata or {}).get(ORDER)
    return cast_text(values, kind.type) if order is None else _dates(values, order.decode())


def _numbers(values: pa.Array, kind: pa.DataType, decimal: str) -> pa.Array | None:
    if decimal == ",":
        if _any(pc.match_substring(values, ".")):
            return None
        values = pc.replace_substring(values, ",", ".")
    if _any(_with_leading_zeros(values)):
        return None
    return cast_text(values, kind)


def _with_leading_zeros(values: pa.Array) -> pa.Array:
    """Which of these are numbers that somebody wrote with a zero in front, as in a postcode."""
    begins = pc.or_(pc.starts_with(values, "0"), pc.or_(pc.starts_with(values, "-0"), pc.starts_with(values, "+0")))
    return pc.match_substring_regex(values, _LEADING_ZERO) if _any(begins) else begins


def _dates(values: pa.Array, order: str) -> pa.Array | None:
    """Dates with their parts in this order; with the year first, times as ISO has them too."""
    year, day, month = r"(?P<Y>\d{4})", r"(?P<D>\d{1,2})", r"(?P<M>\d{1,2})"
    parts = {"Y": year, "D": day, "M": month}
    pattern = r"[/.-]".join(parts[letter] for letter in order)
    time = r"[ T].*" if order == "YMD" else r"[ T]\d{1,2}:\d{2}(?::\d{2})?"
    found = pc.extract_regex(values, f"^{pattern}(?P<time>{time})?$")
    if found.null_count > values.null_count:
        return None
    day, month = (pc.utf8_lpad(pc.struct_field(found, part), 2, "0") for part in "DM")
    time = pc.replace_substring_regex(pc.struct_field(found, "time"), r"^[ T](\d):", r" 0\1:")
    texts = pc.binary_join_element_wise(pc.struct_field(found, "Y"), month, day, "-")
    return cast_text(pc.binary_join_element_wise(texts, pc.replace_substring(time, "T", " "), ""), TIME)


def cast_text(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """As another type; None where some value is not of it."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags).as_py())


def kind_of(name: str, values: pa.Array, spelling: Spelling, known: pa.Field | None = None) -> pa.Field:
    """The type of a block of values; ``known``, the type of other blocks of the column, is tried first."""
    if values.null_count == len(values):
        return pa.field(name, pa.null())
    order = spelling.order(name)
    orders = [{ORDER: order.encode()}] if order else []
    ordered = [pa.field(name, TIME, metadata=each) for each in (*orders, YEAR_FIRST)]
    tried = [known] if known is not None else []
    for kind in [*tried, *(pa.field(name, kind) for kind in TRIED), *ordered]:
        if parsed(values, kind, spelling.decimal) is not None:
            return kind
    return pa.field(name, TEXT)


def joined(one: pa.Field, other: pa.Field) -> pa.Field:
    """The type that holds the values of both; text where nothing else does."""
    if one.equals(other, check_metadata=True) or pa.types.is_null(other.type):
        return one
    if pa.types.is_null(one.type):
        return other
    numbers = {pa.int64(), pa.float64()}
    if {one.type, other.type} <= numbers:
        return pa.field(one.name, pa.float64())
    if pa.types.is_timestamp(one.type) and pa.types.is_timestamp(other.type):
        orders = [one.metadata or {}, other.metadata or {}]
        alike = orders[0] == orders[1] or all(each in ({}, YEAR_FIRST) for each in orders)
        if one.type.tz != other.type.tz or not alike:
            return pa.field(one.name, TEXT)
        finer = max(one.type, other.type, key=lambda kind: ("s", "ms", "us", "ns").index(kind.unit))
        return pa.field(one.name, finer, metadata=max(orders, key=len))
    return pa.field(one.name, TEXT)


def finding(
    values: pa.Array, line: int, before: pa.Field | None, order: str | None = None, decimal: str = "."
) -> Finding | None:
    """Why these values are text, if that may surprise; ``before`` is what the blocks before them were, ``order`` that
    of dates which was asked for, and ``decimal`` the mark of numbers."""
    present, numeric = values.drop_null(), pc.match_substring_regex(values, _NUMBER)
    kinds = before.type if before is not None else pa.null()
    zeros = _with_leading_zeros(values)
    if _share(numeric) == 1 and _any(zeros):
        return _first(values, zeros, line, "zeros")
    mark = ("comma", _COMMA) if decimal == "." else ("point", _POINT)
    for why, pattern in (mark, ("order", _DATE)):
        fits = pc.match_substring_regex(values, pattern)
        if len(present) and _share(fits) >= _MOSTLY:
            if why == "order" and order:
                fits = pa.array([value is not None and order not in orders_of(value) for value in values.to_pylist()])
            return _first(values, fits, line, why)
    if (_share(numeric) >= _MOSTLY and pa.types.is_null(kinds)) or kinds in (pa.int64(), pa.float64()):
        odd = pc.or_kleene(pc.invert(numeric), zeros)
        return _first(values, odd, line, "numbers")
    if pa.types.is_timestamp(kinds) or _share(pc.match_substring_regex(values, _YEAR_FIRST)) >= _MOSTLY:
        years_first = before is None or not pa.types.is_timestamp(kinds) or (not before.metadata and not kinds.tz)
        kind = pa.field("", TIME, metadata=YEAR_FIRST) if years_first else before
        odd = [value is not None and parsed(pa.array([value], TEXT), kind) is None for value in values.to_pylist()]
        return _first(values, pa.array(odd), line, "dates")
    for why, pattern in (("thousands", _THOUSANDS), ("half day", _HALF_DAY)):
        fits = pc.match_substring_regex(values, pattern)
        if _any(fits) and _share(pc.or_(fits, numeric)) >= _MOSTLY:
            return _first(values, fits, line, why)
    return None


def _share(flags: pa.Array) -> float:
    return pc.mean(flags).as_py() or 0.0


def _first(values: pa.Array, flags: pa.Array, line: int, why: str) -> Finding | None:
    place = pc.index(flags, True).as_py()
    return None if place < 0 else Finding(why, line + place, values[place].as_py())
