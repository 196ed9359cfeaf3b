"""CSV, also compressed. A first pass finds the types of the columns from all rows; every pass is in constant memory."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streamrf.data.columns import DATE, NUMBER, Column, Columns
from streamrf.data.locations import first_line, opened
from streamrf.data.readers.base import STREAM_BLOCK, Arrived, BatchReader, Lines, Progress, line_blocks, silent
from streamrf.support.errors import DataError, InputError

DELIMITERS = (",", "\t", ";", "|")
_NAMED = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "space": " ", "pipe": "|"}
NULLS = (
    "", "NA", "N/A", "n/a", "NaN", "nan", "-nan", "-NaN", "null", "NULL", "None", "#N/A", "#NA", "<NA>", "?",
)  # fmt: skip
TEXT = pa.string()
_TRIED = (pa.int64(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.bool_(), TEXT)
_WIDER = {pa.int64(): pa.float64()}  # whatever else turns out wrong was text
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_MOSTLY = 0.8  # a column of so many numbers was meant to be one


# A column that the model takes as numbers may hold truth values, and one of times may name their zone.
_ALSO = {pa.float64(): pa.bool_(), pa.timestamp("us"): pa.timestamp("us", "UTC")}


class CsvBatches(BatchReader):
    """One CSV file. Opening it reads it once: only all values tell what a column is."""

    format, endings, compressed = "csv", (".csv", ".tsv", ".txt", ".data"), True
    options = frozenset({"delimiter", "header", "null"})

    def __init__(
        self,
        location: str,
        *,
        delimiter: str | None = None,
        header: bool | None = None,
        null: Sequence[str] = (),
        progress: Progress = silent,
    ) -> None:
        self.location, self._asked = location, (delimiter, header)
        self._nulls = (*NULLS, *null)
        self._scan(progress)

    def _scan(self, progress: Progress) -> None:
        rows, types = 0, dict[str, ColumnType]()
        for parser, lines in self._blocks():
            types = types or {name: ColumnType() for name in parser.dialect.names}
            table = parser.texts(lines)
            for name, kind in types.items():
                kind.update(table.column(name).combine_chunks(), lines.first)
            rows += len(table)
            progress(rows)
        if not rows:
            raise DataError(f"{self.location} has no rows")
        self.n_rows = rows
        self.schema = pa.schema([(name, kind.type) for name, kind in types.items()])
        self._spoilers = {name: kind.spoiler for name, kind in types.items() if kind.spoiler}

    def _blocks(self) -> Iterator[tuple[CsvParser, Lines]]:
        with opened(self.location) as stream:
            yield from parsed_blocks(stream, self.location, *self._asked, self._nulls)

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        types = {name: self.schema.field(name).type for name in names}
        for parser, lines in self._blocks():
            yield from parser.table(lines, types).to_batches()

    @classmethod
    def arriving(cls, stream: IO[bytes], columns: Columns | None, where: str) -> Iterator[Arrived]:
        for parser, lines in parsed_blocks(stream, where, None, None, NULLS, STREAM_BLOCK):
            names = parser.dialect.names
            known = columns or Columns.of_numbers(names)
            types = {column.name: _type_of(column) for column in known.columns if column.name in names}
            yield Arrived(parser.table(lines, types), lines.first, "line")

    def origin(self, name: str) -> str:
        if name not in self._spoilers:
            return ""
        line, value = self._spoilers[name]
        return f" (its values are numbers but for {value!r} in line {line:,} and perhaps more)"


def parsed_blocks(
    stream: IO[bytes],
    where: str,
    delimiter: str | None,
    header: bool | None,
    nulls: Sequence[str],
    size: int | None = None,
) -> Iterator[tuple[CsvParser, Lines]]:
    """Blocks of rows, each with the parser that fits the first line; the line of names is taken off."""
    parser: CsvParser | None = None
    for lines in line_blocks(stream, quotes=True, **({} if size is None else {"size": size})):
        if parser is None:
            first, _, rest = lines.text.partition(b"\n")
            dialect = find_dialect(_decoded(first, where), where, delimiter, header)
            parser = CsvParser(dialect, where, nulls)
            lines = Lines(2, rest) if dialect.has_header else lines
        if lines.text.strip():
            yield parser, lines


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text (line 1, {error.reason}): save it as UTF-8") from error


def _type_of(column: Column) -> pa.DataType:
    """What a column of a stream is read as, where a model knows its kind."""
    return {NUMBER: pa.float64(), DATE: pa.timestamp("us")}.get(column.kind, TEXT)


class CsvParser:
    """Blocks of lines to arrow tables, with the line number in every complaint."""

    def __init__(self, dialect: Dialect, where: str, nulls: Sequence[str]) -> None:
        self.dialect, self._where = dialect, where
        self._nulls = list(nulls)
        self._null_set = pa.array(self._nulls, TEXT)

    def texts(self, lines: Lines, names: Sequence[str] | None = None) -> pa.Table:
        """Columns as text, trimmed, nulls as such."""
        chosen = list(names or self.dialect.names)
        table = self._read(lines, dict.fromkeys(chosen, TEXT))
        return pa.table({name: plain_text(table.column(name), self._null_set) for name in chosen})

    def table(self, lines: Lines, types: dict[str, pa.DataType]) -> pa.Table:
        """Columns of these types; text without blanks around it, as in `` a, b``."""
        try:
            table = self._read(lines, types)
            return pa.table({name: self._tidy(table.column(name)) for name in types})
        except pa.ArrowInvalid:  # blanks around a null, or a value that is none of its type
            return self._cast(lines, types)

    def _tidy(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return plain_text(values, self._null_set) if values.type == TEXT else values

    def _cast(self, lines: Lines, types: dict[str, pa.DataType]) -> pa.Table:
        table = self.texts(lines, list(types))
        columns = {}
        for name, kind in types.items():
            values, kinds = table.column(name), (kind, _ALSO.get(kind, kind))
            columns[name] = next((found for each in kinds if (found := _cast(values, each)) is not None), None)
            if columns[name] is None:
                raise self._wrong(values, name, kinds, lines)
        return pa.table(columns)

    def _wrong(
        self, values: pa.ChunkedArray, name: str, kinds: tuple[pa.DataType, pa.DataType], lines: Lines
    ) -> DataError:
        """Names the first value that is of neither kind, or else the first that is not of the first kind."""
        kind = kinds[0]
        fits = [[_cast(value, each) is not None for each in kinds] for value in values]
        place = min(range(len(fits)), key=lambda i: (any(fits[i]), fits[i][0]))
        wanted = "a time such as 2024-05-31 or 2024-05-31T12:00" if pa.types.is_temporal(kind) else "a number"
        return DataError(
            f"{values[place].as_py()!r} in column '{name}' of {self._where}, line {lines.first + place:,}, is not"
            f" {wanted}: fix it"
        )

    def _read(self, lines: Lines, types: dict[str, pa.DataType]) -> pa.Table:
        bad: list[pa.csv.InvalidRow] = []

        def refuse(row: pa.csv.InvalidRow) -> str:
            bad.append(row)
            return "error"

        try:
            return pa.csv.read_csv(
                io.BytesIO(lines.text),
                pa.csv.ReadOptions(
                    column_names=self.dialect.names, use_threads=False, block_size=max(1024, len(lines.text) + 1)
                ),
                pa.csv.ParseOptions(
                    delimiter=self.dialect.delimiter, newlines_in_values=True, invalid_row_handler=refuse
                ),
                pa.csv.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=self._nulls, strings_can_be_null=True
                ),
            )
        except pa.ArrowInvalid as error:
            if "conversion error" in str(error) and "UTF8" not in str(error):
                raise  # a value that is not of its type: for the caller to look into
            raise self._ragged(bad[0], lines) if bad else self._unreadable(error, lines) from error

    def _unreadable(self, error: Exception, lines: Lines) -> DataError:
        if "UTF8" in str(error):
            return DataError(f"{self._where} is not UTF-8 text (near line {lines.first:,}): save it as UTF-8")
        return DataError(f"{self._where} cannot be read from line {lines.first:,} on ({first_line(error)})")

    def _ragged(self, row: pa.csv.InvalidRow, lines: Lines) -> DataError:
        line = lines.first + (row.number or 1) - 1
        return DataError(
            f"line {line:,} of {self._where} has {row.actual_columns} fields, and the first line has"
            f" {row.expected_columns}: {row.text[:60]!r}"
        )


def _cast(values: pa.ChunkedArray | pa.Scalar, kind: pa.DataType) -> pa.ChunkedArray | pa.Scalar | None:
    """As another type; None where some value is not of it."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written. ``names`` are those of the first line, or c0, c1, ... where it holds values."""

    delimiter: str
    names: tuple[str, ...]
    has_header: bool


