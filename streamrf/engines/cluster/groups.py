"""Rows in groups, as many in each as keep a worker busy for some seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from streamrf.data.source import Source, Span
from streamrf.engines.base import Order

Group = tuple[Span, ...]  # what one worker sums or writes in one go; a unit of work is the least that a group can be


def rows_of(group: Group) -> int:
    return sum(map(len, group))


class Groups:
    """What is still to be done, and how many ``rows`` that is.

    Where ``fixed``, a group that comes back goes out again as it was: what two workers write must be the same file.
    """

    def __init__(self, units: Sequence[Group], order: Order | None = None, fixed: bool = False) -> None:
        self._units = deque(units if order is None else [units[i] for i in order(len(units))])
        self._again: deque[Group] = deque()
        self._fixed = fixed
        self.rows = sum(map(rows_of, units))

    def __bool__(self) -> bool:
        return bool(self._units or self._again)

    def take(self, rows: float) -> Group:
        """The next group: units until there are about ``rows`` rows, at least one unit."""
        group = self._again.popleft() if self._again else self._joined(rows)
        self.rows -= rows_of(group)
        return group

    def _joined(self, rows: float) -> Group:
        group = list(self._units.popleft())
        rows -= rows_of(tuple(group))
        while self._units and (more := rows_of(self._units[0])) <= rows:
            group += self._units.popleft()
            rows -= more
        return tuple(group)

    def put_back(self, groups: Iterable[Group]) -> None:
        for group in groups:
            if self._fixed:
                self._again.append(group)
            else:
                self._units.extendleft((span,) for span in reversed(group))
            self.rows += rows_of(group)


def units_of(spans: Iterable[Span], step: int | None = None) -> list[Group]:
    """Each span by itself; with ``step``, spans cut at its multiples and those between two multiples together."""
    if step is None:
        return [(span,) for span in spans]
    units: dict[int, list[Span]] = {}
    for span in spans:
        cuts = [span.start, *range((span.start // step + 1) * step, span.stop, step), span.stop]
        for piece in map(Span, cuts, cuts[1:]):
            units.setdefault(piece.start // step, []).append(piece)
    return [tuple(unit) for unit in units.values()]


def by_partition(units: list[Group], source: Source) -> list[Group]:
    """Spans that share a partition of a dask collection together: whoever computes it reads all of them."""
    result: list[Group] = []
    last: object = None
    for unit in units:
        needed = [(id(each[0]), each[1]) for span in unit for each in source.partitions(span)]
        if needed and result and last in needed:
            result[-1] += unit
        else:
            result.append(unit)
        last = needed[-1] if needed else None
    return result
