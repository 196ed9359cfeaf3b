"""Arrow tables from a stream of CSV, JSON lines or Arrow batches, each as soon as it is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from streamrf.data.columns.document import BOOL, DATE, FLOAT, INT, NUMBER, Column, Columns
from streamrf.data.locations import absolute
from streamrf.data.readers.arrow import ArrowFrame
from streamrf.data.readers.blocks import Lines, line_blocks, opened_text
from streamrf.data.readers.csv import parsed_blocks
from streamrf.data.readers.json_lines import parse_json
from streamrf.data.readers.types import NULLS, TEXT
from streamrf.support.errors import DataError

FORMATS = ("csv", "jsonl", "arrow")
BLOCK_BYTES = 1 << 18  # at most so much text at a time, and less where less is there
BATCH_ROWS = 8192
_JSON = {INT: pa.int64(), FLOAT: pa.float64(), BOOL: pa.bool_()}


class Arrived(NamedTuple):
    """Rows that have come, and where the first of them stood."""

    table: Any
    first: int
    unit: str  # what ``first`` counts: lines or rows


@contextmanager
def opened_stream(location: str) -> Iterator[Any]:
    """The bytes at a location; of ``-`` those of standard input."""
    if location == "-":
        yield sys.stdin.buffer
        return
    with opened_text(absolute(location)) as stream:
        yield stream


def tables_at(location: str, form: str, columns: Columns | None, where: str) -> Iterator[Arrived]:
    """Tables of a file, or of standard input where the location is ``-``."""
    if form == "arrow" and location != "-":
        yield from read_arrow_file(location)
        return
    with opened_stream(location) as stream:
        yield from read_tables(stream, form, columns, where)


def read_tables(stream: Any, form: str, columns: Columns | None, where: str) -> Iterator[Arrived]:
    """Tables with the columns of a coding; without one, with all columns of the stream, which must be numbers."""
    if form == "csv":
        yield from _read_csv(stream, columns, where)
    elif form == "jsonl":
        for lines in line_blocks(stream, quotes=False, size=BLOCK_BYTES):
            if lines.text.strip():
                yield Arrived(_json_table(lines, columns, where), lines.first, "line")
    else:
        yield from _read_arrow(stream, where)


def _read_csv(stream: Any, columns: Columns | None, where: str) -> Iterator[Arrived]:
    for parser, lines in parsed_blocks(stream, where, None, None, NULLS, BLOCK_BYTES):
        names = parser.dialect.names
        known = columns or numbers_called(list(names))
        types = {column.name: _type_of(column) for column in known.columns if column.name in names}
        yield Arrived(parser.table(lines, types), lines.first, "line")


def _json_table(lines: Lines, columns: Columns | None, where: str) -> Any:
    """Categories are read as text, so that one that looks like a date is none; a key left out is a missing value."""
    if columns is None:
        return parse_json(lines, where)
    categories = [column for column in columns.columns if column.is_category]
    as_trained = {column.name: _JSON.get(column.of or "", TEXT) for column in categories}
    table = _first_that_fits(lines, where, [as_trained, dict.fromkeys(as_trained, TEXT)])
    for column in columns.columns:
        if column.name not in table.column_names and column.fill is not None:
            table = table.append_column(column.name, pa.nulls(len(table)))
    return table


def _first_that_fits(lines: Lines, where: str, tried: list[dict[str, Any]]) -> Any:
    """A table with these types of columns, or else those; or with whatever types its own values tell."""
    for types in tried:
        try:
            return parse_json(lines, where, pa.schema(types), others="infer")
        except DataError:  # numbers for text, or the other way about, or a line that is wrong in any case
            continue
    return parse_json(lines, where)


def _type_of(column: Column) -> Any:
    return {NUMBER: pa.float64(), DATE: pa.timestamp("us")}.get(column.kind, TEXT)


def _read_arrow(stream: Any, where: str) -> Iterator[Arrived]:
    try:
        with pa.ipc.open_stream(stream) as reader:
            yield from _in_parts(iter(reader))
    except pa.ArrowInvalid as error:
        raise DataError(f"{where} is not a stream of Arrow batches: {error}") from error


def _in_parts(batches: Iterator[Any]) -> Iterator[Arrived]:
    done = 0
    for batch in batches:
        for start in range(0, len(batch), BATCH_ROWS):
            part = batch.slice(start, BATCH_ROWS)
            yield Arrived(pa.Table.from_batches([part]), done, "row")
            done += len(part)


def read_arrow_file(location: str) -> Iterator[Arrived]:
    """Tables of an Arrow or Feather file."""
    frame = ArrowFrame(absolute(location))
    yield from _in_parts(frame.batches(frame.schema.names))


def numbers_called(names: list[str]) -> Columns:
    """The coding of columns that are numbers to be taken as they are."""
    return Columns(tuple(Column(name, NUMBER) for name in names))
