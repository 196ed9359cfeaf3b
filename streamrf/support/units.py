"""Sizes, times and counts, as people write and read them."""

from __future__ import annotations

import math
import operator
import re
from fractions import Fraction
from typing import SupportsIndex

from streamrf.support.errors import InputError

_BYTE_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _BYTE_UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}

_SECOND_UNITS = {
    "ms": Fraction(1, 1000),
    **dict.fromkeys(("s", "sec", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), Fraction(60)),
    **dict.fromkeys(("h", "hour", "hours"), Fraction(3600)),
    **dict.fromkeys(("d", "day", "days"), Fraction(86400)),
}
_NUMBER = r"(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})"
_SIZE = re.compile(rf"\s*({_NUMBER})\s*([a-z]*)\s*", re.IGNORECASE)
_DURATION_PART = re.compile(rf"\s*({_NUMBER})\s*([a-z]+)\s*", re.IGNORECASE)
_PLAIN_NUMBER = re.compile(rf"\s*({_NUMBER})\s*")


def parse_bytes(text: str | SupportsIndex) -> int:
    """Bytes in ``"2GB"`` (10^9 each), ``"512MiB"`` (2^20 each), ``"1.5g"`` or a whole number."""
    size = _size_in_text(text) if isinstance(text, str) else _whole_number(text)
    if size is None or not 0 <= size < 2**63:
        raise InputError(f"{text!r} is not a size in bytes: write for example 2GB, 512MiB, 1.5g or 1000000.")
    return size


def size_of(name: str, value: str | SupportsIndex | None) -> int | None:
    """Bytes of a parameter that may be left out; an error names it."""
    try:
        return None if value is None else parse_bytes(value)
    except InputError:
        raise InputError(
            f"`{name}={value!r}`: must be a size such as '2GB' or '512MiB', or a number of bytes"
        ) from None


def _size_in_text(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    unit = _BYTE_UNITS.get(match[2].lower()) if match else None
    return None if match is None or unit is None else int(Fraction(match[1]) * unit)


def _whole_number(value: SupportsIndex) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def format_bytes(size: float) -> str:
    """Three digits and a decimal unit: ``"1.50 GB"``, ``"512 MB"``, ``"87 B"``."""
    sign, size = ("-" if size < 0 else ""), abs(size)
    if size < 999.5:
        return f"{sign}{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5:
            return f"{sign}{_three_digits(size)} {unit}"
    return f"{sign}{_three_digits(size / 1000)} PB"


def _three_digits(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def parse_seconds(text: str | float) -> float:
    """Seconds in ``"5min"``, ``"30s"``, ``"1h30m"``, ``"250ms"``, ``"2d"`` or a plain number."""
    seconds = _seconds_in_text(text) if isinstance(text, str) else _seconds_in_number(text)
    if seconds is None:
        raise InputError(f"{text!r} is not a time: write for example 30s, 5min, 1h30m or a number of seconds.")
    return seconds


def _seconds_in_number(value: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _seconds_in_text(text: str) -> float | None:
    if plain := _PLAIN_NUMBER.fullmatch(text):
        return float(plain[1])
    total, position, last_unit = Fraction(0), 0, None
    while match := _DURATION_PART.match(text, position):
        unit = _SECOND_UNITS.get(match[2].lower())
        # Falling units only: "30m1h" or "5s5s" is more likely a typo.
        if unit is None or (last_unit is not None and unit >= last_unit):
            return None
        total, position, last_unit = total + Fraction(match[1]) * unit, match.end(), unit
    return float(total) if last_unit is not None and position == len(text) else None


def format_seconds(seconds: float) -> str:
    """Two units at most: ``"120 ms"``, ``"12.3 s"``, ``"3 min 05 s"``, ``"1 h 04 min"``, ``"2 d 03 h"``."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return _two_units(seconds)


def _two_units(seconds: float) -> str:
    """Rounded to the smaller unit first, so that 119.9 seconds never read as ``"1 min 60 s"``."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {rest:02d} min"
    days, rest = divmod(round(seconds / 3600), 24)
    return f"{days:,} d {rest:02d} h"


def format_count(count: SupportsIndex) -> str:
    """``12345678`` as ``"12,345,678"``."""
    return f"{operator.index(count):,}"
