"""Exact bookkeeping of which rows a sum holds: nothing is added twice, nothing is removed that was never there."""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

from streamrf.data.source import Source, Span
from streamrf.support.errors import FileFormatError, InputError, MismatchError
from streamrf.support.storage import safejson
from streamrf.support.units import format_count


class RowSet:
    """A set of row numbers, held as sorted half-open spans with gaps between them.

    ``add`` and ``remove`` are exact: a row is added once and removed only if it is there, and a call that is refused
    changes nothing. ``union`` and ``intersection`` are those of plain sets.
    """

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for span in spans:
            self.add(span)

    def spans(self) -> tuple[Span, ...]:
        """The rows in order, as few spans as possible."""
        return tuple(map(Span, self._starts, self._stops))

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(self._stops) - sum(self._starts)

    def add(self, span: tuple[int, int]) -> None:
        """Put the rows of one span in; a row that is there already is a MismatchError."""
        start, stop = _checked(span)
        if start == stop:
            return
        at = bisect_right(self._stops, start)
        if at < len(self._starts) and self._starts[at] < stop:
            self._refuse_overlap(RowSet([(start, stop)]))
        joins_left = at > 0 and self._stops[at - 1] == start
        joins_right = at < len(self._starts) and self._starts[at] == stop
        first, last = at - joins_left, at + joins_right
        start = self._starts[first] if joins_left else start
        stop = self._stops[at] if joins_right else stop
        self._starts[first:last], self._stops[first:last] = [start], [stop]

    def remove(self, span: tuple[int, int]) -> None:
        """Take the rows of one span out; a row that is not there is a MismatchError."""
        start, stop = _checked(span)
        if start == stop:
            return
        at = bisect_right(self._starts, start) - 1
        if at < 0 or self._stops[at] < stop:
            self._refuse_missing(RowSet([(start, stop)]))
        around = [(a, b) for a, b in ((self._starts[at], start), (stop, self._stops[at])) if a < b]
        self._starts[at : at + 1] = [a for a, _ in around]
        self._stops[at : at + 1] = [b for _, b in around]

    def add_all(self, other: RowSet) -> None:
        """Put all rows of ``other`` in; any row that is there already is a MismatchError, and then none goes in."""
        if self.intersects(other):
            self._refuse_overlap(other)
        self._take(self.union(other))

    def remove_all(self, other: RowSet) -> None:
        """Take all rows of ``other`` out; any row that is not there is a MismatchError, and then none goes."""
        if not self.contains_all(other):
            self._refuse_missing(other)
        self._take(self.difference(other))

    def _refuse_overlap(self, other: RowSet) -> None:
        raise MismatchError(f"{_rows(self.intersection(other))} would be added a second time.")

    def _refuse_missing(self, other: RowSet) -> None:
        raise MismatchError(f"{_rows(other.difference(self))} cannot be removed: not among the rows added before.")

    def _take(self, other: RowSet) -> None:
        self._starts, self._stops = other._starts, other._stops

    def contains(self, span: tuple[int, int]) -> bool:
        """Whether every row of the span is in."""
        start, stop = _checked(span)
        at = bisect_right(self._starts, start) - 1
        return start == stop or (at >= 0 and stop <= self._stops[at])

    def contains_all(self, other: RowSet) -> bool:
        """Whether every row of ``other`` is in."""
        return all(map(self.contains, other.spans()))

    def __contains__(self, row: int) -> bool:
        return row >= 0 and self.contains((row, row + 1))

    def intersects(self, other: RowSet) -> bool:
        """Whether any row is in both."""
        return any(True for _ in _common(self.spans(), other.spans()))

    def intersection(self, other: RowSet) -> RowSet:
        """The rows that are in both."""
        return RowSet(_common(self.spans(), other.spans()))

    def union(self, other: RowSet) -> RowSet:
        """The rows that are in either."""
        result = RowSet()
        for start, stop in sorted(self.spans() + other.spans()):
            if result._stops and start <= result._stops[-1]:
                result._stops[-1] = max(stop, result._stops[-1])
            else:
                result._starts.append(start)
                result._stops.append(stop)
        return result

    def difference(self, other: RowSet) -> RowSet:
        """The rows that are here and not in ``other``."""
        return self.intersection(other.complement(self._stops[-1])) if self else RowSet()

    def complement(self, n_rows: int) -> RowSet:
        """The rows below ``n_rows`` that are not in: what is still to do."""
        edges = [0, *(edge for span in self.spans() for edge in span), n_rows]
        gaps = zip(edges[::2], edges[1::2], strict=True)
        return RowSet((start, min(stop, n_rows)) for start, stop in gaps if start < min(stop, n_rows))

    def copy(self) -> RowSet:
        return self.union(RowSet())

    def to_json(self) -> list[list[int]]:
        """``[[start, stop], ...]``: equal sets give equal JSON."""
        return [[start, stop] for start, stop in self.spans()]

    @classmethod
    def from_json(cls, value: Any, where: str = "a row set") -> Self:
        """The set that ``to_json`` described; anything else is a FileFormatError."""
        edges = _json_edges(value, where)
        if any(a >= b for a, b in pairwise(edges)) or (edges and edges[0] < 0):
            raise FileFormatError(f"{where}: the row spans are not in rising order; the file is damaged.")
        result = cls()
        result._starts, result._stops = edges[::2], edges[1::2]
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSet) and (self._starts, self._stops) == (other._starts, other._stops)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __repr__(self) -> str:
        return f"RowSet({self.to_json()})"


