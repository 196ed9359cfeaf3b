"""How a CSV file is written, found from its first lines: the delimiter, and the names of columns."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from streamrf.support.errors import DataError, InputError

DELIMITERS = (",", "\t", ";", "|")
_NAMED = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "space": " ", "pipe": "|"}
INDEX = "__index_level_0__"  # as pandas calls it in parquet: row numbers, and no feature


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written. ``names`` are those of the first line, or c0, c1, ... where it holds values."""

    delimiter: str
    names: tuple[str, ...]
    has_header: bool


def find_dialect(sample: str, where: str, delimiter: str | None = None, header: bool | None = None) -> Dialect:
    """Found from the first lines: the delimiter that cuts them alike, and whether the first line holds names."""
    if "\r" in sample and "\n" not in sample:
        raise DataError(f"lines of {where} end in carriage returns alone: save it with line feeds (or CR LF)")
    chosen = _delimiter(delimiter) if delimiter else max(DELIMITERS, key=lambda each: _score(sample, each))
    lines = [[field.strip() for field in line] for line in csv.reader(io.StringIO(sample), delimiter=chosen)]
    fields = lines[0] if lines else []
    if not any(fields):
        raise DataError(f"{where} begins with an empty line: it must hold names or values")
    named = _holds_names(fields, lines[1:]) if header is None else header
    if not named:
        return Dialect(chosen, tuple(f"c{i}" for i in range(len(fields))), False)
    names = [name or (f"column {i + 1}" if i else INDEX) for i, name in enumerate(fields)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"the first line of {where} names the column '{twice[0]}' twice: every column needs a name of its own (or"
            " `header=False`)"
        )
    return Dialect(chosen, tuple(names), True)


def _score(sample: str, delimiter: str) -> tuple[bool, int]:
    """Whether all records have as many fields as the first, more than one, and how many that is."""
    counts = [len(fields) for fields in csv.reader(io.StringIO(sample), delimiter=delimiter) if fields]
    whole = counts[:-1] or counts  # the last may have been cut
    return bool(counts) and counts[0] > 1 and len(set(whole)) == 1, counts[0] if counts else 0


def _delimiter(text: str) -> str:
    found = _NAMED.get(text, text)
    if len(found) != 1:
        raise InputError(f"`delimiter={text!r}`: must be one character, or {', '.join(_NAMED)}")
    return found


def _holds_names(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether no field is a number; or some are, as years may be names, but more are words above columns of numbers. So
    does 0, 1, 2, ..., as data frames number their columns."""
    numbers = sum(map(_is_number, first))
    if not numbers or (len(first) > 2 and list(first) == [str(number) for number in range(len(first))]):
        return True
    whole = [line for line in others if len(line) == len(first)]
    below = [[value for value in column if value] for column in zip(*whole, strict=True)]
    words = sum(
        any(letter.isalpha() for letter in field) and bool(column) and all(map(_is_number, column))
        for field, column in zip(first, below, strict=False)
        if not _is_number(field)
    )
    return words > numbers


def _is_number(field: str) -> bool:
    """With a decimal point or comma; the words for infinity and NaN may be names too."""
    try:
        return math.isfinite(float(field.replace(",", ".", 1)))
    except ValueError:
        return False
