"""CSV, also compressed. Types of columns are found from all rows (``text_types``); every pass is in constant memory."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streamrf.data.columns import DATE, NUMBER, Column, Columns
from streamrf.data.locations import first_line, no_such, opened
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
from streamrf.data.readers.dialect import INDEX, Dialect, find_dialect
from streamrf.data.readers.text_types import (
    NULLS,
    ORDER,
    TEXT,
    TIME,
    UTC,
    YEAR_FIRST,
    Finding,
    Spelling,
    cast_text,
    finding,
    joined,
    kind_of,
    parsed,
    reading_of,
)
from streamrf.support.errors import DataError, InputError

_SAMPLE_LINES = 50  # that tell the delimiter
_BLANKS = tuple(bytes([code]) for code in (0x20, 0x09, 0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x1F))
_SPACE, _MINUS, _ZERO = b" -0"
SLICE = 1 << 16  # bytes that are looked at together: what is made of them stays in the cache


class CsvBatches(TextReader):
    """One CSV file. Opening it reads it once, as only all values tell what a column is; unless its schema is given."""

    format, endings, compressed, version = "csv", (".csv", ".tsv", ".txt", ".data"), True, 2
    options = frozenset({"delimiter", "header", "null", "encoding", "decimal", "dates"})

    def __init__(
        self,
        location: str,
        *,
        schema: pa.Schema | None = None,
        blocks: int | None = None,
        progress: Progress = silent,
        **options: Any,
    ) -> None:
        """``blocks`` is how many blocks of rows tell the types; all by default."""
        self.location, self._reading = location, CsvReading.of(**options)
        self._findings: dict[str, Finding] = {}
        if schema is None:
            self._scan(progress, blocks)
        else:
            self.schema = schema

    def _scan(self, progress: Progress, blocks: int | None) -> None:
        rows, kinds, spelling = 0, dict[str, pa.Field](), self._reading.spelling

        def look(block: tuple[CsvParser, Lines]) -> tuple[pa.Table, dict[str, pa.Field], Lines]:
            table = block[0].texts(block[1])
            found = {name: _kind(table, name, spelling, kinds.get(name)) for name in table.column_names}
            return table, found, block[1]

        for done, (table, found, lines) in enumerate(in_order(look, self._blocks())):
            for name, kind in found.items():
                before, known = kinds.get(name), joined(kinds.get(name, kind), kind)
                if known.type == TEXT and (before is None or before.type != TEXT):
                    values, order = table.column(name).combine_chunks(), spelling.order(name)
                    self._note(name, finding(values, lines.first, before, order, spelling.decimal))
                kinds[name] = known
            rows += len(table)
            progress(rows)
            if done + 1 == blocks:
                self.expect(rows, len(lines.text))
                break
        if not rows:
            raise DataError(f"{self.location} has no rows")
        self.n_rows = rows if blocks is None else None
        self.schema = pa.schema(list(kinds.values()))

    def _note(self, name: str, found: Finding | None) -> None:
        if found is not None:
            self._findings[name] = found

    def _blocks(self) -> Iterator[tuple[CsvParser, Lines]]:
        with opened(self.location) as stream:
            yield from parsed_blocks(stream, self.location, self._reading)

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        kinds = [self.schema.field(name) for name in names]
        for table in in_order(lambda block: block[0].table(block[1], kinds), self._blocks()):
            yield from table.to_batches()

    @classmethod
    def arriving(cls, stream: IO[bytes], columns: Columns | None, where: str, **options: Any) -> Iterator[Arrived]:
        reading = CsvReading.of(**{name: value for name, value in options.items() if name != "keeps"})
        for parser, lines in parsed_blocks(stream, where, reading, STREAM_BLOCK):
            names = parser.dialect.names
            known = columns or Columns.of_numbers(names)
            absent = next((name for name in known.names if name not in names), None)
            if absent is not None:
                raise no_such("column", absent, names, where, " (the model was trained on it)")
            kinds = {c.name: _field_of(c, reading.spelling) for c in known.columns}
            raw = parser.texts(lines) if options.get("keeps") else None
            yield Arrived(parser.table(lines, list(kinds.values()), lenient=True), lines.first, "line", raw)

    def origin(self, name: str) -> str:
        return self._findings[name].half_sentence() if name in self._findings else ""

    def notes(self) -> list[str]:
        found = [each.sentence(name, self._reading.spelling) for name, each in self._findings.items()]
        if INDEX in self.schema.names:
            found.append("the first column has no name: it is taken as row numbers, and left out")
        return found


def _kind(table: pa.Table, name: str, spelling: Spelling, known: pa.Field | None) -> pa.Field:
    if known is not None and known.type == TEXT:
        return known
    return kind_of(name, table.column(name).combine_chunks(), spelling, known)


@dataclass(frozen=True)
class CsvReading:
    """How a CSV file is read: what is asked for, and None where its first lines tell."""

    delimiter: str | None
    header: bool | None
    nulls: tuple[str, ...]
    encoding: str | None
    spelling: Spelling

    @classmethod
    def of(
        cls,
        *,
        delimiter: str | None = None,
        header: bool | None = None,
        null: Sequence[str] = (),
        encoding: str | None = None,
        decimal: str | None = None,
        dates: str | Sequence[str] | Mapping[str, str] | None = None,
    ) -> CsvReading:
        if encoding is not None:
            try:
                codecs.lookup(encoding)
            except LookupError:
                raise InputError(f"`encoding={encoding!r}` is not known: utf-8, latin-1, cp1252, utf-16, ...") from None
        words = (null,) if isinstance(null, str) else tuple(null)
        return cls(delimiter, header, (*NULLS, *words), encoding, Spelling.of(decimal, dates))


class Recoded:
    """A stream in any encoding as UTF-8. Without one the bytes are passed on, unless a mark says that it is UTF-16."""

    def __init__(self, stream: IO[bytes], encoding: str | None) -> None:
        self._read = getattr(stream, "read1", stream.read)
        self._encoding, self._decoder = encoding, None if encoding is None else _decoder(encoding)
        self._begun = False

    def read(self, size: int) -> bytes:
        data = self._read(size)
        if not self._begun:
            self._begun = True
            if self._decoder is None and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self._decoder = _decoder("utf-16")
        if self._decoder is None:
            return data
        while True:
            try:
                text = self._decoder.decode(data, not data)
            except UnicodeDecodeError as error:
                raise DataError(f"the text is not {self._encoding or 'utf-16'} ({error.reason})") from error
            if text or not data:
                return text.encode()
            data = self._read(size)  # half a character is not the end of the stream


def _decoder(encoding: str) -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder(encoding)()


def parsed_blocks(
    stream: IO[bytes], where: str, reading: CsvReading, size: int | None = None
) -> Iterator[tuple[CsvParser, Lines]]:
    """Blocks of rows, each with the parser that fits the first lines; the line of names is taken off."""
    parser: CsvParser | None = None
    plain: Any = Recoded(stream, reading.encoding)
    for lines in line_blocks(plain, quotes=True, **({} if size is None else {"size": size})):
        if parser is None:
            dialect = find_dialect(_decoded(lines.text, where), where, reading.delimiter, reading.header)
            parser = CsvParser(dialect, where, reading)
            lines = _without_names(lines) if dialect.has_header else lines
        if lines.text.strip():
            yield parser, lines


def _without_names(lines: Lines) -> Lines:
    """The rows after the first record, which may hold a line break between quotes."""
    end = lines.text.find(b"\n") + 1
    while 0 < end < len(lines.text) and lines.text.count(b'"', 0, end) % 2:
        end = lines.text.find(b"\n", end) + 1
    end = end or len(lines.text)
    return Lines(1 + lines.text.count(b"\n", 0, end), lines.text[end:])


def _decoded(text: bytes, where: str) -> str:
    """The first lines, for the delimiter and the names."""
    sample = b"".join(text.splitlines(keepends=True)[:_SAMPLE_LINES])
    try:
        return sample.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + sample.count(b"\n", 0, error.start)
        raise _not_utf8(where, f"near line {line:,}") from error


def _not_utf8(where: str, place: str) -> DataError:
    return DataError(f"{where} is not UTF-8 text ({place}): name its encoding, as in `encoding='latin-1'`")


def _field_of(column: Column, spelling: Spelling) -> pa.Field:
    """What a column of a stream is read as, where a model knows its kind."""
    order = spelling.order(column.name)
    if column.kind == DATE and order:
        return pa.field(column.name, TIME, metadata={ORDER: order.encode()})
    return pa.field(column.name, {NUMBER: pa.float64(), DATE: TIME}.get(column.kind, TEXT))


# A column that the model takes as numbers may hold truth values, and one of times may name their zone.
_ALSO = {pa.float64(): pa.bool_(), TIME: UTC}


class CsvParser:
    """Blocks of lines to arrow tables, with the line number in every complaint."""

    def __init__(self, dialect: Dialect, where: str, reading: CsvReading) -> None:
        self.dialect, self._where, self._decimal = dialect, where, reading.spelling.decimal
        self._nulls = list(reading.nulls)

    @cached_property
    def _null_set(self) -> pa.Array:
        return pa.array(self._nulls, TEXT)  # late: arrow loads pandas for it, where that is installed

    def texts(self, lines: Lines, names: Sequence[str] | None = None) -> pa.Table:
        """Columns as text, trimmed, nulls as such."""
        table = self._read(lines, list(names or self.dialect.names))
        return self._trimmed(table, lines)

    def _trimmed(self, table: pa.Table, lines: Lines) -> pa.Table:
        """Text without blanks around it, and null where it is then one of the words for that."""
        if lines.text.isascii() and not any(blank in lines.text for blank in _BLANKS):
            return table
        for place, values in enumerate(table.columns):
            trimmed = pc.utf8_trim_whitespace(values) if values.type == TEXT else values
            if not trimmed.equals(values):
                known = pc.if_else(pc.is_in(trimmed, value_set=self._null_set), pa.scalar(None, TEXT), trimmed)
                table = table.set_column(place, table.field(place), known)
        return table

    def table(self, lines: Lines, kinds: Sequence[pa.Field], *, lenient: bool = False) -> pa.Table:
        """Columns of these types; ``lenient`` where a model says what they are, and not their own values."""
        texts, columns = self._numbers(lines, kinds) or self.texts(lines, [kind.name for kind in kinds]), {}
        for kind in kinds:
            if texts.column(kind.name).type == kind.type != TEXT:
                columns[kind.name] = texts.column(kind.name)
                continue
            values = texts.column(kind.name).combine_chunks()
            found = parsed(values, kind, self._decimal)
            if found is None and lenient:
                found = self._lenient(values, kind)
            if found is None:
                raise self._wrong(values, kind, lines)
            columns[kind.name] = found
        return pa.table(columns)

    def _numbers(self, lines: Lines, kinds: Sequence[pa.Field]) -> pa.Table | None:
        """Columns of numbers as such, others as text; None where some value must be looked at as it is written."""
        numbers = {kind.name: kind.type for kind in kinds if kind.type in (pa.int64(), pa.float64())}
        if self._decimal != "." or not numbers or leading_zeros(lines.text, self.dialect.delimiter):
            return None
        try:
            table = self._read_as(lines, {kind.name: numbers.get(kind.name, TEXT) for kind in kinds})
        except pa.ArrowInvalid:
            return None
        return self._trimmed(table, lines)

    def _lenient(self, values: pa.Array, kind: pa.Field) -> pa.Array | None:
        if kind.type not in _ALSO:
            return None
        if kind.type == pa.float64():
            numbers = parsed(pc.replace_substring_regex(values, r"^([+-]?)0+([0-9])", r"\1\2"), kind, self._decimal)
            if numbers is not None:
                return numbers
        metadata = YEAR_FIRST if kind.type == TIME else None
        found = parsed(values, pa.field(kind.name, kind.type, metadata=metadata), self._decimal)
        return cast_text(values, _ALSO[kind.type]) if found is None else found

    def _wrong(self, values: pa.Array, kind: pa.Field, lines: Lines) -> Unfit:
        """Names the first value that is of no type that would do, or else the first that is not of this one."""
        kinds = [kind, pa.field(kind.name, _ALSO.get(kind.type, kind.type))]
        kinds += [pa.field(kind.name, TIME, metadata=YEAR_FIRST)] if kind.type == TIME else []
        texts = [pa.array([value], TEXT) for value in values.to_pylist()]
        fits = [[parsed(text, each, self._decimal) is not None for each in kinds] for text in texts]
        place = min(range(len(fits)), key=lambda i: (any(fits[i]), fits[i][0]))
        wanted = "a time such as 2024-05-31 or 2024-05-31T12:00" if pa.types.is_temporal(kind.type) else "a number"
        value = values[place].as_py()
        return Unfit(
            f"{value!r} in column '{kind.name}' of {self._where}, line {lines.first + place:,}, is not {wanted}:"
            f" {reading_of(value, self._decimal) or 'fix it'}"
        )

    def _read(self, lines: Lines, names: list[str]) -> pa.Table:
        bad: list[pa.csv.InvalidRow] = []

        def refuse(row: pa.csv.InvalidRow) -> str:
            bad.append(row)
            return "error"

        try:
            lines.text.decode()  # pyarrow prints a traceback of its own for a wrong row that is not UTF-8
            return self._read_as(lines, dict.fromkeys(names, TEXT), invalid_row_handler=refuse)
        except UnicodeDecodeError as error:
            line = lines.first + lines.text.count(b"\n", 0, error.start)
            raise _not_utf8(self._where, f"line {line:,}") from error
        except pa.ArrowInvalid as error:
            raise self._ragged(bad[0], lines) if bad else self._unreadable(error, lines) from error

    def _read_as(self, lines: Lines, types: dict[str, pa.DataType], **parsing: Any) -> pa.Table:
        size, delimiter = max(1024, len(lines.text) + 1), self.dialect.delimiter
        return pa.csv.read_csv(
            io.BytesIO(lines.text),
            pa.csv.ReadOptions(column_names=self.dialect.names, use_threads=False, block_size=size),
            pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, **parsing),
            pa.csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=self._nulls, strings_can_be_null=True
            ),
        )

    def _unreadable(self, error: Exception, lines: Lines) -> DataError:
        if "UTF8" in str(error):
            return _not_utf8(self._where, f"near line {lines.first:,}")
        return DataError(f"{self._where} cannot be read from line {lines.first:,} on ({first_line(error)})")

    def _ragged(self, row: pa.csv.InvalidRow, lines: Lines) -> DataError:
        line = lines.first + (row.number or 1) - 1
        return DataError(
            f"line {line:,} of {self._where} has {row.actual_columns} fields, and the first line has"
            f" {row.expected_columns}: {row.text[:60]!r}"
        )


def leading_zeros(text: bytes, delimiter: str) -> bool:
    """Whether some value begins with a zero before another digit or an x, perhaps after blanks and a sign."""
    letters, ends = np.frombuffer(text, np.uint8), _table(delimiter.encode() + b'\r\n"')
    blank = (np.arange(256) <= _SPACE) & ~ends
    found = [np.zeros(int(text[:1] == b"0" and text[1:2] >= b"0"), np.int64)]
    for start in range(0, len(text), SLICE):
        part = letters[start : start + SLICE + 2]
        opens = (part[:-2] <= _MINUS) | (part[:-2] == ord(delimiter))  # ends, blanks, signs, and little else
        found.append(np.flatnonzero((part[1:-1] == _ZERO) & (part[2:] >= _ZERO) & opens) + start + 1)
    before = np.concatenate(found) - 1
    before -= _table(b"+-")[letters[before]] & (before >= 0)
    while (step := blank[letters[before]] & (before >= 0)).any():
        before -= step
    return bool((ends[letters[before]] | (before < 0)).any())


def _table(letters: bytes) -> np.ndarray:
    """(256,) whether a byte is one of these."""
    return np.isin(np.arange(256, dtype=np.uint8), np.frombuffer(letters, np.uint8))
