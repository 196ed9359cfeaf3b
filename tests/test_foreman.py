"""The bookkeeping of a pass on many workers, against a made-up cluster: workers die, pause, leave and come back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from cluster_tools import Counts
from hypothesis import given
from hypothesis import strategies as st

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Span
from streamrf.engines.base import Pass
from streamrf.engines.cluster import foreman
from streamrf.engines.cluster.crew import CalledOff, Hand
from streamrf.engines.cluster.errands import add_sums, sum_rows
from streamrf.engines.cluster.groups import Groups, Pace, joined, row_set, units_of
from streamrf.engines.cluster.summing import Summing
from streamrf.statistics.rowset import RowSet
from streamrf.support.errors import BudgetError, ClusterError, DataError

ROWS = 300


class MadeUpTicket:
    def __init__(self, number: int, home: str, errand: tuple[Any, ...]) -> None:
        self.number, self.home, self.errand = number, home, errand
        self.future, self.seconds, self.is_lost, self.error, self.value = self, 1.0, False, None, None

    def failure(self) -> Any:
        return self.error


class MadeUpCrew:
    """Workers that do their errands in random order, and of whom each step may take or bring one."""

    def __init__(self, rng: np.random.Generator, workers: int, trouble: float) -> None:
        self.rng, self.trouble = rng, trouble
        self.progress: dict[int, int] = {}
        self.open: list[MadeUpTicket] = []
        self.tickets: dict[int, MadeUpTicket] = {}
        self.store: dict[int, tuple[str, Any]] = {}  # results by ticket, and who holds them
        self.numbers = itertools.count()
        self.hands: dict[str, Hand] = {}
        self.smallest = None
        self.time = 0.0
        self.most_states = 0
        for _ in range(workers):
            self.join()

    def now(self) -> float:
        return self.time

    def join(self) -> None:
        address = f"w{next(self.numbers)}"
        self.hands[address] = Hand(address, 1, None, False)

    def share(self, value: Any) -> Any:
        return value

    def give(self, home: str, function: Any, *args: Any, orders: Any = None) -> MadeUpTicket:
        assert all(ticket.home != home or ticket.errand[0] == "fetch" for ticket in self.open), "one errand at a time"
        return self._open(home, (function, *args, orders))

    def fetch(self, ticket: MadeUpTicket) -> MadeUpTicket:
        return self._open(ticket.home, ("fetch", ticket))

    def _open(self, home: str, errand: tuple[Any, ...]) -> MadeUpTicket:
        ticket = MadeUpTicket(next(self.numbers), home, errand)
        self.open.append(ticket)
        self.tickets[ticket.number] = ticket
        return ticket

    def drop(self, ticket: MadeUpTicket) -> None:
        self.open = [other for other in self.open if other is not ticket]
        self.store.pop(ticket.number, None)

    def whereabouts(self, tickets: Any) -> dict[int, str]:
        homes = {ticket.number: self.store[ticket.number][0] for ticket in tickets if ticket.number in self.store}
        return {number: home for number, home in homes.items() if home in self.hands}

    def look(self) -> None:
        if self.rng.random() < self.trouble:
            self.rng.choice([self.kill, self.restart, self.leave, self.pause, self.join])()
        if not any(not hand.paused for hand in self.hands.values()):
            self.join()

    def anyone(self) -> str:
        return str(self.rng.choice(list(self.hands)))

    def kill(self) -> None:
        """Gone with all it held; nobody is told."""
        self._forget(self.anyone())

    def _forget(self, home: str) -> None:
        del self.hands[home]
        self.store = {number: kept for number, kept in self.store.items() if kept[0] != home}

    def restart(self) -> None:
        """Back at once under the same address: only the results say that something happened."""
        home = self.anyone()
        held = [self.tickets[number] for number, kept in self.store.items() if kept[0] == home]
        for ticket in held + [ticket for ticket in self.open if ticket.home == home and ticket.errand[0] != "fetch"]:
            ticket.is_lost = True
        hand = self.hands[home]
        self._forget(home)
        self.hands[home] = hand

    def leave(self) -> None:
        """In good order: results go to another worker first."""
        home = self.anyone()
        if len(self.hands) > 1:
            heir = next(other for other in self.hands if other != home)
            self.store = {n: (heir if kept[0] == home else kept[0], kept[1]) for n, kept in self.store.items()}
            self._forget(home)

    def pause(self) -> None:
        home = self.anyone()
        self.hands[home] = Hand(home, 1, None, not self.hands[home].paused)

    def finished(self, seconds: float) -> list[MadeUpTicket]:
        self.time += 0.5
        ready = [ticket for ticket in self.open if ticket.home in self.hands and self._can(ticket)]
        some = [ready[i] for i in self.rng.permutation(len(ready))[: self.rng.integers(1, 4)]]
        for ticket in some:
            self.open.remove(ticket)
            if not ticket.is_lost:
                self._do(ticket)
        return some

    def _can(self, ticket: MadeUpTicket) -> bool:
        """An errand waits for its inputs, for ever if they are lost; a paused worker hands out and begins nothing."""
        if self.hands[ticket.home].paused and ticket.errand[0] != "fetch":
            return False
        return all(arg.number in self.store for arg in ticket.errand if isinstance(arg, MadeUpTicket))

    def _do(self, ticket: MadeUpTicket) -> None:
        function, *args = ticket.errand
        args = [self.store[arg.number][1] if isinstance(arg, MadeUpTicket) else arg for arg in args]
        if function == "fetch":
            ticket.value = args[0]
            return
        if self.rng.random() < self.trouble / 10:
            ticket.error = CalledOff()
            return
        self.store[ticket.number] = ticket.home, made_up(function, args)
        states = [home for home, _ in self.store.values()]
        self.most_states = max([self.most_states, *(states.count(home) for home in states)])


def made_up(function: Any, args: list[Any]) -> dict[str, Any]:
    """What the real errands compute, without data."""
    if function is add_sums:
        _, first, second, _ = args
        return {"arrays": {"counts": first["arrays"]["counts"] + second["arrays"]["counts"]}, "dropped": 0}
    assert function is sum_rows
    _, earlier, orders = args
    counts = earlier["arrays"]["counts"].copy() if earlier else np.zeros(ROWS, np.int64)
    for start, stop in orders["spans"]:
        counts[start:stop] += 1
    return {"arrays": {"counts": counts}, "dropped": 0}


def make_summing(crew: Any, rng: np.random.Generator, done: RowSet | None = None) -> tuple[Pass[Any], Summing[Any]]:
    job = Pass.start(Counts(ROWS), ArraySource(np.zeros((ROWS, 1)), np.zeros(ROWS)))
    job.done = done or RowSet()
    left = job.done.complement(ROWS).spans()
    spans = [Span(i, min(i + 7, span.stop)) for span in left for i in range(span.start, span.stop, 7)]
    groups = Groups(units_of(spans), rng.permutation)
    return job, Summing(job, crew, groups, {}, seconds=1.0, fits=lambda span: len(span) < 20)


@pytest.fixture(autouse=True)
def _no_limit_on_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreman, "MAX_DEATHS", 10**6)


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_counted_once_whatever_happens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    crew = MadeUpCrew(rng, workers=int(rng.integers(1, 7)), trouble=float(rng.choice([0.0, 0.05, 0.3])))
    job, summing = make_summing(crew, rng)
    collects = float(rng.choice([0.0, 0.1, 1.0]))

    def watch(job: Pass[Any]) -> None:
        assert set(job.state.counts.tolist()) <= {0, 1}
        assert (np.flatnonzero(job.state.counts) == [row for row in range(ROWS) if row in job.done]).all()
        if rng.random() < collects:
            job.ask(stop=False)

    state = summing.run(watch)
    assert (state.counts == 1).all()
    assert job.done == RowSet([(0, ROWS)])
    assert job.pending == 0


@pytest.mark.parametrize("seed", range(12))
def test_a_stop_brings_in_what_is_finished_and_a_second_run_does_the_rest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    crew = MadeUpCrew(rng, workers=3, trouble=0.1)
    job, summing = make_summing(crew, rng)
    steps = itertools.count()

    def stop_soon(job: Pass[Any]) -> None:
        if job.stop and not job.pending:
            raise InterruptedError
        if next(steps) > 6 and job.rows_left:
            job.ask(stop=True)

    with pytest.raises(InterruptedError):
        summing.run(stop_soon)
    first = job.state.counts.copy()
    assert first.sum() == job.done.count < ROWS
    again, rest = make_summing(MadeUpCrew(rng, workers=2, trouble=0.1), rng, job.done.copy())
    assert (rest.run(lambda job: None).counts + first == 1).all()
    assert again.done == RowSet([(0, ROWS)])


def test_at_most_two_finished_sums_wait_on_a_worker_and_two_more_meet_there() -> None:
    rng = np.random.default_rng(0)
    crew = MadeUpCrew(rng, workers=5, trouble=0.0)
    job, summing = make_summing(crew, rng)
    summing.run(lambda job: job.ask(stop=False))
    assert (job.state.counts == 1).all()
    assert crew.most_states <= 3  # with the one in work: the four that the plan counts


@pytest.mark.parametrize("paused", [1, 2, 3])
def test_what_paused_workers_were_given_and_hold_goes_to_the_others(paused: int) -> None:
    """They stay paused for ever: what they were to do is done, and what they have is added, elsewhere."""
    rng = np.random.default_rng(paused)
    crew = MadeUpCrew(rng, workers=paused, trouble=0.0)
    first = list(crew.hands)
    _, summing = make_summing(crew, rng)
    steps = itertools.count()

    def watch(job: Pass[Any]) -> None:
        step = next(steps)
        assert step < 2000, "nothing moves"
        if step == 10:
            crew.hands |= {home: Hand(home, 1, None, True) for home in first}
            crew.join()

    assert (summing.run(watch).counts == 1).all()


def test_an_error_on_a_worker_ends_the_run_as_it_is() -> None:
    crew = MadeUpCrew(np.random.default_rng(0), workers=2, trouble=0.0)
    _, summing = make_summing(crew, np.random.default_rng(0))

    def fail(ticket: Any) -> None:
        ticket.error = DataError("a NaN")

    crew._do = fail  # type: ignore[method-assign]
    with pytest.raises(DataError, match="a NaN"):
        summing.run(lambda job: None)


@pytest.mark.parametrize("seed", range(40))
def test_rows_that_cannot_be_read_end_the_run_with_all_else_brought_in(seed: int) -> None:
    rng = np.random.default_rng(seed)
    crew = MadeUpCrew(rng, workers=int(rng.integers(1, 5)), trouble=float(rng.choice([0.0, 0.1])))
    job, summing = make_summing(crew, rng)
    do, bad, steps = crew._do, int(rng.integers(ROWS)), itertools.count()

    def read(ticket: Any) -> None:
        orders = ticket.errand[-1]
        if isinstance(orders, dict) and any(start <= bad < stop for start, stop in orders["spans"]):
            ticket.error = DataError("a NaN")
        else:
            do(ticket)

    def watch(job: Pass[Any]) -> None:
        assert next(steps) < 3000, "nothing moves"
        if rng.random() < 0.2:
            job.ask(stop=False)

    crew._do = read  # type: ignore[method-assign]
    with pytest.raises(DataError, match="a NaN"):
        summing.run(watch)
    assert bad not in job.done
    assert (np.flatnonzero(job.state.counts) == [row for row in range(ROWS) if row in job.done]).all()
    assert not summing.held
    assert not summing.running


def test_rows_over_which_workers_keep_dying_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreman, "MAX_DEATHS", 3)
    crew = MadeUpCrew(np.random.default_rng(0), workers=1, trouble=0.0)
    _, summing = make_summing(crew, np.random.default_rng(0))

    def die(seconds: float) -> list[Any]:
        crew._forget(crew.anyone())
        crew.join()
        return []

    crew.finished = die  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match=r"3 workers were lost.*over rows .*more memory.*--D"):
        summing.run(lambda job: None)


@pytest.mark.parametrize(
    ("paused", "error", "words"), [(True, BudgetError, "paused"), (False, ClusterError, "no worker")]
)
def test_without_workers_it_gives_up_in_the_end(paused: bool, error: type, words: str) -> None:
    crew = MadeUpCrew(np.random.default_rng(0), workers=0, trouble=0.0)
    crew.look = lambda: None  # type: ignore[method-assign]
    if paused:
        crew.hands = {"w": Hand("w", 1, 10**9, True)}
    _, summing = make_summing(crew, np.random.default_rng(0))
    summing.patience = 0.0
    with pytest.raises(error, match=words):
        summing.run(lambda job: None)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.lists(st.tuples(st.floats(0, 200), st.booleans()), max_size=20),
)
def test_groups_hold_every_row_once(lengths: list[int], takes: list[tuple[float, bool]]) -> None:
    edges = [0, *itertools.accumulate(lengths)]
    groups = Groups(units_of(itertools.starmap(Span, itertools.pairwise(edges))))
    taken = []
    for size, comes_back in [*takes, *[(10.0, False)] * 40]:
        if not groups:
            break
        group = groups.take(size)
        if comes_back:
            groups.put_back(group)
        else:
            taken.append(group)
    assert all(group.rows <= max(*lengths, 200) for group in taken)
    assert row_set(taken) == RowSet([(0, edges[-1])])
    assert groups.rows == 0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 60))
def test_units_for_an_output_never_share_a_chunk(lengths: list[int], step: int) -> None:
    edges = [0, *itertools.accumulate(lengths)]
    units = units_of(itertools.starmap(Span, itertools.pairwise(edges)), step)
    assert [span.start // step for unit in units for span in unit] == sorted(
        number for number, unit in enumerate(units) for _ in unit
    )
    assert RowSet(span for unit in units for span in unit) == RowSet([(0, edges[-1])])
    assert all((unit[-1].stop - 1) // step == unit[0].start // step for unit in units)


def test_groups_shrink_towards_the_end_and_follow_speed() -> None:
    pace = Pace(seconds=10)
    assert pace.rows("fast", pace.total(["fast", "slow"]), 10**6) == 0  # not known yet: one unit
    pace.note("fast", 3000, 1.0)
    pace.note("slow", 1000, 1.0)
    total = pace.total(["fast", "slow"])
    assert pace.rows("fast", total, 10**9) == 30_000
    assert pace.rows("slow", total, 10**9) == 10_000
    assert pace.rows("fast", total, 8000) == 3000
    assert pace.rows("slow", total, 8000) == 1000
    assert pace.total(["fast", "slow", "new"]) == 6000


def test_groups_do_not_shrink_so_far_that_the_driver_is_always_busy() -> None:
    pace = Pace(seconds=10)
    pace.note("a", 100, 1.0)
    pace.note("b", 100, 1.0)
    total = pace.total(["a", "b"])
    assert pace.rows("a", total, 4000, least=2.0) == 1000  # ten seconds
    assert pace.rows("a", total, 1200, least=2.0) == 300  # half of its share, and more than the least
    assert pace.rows("a", total, 600, least=2.0) == 200  # the least
    assert pace.rows("a", total, 200, least=2.0) == 100  # all of its share, and no more


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50)), min_size=1, max_size=30), st.integers(1, 200))
def test_joined_spans_hold_the_same_rows_and_fit(gaps: list[tuple[int, int]], most: int) -> None:
    spans, end = [], 0
    for gap, length in gaps:
        spans.append(Span(end + gap, end + gap + length))
        end += gap + length
    found = joined(spans, lambda span: len(span) <= most)
    assert [row for span in found for row in range(*span)] == [row for span in spans for row in range(*span)]
    assert all(len(span) <= max(most, max(map(len, spans))) for span in found)
    assert all(a.stop < b.start or b.stop - a.start > most for a, b in itertools.pairwise(found))


def test_a_merge_does_not_wait_for_a_part_that_died_with_its_worker() -> None:
    """One death and no more trouble: whoever was adding that worker's part would wait for it without end."""
    rng = np.random.default_rng(1)
    crew = MadeUpCrew(rng, 12, 0.0)
    job, summing = make_summing(crew, rng)
    dead = None
    for _ in range(1500):
        fetched = [part for errand in summing.running.values() for part in errand.inputs if part.home != errand.home]
        if dead is None and fetched:
            dead = fetched[0].home
            crew._forget(dead)
        if not (summing.groups or summing._under_way()):
            break
        summing._step()
        summing._follow_wishes()
        summing._fetch_the_last()
    assert dead
    assert job.done.count == ROWS
