"""Columns chosen by name and coded as they are read: what parquet files and tables in memory have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamrf.data.columns import Choice, Columns
from streamrf.data.columns.encoding import Encoder, as_numbers, as_texts, whole
from streamrf.data.columns.learning import TEXT, choose_columns, numpy_type
from streamrf.data.locations import names_in, no_such
from streamrf.data.readers.arrays import as_targets, rows_of
from streamrf.data.readers.base import RowReader, content_digest, row_numbers
from streamrf.data.source import Block, Span, even_spans
from streamrf.data.split import input_keys
from streamrf.support.errors import DataError

TEXT_BYTES = 128  # a guess at a label as a Python string, for memory only
ALL = "all"  # instead of names of columns to keep
BATCH_ROWS = 32_768
BATCH_BYTES = 8 << 20  # decoded at a time; more is hardly faster
WIDE_BATCH_ROWS, WIDE_BATCH_BYTES = 8192, 32 << 20  # unless columns are so many that each has few values in a batch
PIECE_BYTES = 32 << 20  # of a block that is part of a row group


class RowGroup(NamedTuple):
    """One row group of one of the files, and the rows of the whole it holds."""

    file: int
    group: int
    rows: Span


class ColumnFiles(Protocol):
    """Columns in row groups: parquet files, or a table in memory."""

    names: list[str]  # what messages call each of the files
    groups: tuple[RowGroup, ...]

    def schemas(self) -> list[pa.Schema]: ...

    def touched(self, span: Span) -> list[RowGroup]: ...

    def batches(self, span: Span, names: list[str], batch_rows: int) -> Iterator[tuple[Span, pa.RecordBatch]]: ...

    def nullable(self, names: Collection[str]) -> set[str]: ...

    def stored_bytes(self, group: RowGroup, names: Collection[str]) -> int: ...


class ColumnSource(RowReader):
    """Columns chosen by name and coded as they are read."""

    picks_columns = True

    def __init__(self, location: str, files: ColumnFiles, choice: Choice) -> None:
        self.location, self._choice, self._files = location, choice, files
        first, *others = files.schemas()
        self._columns = choose_columns(first, files.names[0], self._choice)
        self._set_coding(self._choice.columns)
        for name, schema in zip(files.names, [first, *others], strict=True):
            self._check_schema(schema, name)
        self.n_rows = sum(len(group.rows) for group in self._files.groups)
        if not self.n_rows:
            raise DataError(f"{location} has no rows")
        self.n_outputs = len(self._columns.targets)
        self.target_names = tuple(self._columns.targets) or None
        self._set_types()

    def _set_coding(self, columns: Columns | None) -> None:
        self._choice = replace(self._choice, columns=columns)
        self.columns, self._encoder = columns, None if columns is None else Encoder(columns)
        self.feature_names = tuple(self._columns.features) if columns is None else columns.feature_names
        self.n_features = len(self.feature_names)

    def recoded(self, columns: Columns) -> Self:
        other = copy(self)
        for known in ("_members", "_fingerprint", "_chunks"):
            other.__dict__.pop(known, None)
        other._set_coding(columns)
        other.x_dtype = np.dtype(columns.dtype)
        return other

    @cached_property
    def _fingerprint(self) -> str:
        """Of rows by the places of their levels: what was learned of the target makes no other table."""
        if self.columns is None or not self.columns.by_target:
            return content_digest(self)
        return content_digest(self.recoded(self.columns.plain()))

    def _check_schema(self, schema: pa.Schema, name: str) -> None:
        if self._encoder is not None:
            self._encoder.check(schema, name)
        if name != self._files.names[0]:
            same = self._columns if self._encoder is None else replace(self._columns, features={})
            same.check_same(schema, self._files.names[0], name)

    def _set_types(self) -> None:
        whole = {name for name, dtype in self._columns.all.items() if dtype.kind in "biu"}
        nulls = self._files.nullable(whole)
        self.x_dtype = self._feature_type({n: widened(t, n in nulls) for n, t in self._columns.features.items()})
        y_types = [widened(t, name in nulls) for name, t in self._columns.targets.items()]
        self.y_dtype = np.result_type(*y_types) if y_types else None

    def _feature_type(self, types: dict[str, np.dtype]) -> np.dtype:
        return np.result_type(*types.values()) if self.columns is None else np.dtype(self.columns.dtype)

    @property
    def declared_dtypes(self) -> tuple[np.dtype, np.dtype | None]:
        """Types before nulls widen them."""
        targets = list(self._columns.targets.values())
        return self._feature_type(self._columns.features), np.result_type(*targets) if targets else None

    @property
    def unknown_levels(self) -> Counter[str]:
        """By column, how many values were read that the coding does not know."""
        return Counter() if self._encoder is None else self._encoder.unknown

    def note_unknown_levels(self, counts: Mapping[str, int]) -> None:
        self.unknown_levels.update(counts)

    def fingerprint(self) -> str:
        before = Counter(self.unknown_levels)
        found = super().fingerprint()
        self.unknown_levels.clear()  # the first and last rows were looked at, which does not count
        self.unknown_levels.update(before)
        return found

    def chunks(self) -> tuple[Span, ...]:
        """Row groups, or parts of them: a block is as large as what rows become, which may be many times as wide."""
        return self._chunks

    @cached_property
    def _chunks(self) -> tuple[Span, ...]:
        rows = rows_of(PIECE_BYTES, self.n_features * self.x_dtype.itemsize)
        return tuple(piece for group in self._files.groups for piece in _pieces(group.rows, rows))

    def read(self, span: Span) -> Block:
        """Features and targets in one go over the file."""
        self._check(span)
        key = np.empty(len(span), np.uint64) if self.columns is not None and self.columns.knows_rows else None
        X, y = self._load(span, list(self._columns.features), list(self._columns.targets), key)
        return Block(X, y if self.has_targets else None, row_numbers(span), key=key)

    def _features(self, span: Span) -> np.ndarray:
        return self._load(span, list(self._columns.features), [])[0]

    def _targets(self, span: Span) -> np.ndarray:
        return self._load(span, [], list(self._columns.targets))[1]

    def _load(
        self, span: Span, features: list[str], targets: list[str], key: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """X and y; ``key`` gets what rows are known by, where their features depend on the fold that they are in."""
        y_dtype = self.y_dtype or np.dtype(float)
        X = np.empty((len(span), self.n_features if features else 0), self.x_dtype)
        y = np.empty((len(span), len(targets)), object if y_dtype.kind == "U" else y_dtype)
        for rows, batch in self._files.batches(span, [*features, *targets], self._batch_rows):
            part = slice(rows.start, rows.stop)
            if self._encoder is not None and features:
                plain = self._encoder.encode(batch, X[part], span.start + rows.start)
                if key is not None and plain is not None:
                    key[part] = input_keys(plain)
            else:
                self._fill(X[part], batch, features)
            self._fill(y[part], batch, targets)
        return X, as_targets(y, y_dtype, f"the target of {self.location}")

    def kept_types(self, asked: Sequence[str]) -> list[tuple[str, np.dtype]]:
        schema = self._files.schemas()[0]
        names = kept_names(asked, schema.names, self.location)
        types = {name: numpy_type(schema.field(name).type) or TEXT for name in names}
        plain = {name for name in names if not pa.types.is_temporal(schema.field(name).type)}
        plain -= {name for name in self._files.nullable(plain) if types[name].kind != "f"}  # a gap in a float is NaN
        return [(name, types[name] if name in plain else TEXT) for name in names]

    def read_kept(self, span: Span, types: Sequence[tuple[str, np.dtype]]) -> dict[str, np.ndarray]:
        names, parts = [name for name, _ in types], list[dict[str, np.ndarray]]()
        for _, batch in self._files.batches(span, names, BATCH_ROWS):
            parts.append({name: kept_values(batch.column(name), dtype) for name, dtype in types})
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def _fill(self, out: np.ndarray, batch: pa.RecordBatch, names: list[str]) -> None:
        for j, name in enumerate(names):
            fill_column(out[:, j], batch.column(name), f"column '{name}' of {self.location}")

    def read_bytes(self, span: Span) -> int:
        """What is returned, the pages of one row group at a time, and two decoded batches."""
        text = self.y_dtype is not None and self.y_dtype.kind == "U"
        row = self.n_features * self.x_dtype.itemsize + self.n_outputs * (TEXT_BYTES if text else 16) + 8
        touched = self._files.touched(span)
        stored = max((self._stored_bytes[group] for group in touched), default=0)
        decoded = min(self._batch_rows, max((len(group.rows) for group in touched), default=0))
        known_by = row * min(decoded, len(span)) if self.columns is not None and self.columns.knows_rows else 0
        return len(span) * row + known_by + stored + 2 * decoded * self._decoded_row_bytes

    @property
    def _decoded_row_bytes(self) -> int:
        return sum(dtype.itemsize or TEXT_BYTES for dtype in self._columns.all.values())

    @property
    def _batch_rows(self) -> int:
        row = self._decoded_row_bytes
        return max(rows_of(BATCH_BYTES, row), min(WIDE_BATCH_ROWS, rows_of(WIDE_BATCH_BYTES, row)))

    @cached_property
    def _stored_bytes(self) -> dict[RowGroup, int]:
        return {group: self._files.stored_bytes(group, self._columns.all) for group in self._files.groups}


def _pieces(rows: Span, most: int) -> list[Span]:
    """Near-equal parts of at most so many rows."""
    size = -(-len(rows) // -(-len(rows) // most))
    return [Span(rows.start + part.start, rows.start + part.stop) for part in even_spans(len(rows), size)]


def kept_names(asked: Sequence[str], known: Sequence[str], where: str) -> list[str]:
    """The columns to keep: all, or those with these names, patterns or lists of them."""
    if list(asked) == [ALL] and ALL not in known:
        return list(known)
    found = list(dict.fromkeys(name for text in asked for name in names_in(text, known, where)))
    absent = next((name for name in found if name not in known), None)
    if absent is not None:
        raise no_such("column", absent, known, where, " (to keep)")
    return found


def kept_values(values: pa.Array | pa.ChunkedArray, dtype: np.dtype) -> np.ndarray:
    """A raw column in numpy; as text, a missing value is empty, and a date is written as ISO 8601 has it."""
    if dtype.kind != "U":
        return as_numbers(values).astype(dtype, copy=False)
    values = whole(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    try:
        texts = values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        texts = pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())
    if pa.types.is_timestamp(values.type):
        texts = pc.replace_substring_regex(texts, r"\.0+(Z?)$", r"\1")
    return np.asarray(texts.fill_null("").to_pylist(), dtype="U")


def widened(dtype: np.dtype, has_nulls: bool) -> np.dtype:
    """The type that can also hold NaN: the smallest float that keeps every value of narrow integers."""
    if not has_nulls or dtype.kind in "fU":
        return dtype
    return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def fill_column(out: np.ndarray, values: pa.Array, what: str) -> None:
    """Write one decoded arrow column into ``out``, nulls as NaN (None among strings)."""
    if values.null_count and out.dtype.kind not in "fO":
        raise DataError(f"{what} has nulls that its own statistics deny: write the file again")
    out[:] = as_texts(values) if out.dtype.kind == "O" else as_numbers(values)
