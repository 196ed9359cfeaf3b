"""What was understood of a table, column by column: for people, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from streamrf.data.columns import JSON
from streamrf.data.columns.encoding import is_text
from streamrf.data.readers.base import BatchReader

SAMPLE_ROWS = 100_000  # that levels are counted in
MOST_LEVELS = 10_000  # that are counted
MOST_LINES = 30
_WIDEST = 32  # letters of a name or an example


@dataclass
class ColumnOverview:
    """One column. Levels are those of the first rows; ``partial`` where there may be more of them."""

    column: str
    type: str
    gaps: int
    levels: int
    partial: bool
    example: str | None

    def cells(self) -> tuple[str, str, str, str, str]:
        levels = f"{self.levels:,}{'+' if self.partial else ''}"
        return _cut(self.column), self.type, f"{self.gaps:,}", levels, _cut(self.example or "")


def overview(table: BatchReader, targets: Sequence[str] = ()) -> list[ColumnOverview]:
    """Every column of a table, in order. Levels and examples come from its first rows, gaps from all where known."""
    names = [name for name in table.schema.names if all(name in known for _, known in table.files())]
    seen, rows = {name: _Seen() for name in names}, 0
    for batch in table.batches(names):
        for name in names:
            seen[name].update(batch.column(name))
        rows += len(batch)
        if rows >= SAMPLE_ROWS:
            break
    partial = table.n_rows is None or rows < table.n_rows
    found = []
    for name, each in seen.items():
        gaps = table.gaps(name) if partial else None
        kind = type_word(table.schema.field(name).type) + (", target" if name in targets else "")
        more = partial or len(each.levels) >= MOST_LEVELS
        found.append(
            ColumnOverview(name, kind, each.gaps if gaps is None else gaps, len(each.levels), more, each.example)
        )
    return found


class _Seen:
    """Gaps, different values and the first value."""

    def __init__(self) -> None:
        self.gaps, self.levels = 0, set[object]()
        self.example: str | None = None

    def update(self, values: pa.Array) -> None:
        self.gaps += values.null_count
        if pa.types.is_floating(values.type):
            self.gaps += pc.sum(pc.is_nan(values)).as_py() or 0
        present = values.drop_null()
        if not len(present):
            return
        if self.example is None:
            self.example = str(present[0].as_py())
        if len(self.levels) < MOST_LEVELS and not pa.types.is_nested(values.type):
            self.levels.update(pc.unique(present)[:MOST_LEVELS].to_pylist())


def type_word(kind: pa.DataType) -> str:
    """A type in the words of a user."""
    if pa.types.is_dictionary(kind):
        return type_word(kind.value_type)
    tests = (
        (is_text, "text"), (pa.types.is_boolean, "true or false"), (pa.types.is_integer, "whole number"),
        (pa.types.is_floating, "number"), (pa.types.is_decimal, "number"), (pa.types.is_null, "empty"),
        (pa.types.is_duration, "duration"), (pa.types.is_time, "time of day"), (pa.types.is_temporal, "date"),
    )  # fmt: skip
    return next((word for test, word in tests if test(kind)), str(kind))


def overview_lines(found: Sequence[ColumnOverview]) -> list[str]:
    """A table of at most some thirty lines."""
    shown = list(found) if len(found) <= MOST_LINES + 1 else list(found[:MOST_LINES])
    cells = [("column", "type", "gaps", "levels", "example"), *(each.cells() for each in shown)]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = []
    for name, kind, gaps, levels, example in cells:
        numbers = f"{gaps.rjust(widths[2])}  {levels.rjust(widths[3])}"
        lines.append(f"{name.ljust(widths[0])}  {kind.ljust(widths[1])}  {numbers}  {example}".rstrip())
    more = len(found) - len(shown)
    return [*lines, f"and {more:,} more columns (the JSON of `streamrf inspect` has all)"] if more else lines


def overview_json(found: Sequence[ColumnOverview]) -> list[JSON]:
    return [asdict(each) for each in found]


def _cut(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= _WIDEST else plain[: _WIDEST - 3] + "..."
