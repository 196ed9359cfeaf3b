"""JSON lines, also compressed: an object a line, its keys are columns. Types are told in a first pass."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.json

from streamrf.data.columns import BOOL, FLOAT, INT, Columns
from streamrf.data.locations import opened
from streamrf.data.readers.base import STREAM_BLOCK, Arrived, BatchReader, Lines, Progress, line_blocks, silent
from streamrf.support.errors import DataError

_STORED_AS = {INT: pa.int64(), FLOAT: pa.float64(), BOOL: pa.bool_()}  # what a category was made of


class JsonLinesBatches(BatchReader):
    """One file of JSON lines. Opening it reads it once."""

    format, endings, compressed = "jsonl", (".jsonl", ".ndjson"), True

    def __init__(self, location: str, *, progress: Progress = silent) -> None:
        self.location, rows, schema = location, 0, pa.schema([])
        for lines in self._blocks():
            table = parse_json(lines, location)
            schema = _joined(schema, table.schema, lines, location)
            rows += len(table)
            progress(rows)
        if not rows:
            raise DataError(f"{location} has no rows")
        self.n_rows, self.schema = rows, schema

    def _blocks(self) -> Iterator[Lines]:
        with opened(self.location) as stream:
            yield from line_blocks(stream, quotes=False)

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self.schema.field(name) for name in names])
        for lines in self._blocks():
            yield from parse_json(lines, self.location, schema).to_batches()

    @classmethod
    def arriving(cls, stream: IO[bytes], columns: Columns | None, where: str) -> Iterator[Arrived]:
        for lines in line_blocks(stream, quotes=False, size=STREAM_BLOCK):
            if lines.text.strip():
                yield Arrived(_json_table(lines, columns, where), lines.first, "line")


def _json_table(lines: Lines, columns: Columns | None, where: str) -> pa.Table:
    """Categories are read as text, so that one that looks like a date is none; a key left out is a missing value."""
    if columns is None:
        return parse_json(lines, where)
    categories = [column for column in columns.columns if column.is_category]
    as_trained = {column.name: _STORED_AS.get(column.of or "", pa.string()) for column in categories}
    table = _first_that_fits(lines, where, [as_trained, dict.fromkeys(as_trained, pa.string())])
    for column in columns.columns:
        if column.name not in table.column_names and column.fill is not None:
            table = table.append_column(column.name, pa.nulls(len(table)))
    return table


def _first_that_fits(lines: Lines, where: str, tried: list[dict[str, pa.DataType]]) -> pa.Table:
    """A table with these types of columns, or else those; or with the types that its own values show."""
    for types in tried:
        try:
            return parse_json(lines, where, pa.schema(types), others="infer")
        except DataError:  # numbers for text, or the other way about, or a line that is wrong in any case
            continue
    return parse_json(lines, where)


def parse_json(lines: Lines, where: str, schema: pa.Schema | None = None, others: str = "ignore") -> pa.Table:
    """A table of the objects in these lines; with a schema its columns, null where an object lacks one.

    ``others``, columns that are not in the schema, are ignored, or their types inferred ("infer").
    """
    if not lines.text.strip():
        return (schema or pa.schema([])).empty_table()
    options = {} if schema is None else {"explicit_schema": schema, "unexpected_field_behavior": others}
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


def _joined(known: pa.Schema, found: pa.Schema, lines: Lines, where: str) -> pa.Schema:
    try:
        return pa.unify_schemas([known, found], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"the objects of {where} are not alike from line {lines.first:,} on: {error}") from error
