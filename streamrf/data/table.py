"""What all stored sources share: checked shapes, numbered rows, a fingerprint, one line about themselves."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from functools import cached_property

import numpy as np

from streamrf.data.source import Block, Source, Span
from streamrf.support.errors import DataError, InputError

FINGERPRINT_ROWS = 64


class Table(Source):
    """A source whose subclass says how to read features and targets of a span that is known to be inside it."""

    location: str  # what messages call it

    @abstractmethod
    def _features(self, span: Span) -> np.ndarray:
        """X of these rows in its plain form (see dtypes)."""

    @abstractmethod
    def _targets(self, span: Span) -> np.ndarray:
        """y of these rows in its plain form (see dtypes)."""

    def read(self, span: Span) -> Block:
        self._check(span)
        targets = self._targets(span) if self.has_targets else None
        return Block(self._features(span), targets, row_numbers(span))

    def read_targets(self, span: Span) -> np.ndarray:
        if not self.has_targets:
            raise DataError(f"{self.location} was opened without targets")
        self._check(span)
        return self._targets(span)

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return content_digest(self)

    def describe(self) -> str:
        y = f", y {self.n_outputs} x {type_name(self.y_dtype)}" if self.y_dtype is not None else ", no targets"
        size = f"{self.n_rows:,} rows x {self.n_features:,} {type_name(self.x_dtype)}"
        return f"{self._format()} {self.location}: {size}{y}, {describe_chunks(self.chunks())}"

    @abstractmethod
    def _format(self) -> str:
        """The storage format in a word or two."""

    def _check(self, span: Span) -> None:
        if not 0 <= span.start <= span.stop <= self.n_rows:
            raise InputError(f"rows {span.start}:{span.stop} are not within the {self.n_rows} rows of {self.location}")

    def _check_shapes(self, x_shape: tuple[int, ...], y_shape: tuple[int, ...] | None, x: str, y: str) -> None:
        """Set the sizes from the shapes of X and y, or say why they cannot be a table."""
        self.n_rows, self.n_features = table_shape(x_shape, f"{x} in {self.location}")
        self.n_outputs = 0 if y_shape is None else output_count(y_shape, f"{y} in {self.location}")
        if y_shape is not None and y_shape[0] != self.n_rows:
            raise DataError(
                f"{x} has {self.n_rows:,} rows but {y} has {y_shape[0]:,} in {self.location}: they must match"
            )


def table_shape(shape: tuple[int, ...], what: str) -> tuple[int, int]:
    """Rows and columns of features; one dimension is one column."""
    if len(shape) not in (1, 2):
        raise DataError(f"{what} has {len(shape)} dimensions {shape}, but features are a table of rows and columns")
    columns = shape[1] if len(shape) == 2 else 1
    if shape[0] == 0 or columns == 0:
        raise DataError(f"{what} is empty: it has {shape[0]} rows and {columns} columns")
    return shape[0], columns


def output_count(shape: tuple[int, ...], what: str) -> int:
    """Columns of targets."""
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] == 0):
        raise DataError(f"{what} has shape {shape}, but targets are one column or a table of columns")
    return shape[1] if len(shape) == 2 else 1


def row_numbers(span: Span) -> np.ndarray:
    return np.arange(span.start, span.stop, dtype=np.int64)


def even_spans(n_rows: int, step: int) -> tuple[Span, ...]:
    """Spans of ``step`` rows, the last one shorter."""
    return tuple(Span(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def type_name(dtype: np.dtype) -> str:
    return "string" if dtype.kind == "U" else dtype.name


def describe_chunks(chunks: tuple[Span, ...]) -> str:
    """How many chunks, and how many rows they have."""
    longest = max(len(chunk) for chunk in chunks)
    return f"1 chunk of {longest:,} rows" if len(chunks) == 1 else f"{len(chunks):,} chunks of up to {longest:,} rows"


def content_digest(source: Source) -> str:
    """SHA-256 of shape, types, names and the first and last rows: nothing of where or in what chunks they lie."""
    sha = hashlib.sha256(json.dumps(_header(source), sort_keys=True).encode())
    for span in end_spans(source.n_rows, FINGERPRINT_ROWS):
        block = source.read(span)
        sha.update(np.ascontiguousarray(block.X).tobytes())
        if block.y is not None:
            sha.update(_target_bytes(block.y))
    return sha.hexdigest()


def end_spans(n_rows: int, count: int) -> tuple[Span, ...]:
    """The first and the last ``count`` rows; one span where they meet."""
    if n_rows <= 2 * count:
        return (Span(0, n_rows),)
    return (Span(0, count), Span(n_rows - count, n_rows))


def _header(source: Source) -> dict[str, object]:
    return {
        "rows": source.n_rows,
        "features": source.n_features,
        "outputs": source.n_outputs,
        "x": source.x_dtype.str,
        "y": None if source.y_dtype is None else source.y_dtype.str,
        "names": source.feature_names,
    }


def _target_bytes(y: np.ndarray) -> bytes:
    if y.dtype.kind in "UO":  # the width of "U" is the block's, not the data's
        return json.dumps(y.tolist()).encode()
    return np.ascontiguousarray(y).tobytes()
