"""The plan of any run: which solver, with room for the pilot; and another plan once more is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamrf.data.source import Source
from streamrf.data.split import ORDER
from streamrf.features.settings import BINNING
from streamrf.recipe import ANY, AUTO, NONE, Recipe
from streamrf.solvers.base import Solver
from streamrf.solvers.cholesky import block_bytes, gram_layout
from streamrf.solvers.plan import PILOT, SMALLER_CHUNKS, Part, Plan, Sizes
from streamrf.solvers.registry import candidates, solver_of
from streamrf.solvers.ridge import RidgeSolver
from streamrf.support.errors import InputError
from streamrf.support.units import format_bytes, format_seconds
from streamrf.training.pilot.choice import PILOT_D, RIDGES, binning_bytes, budget_seconds, learning_bytes, sample_rows

HOLD_OUT_GROUPS = "hold out groups with `holdout_by` instead of the last rows"
WORTH_SAYING = 5.0  # seconds
WORTH = 0.5  # of the preferred solver's time: its sums allow update, forget and merge, so a tie is not enough
SHORT = 300.0  # seconds that the preferred solver may take without a second thought: so much its sums are worth


def plan_run(source: Source, recipe: Recipe, **sizes: Any) -> Plan:
    """What training will take, from shapes alone; nothing is read. ``sizes`` are those of ``Sizes.of``.

    Where the pilot chooses the map, this is the plan for Fourier features, with room for its trials of random binning.
    """
    return plan_for(Sizes.of(source, recipe, **sizes))


def replan(plan: Plan, **facts: Any) -> Plan:
    """The plan once more is known: the classes were counted, the pilot has chosen, a run is resumed."""
    return plan_for(replace(plan.sizes, **facts))


def plan_for(sizes: Sizes) -> Plan:
    recipe = sizes.recipe
    assert isinstance(recipe, Recipe)
    plan = _choose([each.plan(sizes) for each in _candidates(sizes)])
    why = plan.why
    if recipe.map == "weighted" and weighting_seconds(recipe.D) > WORTH_SAYING:
        seconds = format_seconds(weighting_seconds(recipe.D))
        why += f"; fitting the weights of {recipe.D:,} frequencies takes about {seconds} before the pass"
    if compares(sizes.source, recipe):
        why += "; the pilot compares random binning, and takes it if it is better"
    return plan.with_parts(parts=_pilot_parts(sizes, recipe), why=why)


def _candidates(sizes: Sizes) -> list[type[Solver]]:
    """The solvers that could do it, the preferred one first."""
    recipe = sizes.recipe
    able = candidates(recipe)
    if recipe.cv:
        able = able[:1]
    weighted = sizes.source.has_weights or recipe.class_weight
    if weighted and not recipe.is_float and recipe.map != BINNING:
        able = [each for each in able if each.weighs]
    if not able:
        others = [] if recipe.cv else [each.name for each in candidates(replace(recipe, solver=AUTO)) if each.weighs]
        cures = [*(f"`solver={name!r}`" for name in others), "`bits='float32'`"]
        raise InputError(f"weights of rows cannot enter exact sums (`bits={recipe.bits!r}`): use {', or '.join(cures)}")
    return able if recipe.loss == "squared" else able[:1]


def _choose(plans: list[Plan]) -> Plan:
    """The preferred solver where it fits, unless another takes much less time by the measured rates of this machine."""
    first, fitting = plans[0], [plan for plan in plans if plan.fits]
    if len(plans) == 1:
        return first
    if first.fits:
        return _faster(plans) if _solver(first).is_worth_comparing(first.sizes) else first
    if fitting:
        return replace(fitting[0], why=(
            f"{first.solver} would need {format_bytes(first.projected)}, the budget is {format_bytes(first.budget)}:"
            f" {fitting[0].solver} needs {format_bytes(fitting[0].projected)}"
        ))  # fmt: skip
    least = min(plans, key=lambda plan: plan.projected)
    names = ", ".join(plan.solver for plan in plans)
    return replace(least, why=f"the budget is too small for any solver ({names}); {least.solver} needs the least")


def _faster(plans: list[Plan]) -> Plan:
    """The first plan, which fits, or the fastest of the others that do."""
    first = plans[0]
    seconds = {plan.solver: estimate_run(plan) for plan in plans}
    needed = {name: found["total"] - found["pilot"] for name, found in seconds.items()}
    fastest = min((plan for plan in plans if plan.fits), key=lambda plan: needed[plan.solver])
    if needed[first.solver] < SHORT or needed[fastest.solver] > WORTH * needed[first.solver]:
        return replace(first, others=seconds)
    times = [
        f"{plan.solver} is estimated at {format_seconds(seconds[plan.solver]['total'])}" for plan in (fastest, first)
    ]
    return replace(fastest, others=seconds, why=f"{times[0]} ({fastest.passes} passes), {times[1]}")


def _solver(plan: Plan) -> type[Solver]:
    """The solver that a plan is of."""
    return solver_of(replace(plan.sizes.recipe, solver=plan.solver))


def compares(source: Source, recipe: Recipe) -> bool:
    """Whether the pilot will compare random binning with Fourier features; where it cannot, ``any`` is the latter."""
    return recipe.map == ANY and recipe.pilot != NONE and not source.has_weights and recipe.can_be_binned


def _pilot_parts(sizes: Sizes, recipe: Recipe) -> dict[str, Part]:
    """Trials, then what is learned: never both at once."""
    source = sizes.source
    rows = min(sizes.rows, sample_rows(sizes.rows, sizes.row_bytes, recipe))
    trials = 0
    if recipe.map == BINNING or compares(source, recipe):
        trials = 0 if recipe.pilot == NONE else binning_bytes(rows, source.n_features, sizes.outputs)
    if recipe.map != BINNING and (recipe.pilot != NONE or recipe.metric != NONE):
        trials = max(trials, _trial_bytes(sizes, recipe, rows))
    learning = 0 if recipe.map == BINNING else learning_bytes(recipe, source.n_features, rows)
    cure = "lower `grids` or `table_bits`" if recipe.map == BINNING else "lower `D`"
    sample = 3 * rows * max(sizes.row_bytes, 4 * source.n_features)
    return {
        "pilot": Part(max(trials, learning), (PILOT,), cure),
        "sample": Part(sample, (PILOT,), SMALLER_CHUNKS),
        "order of rows": Part(8 * sizes.rows if source.holdout_key == ORDER else 0, (PILOT,), HOLD_OUT_GROUPS),
    }


def _trial_bytes(sizes: Sizes, recipe: Recipe, rows: int) -> int:
    """A small run at the pilot's D, and the scores of a whole lambda path on a quarter of the sample."""
    small = replace(sizes, recipe=recipe.with_(D=min(PILOT_D, recipe.D)), classes=False)
    layout = gram_layout(small)
    scores = rows // 4 * sizes.outputs * len(RIDGES) * 8 * 4
    return 8 * layout.length + RidgeSolver.matrix_bytes(small.recipe.D) + block_bytes(small, layout) + scores


def estimate_run(plan: Plan) -> dict[str, float]:
    """Seconds of each stage, from rates measured here and now."""
    sizes = plan.sizes
    recipe = sizes.recipe
    assert isinstance(recipe, Recipe)
    pilot = 0.0 if recipe.pilot == NONE else budget_seconds(sizes.rows, recipe.D)
    pilot += weighting_seconds(recipe.D) if recipe.map == "weighted" else 0.0
    seconds = {"pilot": pilot, **_solver(plan).estimate(plan)}
    return {**seconds, "total": sum(seconds.values())}


def weighting_seconds(D: int) -> float:
    """What the non-negative least squares of ``weighted`` took on one core, which grows with the cube of D."""
    return 60.0 * (D / 5000) ** 3
