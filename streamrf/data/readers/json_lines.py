"""JSON lines, also compressed: an object a line, its keys are columns. Types are told in a first pass."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.json

from streamrf.data.readers.blocks import Lines, line_blocks, opened_text
from streamrf.data.readers.frame import Frame
from streamrf.support.errors import DataError


class JsonLinesFrame(Frame):
    """One file of JSON lines. Opening it reads it once."""

    def __init__(self, location: str, *, told: Callable[[int], None] = lambda rows: None) -> None:
        self.location, rows, schema = location, 0, pa.schema([])
        for lines in self._blocks():
            table = parse_json(lines, location)
            schema = _joined(schema, table.schema, lines, location)
            rows += len(table)
            told(rows)
        if not rows:
            raise DataError(f"{location} has no rows")
        self.n_rows, self.schema = rows, schema

    def _blocks(self) -> Iterator[Lines]:
        with opened_text(self.location) as stream:
            yield from line_blocks(stream, quotes=False)

    def batches(self, names: list[str]) -> Iterator[Any]:
        schema = pa.schema([self.schema.field(name) for name in names])
        for lines in self._blocks():
            yield from parse_json(lines, self.location, schema).to_batches()


def parse_json(lines: Lines, where: str, schema: Any = None, others: str = "ignore") -> Any:
    """A table of the objects in these lines; with a schema its columns, null where an object lacks one.

    ``others``, columns that are not in the schema, are ignored, or their types inferred ("infer").
    """
    if not lines.text.strip():
        return (schema or pa.schema([])).empty_table()
    options: dict[str, Any] = {}
    if schema is not None:
        options = {"explicit_schema": schema, "unexpected_field_behavior": others}
    try:
        return pa.json.read_json(
            io.BytesIO(lines.text),
            pa.json.ReadOptions(use_threads=False, block_size=max(1024, 2 * len(lines.text))),
            pa.json.ParseOptions(**options),
        )
    except pa.ArrowInvalid as error:
        row = re.search(r"in row (\d+)", str(error))
        line = lines.first + (int(row[1]) if row else 0)
        reason = re.sub(r"^JSON parse error: | in row \d+$", "", str(error)).rstrip(".")
        raise DataError(f"line {line:,} of {where} is not an object as the others are ({reason})") from error


def _joined(known: Any, found: Any, lines: Lines, where: str) -> Any:
    try:
        return pa.unify_schemas([known, found], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"the objects of {where} are not alike from line {lines.first:,} on: {error}") from error
