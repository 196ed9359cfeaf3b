"""Hands out groups of rows, one errand a worker at a time, and gives to others what a lost worker had."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from streamrf.data.source import Span
from streamrf.engines.cluster.crew import CalledOff, Crew, Hand, KilledWorker, Ticket
from streamrf.engines.cluster.groups import Group, Groups, Pace, joined
from streamrf.support.errors import BudgetError, ClusterError, MissingDependencyError
from streamrf.support.units import format_bytes, format_seconds

TICK = 0.1  # seconds between two looks at what is going on
MAX_DEATHS = 3  # workers that may be lost over the same rows
PATIENCE = 300.0  # seconds without any worker before we give up
ROUND = 0.003  # seconds that a group takes at least for each worker there is: handing one out keeps us busy for half
STUCK = 10.0  # seconds without news of an errand on a paused worker: most likely it was never begun


@dataclass(eq=False)
class Part:
    """A sum on a worker, and the groups of rows in it."""

    ticket: Ticket
    home: str
    groups: list[Group]
    epoch: int  # what is begun after a call for all sums belongs to the next epoch
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = sum(group.rows for group in self.groups)


@dataclass(eq=False)
class Errand:
    """Something a worker is doing: a group of rows, on top of parts it holds or fetches."""

    ticket: Ticket
    home: str
    epoch: int
    group: Group | None = None
    inputs: list[Part] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that it adds to what there was."""
        return self.group.rows if self.group else 0

    @property
    def groups(self) -> list[Group]:
        """Every group that will be in the result."""
        own = [self.group] if self.group else []
        return own + [group for part in self.inputs for group in part.groups]


