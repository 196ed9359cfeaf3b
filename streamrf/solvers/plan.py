"""The plan: what memory and time a run will take, before any row is read. Arithmetic on sizes only.

Four words for memory, everywhere: *budget* (what the user allows), *reserved* (what Python and its libraries hold),
*projected* (the most the run will hold, reserved included) and *measured* (what it did hold).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamrf.data.source import Source, work_spans
from streamrf.engines.local import AHEAD
from streamrf.features.targets import DIGITS
from streamrf.recipe import AUTO, LOSS_SOLVERS, NONE, Recipe
from streamrf.solvers.iterative_plan import (
    ALIVE,
    CROSSING,
    SHORT,
    STEPS,
    WORTH,
    iterative_parts,
    iterative_seconds,
    kept_bytes,
    rates_of_this_machine,
)
from streamrf.solvers.iterative_plan import CURES as ITERATIVE_CURES
from streamrf.solvers.learning_memory import learning_bytes
from streamrf.solvers.rates import Rates
from streamrf.solvers.ridge import RidgeSolver
from streamrf.statistics.gram_kernels import PRODUCT_ROWS, Layout, worst_work_bytes
from streamrf.support import memory
from streamrf.support.errors import BudgetError, InputError
from streamrf.support.units import format_bytes, format_seconds
from streamrf.training.pilot.fourier import PILOT_D, RIDGES, budget_seconds, sample_rows

COMPILED = 220 * 2**20  # numba, LLVM and the kernels they compile, once all of them are in use
SLACK = 1.08  # the allocator's own needs
HOLDOUT_SHARE, HOLDOUT_ROWS = 0.1, 20_000
SCORE_COPIES = 9  # of the hold-out rows' scores, alive while lambda is chosen and the calibration is fitted
SPAN_ROWS = 65_536
LEAST_SPAN_BYTES, MOST_SPAN_BYTES = 8 * 2**20, 256 * 2**20
DEFAULT_BUDGET_SHARE = 0.8

STAGES = {  # the parts that are alive in each
    "pilot": ("pilot", "sample"),
    "pass": ("statistics", "block", "reading", "hold-out rows"),
    "solve": ("statistics", "total", "matrix", "block", "hold-out rows", "judging"),
}
CURES = {
    **dict.fromkeys(("statistics", "total", "matrix", "block", "pilot"), "lower --D"),
    **dict.fromkeys(("reading", "sample"), "store the data in smaller chunks, or with fewer columns"),
    **dict.fromkeys(("hold-out rows", "judging"), "hold out fewer rows with --holdout"),
    **ITERATIVE_CURES,
}


@dataclass
class Plan:
    """What a run will take, and the sizes it is cut into."""

    budget: int
    reserved: int
    parts: dict[str, int]  # bytes of each thing that is alive at some time
    stages: dict[str, int]  # bytes alive in each stage, reserved included
    span_rows: int
    span_bytes: int
    holdout: float
    passes: int
    solver: str
    why: str
    seconds: dict[str, float] = field(default_factory=dict)
    workers: Any = None  # what each worker of a cluster needs, where there is one
    alive: dict[str, tuple[str, ...]] = field(default_factory=lambda: STAGES)
    others: dict[str, dict[str, float]] = field(default_factory=dict)  # seconds of the solvers that could do it
    cures: dict[str, str] = field(default_factory=lambda: CURES)
    cache: Any = None  # where slots of random binning are kept between passes

    @property
    def projected(self) -> int:
        return max(self.stages.values())

    @property
    def keeps_features(self) -> bool:
        """Whether the features of all rows are kept between passes."""
        return bool(self.parts.get("features kept"))

    def check(self) -> None:
        """Refuse now what could not end well."""
        if self.workers:
            self.workers.check()
        if self.projected > self.budget:
            stage = max(self.stages, key=lambda name: self.stages[name])
            largest = max(self.alive[stage], key=lambda name: self.parts[name])
            what = f"the largest part is {largest}, {format_bytes(self.parts[largest])}"
            cure = f"raise --memory, or {self.cures[largest]}"
            if self.reserved > self.budget:
                what = f"Python and its libraries alone take up to {format_bytes(self.reserved)}"
                cure = f"set --memory to {format_bytes(1.1 * self.projected)} or more"
            raise BudgetError(
                f"this run is projected to need {format_bytes(self.projected)} (in the {stage} stage; {what}), the"
                f" budget is {format_bytes(self.budget)}: {cure}"
            )

    def to_json(self) -> dict[str, Any]:
        document = {
            "memory": {"budget": self.budget, "reserved": self.reserved, "projected": self.projected, **self.stages},
            "parts": self.parts, "seconds": self.seconds, "solver": self.solver, "why": self.why, "passes": self.passes,
        }  # fmt: skip
        if self.others:
            document["solvers"] = self.others
        more = {"workers": self.workers, "cache": self.cache}
        return document | {name: found.to_json() for name, found in more.items() if found}


def make_plan(
    source: Source, recipe: Recipe, *, outputs: int, threads: int, budget: int | None, classes: bool = False,
    reserved: int | None = None, keeps: bool = True, sample: int | None = None,
) -> Plan:  # fmt: skip
    """Sizes from shapes alone; nothing is read. ``classes`` says that the outputs are known to be those of classes,
    ``keeps`` that features may be kept between passes, which a cluster does not, ``sample`` of how many rows a run that
    goes on took the sample that preconditions.
    """
    reserved = reserved or memory.resident() + COMPILED
    budget = budget or reserved + int(DEFAULT_BUDGET_SHARE * memory.available())
    known: dict[str, Any] = {"outputs": outputs, "threads": threads, "budget": budget, "reserved": reserved}
    able = LOSS_SOLVERS[recipe.loss] if recipe.solver == AUTO else (recipe.solver,)
    if recipe.cv:
        able = able[:1]
    if able[0] == "cholesky" and (source.has_weights or recipe.class_weight) and not recipe.is_float:
        able = able[1:]  # conjugate gradients, whose sums are exact with weights too
    if not able:
        cure = "--bits float32" if recipe.cv else "--solver cg, or --bits float32"
        raise InputError(f"weights of rows cannot enter exact sums (--bits {recipe.bits}): use {cure}")
    own: dict[str, Any] = {"classes": classes, "keeps": keeps, "sample": sample}
    plans = {name: _plan_of(name, source, recipe, **own, **known) for name in able}
    if len(plans) == 1 or recipe.loss != "squared":
        return plans[able[0]]
    return _choose(plans["cholesky"], plans["cg"], source, recipe, outputs, threads)


def _plan_of(
    solver: str, source: Source, recipe: Recipe, *, classes: bool, keeps: bool, sample: int | None, **known: Any
) -> Plan:
    if solver == "cholesky":
        return _direct_plan(source, recipe, classes=classes, **known)
    return _iterative_plan(solver, source, recipe, keeps=keeps, sample=sample, **known)


def _choose(direct: Plan, cg: Plan, source: Source, recipe: Recipe, outputs: int, threads: int) -> Plan:
    """Cholesky where it fits, unless conjugate gradients take much less time by the measured rates of this machine."""
    if direct.projected > direct.budget:
        if cg.projected <= cg.budget:
            cg.why = (
                f"the {recipe.D} x {recipe.D} system would need {format_bytes(direct.projected)}, the budget is"
                f" {format_bytes(direct.budget)}: passes of conjugate gradients never hold it"
            )
            return cg
        least = min((direct, cg), key=lambda plan: plan.projected)
        least.why = f"neither Cholesky nor conjugate gradients fit the budget; {least.solver} needs less"
        return least
    if recipe.D < CROSSING:
        return direct
    rates = rates_of_this_machine(recipe.bits, threads)
    seconds = {plan.solver: _totals(plan, source, recipe, outputs, rates) for plan in (direct, cg)}
    direct.others = cg.others = seconds
    needed = {name: found["total"] - found["pilot"] for name, found in seconds.items()}
    quick = needed["cholesky"] < SHORT or needed["cg"] > WORTH * needed["cholesky"]
    if quick or cg.projected > cg.budget:
        return direct
    cg.why = (
        f"about {STEPS['cg']} passes of conjugate gradients are estimated at {format_seconds(seconds['cg']['total'])},"
        f" Cholesky at {format_seconds(seconds['cholesky']['total'])}"
    )
    return cg


def _totals(plan: Plan, source: Source, recipe: Recipe, outputs: int, rates: Rates) -> dict[str, float]:
    return estimate_seconds(plan, source, recipe, outputs, rates)


def _iterative_plan(
    solver: str, source: Source, recipe: Recipe, *, outputs: int, threads: int, budget: int, reserved: int, keeps: bool,
    sample: int | None,
) -> Plan:  # fmt: skip
    parts = iterative_parts(source, recipe, solver, outputs, threads, budget - reserved, sample)
    parts |= {
        "pilot": _pilot_bytes(source, recipe, threads, outputs),
        "sample": 3 * _sample_rows(source, recipe) * source.n_features * max(4, source.x_dtype.itemsize),
    }
    fixed = reserved + parts["statistics"] + parts["block"] + parts["vectors"] + parts["preconditioner"]
    share = holdout_share(recipe, source.n_rows)
    span_bytes = _reading(source, recipe, outputs, share, budget - fixed, parts)
    parts["features kept"] = 0
    stages = _stages(reserved, parts, ALIVE)
    if keeps:
        parts["features kept"] = kept_bytes(source, recipe, int((budget - max(stages.values())) / SLACK))
        stages = _stages(reserved, parts, ALIVE)
    why = _why_iterative(solver, recipe)
    passes = _passes(recipe) + (recipe.epochs or STEPS[solver])
    return Plan(budget, reserved, parts, stages, SPAN_ROWS, span_bytes, share, passes, solver, why, alive=ALIVE)


def _why_iterative(solver: str, recipe: Recipe) -> str:
    if recipe.loss != "squared":
        return f"the {recipe.loss} loss is fitted by passes of gradients"
    if recipe.solver == solver:
        return "as asked for"
    return "rows have weights, with which only the sums of gradients are exact"


def _stages(reserved: int, parts: dict[str, int], stages: dict[str, tuple[str, ...]]) -> dict[str, int]:
    return {name: reserved + int(SLACK * sum(parts[part] for part in alive)) for name, alive in stages.items()}


def _reading(source: Source, recipe: Recipe, outputs: int, share: float, room: int, parts: dict[str, int]) -> int:
    """Fill in what reading and judging take, and say how much is read at a time."""
    span_bytes = int(np.clip(room // 8, LEAST_SPAN_BYTES, MOST_SPAN_BYTES))
    spans = work_spans(source, SPAN_ROWS, span_bytes)
    parts["reading"] = max(source.read_bytes(span) + (1 + AHEAD) * source.block_bytes(span) for span in spans)
    parts["hold-out rows"] = int(source.n_rows * share * (8 * outputs + 8 + source.n_features * 8))
    parts["judging"] = int(source.n_rows * share * 8 * outputs * SCORE_COPIES)
    return span_bytes


def _direct_plan(
    source: Source, recipe: Recipe, *, outputs: int, threads: int, budget: int, reserved: int, classes: bool
) -> Plan:
    layout = _layout(recipe, outputs, classes)
    parts = _parts(source, recipe, layout, threads, outputs)
    parts["statistics"] *= recipe.cv or 1
    share = holdout_share(recipe, source.n_rows)
    span_bytes = _reading(source, recipe, outputs, share, budget - reserved - parts["statistics"], parts)
    parts["total"] = 8 * layout.length if recipe.cv else 0
    stages = _stages(reserved, parts, STAGES)
    why = f"the {recipe.D} x {recipe.D} system fits in memory, and one pass of exact sums solves it for every lambda"
    return Plan(budget, reserved, parts, stages, SPAN_ROWS, span_bytes, share, _passes(recipe), "cholesky", why)


def _layout(recipe: Recipe, outputs: int, classes: bool = False) -> Layout:
    digits = 1 if classes else max(count for _, count in DIGITS.values())
    return Layout(recipe.D + 1 + outputs * digits)


def _parts(source: Source, recipe: Recipe, layout: Layout, threads: int, outputs: int) -> dict[str, int]:
    return {
        "statistics": 8 * layout.length,
        "matrix": RidgeSolver.matrix_bytes(recipe.D),
        "block": _block_bytes(recipe.bits, layout, source.n_features, threads),
        "pilot": _pilot_bytes(source, recipe, threads, outputs),
        "sample": 3 * _sample_rows(source, recipe) * source.n_features * max(4, source.x_dtype.itemsize),
    }


def _sample_rows(source: Source, recipe: Recipe) -> int:
    return min(source.n_rows, sample_rows(source.n_rows, source.n_features * source.x_dtype.itemsize, recipe))


def _block_bytes(bits: str, layout: Layout, inputs: int, threads: int) -> int:
    """Features of one block of rows, its scaled inputs, and what the product needs."""
    widest = 8 if bits in (AUTO, "float64") else 4 if bits == "float32" else 2
    return PRODUCT_ROWS * (widest * (layout.size + 64) + 8 * inputs) + worst_work_bytes(bits, layout, threads)


def _pilot_bytes(source: Source, recipe: Recipe, threads: int, outputs: int) -> int:
    """Trials, then what is learned: never both at once."""
    trials = _trial_bytes(source, recipe, threads, outputs) if recipe.pilot != NONE or recipe.metric != NONE else 0
    return max(trials, learning_bytes(recipe, source.n_features, _sample_rows(source, recipe)))


def _trial_bytes(source: Source, recipe: Recipe, threads: int, outputs: int) -> int:
    """A small run at the pilot's D, and the scores of a whole lambda path on a quarter of the sample."""
    small = recipe.with_(D=min(PILOT_D, recipe.D))
    layout = _layout(small, outputs)
    scores = _sample_rows(source, recipe) // 4 * outputs * len(RIDGES) * 8 * 4
    block = _block_bytes(recipe.bits, layout, source.n_features, threads)
    return 8 * layout.length + RidgeSolver.matrix_bytes(small.D) + block + scores


