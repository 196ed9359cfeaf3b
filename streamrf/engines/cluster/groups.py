"""Rows in groups, as many in each as keep a worker busy for some seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from streamrf.data.source import Span
from streamrf.engines.base import Order
from streamrf.statistics.rowset import RowSet

Unit = tuple[Span, ...]  # spans that must stay together


@dataclass
class Group:
    """Units that one worker sums or writes in one go, and how often that took too long."""

    units: tuple[Unit, ...]
    given_up: int = 0

    @cached_property
    def spans(self) -> Unit:
        return tuple(chain.from_iterable(self.units))

    @cached_property
    def rows(self) -> int:
        return _rows(self.spans)


class Groups:
    """What is still to be done, and how many ``rows`` that is. A group that comes back goes out again as it was."""

    def __init__(self, units: Sequence[Unit], order: Order | None = None) -> None:
        self._units: deque[Unit] = deque(units if order is None else [units[i] for i in order(len(units))])
        self._again: deque[Group] = deque()
        self.rows = sum(map(_rows, units))

    def __bool__(self) -> bool:
        return bool(self._units or self._again)

    def take(self, rows: float) -> Group:
        """The next group: units until there are about ``rows`` rows, at least one unit."""
        group = self._again.popleft() if self._again else Group(self._joined(rows))
        self.rows -= group.rows
        return group

    def _joined(self, rows: float) -> tuple[Unit, ...]:
        units = [self._units.popleft()]
        count = _rows(units[0])
        while self._units and count + _rows(self._units[0]) <= rows:
            units.append(self._units.popleft())
            count += _rows(units[-1])
        return tuple(units)

    def put_back(self, group: Group) -> None:
        self.rows += group.rows
        if group.given_up and len(group.units) > 1:  # others share what was too much for one
            self._units.extend(group.units)
        else:
            self._again.append(group)


def _rows(spans: Sequence[Span]) -> int:
    return sum(map(len, spans))


def row_set(groups: Iterable[Group]) -> RowSet:
    """The rows of these groups; a row that is in two of them is refused."""
    return RowSet(span for group in groups for span in group.spans)


class Pace:
    """How fast a typical worker is, and from that how many rows the next group has.

    A group takes about ``seconds``, but never more than half of a worker's share of what is left: so groups shrink
    towards the end, and all workers finish together. They do not shrink below what keeps the driver free for all the
    others, if a share has that much.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._rates: dict[str, float] = {}

    def note(self, worker: str, rows: int, seconds: float) -> None:
        """What a finished group says about its worker; the newest counts half."""
        rate = rows / max(seconds, 1e-6)
        self._rates[worker] = (self._rates.get(worker, rate) + rate) / 2

    @property
    def rate(self) -> float:
        """Rows a second of a typical worker; 0 where none is known yet."""
        return sum(self._rates.values()) / len(self._rates) if self._rates else 0.0

    def seconds_left(self, worker: str, rows: int, elapsed: float) -> float:
        """Of a group on this worker; one that should be done by now may take as long again as it is late."""
        return abs(rows / max(self._rates.get(worker, self.rate), 1e-6) - elapsed)

    def rows(self, workers: int, rows_left: int, least: float = 0.0) -> float:
        """Rows for the next group; 0, which means one unit, before any speed is known."""
        share, rate = rows_left / max(1, workers), self.rate
        return min(rate * self.seconds, max(share / 2, min(share, rate * least)))


def units_of(spans: Iterable[Span], step: int | None = None) -> list[Unit]:
    """Each span by itself; with ``step``, spans cut at its multiples and those between two multiples together."""
    if step is None:
        return [(span,) for span in spans]
    units: dict[int, list[Span]] = {}
    for span in spans:
        cuts = [span.start, *range((span.start // step + 1) * step, span.stop, step), span.stop]
        for piece in map(Span, cuts, cuts[1:]):
            units.setdefault(piece.start // step, []).append(piece)
    return [tuple(unit) for unit in units.values()]


def joined(spans: Iterable[Span], fits: Callable[[Span], bool]) -> list[Span]:
    """Neighbours as one span, as long as that fits: small units make for balance, long reads for speed."""
    result: list[Span] = []
    for span in spans:
        longer = Span(result[-1].start, span.stop) if result and result[-1].stop == span.start else span
        if longer is not span and fits(longer):
            result[-1] = longer
        else:
            result.append(span)
    return result
