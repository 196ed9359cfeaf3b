"""The plan of any run: which solver, with room for the pilot; and another plan once more is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamrf.data.source import Source
from streamrf.features.settings import BINNING
from streamrf.recipe import ANY, NONE, Recipe
from streamrf.solvers.base import Solver
from streamrf.solvers.cholesky import block_bytes, gram_layout
from streamrf.solvers.plan import PILOT, SMALLER_CHUNKS, Part, Plan, Sizes
from streamrf.solvers.registry import candidates, solver_of
from streamrf.solvers.ridge import RidgeSolver
from streamrf.support.errors import InputError
from streamrf.support.units import format_bytes, format_seconds
from streamrf.training.pilot.choice import PILOT_D, RIDGES, binning_bytes, budget_seconds, learning_bytes, sample_rows

WORTH_SAYING = 5.0  # seconds
CROSSING = 3000  # features below which Cholesky is not worth doubting
WORTH = 0.5  # of the direct solver's time: its sums allow update, forget and merge, so a tie is not enough
SHORT = 300.0  # seconds that the direct solver may take without a second thought: so much its sums are worth


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
        cure = "`bits='float32'`" if recipe.cv else "`solver='cg'`, or `bits='float32'`"
        raise InputError(f"weights of rows cannot enter exact sums (`bits={recipe.bits!r}`): use {cure}")
    return able if recipe.loss == "squared" else able[:1]


def _choose(plans: list[Plan]) -> Plan:
    """Cholesky where it fits, unless conjugate gradients take much less time by the measured rates of this machine."""
    by_name = {plan.solver: plan for plan in plans}
    if not {"cholesky", "cg"} <= set(by_name):
        return plans[0]
    direct, cg = by_name["cholesky"], by_name["cg"]
    D = direct.sizes.recipe.D
    if not direct.fits:
        if cg.fits:
            return replace(cg, why=(
                f"the {D} x {D} system would need {format_bytes(direct.projected)}, the budget is"
                f" {format_bytes(direct.budget)}: passes of conjugate gradients never hold it"
            ))  # fmt: skip
        least = min((direct, cg), key=lambda plan: plan.projected)
        return replace(least, why=f"neither Cholesky nor conjugate gradients fit the budget; {least.solver} needs less")
    return direct if D < CROSSING else _faster(direct, cg)


def _faster(direct: Plan, cg: Plan) -> Plan:
    seconds = {plan.solver: estimate_run(plan) for plan in (direct, cg)}
    needed = {name: found["total"] - found["pilot"] for name, found in seconds.items()}
    quick = needed["cholesky"] < SHORT or needed["cg"] > WORTH * needed["cholesky"]
    if quick or not cg.fits:
        return replace(direct, others=seconds)
    why = (
        f"about {cg.passes - 1} passes of conjugate gradients are estimated at"
        f" {format_seconds(seconds['cg']['total'])}, Cholesky at {format_seconds(seconds['cholesky']['total'])}"
    )
    return replace(cg, others=seconds, why=why)


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
    seconds = {"pilot": pilot, **solver_of(recipe.with_(solver=plan.solver)).estimate(plan)}
    return {**seconds, "total": sum(seconds.values())}


def weighting_seconds(D: int) -> float:
    """What the non-negative least squares of ``weighted`` took on one core, which grows with the cube of D."""
    return 60.0 * (D / 5000) ** 3