def _passes(recipe: Recipe) -> int:
    return 2 if recipe.scaling == "minmax" else 1


def holdout_share(recipe: Recipe, rows: int) -> float:
    """Rows that choose lambda: what was asked for, or a tenth, at most 20,000 rows."""
    if recipe.holdout is not None:
        return recipe.holdout
    return min(HOLDOUT_SHARE, HOLDOUT_ROWS / max(rows, 1))


def estimate_seconds(plan: Plan, source: Source, recipe: Recipe, outputs: int, rates: Rates) -> dict[str, float]:
    """Time of each stage from measured rates of this machine; reading hides behind computing where it is faster."""
    pilot = 0.0 if recipe.pilot == "none" else budget_seconds(source.n_rows, recipe.D)
    if plan.solver == "cholesky":
        seconds = {"pilot": pilot, **_direct_seconds(plan, source, recipe, outputs, rates)}
    else:
        room = plan.budget - plan.reserved
        known: dict[str, Any] = {"room": room, "kept": plan.keeps_features}
        seconds = {"pilot": pilot, **iterative_seconds(source, recipe, plan.solver, outputs, rates, **known)}
    seconds["total"] = sum(seconds.values())
    return seconds


def _direct_seconds(plan: Plan, source: Source, recipe: Recipe, outputs: int, rates: Rates) -> dict[str, float]:
    n, D, d = source.n_rows, recipe.D, source.n_features
    compute = n * D / rates.features(d) + n * float(_layout(recipe, outputs).size) ** 2 / rates.gram
    read = n * d * source.x_dtype.itemsize / rates.read
    lambdas = 1 if recipe.ridge is not None else 6
    solves = 1 + lambdas if not recipe.cv else recipe.cv * (lambdas + 1) + 2
    return {
        "pass": max(compute, read) * plan.passes,
        "solve": solves * (D**3 / 3.0 / rates.factor + D * D * 8 / 5e9),
    }