def find_dialect(first_line: str, where: str, delimiter: str | None = None, header: bool | None = None) -> Dialect:
    """Found from the first line: the delimiter it has most of; a line without a number in it holds names."""
    chosen = _delimiter(delimiter) if delimiter else max(DELIMITERS, key=first_line.count)
    fields = [field.strip() for field in next(csv.reader([first_line], delimiter=chosen), [])]
    if not any(fields):
        raise DataError(f"{where} begins with an empty line: it must hold names or values")
    named = not any(map(_is_number, fields)) if header is None else header
    if not named:
        return Dialect(chosen, tuple(f"c{i}" for i in range(len(fields))), False)
    twice = [name for name, count in Counter(fields).items() if count > 1 or not name]
    if twice:
        what = f"names the column '{twice[0]}' twice" if twice[0] else "has a column without a name"
        raise DataError(f"the first line of {where} {what}: every column needs a name of its own (or `header=False`)")
    return Dialect(chosen, tuple(fields), True)


def _delimiter(text: str) -> str:
    found = _NAMED.get(text, text)
    if len(found) != 1:
        raise InputError(f"`delimiter={text!r}`: must be one character, or {', '.join(_NAMED)}")
    return found


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def plain_text(values: pa.Array | pa.ChunkedArray, nulls: pa.Array) -> pa.Array | pa.ChunkedArray:
    """Text without blanks around it, and null where it is one of the words for that."""
    trimmed = pc.utf8_trim_whitespace(values)
    return pc.if_else(pc.is_in(trimmed, value_set=nulls), pa.scalar(None, TEXT), trimmed)


