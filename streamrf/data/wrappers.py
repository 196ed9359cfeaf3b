"""Sources made of other sources: one with weights for its rows, several one after the other."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import accumulate

import numpy as np

from streamrf.data.columns import Columns
from streamrf.data.readers.base import RowReader, describe_size, row_numbers
from streamrf.data.source import Block, Partition, Source, Span, Spec
from streamrf.support.errors import DataError, InputError


class SourceWrapper(Source):
    """A source in place of another, row for row. What a subclass does not change, the wrapped source does.

    It is read in the spans of that source, so ``read_bytes`` is that of the source too unless more is read.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.take_shape(source)
        self.has_weights, self.picks_columns = source.has_weights, source.picks_columns
        self.reading = source.reading

    @property
    def unknown_levels(self) -> Mapping[str, int]:
        return self.source.unknown_levels

    def note_unknown_levels(self, counts: Mapping[str, int]) -> None:
        self.source.note_unknown_levels(counts)

    def recoded(self, columns: Columns) -> Source:
        other = copy(self)
        other.source = self.source.recoded(columns)
        other.take_shape(other.source)
        return other

    def chunks(self) -> Sequence[Span]:
        return self.source.chunks()

    def read(self, span: Span) -> Block:
        return self.source.read(span)

    def read_targets(self, span: Span) -> np.ndarray:
        return self.source.read_targets(span)

    def read_weights(self, span: Span) -> np.ndarray:
        return self.source.read_weights(span)

    def kept_types(self, asked: Sequence[str]) -> list[tuple[str, np.dtype]]:
        return self.source.kept_types(asked)

    def read_kept(self, span: Span, types: Sequence[tuple[str, np.dtype]]) -> dict[str, np.ndarray]:
        return self.source.read_kept(span, types)

    def read_bytes(self, span: Span) -> int:
        return self.source.read_bytes(span)

    @property
    def readers(self) -> int:
        return self.source.readers

    def drop_pages(self, span: Span) -> None:
        self.source.drop_pages(span)

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    def stored(self) -> dict[str, str]:
        return self.source.stored()

    def spec(self) -> Spec:
        return self.source.spec()

    def describe(self) -> str:
        return self.source.describe()

    def has_partial_reads(self) -> bool:
        return self.source.has_partial_reads()

    def partitions(self, span: Span, *, targets_only: bool = False) -> Iterable[Partition]:
        return self.source.partitions(span, targets_only=targets_only)

    def shards(self) -> tuple[Span, ...]:
        return self.source.shards()

    def first_array(self) -> Source | None:
        return self.source.first_array()

    def members(self) -> tuple[Source, ...]:
        return self.source.members()


