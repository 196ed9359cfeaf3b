"""JSON lines, also compressed: an object a line, its keys are columns. Types are found from all lines."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.json

from streamrf.data.columns import BOOL, FLOAT, INT, Columns
from streamrf.data.locations import no_such, opened
from streamrf.data.readers.base import (
    STREAM_BLOCK,
    Arrived,
    Lines,
    Progress,
    TextReader,
    Unfit,
    in_order,
    line_blocks,
    silent,
)
from streamrf.data.readers.text_types import TEXT, TIME, UTC, cast_text, joined
from streamrf.support.errors import DataError

_STORED_AS = {INT: pa.int64(), FLOAT: pa.float64(), BOOL: pa.bool_()}  # what a category was made of
MIXED = {b"streamrf": b"mixed"}  # metadata of a field whose values are of several types: each is written as text
_CHANGED = re.compile(r"Column\(/(.+?)\) (?:changed from|was specified)")


class JsonLinesBatches(TextReader):
    """One file of JSON lines. Opening it reads it once, unless its schema is given."""

    format, endings, compressed, version = "jsonl", (".jsonl", ".ndjson"), True, 2

    def __init__(
        self,
        location: str,
        *,
        schema: pa.Schema | None = None,
        blocks: int | None = None,
        progress: Progress = silent,
    ) -> None:
        self.location = location
        if schema is None:
            self._scan(progress, blocks)
        else:
            self.schema = schema

    def _scan(self, progress: Progress, blocks: int | None) -> None:
        rows, kinds = 0, dict[str, pa.Field]()
        for done, (table, size) in enumerate(in_order(lambda lines: self._look(lines, kinds), self._blocks())):
            for kind in table.schema:
                kinds[kind.name] = _joined(kinds.get(kind.name, kind), kind)
            rows += len(table)
            progress(rows)
            if done + 1 == blocks:
                self.expect(rows, size)
                break
        if not rows:
            raise DataError(f"{self.location} has no rows")
        self.n_rows = rows if blocks is None else None
        self.schema = pa.schema(list(kinds.values()))

    def _look(self, lines: Lines, kinds: dict[str, pa.Field]) -> tuple[pa.Table, int]:
        return infer_json(lines, self.location, _mixed(list(kinds.values()))), len(lines.text)

    def _blocks(self) -> Iterator[Lines]:
        with opened(self.location) as stream:
            yield from line_blocks(stream, quotes=False)

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        for table in in_order(lambda lines: parse_json(lines, self.location, self.schema), self._blocks()):
            yield from table.select(names).to_batches()

    def notes(self) -> list[str]:
        return [f"column '{name}' is read as text: its values are of several types" for name in _mixed(self.schema)]

    @classmethod
    def arriving(cls, stream: IO[bytes], columns: Columns | None, where: str, **options: Any) -> Iterator[Arrived]:
        for lines in line_blocks(stream, quotes=False, size=STREAM_BLOCK):
            if lines.text.strip():
                yield Arrived(_json_table(lines, columns, where), lines.first, "line")


def _mixed(kinds: Sequence[pa.Field] | pa.Schema) -> list[str]:
    return [kind.name for kind in kinds if kind.metadata == MIXED]


def _joined(one: pa.Field, other: pa.Field) -> pa.Field:
    if MIXED in (one.metadata, other.metadata):
        return pa.field(one.name, TEXT, metadata=MIXED)
    kind = joined(one, other)
    if kind.type == TEXT and one.type != other.type:
        times = all(pa.types.is_timestamp(each.type) or each.type == TEXT for each in (one, other))
        return kind if times else pa.field(one.name, TEXT, metadata=MIXED)
    return kind


def infer_json(lines: Lines, where: str, mixed: Sequence[str] = ()) -> pa.Table:
    """A table of the objects in these lines with the types that they show; ``mixed`` columns are text."""
    _check_text(lines, where)
    names = list(mixed)
    while True:
        table_lines = restated(lines, names, where) if names else lines
        schema = pa.schema([pa.field(name, TEXT, metadata=MIXED) for name in names])
        try:
            table = _read(table_lines, schema, "infer")
        except pa.ArrowInvalid as error:
            found = _CHANGED.search(str(error))
            if found is None or found[1].partition("/")[0] in names:
                raise _broken(error, lines, where) from error
            names.append(found[1].partition("/")[0])
            continue
        return table.cast(pa.schema([schema.field(f.name) if f.name in names else f for f in table.schema]))


def _check_text(lines: Lines, where: str) -> None:
    """JSON is UTF-8; pyarrow looks at values only, and a key that is not fails much later."""
    try:
        lines.text.decode()
    except UnicodeDecodeError as error:
        line = lines.first + lines.text.count(b"\n", 0, error.start)
        raise DataError(f"line {line:,} of {where} is not UTF-8 text ({error.reason}): save it as UTF-8") from error


def parse_json(lines: Lines, where: str, schema: pa.Schema) -> pa.Table:
    """A table with exactly these columns, null where an object lacks one; an Unfit where one has others."""
    _check_text(lines, where)
    mixed = _mixed(schema)
    try:
        return _read(restated(lines, mixed, where) if mixed else lines, schema, "error")
    except pa.ArrowInvalid as error:
        raise Unfit(str(_broken(error, lines, where))) from error


def restated(lines: Lines, names: Sequence[str], where: str) -> Lines:
    """The same objects with the values of some keys written as text."""
    out = []
    for number, line in enumerate(lines.text.splitlines()):
        if not line.strip():
            out.append("")
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise DataError(f"line {lines.first + number:,} of {where} is not a JSON object ({error})") from error
        for name in names:
            value = found.get(name)
            if value is not None and not isinstance(value, str):
                found[name] = json.dumps(value)
        out.append(json.dumps(found))
    return Lines(lines.first, "\n".join(out).encode())


def _read(lines: Lines, schema: pa.Schema, others: str) -> pa.Table:
    if not lines.text.strip():
        return schema.empty_table()
    table = pa.json.read_json(
        io.BytesIO(lines.text),
        pa.json.ReadOptions(use_threads=False, block_size=max(1024, 2 * len(lines.text))),
        pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
    )
    return _with_times(table, schema.names) if others == "infer" else table


def _with_times(table: pa.Table, given: Sequence[str]) -> pa.Table:
    """With time stamps that have a fraction of a second, which pyarrow leaves as text; not in ``given`` columns."""
    for number, kind in enumerate(table.schema):
        values = table.column(number)
        if kind.type != TEXT or kind.name in given or values.null_count == len(values):
            continue
        times = next((found for each in (TIME, UTC) if (found := cast_text(values, each)) is not None), None)
        if times is not None:
            table = table.set_column(number, pa.field(kind.name, TIME), times.cast(TIME))
    return table


def _broken(error: Exception, lines: Lines, where: str) -> DataError:
    row = re.search(r"in row (\d+)", str(error))
    line = lines.first + (int(row[1]) if row else 0)
    reason = re.sub(r"^JSON parse error: | in row \d+$", "", str(error)).rstrip(".")
    return DataError(f"line {line:,} of {where} is not an object as the others are ({reason})")


# -- rows that arrive


def _json_table(lines: Lines, columns: Columns | None, where: str) -> pa.Table:
    """Categories are read as text, so that one that looks like a date is none."""
    if columns is None:
        return infer_json(lines, where)
    categories = [column for column in columns.columns if column.is_category]
    as_trained = {column.name: _STORED_AS.get(column.of or "", pa.string()) for column in categories}
    table = _first_that_fits(lines, where, [as_trained, dict.fromkeys(as_trained, pa.string())])
    _check_keys(table, lines, columns.names, where)
    return table


def _check_keys(table: pa.Table, lines: Lines, names: Sequence[str], where: str) -> None:
    """Every object must have every key, if only with null: one that is left out may be one that is misspelled."""
    null = [name for name in names if name not in table.column_names or table.column(name).null_count]
    if not null:
        return
    filled = [(number, text) for number, text in enumerate(lines.text.splitlines()) if text.strip()]
    empty = set(range(len(table)))  # rows where some column has no value
    if all(name in table.column_names for name in null):
        flags = (table.column(name).is_null().to_numpy() for name in null)
        empty = {int(row) for each in flags for row in each.nonzero()[0]}
    for number, text in (filled[row] for row in sorted(empty)):
        found = json.loads(text)
        absent = next((name for name in null if name not in found), None)
        if absent is not None:
            place = f"line {lines.first + number:,} of {where}"
            raise no_such("key", absent, found, place, "; a missing value must be written as null")


def _first_that_fits(lines: Lines, where: str, tried: list[dict[str, pa.DataType]]) -> pa.Table:
    """A table with these types of columns, or else those; or with the types that its own values show."""
    for types in tried:
        try:
            return _read(lines, pa.schema(types), "infer")
        except pa.ArrowInvalid:  # numbers for text, or the other way about, or a line that is wrong in any case
            continue
    return infer_json(lines, where)
