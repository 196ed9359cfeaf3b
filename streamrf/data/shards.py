"""Several sources one after the other are one source: row numbers run on."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from streamrf.data.source import Block, Source, Span
from streamrf.data.table import Table, describe_chunks, row_numbers, type_name
from streamrf.support.errors import DataError, InputError


class Shards(Table):
    """Sources with the same columns in a row. Each keeps its own chunks, and no chunk spans two of them."""

    def __init__(self, parts: Sequence[Source]) -> None:
        if not parts:
            raise InputError("a list of shards needs at least one: the list is empty")
        self.parts = tuple(parts)
        self.location = f"{len(self.parts)} shards"
        self._starts = (0, *accumulate(part.n_rows for part in self.parts))
        self.n_rows = self._starts[-1]
        for other in self.parts[1:]:
            check_agreement(self.parts[0], other)
        first = self.parts[0]
        self.n_features, self.n_outputs, self.feature_names = first.n_features, first.n_outputs, first.feature_names
        self.columns, self.target_names = first.columns, first.target_names
        # Parquet shards may differ in this alone: integers become floats only where there are nulls.
        self.x_dtype = np.result_type(*(part.x_dtype for part in self.parts))
        self.y_dtype = None if first.y_dtype is None else np.result_type(*_target_dtypes(self.parts))

    def chunks(self) -> tuple[Span, ...]:
        return tuple(
            Span(start + chunk.start, start + chunk.stop)
            for start, part in zip(self._starts, self.parts, strict=False)
            for chunk in part.chunks()
        )

    def shards(self) -> tuple[Span, ...]:
        return tuple(map(Span, self._starts, self._starts[1:]))

    def first_array(self) -> Source | None:
        return next((array for part in self.parts if (array := part.first_array()) is not None), None)

    def members(self) -> tuple[Source, ...]:
        return tuple(member for part in self.parts for member in part.members())

    @property
    def unknown_levels(self) -> Counter[str]:
        return sum((Counter(part.unknown_levels) for part in self.parts), Counter[str]())

    def has_partial_reads(self) -> bool:
        return all(part.has_partial_reads() for part in self.parts)

    def _pieces(self, span: Span) -> list[tuple[Source, Span]]:
        """Which rows of which parts these are."""
        first = max(0, bisect_right(self._starts, span.start) - 1)
        pieces = []
        for start, part in zip(self._starts[first:], self.parts[first:], strict=False):
            if start >= span.stop:
                break
            pieces.append((part, Span(max(span.start - start, 0), min(span.stop - start, part.n_rows))))
        return pieces

    def read(self, span: Span) -> Block:
        """One read per part, so that a part which reads X and y together still does."""
        self._check(span)
        blocks = [part.read(piece) for part, piece in self._pieces(span)]
        if not blocks:
            return super().read(span)
        X = _joined([block.X for block in blocks], self.x_dtype)
        y = _joined([block.y for block in blocks if block.y is not None], self.y_dtype) if self.has_targets else None
        return Block(X, y, row_numbers(span))

    def _features(self, span: Span) -> np.ndarray:
        return self._each(span, lambda part, piece: part.read(piece).X, (0, self.n_features), self.x_dtype)

    def _targets(self, span: Span) -> np.ndarray:
        assert self.y_dtype is not None
        shape = (0,) if self.n_outputs == 1 else (0, self.n_outputs)
        return self._each(span, lambda part, piece: part.read_targets(piece), shape, self.y_dtype)

    def _each(
        self, span: Span, get: Callable[[Source, Span], np.ndarray], empty: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray:
        pieces = [get(part, piece) for part, piece in self._pieces(span)]
        return _joined(pieces, dtype) if pieces else np.empty(empty, dtype)

    def read_bytes(self, span: Span) -> int:
        """One part after the other, then everything once more where it must be joined."""
        pieces = self._pieces(span)
        total = sum(part.read_bytes(piece) for part, piece in pieces)
        joined = len(pieces) > 1 or any(part.x_dtype != self.x_dtype for part, _ in pieces)
        return total + (len(span) * (self.n_features + self.n_outputs) * self.x_dtype.itemsize if joined else 0)

    @property
    def declared_dtypes(self) -> tuple[np.dtype, np.dtype | None]:
        return declared_dtypes(self.parts[0])

    @cached_property
    def _fingerprint(self) -> str:
        """Of all parts, so that a change in the middle one shows too."""
        return hashlib.sha256("".join(part.fingerprint() for part in self.parts).encode()).hexdigest()

    def spec(self) -> dict[str, Any]:
        return {"data": [part.spec() for part in self.parts]}

    def describe(self) -> str:
        y = f", y {self.n_outputs} x {type_name(self.y_dtype)}" if self.y_dtype is not None else ", no targets"
        size = f"{self.n_rows:,} rows x {self.n_features:,} {type_name(self.x_dtype)}"
        first = name_of(self.parts[0])
        return f"{self.location} from {first} on: {size}{y}, {describe_chunks(self.chunks())}"

    def _format(self) -> str:
        return "shards"


def check_agreement(first: Source, other: Source) -> None:
    """Raise a DataError naming both where two shards are not parts of the same table."""
    facts: list[tuple[str, Callable[[Source], Any]]] = [
        ("columns", lambda source: source.n_features),
        ("target columns", lambda source: source.n_outputs),
        ("feature names", lambda source: source.feature_names),
        ("a coding of columns", lambda source: source.columns),
        ("types of X and y", lambda source: tuple(map(str, declared_dtypes(source)))),
    ]
    for fact, get in facts:
        if get(first) != get(other):
            raise DataError(
                f"shards must be alike, but {name_of(first)} has {fact} {get(first)} and {name_of(other)} {get(other)}"
            )


def declared_dtypes(source: Source) -> tuple[np.dtype, np.dtype | None]:
    """Types as the storage declares them, before nulls widen integers to floats."""
    return getattr(source, "declared_dtypes", (source.x_dtype, source.y_dtype))


def name_of(source: Source) -> str:
    return getattr(source, "location", type(source).__name__)


def _target_dtypes(parts: Sequence[Source]) -> list[np.dtype]:
    return [part.y_dtype for part in parts if part.y_dtype is not None]


def _joined(pieces: list[np.ndarray], dtype: np.dtype | None) -> np.ndarray:
    whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    is_text = dtype is None or dtype.kind == "U"
    return whole if is_text else whole.astype(dtype, copy=False)
