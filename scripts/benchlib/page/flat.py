"""The section on tables larger than the machine."""

from __future__ import annotations

from typing import Any

from benchlib.larger import HELD_OUT, LIMITS
from benchlib.page.words import finished, seconds, size, table
from benchlib.results import Cell

HEADS = ("table", "on disk", "training", "rows/s", "of a loop", "of threads", "peak", "growth", "resumed at")


def larger(found: dict[str, dict[str, Any]]) -> list[str]:
    cells = found["larger"]["cells"]
    done = finished(cells)
    failed = [f"- {name}: {cell['why']}." for name, cell in cells.items() if name not in done]
    if not done:
        return failed
    first = next(iter(done.values()))
    return [
        f"Generated tables, trained on with D = {first['D']} and a budget of {size(first['budget'])}. Every value is",
        "one of 1,024: codecs find about ten bits in 32. Pages that the system keeps of the files are dropped before",
        "each reading. Rows/s are of the whole run, beside two bare reads of the same files that do nothing with what",
        "they decode: a plain loop over chunks as the library does it, and as many threads as training has. Growth is",
        "what a line fitted to memory against rows gains over the run, as a share of what is held; hold-out rows,",
        f"which are kept as the run goes on, are {HELD_OUT:,} here. One more run is killed half-way and resumed.",
        "", "![Memory against rows](pictures/benchmarks-larger.png)", "",
        *table(HEADS, [[name, *_figures(cell)] for name, cell in done.items()]), "",
        *(f"- {name}: {_bits(cell)}." for name, cell in done.items()), *failed,
        f"- Asked for: at least {LIMITS['rate against a loop'][1]:.0%} of a plain loop, a peak below the budget, growth"
        f" of at most {LIMITS['growth'][1]:.0%}.",
    ]  # fmt: skip


def _figures(cell: Cell) -> list[str]:
    return [size(cell["stored"]), seconds(cell["seconds"]), f"{cell['rows a second']:,.0f}",
            f"{cell['rate against a loop']:.2f}", f"{cell['rate against threads']:.2f}", size(cell["peak"]),
            f"{cell['growth']:.1%}", f"{cell['resumed from'] / cell['rows']:.0%}"]  # fmt: skip


def _bits(cell: Cell) -> str:
    words = f"{cell['rows']:,} rows of {cell['columns']:,} columns, {size(cell['bytes'])} as float32"
    return f"{words}; the resumed run has {'the same' if cell['same bits'] else '**other**'} bits"


def draw(plt: Any, cells: dict[str, Cell]) -> Any:
    """Memory against the share of rows that are done, a line a table, below the budget."""
    figure, axis = plt.subplots(figsize=(9, 4.5))
    for name, cell in finished(cells).items():
        x, y = zip(*cell["points"], strict=True)
        axis.plot([each / cell["rows"] for each in x], [each / 1e9 for each in y], label=name)
        axis.axhline(cell["budget"] / 1e9, color="k", linestyle="--")
    axis.set(
        xlabel="share of the rows that are summed", ylabel="resident memory, GB (dashed: the budget)", ylim=(0, None)
    )
    axis.grid(alpha=0.3)
    axis.legend()
    return figure
