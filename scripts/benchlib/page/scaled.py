"""The tables and the picture of docs/scaling.md, made of the results of `scripts/bench scaling`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchlib.page.words import table
from benchlib.results import Cell
from benchlib.simulated import NETWORK, Costs, dominated, least_rows, simulate, speeds_of, state_bytes

SOLVES = 7  # lambdas that a run tries, about
SHARES_OF_ROWS = (1_000, 3_000, 10_000, 30_000, 100_000, 1_000_000)
CLUSTERS = ((10, NETWORK), (100, NETWORK), (1000, NETWORK), (1000, "1 Gbit/s"))


def constants_table(cells: dict[str, Cell]) -> list[str]:
    found = cells["constants"]
    linear, quadratic = found["row_model"]
    rows = [
        *([f"map and product of a row, D = {int(D):,}",
           f"{1e6 * found['map'][D]:,.2f} µs and {1e6 * found['gram'][D]:,.2f} µs"]
          for D in sorted(found["map"], key=int)),
        ["together, as a formula", f"{1e9 * linear:.3g} D + {1e9 * quadratic:.3g} D² nanoseconds"],
        ["adding a state to another", f"{found['adding'] / 1e9:.2f} GB/s"],
        ["moving a state by loopback", f"{found['moving'] / 1e9:.2f} GB/s"],
        ["a task that does nothing, there and back", f"{1e3 * found['latency']:.1f} ms"],
        ["of which driver and scheduler are busy", f"{1e3 * found['task']:.2f} ms"],
        ["Cholesky factorisation", f"{found['factoring'] / 1e9:,.0f} Gflop/s"],
    ]  # fmt: skip
    return table(["what", f"one core of {found['cpu']}, {found['inputs']} inputs, 8 bits"], rows, left=2)


def times_table(cells: dict[str, Cell]) -> list[str]:
    times, factoring, rows = cells["simulated"]["times"], cells["constants"]["factoring"], []
    for D, by_workers in times.items():
        shown = [f"{time['seconds']:,.1f} s ({time['ideal'] / time['seconds']:.0%})" for time in by_workers.values()]
        solving = SOLVES * int(D) ** 3 / 3 / factoring
        rows.append([f"{int(D):,}", f"{state_bytes(int(D)) / 1e6:,.0f} MB", *shown, f"{solving:,.1f} s"])
    names = [f"{int(count):,} worker{'s' * (count != '1')}" for count in next(iter(times.values()))]
    heads = ["D", "state", *names, f"{SOLVES} solves, one core"]
    return table(heads, rows, left=len(heads))


def balance_table(cells: dict[str, Cell]) -> list[str]:
    found = cells["simulated"]
    rows = [[name, *(f"{time[key]:,.1f} s" for key in ("seconds", "even_shares", "ideal"))]
            for name, time in found["balance"].items()]  # fmt: skip
    heads = [f"speeds of {found['balance_workers']} workers", "as it is", "equal shares", "no overhead"]
    return table(heads, rows, left=len(heads))


def limits_table(cells: dict[str, Cell]) -> list[str]:
    rows = []
    for share in SHARES_OF_ROWS:
        limits = [dominated(cells["constants"], share, *cluster) for cluster in CLUSTERS]
        rows.append([f"{share:,}", *("every D" if D is None else f"below {D:,}" for D in limits)])
    heads = ["rows a worker", *(f"{count:,} workers, {network}" for count, network in CLUSTERS)]
    return table(heads, rows, left=len(heads))


TABLES: dict[str, Callable[[dict[str, Cell]], list[str]]] = {
    "constants": constants_table, "times": times_table, "balance": balance_table, "limits": limits_table,
}  # fmt: skip


def lines(cells: dict[str, Cell]) -> list[str]:
    return [line for make in TABLES.values() for line in (*make(cells), "")]


def written_into(page: str, cells: dict[str, Cell]) -> str:
    """The page with the tables of these cells between its markers."""
    for name, make in TABLES.items():
        before, begin, rest = page.partition(f"<!-- begin {name} -->\n")
        _, end, after = rest.partition(f"\n<!-- end {name} -->")
        if not (begin and end):
            raise ValueError(f"docs/scaling.md has no place for {name!r}")
        page = before + begin + "\n".join(make(cells)) + end + after
    return page


def draw(plt: Any, cells: dict[str, Cell]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), constrained_layout=True)
    draw_times(left, cells["constants"], cells["simulated"])
    draw_limits(right, cells["constants"])
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both", lw=0.4)
        axes.legend(fontsize=8)
    return figure


def draw_times(axes: Any, constants: Cell, found: Cell) -> None:
    counts = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    for D in map(int, found["times"]):
        costs = Costs.at(constants, D)
        times = [simulate(costs, found["rows"], speeds_of(count)) for count in counts]
        line = axes.plot(counts, [time["seconds"] for time in times], "o-", ms=3, label=f"D = {D:,}")[0]
        axes.plot(counts, [time["ideal"] for time in times], ":", color=line.get_color(), lw=1)
    axes.set(xscale="log", yscale="log", xlabel="workers (one core each)", ylabel="seconds of a pass")
    axes.set_title(f"{found['rows'] / 1e6:,.0f} million rows; dotted: no overhead at all", fontsize=10)


def draw_limits(axes: Any, constants: Cell) -> None:
    sizes = np.round(np.logspace(2, 4.6, 40)).astype(int)
    for count, network in CLUSTERS:
        limits = [least_rows(Costs.at(constants, int(D), network), count) for D in sizes]
        axes.plot(sizes, limits, "--" if network != NETWORK else "-", label=f"{count:,} workers, {network}")
    axes.set(xscale="log", yscale="log", xlabel="D", ylabel="rows for each worker")
    axes.set_title("below its line, merging takes longer than summing", fontsize=10)