class Foreman(ABC):
    """The loop that all errands share. Whoever is free gets work; whoever is gone is made up for."""

    def __init__(
        self, crew: Crew, groups: Groups, seconds: float, fits: Callable[[Span], bool], patience: float = PATIENCE
    ) -> None:
        self.crew, self.groups, self.pace, self.fits = crew, groups, Pace(seconds), fits
        self.running: dict[str, Errand] = {}  # by worker
        self._rows_given = 0  # in groups that are under way
        self.paused: list[str] = []  # workers that take nothing new
        self.patience = patience
        self._last_help = crew.now()
        self._quiet: dict[int, tuple[int, float]] = {}  # rows done of errands on paused workers, and since when so many

    def step(self) -> None:
        """See who is there, give work to whoever is free, and take what is finished."""
        self.crew.look()
        self._check_help()
        for errand in [e for e in self.running.values() if e.home not in self.crew.hands or e.ticket.is_lost]:
            self._lose(errand)
        self.paused = [hand.address for hand in self.crew.hands.values() if hand.paused]
        self._take_from_the_paused()
        self.see_losses()
        workers = [hand for hand in self.crew.hands.values() if not hand.paused]
        self._rate = self.pace.total(hand.address for hand in workers)
        for hand in workers:
            if hand.address in self.running:
                continue
            given = self.next_errand(hand)
            if given is not None:
                self.running[hand.address] = given
                self._rows_given += given.rows
        self._finish_all(self.crew.finished(TICK))

    def _finish_all(self, tickets: Iterable[Ticket]) -> None:
        """Every one of them is seen to, also after one that failed: whoever goes on after that must not miss any."""
        failures = []
        for ticket in tickets:
            try:
                self._finish(ticket)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _take_from_the_paused(self) -> None:
        """Dask does not begin what a worker has before it when its memory is almost full: others are to do it."""
        last_known, self._quiet = self._quiet, {}
        for errand in [self.running[home] for home in self.paused if home in self.running]:
            number = errand.ticket.number
            rows = self.crew.progress.get(number, 0)
            known, since = last_known.get(number, (None, 0.0))
            self._quiet[number] = (rows, since if rows == known else self.crew.now())
            if self.crew.now() - self._quiet[number][1] >= STUCK:
                self.call_off(errand)

    @abstractmethod
    def next_errand(self, hand: Hand) -> Errand | None:
        """What a free worker does next, given to it already."""

    @abstractmethod
    def accept(self, errand: Errand) -> None:
        """An errand ended well."""

    def see_losses(self) -> None:  # noqa: B027 (not every foreman needs it)
        """Something may have been lost with a worker."""

    def give_back(self, inputs: Iterable[Part]) -> None:  # noqa: B027 (not every foreman needs it)
        """An errand came to nothing; its inputs are free again."""

    def other_ticket(self, ticket: Ticket) -> None:  # noqa: B027 (not every foreman needs it)
        """Something ended that is not a worker's errand."""

    def take_group(self, hand: Hand) -> Group:
        least, left = ROUND * len(self.crew.hands), self.groups.rows + self._rows_given
        return self.groups.take(self.pace.rows(hand.address, self._rate, left, least))

    def spans_of(self, group: Group) -> list[tuple[int, int]]:
        """What a worker reads for a group."""
        return [(span.start, span.stop) for span in joined(group.spans, self.fits)]

    def _finish(self, ticket: Ticket) -> None:
        errand = self.running.get(ticket.home)
        if errand is None or errand.ticket is not ticket:
            self.other_ticket(ticket)
            return
        failure = ticket.failure()
        if isinstance(failure, CalledOff):
            self.call_off(errand)
        elif ticket.is_lost or isinstance(failure, KilledWorker):
            self._lose(errand)
        elif failure is not None:
            self.call_off(errand)
            raise explain(failure, errand)
        else:
            self._succeed(errand)

    def _succeed(self, errand: Errand) -> None:
        self._remove(errand)
        if errand.group is not None:
            self.pace.note(errand.home, errand.group.rows, errand.ticket.seconds)
        self.accept(errand)

    def _remove(self, errand: Errand) -> None:
        del self.running[errand.home]
        self._rows_given -= errand.rows
        self.crew.progress.pop(errand.ticket.number, None)

    def _lose(self, errand: Errand) -> None:
        """A worker died over an errand: its rows go to someone else, unless that has happened too often."""
        self.call_off(errand)
        if errand.group is None:
            return
        errand.group.deaths += 1
        if errand.group.deaths >= MAX_DEATHS:
            raise ClusterError(
                f"{errand.group.deaths} workers were lost, one after the other, over rows {errand.group.describe()}:"
                f" most likely each ran out of memory ({self.worker_memory()}); give the workers more memory, use fewer"
                " workers on a machine, or lower --D"
            )

    def worker_memory(self) -> str:
        limit = self.crew.smallest
        return f"the limit of a worker is {format_bytes(limit)}" if limit else "they have no limit of their own"

    def call_off(self, errand: Errand) -> None:
        """Forget an errand: its group is to be done again, its inputs are as they were."""
        self._remove(errand)
        self.crew.drop(errand.ticket)
        self.give_back(errand.inputs)
        if errand.group is not None:
            self.groups.put_back(errand.group)

    def _check_help(self) -> None:
        """Without a worker that takes work nothing moves: wait for one, but not for ever."""
        if self.running or any(not hand.paused for hand in self.crew.hands.values()):
            self._last_help = self.crew.now()
        if self.crew.now() - self._last_help < self.patience:
            return
        waited = format_seconds(self.patience)
        if self.crew.hands:
            raise BudgetError(
                f"every worker has been paused by Dask for {waited} because its memory is almost full"
                f" ({self.worker_memory()}): give the workers more memory, or lower --D"
            )
        raise ClusterError(
            f"the cluster has had no worker for {waited}: start some (dask worker ADDRESS), then run the same command"
            " again to go on from the last checkpoint"
        )


def explain(failure: BaseException, errand: Errand) -> BaseException:
    """What an error on a worker means for the run; errors of ours say it themselves."""
    if isinstance(failure, ModuleNotFoundError) and (failure.name or "").partition(".")[0] == "streamrf":
        return MissingDependencyError(
            f"worker {errand.home} has no streamrf: install the same version there (pip install streamrf)"
        )
    if isinstance(failure, MemoryError) and not isinstance(failure, BudgetError):
        return BudgetError(f"worker {errand.home} ran out of memory ({failure}): give it more, or lower --D")
    return failure
