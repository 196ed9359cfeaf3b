"""The type of a column of text, told from all its values: whole numbers, numbers, times, truth values, else text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

NULLS = (
    "", "NA", "N/A", "n/a", "NaN", "nan", "-nan", "-NaN", "null", "NULL", "None", "#N/A", "#NA", "<NA>", "?",
)  # fmt: skip
TEXT = pa.string()
_TRIED = (pa.int64(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.bool_(), TEXT)
_WIDER = {pa.int64(): pa.float64()}  # whatever else turns out wrong was text
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_MOSTLY = 0.8  # a column of so many numbers was meant to be one


def plain_text(values: Any, nulls: Any) -> Any:
    """Text without blanks around it, and null where it is one of the words for that."""
    trimmed = pc.utf8_trim_whitespace(values)
    return pc.if_else(pc.is_in(trimmed, value_set=nulls), pa.scalar(None, TEXT), trimmed)


class TypeOf:
    """Sees one column's values a batch at a time; ``spoiler`` is the line and value that made text of numbers."""

    def __init__(self) -> None:
        self._type: Any = None  # None: nothing but nulls so far
        self.spoiler: tuple[int, str] | None = None

    @property
    def type(self) -> Any:
        return self._type or TEXT

    def update(self, values: Any, line: int) -> None:
        """``values`` as ``plain_text`` gives them, the first of them from this line."""
        if self._type == TEXT or values.null_count == len(values):
            return
        before = self._type
        if before is None:
            self._type = next(kind for kind in _TRIED if _fits(values, kind))
        while not _fits(values, self._type):
            self._type = _WIDER.get(self._type, TEXT)
        if self._type == TEXT:
            self._note_spoiler(values, line, before)

    def _note_spoiler(self, values: Any, line: int, before: Any) -> None:
        numeric = pc.match_substring_regex(values, _NUMBER)
        if before not in (None, pa.int64(), pa.float64()) or (pc.mean(numeric).as_py() or 0) < _MOSTLY:
            return
        place = pc.index(numeric, False).as_py()
        if place >= 0:
            self.spoiler = (line + place, values[place].as_py())


def _fits(values: Any, kind: Any) -> bool:
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
