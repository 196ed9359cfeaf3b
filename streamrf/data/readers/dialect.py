"""How a CSV file is written: what separates its fields, and whether its first line is a line of names."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass

from streamrf.support.errors import DataError, InputError

DELIMITERS = (",", "\t", ";", "|")
_NAMED = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "space": " ", "pipe": "|"}


@dataclass(frozen=True)
class Dialect:
    """``names`` are those of the first line, or c0, c1, ... where it is a row like the others."""

    delimiter: str
    names: tuple[str, ...]
    has_header: bool


def find_dialect(first_line: str, where: str, delimiter: str | None = None, header: bool | None = None) -> Dialect:
    """Told from the first line: the delimiter it has most of; a line without a number in it is one of names."""
    chosen = _delimiter(delimiter) if delimiter else max(DELIMITERS, key=first_line.count)
    fields = [field.strip() for field in next(csv.reader([first_line], delimiter=chosen), [])]
    if not any(fields):
        raise DataError(f"{where} begins with an empty line: names or values are wanted")
    named = not any(map(_is_number, fields)) if header is None else header
    if not named:
        return Dialect(chosen, tuple(f"c{i}" for i in range(len(fields))), False)
    twice = [name for name, count in Counter(fields).items() if count > 1 or not name]
    if twice:
        what = f"names the column '{twice[0]}' twice" if twice[0] else "has a column without a name"
        raise DataError(f"the first line of {where} {what}: every column needs a name of its own (or --no-header)")
    return Dialect(chosen, tuple(fields), True)


def _delimiter(text: str) -> str:
    found = _NAMED.get(text, text)
    if len(found) != 1:
        raise InputError(f"--delimiter {text}: one character, or {', '.join(_NAMED)}, is wanted")
    return found


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