def _checked(span: tuple[int, int]) -> tuple[int, int]:
    start, stop = span
    start, stop = operator.index(start), operator.index(stop)
    if not 0 <= start <= stop:
        raise InputError(f"Rows {start} to {stop} are not a range of rows; 0 <= start <= stop is needed.")
    return start, stop


def _common(first: tuple[Span, ...], second: tuple[Span, ...]) -> Iterator[tuple[int, int]]:
    """Spans in both of two sorted lists, by walking along the two together."""
    i = j = 0
    while i < len(first) and j < len(second):
        start, stop = max(first[i].start, second[j].start), min(first[i].stop, second[j].stop)
        if start < stop:
            yield start, stop
        if first[i].stop < second[j].stop:
            i += 1
        else:
            j += 1


def _rows(rows: RowSet) -> str:
    """``rows 5 to 9`` (both included, as people count), with the total where there are several spans."""
    first, total = rows.spans()[0], rows.count
    text = f"Rows {first.start} to {first.stop - 1}"
    return text if total == len(first) else f"{text} and others ({format_count(total)} rows)"


def _json_edges(value: Any, where: str) -> list[int]:
    if not isinstance(value, list) or not all(map(_is_pair, value)):
        raise FileFormatError(f"{where}: a list of [start, stop] pairs is needed; the file is damaged.")
    return [edge for pair in value for edge in pair]


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(edge) is int for edge in value)


@dataclass
class Shard:
    """The rows of one shard that are in, of the ``n_rows`` it has. ``label`` is for people only.

    ``mark`` is a sum of hashes of these rows, where one was made: the last rows to leave must leave it at zero.
    """

    label: str
    n_rows: int
    rows: RowSet = field(default_factory=RowSet)
    mark: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shard) and (self.n_rows, self.rows) == (other.n_rows, other.rows)

    def copy(self) -> Shard:
        return Shard(self.label, self.n_rows, self.rows.copy(), self.mark)

    def add(self, rows: RowSet, mark: int | None) -> None:
        known = self.mark if self.rows else 0
        self.rows.add_all(rows)
        self.mark = None if known is None or mark is None else (known + mark) % 2**64

    def remove(self, rows: RowSet, mark: int | None) -> None:
        left = None if self.mark is None or mark is None else (self.mark - mark) % 2**64
        if left and self.rows == rows:
            raise MismatchError("it has changed since it was added, so its sums are not those to take out.")
        self.rows.remove_all(rows)
        self.mark = left


