"""An output written by many workers: each writes the rows of its groups, straight to where they belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamrf.data.source import Block
from streamrf.data.writers import Columns, TableWriter
from streamrf.engines.cluster.crew import Crew, Hand
from streamrf.engines.cluster.errands import Orders, write_rows
from streamrf.engines.cluster.foreman import Errand, Foreman
from streamrf.engines.cluster.groups import Groups
from streamrf.support.threads import Threads


class Writing(Foreman):
    """The foreman of an output; ``columns`` makes what is written of a block, ``parts`` is where it goes."""

    def __init__(
        self, columns: Callable[[Block, Threads], Columns], parts: TableWriter, crew: Crew, groups: Groups,
        orders: Orders, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(crew, groups, **settings)
        self.parts, self.orders = parts, {**orders, "output": parts.spec()}
        self.columns = crew.share(columns)
        self.done = 0

    def run(self, watch: Callable[[int], None]) -> None:
        while self.groups or self.running:
            self.step()
            watch(self.done + sum(self.crew.progress.get(e.ticket.number, 0) for e in self.running.values()))

    def next_errand(self, hand: Hand) -> Errand | None:
        if not self.groups:
            return None
        group = self.take_group(hand)
        orders = {**self.orders, "spans": self.spans_of(group)}
        ticket = self.crew.give(hand.address, write_rows, self.columns, orders=orders)
        return Errand(ticket, hand.address, 0, group)

    def accept(self, errand: Errand) -> None:
        assert errand.group is not None
        self.parts.wrote(errand.group.spans)
        self.done += errand.group.rows