class ColumnType:
    """The type of a column of text, found from all its values a batch at a time: whole numbers, numbers, times,
    truth values, else text. ``spoiler`` is the line and value that made text of numbers.
    """

    def __init__(self) -> None:
        self._type: pa.DataType | None = None  # None: nothing but nulls so far
        self.spoiler: tuple[int, str] | None = None

    @property
    def type(self) -> pa.DataType:
        return self._type or TEXT

    def update(self, values: pa.Array, line: int) -> None:
        """``values`` as ``plain_text`` gives them, the first of them from this line."""
        if self._type == TEXT or values.null_count == len(values):
            return
        before = self._type
        if before is None:
            self._type = next(kind for kind in _TRIED if _cast(values, kind) is not None)
        while _cast(values, self._type) is None:
            self._type = _WIDER.get(self._type, TEXT)
        if self._type == TEXT:
            self._note_spoiler(values, line, before)

    def _note_spoiler(self, values: pa.Array, line: int, before: pa.DataType | None) -> None:
        numeric = pc.match_substring_regex(values, _NUMBER)
        if before not in (None, pa.int64(), pa.float64()) or (pc.mean(numeric).as_py() or 0) < _MOSTLY:
            return
        place = pc.index(numeric, False).as_py()
        if place >= 0:
            self.spoiler = (line + place, values[place].as_py())
