"""One pass summed by many workers: groups of rows become parts, parts meet in a tree, and one sum comes back.

Each worker adds its next group on top of the part it holds, so it holds one sum and works on another. When sums are
called for (the end of the pass, a checkpoint, a stop), parts are added in pairs on the workers until one is left, which
is fetched. What is begun after the call belongs to the next epoch, so nobody waits for a checkpoint.

Which rows are in which part is known here and only here: a part that is lost puts its groups back among those to do,
and a part that is fetched is added once, its rows checked against those that are in already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic

from streamrf.engines.base import Pass, S, Watcher
from streamrf.engines.cluster.crew import Crew, Hand, Ticket
from streamrf.engines.cluster.errands import Orders, add_sums, sum_rows
from streamrf.engines.cluster.foreman import Errand, Foreman, Part
from streamrf.engines.cluster.groups import Groups, row_set
from streamrf.engines.cluster.holdings import Holdings
from streamrf.support.errors import DataError, StorageError, StreamRFError

MAX_FETCHES = 3  # times that one result is asked for


class Summing(Foreman, Generic[S]):
    """The foreman of a pass."""

    def __init__(self, job: Pass[S], crew: Crew, groups: Groups, orders: Orders, **settings: Any) -> None:
        super().__init__(crew, groups, **settings)
        self.job, self.orders = job, orders
        self.statistic = crew.share(job.statistic)
        self.held = Holdings()
        self.failure: Exception | None = None
        job.whole = True  # sums enter with the rows that they are of
        self.epoch = 0
        self.fetching: tuple[Part, Ticket] | None = None
        self._fetches = 0

    def run(self, watch: Watcher) -> S:
        while self.groups or self._under_way():
            self._step()
            self._follow_wishes()
            self._fetch_the_last()
            self.job.pending = self._pending()
            watch(self.job)
            self.job.arrived = False
        return self.job.state

    def _under_way(self) -> bool:
        return bool(self.running or self.held or self.fetching)

    def _step(self) -> None:
        """Rows that cannot be read end the pass, once what was summed beside them is here: it can be kept then."""
        if self.failure and not self._under_way():
            raise self.failure
        try:
            self.step()
        except (DataError, StorageError) as error:
            self.failure = self.failure or error
        except StreamRFError as error:  # nobody is left to bring the sums
            raise self.failure or error from error

    @property
    def _stopping(self) -> bool:
        """Nothing new is begun: a watcher wants it so, or rows cannot be read."""
        return self.job.stop or self.failure is not None

    def next_errand(self, hand: Hand) -> Errand | None:
        pair = self._pair(hand.address)
        if pair:
            return self._merge(hand.address, *pair)
        return self._sum(hand) if self.groups and not self._stopping else None

    def _pair(self, home: str) -> tuple[Part, Part] | None:
        """A part of this worker that is called for, and another: its own if it has two, else anyone's.

        A worker without a part takes one of a paused worker, which cannot add anything itself.
        """
        own = self._called(self.held.of(home)) or self._stranded()
        if not own:
            return None
        first = own[0]
        others = (part for part in self.held if part is not first and self._is_called_for(part.epoch))
        second = own[1] if len(own) > 1 else next(others, None)
        return (first, second) if second else None

    def _called(self, parts: Iterable[Part]) -> list[Part]:
        return [part for part in parts if self._is_called_for(part.epoch)]

    def _stranded(self) -> list[Part]:
        """Parts of paused workers, for a worker that has none."""
        return [part for home in self.paused for part in self._called(self.held.of(home))]

    def _is_called_for(self, epoch: int) -> bool:
        return epoch < self.epoch or self._stopping or not self.groups

    def _merge(self, home: str, first: Part, second: Part) -> Errand:
        inputs = self._take(first, second)
        ticket = self.crew.give(home, add_sums, self.statistic, first.ticket.future, second.ticket.future)
        return Errand(ticket, home, max(first.epoch, second.epoch), None, inputs)

    def _sum(self, hand: Hand) -> Errand:
        inputs = self._take(*[part for part in self.held.of(hand.address) if part.epoch == self.epoch][:1])
        group = self.take_group(hand)
        earlier = inputs[0].ticket.future if inputs else None
        orders = {**self.orders, "spans": self.spans_of(group)}
        ticket = self.crew.give(hand.address, sum_rows, self.statistic, earlier, orders=orders)
        return Errand(ticket, hand.address, self.epoch, group, inputs)

    def _take(self, *parts: Part) -> list[Part]:
        for part in parts:
            self.held.remove(part)
        return list(parts)

    def accept(self, errand: Errand) -> None:
        self.held.add(Part(errand.ticket, errand.home, errand.groups, errand.epoch))
        for part in errand.inputs:
            self.crew.drop(part.ticket)

    def give_back(self, inputs: Iterable[Part]) -> None:
        for part in inputs:
            self.held.add(part)

    def see_losses(self) -> None:
        """Parts whose worker is gone: found elsewhere if it left in good order, else their groups are done again.

        Whoever adds such a part may wait for it for ever, and is called off.
        """
        for errand in [each for each in self.running.values() if any(map(self._is_astray, each.inputs))]:
            self.call_off(errand)
        astray = [part for part in self._all_held() if self._is_astray(part)]
        found = self.crew.whereabouts(part.ticket for part in astray if not part.ticket.is_lost) if astray else {}
        for part in astray:
            home = found.get(part.ticket.number)
            if home is None:
                self._lose_part(part)
            elif self.fetching and self.fetching[0] is part:
                part.home = home
            else:
                self.held.move(part, home)

    def _is_astray(self, part: Part) -> bool:
        return part.home not in self.crew.hands or part.ticket.is_lost

    def _all_held(self) -> list[Part]:
        return [*self.held, *([self.fetching[0]] if self.fetching else [])]

    def _lose_part(self, part: Part) -> None:
        if self.fetching and self.fetching[0] is part:
            self.crew.drop(self.fetching[1])
            self.fetching = None
        self._take(part)
        self.crew.drop(part.ticket)
        for group in part.groups:
            self.groups.put_back(group)

    def _follow_wishes(self) -> None:
        """A watcher may ask for all sums so far, or for a stop."""
        if self._stopping:
            for errand in [errand for errand in self.running.values() if errand.group]:
                self.call_off(errand)
        elif self.job.collect and not self._is_collecting():
            self.epoch += 1
        self.job.collect = False

    def _is_collecting(self) -> bool:
        epochs = [part.epoch for part in self._all_held()] + [errand.epoch for errand in self.running.values()]
        return any(epoch < self.epoch for epoch in epochs)

    def _fetch_the_last(self) -> None:
        """Once all that was called for is in one part, bring it here."""
        called = self._called(self.held)
        under_way = any(self._is_called_for(errand.epoch) for errand in self.running.values())
        if len(called) == 1 and not under_way and not self.fetching:
            self._take(called[0])
            self.fetching = called[0], self.crew.fetch(called[0].ticket)

    def other_ticket(self, ticket: Ticket) -> None:
        if not self.fetching or self.fetching[1] is not ticket:
            return
        part, _ = self.fetching
        self.fetching = None
        failure = ticket.failure()
        if failure is None:
            self._arrive(part, ticket.value)
        elif self._fetches < MAX_FETCHES:  # the worker may be going: then it is seen as lost, else asked again
            self._fetches += 1
            self.held.add(part)
        else:
            raise failure

    def _arrive(self, part: Part, sums: dict[str, Any]) -> None:
        """The one place where sums enter the pass."""
        self.job.done.add_all(row_set(part.groups))
        self.job.state += self.job.statistic.load(sums["arrays"])  # type: ignore[operator]
        self.job.dropped += sums["dropped"]
        self.job.arrived, self._fetches = True, 0
        self.crew.drop(part.ticket)

    def _pending(self) -> int:
        parts = [*self._all_held(), *(part for errand in self.running.values() for part in errand.inputs)]
        rows = sum(part.rows for part in parts)
        return rows + sum(self.crew.progress.get(errand.ticket.number, 0) for errand in self.running.values())