class Ledger:
    """Which rows of which shards are in; a shard is known by its fingerprint, wherever it lies.

    Two ledgers are equal, and have equal digests, when they hold the same rows of the same shards; labels do not count.
    A shard whose last row is removed is forgotten altogether.
    """

    def __init__(self) -> None:
        self._shards: dict[str, Shard] = {}

    def shards(self) -> dict[str, Shard]:
        """A copy: fingerprint -> shard, in the order of the fingerprints."""
        return {key: shard.copy() for key, shard in sorted(self._shards.items())}

    def rows(self, fingerprint: str) -> RowSet:
        """A copy of the rows of one shard; none for a shard that is not known."""
        shard = self._shards.get(fingerprint)
        return shard.rows.copy() if shard else RowSet()

    @property
    def count(self) -> int:
        """How many rows are in."""
        return sum(shard.rows.count for shard in self._shards.values())

    def add(self, fingerprint: str, label: str, n_rows: int, rows: RowSet, mark: int | None = None) -> None:
        """Put rows of a shard in; a row that is in already is a MismatchError, and then none goes in."""
        shard = self._shards.get(fingerprint) or Shard(label, operator.index(n_rows))
        _check_same_size(shard, label, n_rows)
        _check_within(label, n_rows, rows)
        _named(label, shard.add, rows, mark)
        if shard.rows:
            self._shards[fingerprint] = shard

    def remove(self, fingerprint: str, label: str, rows: RowSet, mark: int | None = None) -> None:
        """Take rows of a shard out; a row that is not in is a MismatchError, and then none goes."""
        shard = self._shards.get(fingerprint)
        if shard is None:
            raise MismatchError(
                f"{label} is not among the {format_count(len(self._shards))} shards added before "
                f"(its fingerprint {fingerprint} is not in the ledger)."
            )
        _named(label, shard.remove, rows, mark)
        if not shard.rows:
            del self._shards[fingerprint]

    def add_all(self, other: Ledger) -> None:
        """Put everything of another ledger in, or nothing: any row in both is a MismatchError."""
        merged = self.copy()
        for key, shard in other.shards().items():
            merged.add(key, shard.label, shard.n_rows, shard.rows, shard.mark)
        self._shards = merged._shards

    def remove_all(self, other: Ledger) -> None:
        """Take everything of another ledger out, or nothing: any row that is not here is a MismatchError."""
        rest = self.copy()
        for key, shard in other.shards().items():
            rest.remove(key, shard.label, shard.rows, shard.mark)
        self._shards = rest._shards

    def contains(self, fingerprint: str, span: tuple[int, int]) -> bool:
        """Whether every row of the span of that shard is in."""
        return self.rows(fingerprint).contains(span)

    def intersects(self, other: Ledger) -> bool:
        """Whether any row is in both."""
        return any(shard.rows.intersects(other.rows(key)) for key, shard in self._shards.items())

    def copy(self) -> Ledger:
        result = Ledger()
        result._shards = self.shards()
        return result

    def digest(self) -> str:
        """SHA-256 of what is in, labels left out."""
        return safejson.digest([[key, s.n_rows, s.rows.to_json()] for key, s in sorted(self._shards.items())])

    def to_json(self) -> dict[str, Any]:
        """``{fingerprint: {"label": ..., "n_rows": ..., "rows": [[start, stop], ...], "mark": ...}}``."""
        return {key: _shard_to_json(shard) for key, shard in sorted(self._shards.items())}

    @classmethod
    def from_json(cls, value: Any, where: str = "a ledger") -> Self:
        """The ledger that ``to_json`` described; anything else is a FileFormatError."""
        if not isinstance(value, dict):
            raise FileFormatError(f"{where}: an object of shards is needed; the file is damaged.")
        result = cls()
        result._shards = {key: _shard_from_json(entry, f"{where}, shard {key}") for key, entry in value.items()}
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._shards == other._shards

    def __bool__(self) -> bool:
        return bool(self._shards)

    def __repr__(self) -> str:
        return f"Ledger({format_count(self.count)} rows of {format_count(len(self._shards))} shards)"


def ledger_of(source: Source, rows: RowSet, marks: Sequence[int] | None = None) -> Ledger:
    """The rows of a source by the shards they lie in; a shard that is listed twice is a MismatchError."""
    ledger, start = Ledger(), 0
    for number, member in enumerate(source.members()):
        stop = start + member.n_rows
        inside = rows.intersection(RowSet([(start, stop)]))
        own = RowSet((span.start - start, span.stop - start) for span in inside.spans())
        mark = None if marks is None else int(marks[number])
        ledger.add(member.fingerprint(), getattr(member, "location", "a shard"), member.n_rows, own, mark)
        start = stop
    return ledger


def _check_same_size(shard: Shard, label: str, n_rows: int) -> None:
    if shard.n_rows != n_rows:
        raise MismatchError(
            f"{label} has {format_count(n_rows)} rows but the same fingerprint as {shard.label}, "
            f"which had {format_count(shard.n_rows)}; one of them was changed after it was added."
        )


def _check_within(label: str, n_rows: int, rows: RowSet) -> None:
    if rows and rows.spans()[-1].stop > n_rows:
        last = rows.spans()[-1].stop - 1
        raise InputError(f"{label} has {format_count(n_rows)} rows, so there is no row {last} to add.")


def _named(label: str, change: Any, rows: RowSet, mark: int | None) -> None:
    """Say which shard a refused change was about."""
    try:
        change(rows, mark)
    except MismatchError as error:
        raise MismatchError(f"{label}: {error}") from None


def _shard_to_json(shard: Shard) -> dict[str, Any]:
    entry = {"label": shard.label, "n_rows": shard.n_rows, "rows": shard.rows.to_json()}
    return entry if shard.mark is None else {**entry, "mark": f"{shard.mark:016x}"}


def _mark_from_json(text: Any, where: str) -> int | None:
    if text is not None and not (isinstance(text, str) and re.fullmatch(r"[0-9a-f]{16}", text)):
        raise FileFormatError(f"{where}: the mark is not 16 hexadecimal digits; the file is damaged.")
    return None if text is None else int(text, 16)


def _shard_from_json(entry: Any, where: str) -> Shard:
    if not isinstance(entry, dict) or not {"label", "n_rows", "rows"} <= entry.keys():
        raise FileFormatError(f"{where}: label, n_rows and rows are needed; the file is damaged.")
    rows = RowSet.from_json(entry["rows"], where)
    n_rows = entry["n_rows"]
    if not isinstance(entry["label"], str) or type(n_rows) is not int or not rows or rows.spans()[-1].stop > n_rows:
        raise FileFormatError(f"{where}: label, n_rows and rows do not belong together; the file is damaged.")
    return Shard(entry["label"], n_rows, rows, _mark_from_json(entry.get("mark"), where))
