"""The plan: what memory and time a run will take, before any row is read. Arithmetic on sizes only.

Four words for memory, everywhere: *budget* (what the user allows), *reserved* (what Python and its libraries hold),
*projected* (the most the run will hold, reserved included) and *measured* (what it did hold).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamrf.data.source import Source, some_of, work_spans
from streamrf.data.split import Split
from streamrf.engines.base import WorkerNeeds
from streamrf.engines.local import AHEAD
from streamrf.solvers.settings import SolverSettings
from streamrf.support import memory
from streamrf.support.errors import BudgetError
from streamrf.support.units import format_bytes

SLACK = 1.08  # the allocator's own needs
DEFAULT_BUDGET_SHARE = 0.8
HOLDOUT_SHARE, HOLDOUT_ROWS = 0.1, 20_000
FEW_ROWS, FEW_SHARE = 10_000, 0.2  # of smaller tables more rows judge, as a tenth would say little
SCORE_COPIES = 9  # of the hold-out rows' scores, alive while lambda is chosen and the calibration is fitted
SPAN_ROWS = 65_536
LEAST_SPAN_BYTES, MOST_SPAN_BYTES = 8 * 2**20, 256 * 2**20

PILOT, PASS, SOLVE = STAGES = ("pilot", "pass", "solve")
SMALLER_CHUNKS = "store the data in smaller chunks, or with fewer columns"
FEWER_HELD_OUT = "hold out fewer rows with `holdout`"


@dataclass(frozen=True)
class Sizes:
    """What a plan is made from: shapes and settings, and what is known of the targets."""

    source: Source
    recipe: SolverSettings
    outputs: int
    threads: int
    budget: int
    reserved: int
    classes: bool = False  # whether the outputs are known to be those of classes
    local: bool = True  # whether features may be kept between passes, which a cluster does not
    sample: int | None = None  # rows of the sample that preconditions, of a run that is resumed
    folds: int | None = None  # that choose lambda, of a run that is resumed
    tree_limits: Mapping[str, int] | None = None  # rows and values of leaves that are kept, of a run that is resumed
    held: int | None = None  # rows that are held out, where they are counted
    keeps_sums: bool = True  # whether anyone will want to update the model, or have it forget
    counted: int | None = None  # rows that count, where that is known
    asked: SolverSettings | None = None  # before it was fitted to the budget

    @classmethod
    def of(
        cls, source: Source, recipe: SolverSettings, *, outputs: int, threads: int, budget: int | None,
        reserved: int | None = None, **more: Any,
    ) -> Sizes:  # fmt: skip
        """With what this process holds now, and a budget of most of the memory that is free."""
        reserved = reserved or memory.reserved()
        return cls(source, recipe, outputs, threads, budget or default_budget(reserved), reserved, **more)

    @property
    def rows(self) -> int:
        return self.source.n_rows

    @property
    def counting_rows(self) -> int:
        """The rows that rules of thumb go by: a row of weight 0 might as well not be there, and a row of weight 2 might
        as well be there twice."""
        return self.rows if self.counted is None else self.counted

    @property
    def weighted(self) -> bool:
        """Whether rows count for different weights."""
        return self.source.has_weights or self.recipe.class_weight is not None

    @property
    def row_bytes(self) -> int:
        return self.source.n_features * self.source.x_dtype.itemsize

    @property
    def split(self) -> Split:
        """Shares of rows that judge and that choose lambda: what was asked for, or a tenth each, at most 20,000 rows;
        of a small table, a fifth judges."""
        share, rows = self.recipe.holdout, max(self.counting_rows, 1)
        if share is None:
            choose = min(HOLDOUT_SHARE, HOLDOUT_ROWS / rows)
            return Split(FEW_SHARE if rows < FEW_ROWS else choose, choose, self.recipe.seed)
        return Split(share, min(share, (1 - share) / 2), self.recipe.seed)

    @property
    def held_out(self) -> int:
        return int(self.rows * (self.split.judge + self.split.choose)) if self.held is None else self.held

    @property
    def scaling_passes(self) -> int:
        return 1 if self.recipe.scaling == "minmax" else 0


def default_budget(reserved: int) -> int:
    return reserved + int(DEFAULT_BUDGET_SHARE * memory.available())


@dataclass(frozen=True)
class Part:
    """Something that takes memory: its bytes, the stages it is alive in, and what makes it smaller."""

    bytes: int
    stages: tuple[str, ...]
    cure: str


@dataclass(frozen=True)
class CachePlan:
    """Where bin indices are kept between passes, up to how many bytes, and why."""

    place: str
    bytes: int  # what all rows take
    limit: int  # what one process may keep
    why: str


@dataclass(frozen=True)
class Plan:
    """What a run will take, and the sizes it is cut into. Nothing changes it: ``replan`` makes another."""

    sizes: Sizes
    solver: str
    why: str
    parts: Mapping[str, Part]
    passes: int
    span_rows: int
    span_bytes: int
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each stage
    least_seconds: Mapping[str, float] = field(default_factory=dict)  # where trials say that few landmarks are enough
    others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # seconds of the solvers that could do it
    workers: WorkerNeeds | None = None
    cache: CachePlan | None = None
    folds: int = 0  # that choose lambda, in place of rows apart
    outputs_at_once: int = 1  # that random binning solves together

    @property
    def budget(self) -> int:
        return self.sizes.budget

    @property
    def reserved(self) -> int:
        return self.sizes.reserved

    @property
    def stages(self) -> dict[str, int]:
        """Bytes alive in each stage, reserved included."""
        return {
            stage: self.reserved + int(SLACK * sum(part.bytes for part in self.parts.values() if stage in part.stages))
            for stage in STAGES
        }

    @property
    def bytes(self) -> dict[str, int]:
        return {name: part.bytes for name, part in self.parts.items()}

    @property
    def projected(self) -> int:
        return max(self.stages.values())

    @property
    def fits(self) -> bool:
        return self.projected <= self.budget

    @property
    def room(self) -> int:
        """What the budget leaves, for things that are nice to have."""
        return self.budget - self.projected

    @property
    def keeps_features(self) -> bool:
        """Whether the features of all rows are kept between passes."""
        return "features kept" in self.parts and self.parts["features kept"].bytes > 0

    def with_parts(self, **changes: Any) -> Plan:
        """With more parts; keyword arguments are other fields."""
        parts = changes.pop("parts", {})
        return replace(self, parts={**self.parts, **parts}, **changes)

    def check(self) -> None:
        """Refuse now what could not end well."""
        if self.workers:
            self.workers.check()
        if self.fits:
            return
        stage = max(STAGES, key=lambda name: self.stages[name])
        alive = [name for name, part in self.parts.items() if stage in part.stages]
        largest = max(alive, key=lambda name: self.parts[name].bytes)
        what = f"the largest part is {largest}, {format_bytes(self.parts[largest].bytes)}"
        cure = f"raise `memory`, or {self.parts[largest].cure}"
        if self.reserved > self.budget:
            what = f"Python and its libraries alone take up to {format_bytes(self.reserved)}"
            cure = f"set `memory` to {format_bytes(1.1 * self.projected)} or more"
        raise BudgetError(
            f"this run is projected to need {format_bytes(self.projected)} (in the {stage} stage; {what}), the"
            f" budget is {format_bytes(self.budget)}: {cure}"
        )

    def __repr__(self) -> str:
        passes = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        memory = f"{format_bytes(self.projected)} of a budget of {format_bytes(self.budget)}"
        return f"<streamrf plan: {self.solver}, {passes}, {memory}>"

    def to_json(self) -> dict[str, Any]:
        stages = self.stages
        document: dict[str, Any] = {
            "memory": {"budget": self.budget, "reserved": self.reserved, "projected": self.projected, **stages},
            "parts": self.bytes, "seconds": dict(self.seconds), "least_seconds": dict(self.least_seconds),
            "solver": self.solver, "why": self.why, "passes": self.passes,
        }  # fmt: skip
        document |= {"solvers": dict(self.others)} if self.others else {}
        document |= {"workers": self.workers.to_json()} if self.workers else {}
        return document | ({"cache": vars(self.cache)} if self.cache else {})


def reading_parts(
    sizes: Sizes, room: int, stages: tuple[str, ...] = (PASS, SOLVE), *, span_rows: int | None = None, extra: int = 0
) -> tuple[dict[str, Part], int, int]:
    """What reading takes (``extra`` bytes a row beside the inputs), and how many rows and bytes are read at a time."""
    source, span_rows = sizes.source, span_rows or SPAN_ROWS
    span_bytes = int(np.clip(room // 8, LEAST_SPAN_BYTES, MOST_SPAN_BYTES)) // source.readers
    read = max(
        source.readers * source.read_bytes(span) + (1 + AHEAD) * (source.block_bytes(span) + extra * len(span))
        for span in some_of(work_spans(source, span_rows, span_bytes))
    )
    return {"reading": Part(read, stages, SMALLER_CHUNKS)}, span_rows, span_bytes


def holdout_parts(sizes: Sizes, *, extra: int = 0, folded: int = 0) -> dict[str, Part]:
    """The rows held out (``extra`` bytes each beside inputs and targets) and ``folded`` others that are kept of folds,
    and what judging by all of them takes."""
    row, rows = 8 * sizes.outputs + 16 + 8 * sizes.source.n_features + extra, sizes.held_out + folded
    return {
        "hold-out rows": Part(rows * row, (PASS, SOLVE), FEWER_HELD_OUT),
        "judging": Part(rows * 8 * sizes.outputs * SCORE_COPIES, (SOLVE,), FEWER_HELD_OUT),
    }