class TargetsOnly(SourceWrapper):
    """The targets and weights of a source, without its inputs, which are not read."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.n_features, self.feature_names, self.columns = 0, None, None

    def read(self, span: Span) -> Block:
        weights = self.source.read_weights(span) if self.has_weights else None
        return Block(np.empty((len(span), 0)), self.source.read_targets(span), row_numbers(span), weights)

    def read_bytes(self, span: Span) -> int:
        return self.block_bytes(span)

    def partitions(self, span: Span, *, targets_only: bool = False) -> Iterable[Partition]:
        return self.source.partitions(span, targets_only=True)

    def spec(self) -> Spec:
        return {"data": {"targets_of": self.source.spec()}}


class Weighted(SourceWrapper):
    """``table`` with weights read from ``weights``, a source of as many rows whose only target they are."""

    def __init__(self, table: Source, weights: Source, name: str) -> None:
        if weights.n_rows != table.n_rows:
            raise DataError(
                f"{weights.n_rows:,} weights do not go with {table.n_rows:,} rows: there must be one for each"
            )
        if weights.n_outputs != 1 or weights.y_dtype is None or weights.y_dtype.kind not in "biuf":
            raise DataError(f"weights must be one number for each row, and '{name}' is not")
        super().__init__(table)
        self.has_weights, self.weights, self.name = True, weights, name

    def read_weights(self, span: Span) -> np.ndarray:
        weights = np.asarray(self.weights.read_targets(span), np.float64).reshape(len(span))
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(bad):
            raise DataError(
                f"row {span.start + int(bad[0])} has the weight {weights[bad[0]]} in '{self.name}': weights must be"
                " numbers from 0 up, fix the data"
            )
        return weights

    def read(self, span: Span) -> Block:
        block = self.source.read(span)
        block.weights = self.read_weights(span)
        return block

    def read_bytes(self, span: Span) -> int:
        return self.source.read_bytes(span) + 16 * len(span)

    def block_bytes(self, span: Span) -> int:
        return self.source.block_bytes(span) + 8 * len(span)

    def partitions(self, span: Span, *, targets_only: bool = False) -> Iterable[Partition]:
        table = self.source.partitions(span, targets_only=targets_only)
        return (*table, *self.weights.partitions(span, targets_only=True))

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.source.fingerprint()}{self.weights.fingerprint()}".encode()).hexdigest()

    def stored(self) -> dict[str, str]:
        weights = self.weights.stored()
        return {**self.source.stored(), **{f"the weights, {name}": mark for name, mark in weights.items()}}

    def spec(self) -> Spec:
        return {"data": [self.source.spec()], "sample_weight": self.weights.spec()}

    def describe(self) -> str:
        return f"{self.source.describe()}, weighted by {self.name}"


class Shards(RowReader):
    """Sources with the same columns in a row. Each keeps its own chunks, and no chunk spans two of them."""

    def __init__(self, parts: Sequence[Source]) -> None:
        if not parts:
            raise InputError("a list of shards needs at least one: the list is empty")
        self.parts = tuple(parts)
        first = self.parts[0]
        self.take_shape(first)
        self.location = f"{len(self.parts)} shards"
        self._starts = (0, *accumulate(part.n_rows for part in self.parts))
        self.n_rows = self._starts[-1]
        for other in self.parts[1:]:
            check_agreement(first, other)
        # Parquet shards may differ in this alone: integers become floats only where there are nulls.
        self.x_dtype = np.result_type(*(part.x_dtype for part in self.parts))
        targets = [part.y_dtype for part in self.parts if part.y_dtype is not None]
        self.y_dtype = np.result_type(*targets) if targets else None

    def chunks(self) -> tuple[Span, ...]:
        return tuple(
            Span(start + chunk.start, start + chunk.stop)
            for start, part in zip(self._starts, self.parts, strict=False)
            for chunk in part.chunks()
        )

    def shards(self) -> tuple[Span, ...]:
        return tuple(map(Span, self._starts, self._starts[1:]))

    def recoded(self, columns: Columns) -> Source:
        first = columns.first
        starts = [None if first is None else first + start for start in self._starts]
        other = Shards([part.recoded(columns.at(start)) for part, start in zip(self.parts, starts, strict=False)])
        other.keeps, other.reading = self.keeps, self.reading
        return other

    def first_array(self) -> Source | None:
        return next((array for part in self.parts if (array := part.first_array()) is not None), None)

    def members(self) -> tuple[Source, ...]:
        return tuple(member for part in self.parts for member in part.members())

    @property
    def unknown_levels(self) -> Counter[str]:
        return sum((Counter(part.unknown_levels) for part in self.parts), Counter[str]())

    def note_unknown_levels(self, counts: Mapping[str, int]) -> None:
        self.parts[0].note_unknown_levels(counts)  # only the sum over all parts is told

    def has_partial_reads(self) -> bool:
        return all(part.has_partial_reads() for part in self.parts)

    def _pieces(self, span: Span) -> list[tuple[Source, Span]]:
        """Which rows of which parts these are; of no rows, none of the first part."""
        first = max(0, bisect_right(self._starts, span.start) - 1)
        pieces = []
        for start, part in zip(self._starts[first:], self.parts[first:], strict=False):
            if start >= span.stop:
                break
            pieces.append((part, Span(max(span.start - start, 0), min(span.stop - start, part.n_rows))))
        return pieces or [(self.parts[0], Span(0, 0))]

    def read(self, span: Span) -> Block:
        """One read per part, so that a part which reads X and y together still does."""
        self._check(span)
        blocks = [part.read(piece) for part, piece in self._pieces(span)]
        targets = [block.y for block in blocks if block.y is not None]
        y = _joined(targets, self.y_dtype) if self.has_targets else None
        keys = [block.key for block in blocks if block.key is not None]
        X, key = _joined([block.X for block in blocks], self.x_dtype), _joined(keys, None) if keys else None
        return Block(X, y, row_numbers(span), key=key)

    def partitions(self, span: Span, *, targets_only: bool = False) -> Iterable[Partition]:
        parts = self._pieces(span)
        return (each for part, piece in parts for each in part.partitions(piece, targets_only=targets_only))

    def kept_types(self, asked: Sequence[str]) -> list[tuple[str, np.dtype]]:
        found = [part.kept_types(asked) for part in self.parts]
        alike = all(types == found[0] for types in found)
        return found[0] if alike else [(name, np.dtype("U")) for name, _ in found[0]]

    def read_kept(self, span: Span, types: Sequence[tuple[str, np.dtype]]) -> dict[str, np.ndarray]:
        parts = [part.read_kept(piece, types) for part, piece in self._pieces(span)]
        return {name: np.concatenate([part[name] for part in parts]) for name, _ in types}

    def _features(self, span: Span) -> np.ndarray:
        return self.read(span).X

    def _targets(self, span: Span) -> np.ndarray:
        return _joined([part.read_targets(piece) for part, piece in self._pieces(span)], self.y_dtype)

    def read_bytes(self, span: Span) -> int:
        """One part after the other, then everything once more where it must be joined."""
        pieces = self._pieces(span)
        total = sum(part.read_bytes(piece) for part, piece in pieces)
        joined = len(pieces) > 1 or any(part.x_dtype != self.x_dtype for part, _ in pieces)
        return total + (len(span) * (self.n_features + self.n_outputs) * self.x_dtype.itemsize if joined else 0)

    @property
    def readers(self) -> int:
        return max(part.readers for part in self.parts)

    def drop_pages(self, span: Span) -> None:
        for part, piece in self._pieces(span):
            part.drop_pages(piece)

    @property
    def declared_dtypes(self) -> tuple[np.dtype, np.dtype | None]:
        return self.parts[0].declared_dtypes

    @cached_property
    def _fingerprint(self) -> str:
        """Of all parts, so that a change in the middle one shows too."""
        return hashlib.sha256("".join(part.fingerprint() for part in self.parts).encode()).hexdigest()

    def stored(self) -> dict[str, str]:
        """Shards whose files have the same names are numbered."""
        marks: dict[str, str] = {}
        for number, part in enumerate(self.parts):
            found = part.stored()
            marks |= {f"shard {number}, {name}" if name in marks else name: mark for name, mark in found.items()}
        return marks

    def spec(self) -> Spec:
        return {"data": [part.spec() for part in self.parts]}

    def describe(self) -> str:
        return f"{self.location} from {self.parts[0].location} on: {describe_size(self)}"


def check_agreement(first: Source, other: Source) -> None:
    """Raise a DataError naming both where two shards are not parts of the same table."""
    facts: list[tuple[str, Callable[[Source], object]]] = [
        ("columns", lambda source: source.n_features),
        ("target columns", lambda source: source.n_outputs),
        ("feature names", lambda source: source.feature_names),
        ("a coding of columns", lambda source: source.columns),
        ("types of X and y", lambda source: tuple(map(str, source.declared_dtypes))),
    ]
    for fact, get in facts:
        if get(first) != get(other):
            raise DataError(
                f"shards must be alike, but {first.location} has {fact} {get(first)} and {other.location} {get(other)}"
            )


def _joined(pieces: list[np.ndarray], dtype: np.dtype | None) -> np.ndarray:
    whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    is_text = dtype is None or dtype.kind == "U"
    return whole if is_text else whole.astype(dtype, copy=False)
