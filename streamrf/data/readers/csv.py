"""CSV, also compressed. A first pass tells the types of the columns from all rows; every pass is in constant memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from streamrf.data.failures import first_line
from streamrf.data.readers.blocks import Lines, line_blocks, opened_text
from streamrf.data.readers.dialect import Dialect, find_dialect
from streamrf.data.readers.frame import Frame
from streamrf.data.readers.types import NULLS, TEXT, TypeOf, plain_text
from streamrf.support.errors import DataError

# A column that the model takes as numbers may hold truth values, and one of times may name their zone.
_ALSO = {pa.float64(): pa.bool_(), pa.timestamp("us"): pa.timestamp("us", "UTC")}


class CsvFrame(Frame):
    """One CSV file. Opening it reads it once: only all values tell what a column is."""

    def __init__(
        self,
        location: str,
        *,
        delimiter: str | None = None,
        header: bool | None = None,
        nulls: Sequence[str] = (),
        told: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.location, self._asked = location, (delimiter, header)
        self._nulls = (*NULLS, *nulls)
        self._scan(told)

    def _scan(self, told: Callable[[int], None]) -> None:
        rows, types = 0, dict[str, TypeOf]()
        for parser, lines in self._blocks():
            types = types or {name: TypeOf() for name in parser.dialect.names}
            table = parser.texts(lines)
            for name, kind in types.items():
                kind.update(table.column(name).combine_chunks(), lines.first)
            rows += len(table)
            told(rows)
        if not rows:
            raise DataError(f"{self.location} has no rows")
        self.n_rows = rows
        self.schema = pa.schema([(name, kind.type) for name, kind in types.items()])
        self._spoilers = {name: kind.spoiler for name, kind in types.items() if kind.spoiler}

    def _blocks(self) -> Iterator[tuple[CsvParser, Lines]]:
        with opened_text(self.location) as stream:
            yield from parsed_blocks(stream, self.location, *self._asked, self._nulls)

    def batches(self, names: list[str]) -> Iterator[Any]:
        types = {name: self.schema.field(name).type for name in names}
        for parser, lines in self._blocks():
            yield from parser.table(lines, types).to_batches()

    def origin(self, name: str) -> str:
        if name not in self._spoilers:
            return ""
        line, value = self._spoilers[name]
        return f" (its values are numbers but for {value!r} in line {line:,} and perhaps more)"


def parsed_blocks(
    stream: Any, where: str, delimiter: str | None, header: bool | None, nulls: Sequence[str], size: int | None = None
) -> Iterator[tuple[CsvParser, Lines]]:
    """Blocks of rows, each with the parser that the first line settled; the line of names is taken off."""
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


class CsvParser:
    """Blocks of lines to arrow tables, with the line number in every complaint."""

    def __init__(self, dialect: Dialect, where: str, nulls: Sequence[str]) -> None:
        self.dialect, self._where = dialect, where
        self._nulls = list(nulls)
        self._null_set = pa.array(self._nulls, TEXT)

    def texts(self, lines: Lines, names: Sequence[str] | None = None) -> Any:
        """Columns as text, trimmed, nulls as such."""
        chosen = list(names or self.dialect.names)
        table = self._read(lines, dict.fromkeys(chosen, TEXT))
        return pa.table({name: plain_text(table.column(name), self._null_set) for name in chosen})

    def table(self, lines: Lines, types: dict[str, Any]) -> Any:
        """Columns of these types; text without blanks around it, as in `` a, b``."""
        try:
            table = self._read(lines, types)
            return pa.table({name: self._tidy(table.column(name)) for name in types})
        except pa.ArrowInvalid:  # blanks around a null, or a value that is none of its type
            return self._cast(lines, types)

    def _tidy(self, values: Any) -> Any:
        return plain_text(values, self._null_set) if values.type == TEXT else values

    def _cast(self, lines: Lines, types: dict[str, Any]) -> Any:
        table = self.texts(lines, list(types))
        columns = {}
        for name, kind in types.items():
            values, kinds = table.column(name), (kind, _ALSO.get(kind, kind))
            columns[name] = next((found for each in kinds if (found := _cast(values, each)) is not None), None)
            if columns[name] is None:
                raise self._wrong(values, name, kinds, lines)
        return pa.table(columns)

    def _wrong(self, values: Any, name: str, kinds: tuple[Any, Any], lines: Lines) -> DataError:
        """Names the first value that is of neither kind, or else the first that is not of the one that was wanted."""
        kind = kinds[0]
        fits = [[_cast(value, each) is not None for each in kinds] for value in values]
        place = min(range(len(fits)), key=lambda i: (any(fits[i]), fits[i][0]))
        wanted = "a time such as 2024-05-31 or 2024-05-31T12:00" if pa.types.is_temporal(kind) else "a number"
        return DataError(
            f"{values[place].as_py()!r} in column '{name}' of {self._where}, line {lines.first + place:,}, is not"
            f" {wanted}: mend it"
        )

    def _read(self, lines: Lines, types: dict[str, Any]) -> Any:
        bad: list[Any] = []

        def refuse(row: Any) -> str:
            bad.append(row)
            return "error"

        csv = pa.csv
        try:
            return csv.read_csv(
                io.BytesIO(lines.text),
                csv.ReadOptions(
                    column_names=self.dialect.names, use_threads=False, block_size=max(1024, len(lines.text) + 1)
                ),
                csv.ParseOptions(delimiter=self.dialect.delimiter, newlines_in_values=True, invalid_row_handler=refuse),
                csv.ConvertOptions(
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

    def _ragged(self, row: Any, lines: Lines) -> DataError:
        line = lines.first + (row.number or 1) - 1
        return DataError(
            f"line {line:,} of {self._where} has {row.actual_columns} fields, and the first line has"
            f" {row.expected_columns}: {row.text[:60]!r}"
        )


def _cast(values: Any, kind: Any) -> Any:
    """As another type; None where some value is not of it."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return None
