"""The plan of any run: which solver, with room for the pilot; and another plan once more is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamrf.data.source import Source, Span
from streamrf.features.settings import BINNING, LANDMARKS, OWN, TREES
from streamrf.features.targets import REGRESSION
from streamrf.recipe import ANY, AUTO, BLEND, DEFAULT_D, NONE, Recipe
from streamrf.solvers.base import Solver
from streamrf.solvers.binning import default_bits, default_grids
from streamrf.solvers.boosting import tree_seconds
from streamrf.solvers.cholesky import likely_bits
from streamrf.solvers.plan import FEW_ROWS, PILOT, SMALLER_CHUNKS, Part, Plan, Sizes
from streamrf.solvers.rates import READ_RATE, rates_of_this_machine
from streamrf.solvers.registry import candidates, solver_of
from streamrf.solvers.stacking import Stacking
from streamrf.statistics.targets import TargetScan, settle_targets
from streamrf.support.errors import DataError, InputError
from streamrf.support.units import format_bytes, format_seconds
from streamrf.training.pilot.choice import budget_seconds
from streamrf.training.pilot.fourier import VALIDATION
from streamrf.training.pilot.room import TRIAL_ROWS, compares, order_bytes, pilot_bytes, sample_bytes, sampled_rows
from streamrf.training.pilot.size import affordable_features, fewest_features
from streamrf.training.pilot.trees import MOST_ROWS as TREE_ROWS
from streamrf.training.pilot.trees import TRIED
from streamrf.training.pilot.widths import CELLS_A_SECOND, TRIAL_SECONDS, USUAL_TRIALS, binning_work
from streamrf.training.pilot.work import kernel_work

HOLD_OUT_GROUPS = "hold out groups with `holdout_by` instead of the last rows"
WORTH_SAYING = 5.0  # seconds
WORTH = 0.5  # of the preferred solver's time: its sums allow update, forget and merge, so a tie is not enough
FEWEST_FEATURES, FEWEST_GRIDS = 256, 50  # of a blend whose memory is scarce
SHORT = 300.0  # seconds that the preferred solver may take without a second thought: so much its sums are worth


def plan_run(source: Source, recipe: Recipe, **sizes: Any) -> Plan:
    """What training will take, from shapes alone; nothing is read. ``sizes`` are those of ``Sizes.of``.

    Where the pilot chooses the map, this is the plan for a blend, or for Fourier features where none fits the budget.
    """
    return plan_for(Sizes.of(source, recipe, **sizes))


def replan(plan: Plan, **facts: Any) -> Plan:
    """The plan once more is known: the classes were counted, the pilot has chosen, a run is resumed."""
    known = {"asked": None, **facts} if "recipe" in facts else facts
    return plan_for(replace(plan.sizes, **known))


def plan_for(sizes: Sizes) -> Plan:
    recipe = sizes.asked or sizes.recipe
    assert isinstance(recipe, Recipe)
    sizes = replace(sizes, recipe=recipe, asked=recipe)
    if not compares(recipe, sizes.counting_rows):
        return _planned(sizes, recipe)
    blend = _planned(_sized(sizes), recipe)
    if blend.fits or recipe.map == BLEND:
        return blend
    plain = recipe.as_fourier()
    plan = _planned(replace(sizes, recipe=plain), plain)
    needed = f"a blend would need {format_bytes(blend.projected)}, the budget is {format_bytes(blend.budget)}"
    return replace(plan, why=f"{needed}; {plan.why}")


def _planned(sizes: Sizes, recipe: Recipe) -> Plan:
    """With the solver that suits it best, and room for the pilot; ``recipe`` is what was asked for."""
    plan = _choose([each.plan(sizes) for each in _candidates(sizes)])
    why = plan.why
    if recipe.map == "weighted" and weighting_seconds(recipe.D) > WORTH_SAYING:
        seconds = format_seconds(weighting_seconds(recipe.D))
        why += f"; fitting the weights of {recipe.D:,} frequencies takes about {seconds} before the pass"
    if recipe.map == ANY != sizes.recipe.map:
        why += "; the pilot leaves out those that are far behind"
    return plan.with_parts(parts=_pilot_parts(sizes, recipe), why=why)


def _sized(sizes: Sizes) -> Sizes:
    """As a blend, with as many features as its time and memory allow, and as many grids as memory allows."""
    recipe = sizes.recipe
    assert isinstance(recipe, Recipe)
    D, rows = recipe.D, sizes.counting_rows
    if recipe.map == ANY:
        most = affordable_features(rows, sizes.source.n_features, recipe.seconds)
        D = most if D == DEFAULT_D else min(D, most)
    grids, bits = (
        recipe.grids or default_grids(rows, sizes.outputs),
        recipe.table_bits or default_bits(rows),
    )
    fewest = grids if recipe.grids else min(grids, FEWEST_GRIDS)
    while True:
        sized = replace(sizes, recipe=replace(recipe, map=BLEND, D=D, grids=grids, table_bits=bits))
        if Stacking.plan(sized).fits or (D <= FEWEST_FEATURES and grids <= fewest):
            return sized
        plans = Stacking.member_plans(sized)
        if D > FEWEST_FEATURES and (grids <= fewest or plans[LANDMARKS].projected > plans[BINNING].projected):
            D = max(FEWEST_FEATURES, D * 3 // 4)
        else:
            grids = max(fewest, grids * 3 // 4)


def scarce_grids(sizes: Sizes) -> int | None:
    """The grids of a blend where memory does not allow the usual number."""
    grids = sizes.recipe.grids
    return grids if grids and grids < default_grids(sizes.rows, sizes.outputs) else None


def _candidates(sizes: Sizes) -> list[type[Solver]]:
    """The solvers that could do it, the preferred one first."""
    recipe = sizes.recipe
    able = candidates(recipe)
    if recipe.cv:
        able = able[:1]
    few = sizes.counting_rows < FEW_ROWS
    if sizes.weighted and not recipe.is_float and recipe.map not in OWN and not few:
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
    """The first plan, which fits, or the fastest of the others that do. Sums that nobody keeps are worth no time."""
    first = plans[0]
    seconds = {plan.solver: estimate_run(plan) for plan in plans}
    needed = {name: found["total"] - found["pilot"] for name, found in seconds.items()}
    fastest = min((plan for plan in plans if plan.fits), key=lambda plan: needed[plan.solver])
    wanted = first.sizes.keeps_sums or not _solver(first).leaves_sums
    near = needed[first.solver] < SHORT or needed[fastest.solver] > WORTH * needed[first.solver]
    costs = "; ".join(_cost(plan, needed[plan.solver]) for plan in plans if plan.fits)
    return replace(first if wanted and near else fastest, others=seconds, why=f"estimated without the pilot: {costs}")


def _cost(plan: Plan, seconds: float) -> str:
    """What a solver takes, and what it leaves."""
    solver = _solver(plan)
    passes = f" ({plan.passes} passes)" if plan.passes > 1 else ""
    sums = ", keep update and forget" if solver.leaves_sums else ""
    return f"{solver.title or solver.name} {format_seconds(seconds)}{passes}{sums}"


def _solver(plan: Plan) -> type[Solver]:
    """The solver that a plan is of."""
    return solver_of(replace(plan.sizes.recipe, solver=plan.solver))


def _pilot_parts(sizes: Sizes, recipe: Recipe) -> dict[str, Part]:
    cure = "lower `grids` or `table_bits`" if recipe.map == BINNING else "lower `D`"
    return {
        "pilot": Part(pilot_bytes(sizes, recipe), (PILOT,), cure),
        "sample": Part(sample_bytes(sizes, recipe), (PILOT,), SMALLER_CHUNKS),
        "order of rows": Part(order_bytes(sizes), (PILOT,), HOLD_OUT_GROUPS),
    }


def likely_targets(source: Source, task: str, rows: int) -> dict[str, Any]:
    """How many outputs there will be, and whether they are classes, by the first targets where these may be labels:
    many classes take many times as long."""
    numbers = {"outputs": max(1, source.n_outputs), "classes": False}
    if source.y_dtype is None or task == REGRESSION or (source.y_dtype.kind == "f" and task == AUTO):
        return numbers
    scan = TargetScan()
    scan.update(source.read_targets(Span(0, min(rows, source.n_rows))))
    try:
        coding = settle_targets(scan, task, source.y_dtype.kind, "drop")
    except (DataError, InputError):  # which the run will refuse, in its own words
        return numbers
    return {"outputs": coding.outputs, "classes": bool(coding.classes)}


def least_plan(plan: Plan) -> Plan:
    """As few landmarks as a run with nothing set may have, where trials say that more would bring nothing."""
    sizes, asked = plan.sizes, plan.sizes.asked
    if not isinstance(asked, Recipe) or asked.map != ANY or asked.pilot == NONE or sizes.recipe.map != BLEND:
        return plan
    rows = sizes.counting_rows
    D = fewest_features(sizes.recipe.D, rows / min(TRIAL_ROWS, max(1, rows - sizes.held_out)))
    return replace(plan, sizes=replace(sizes, recipe=replace(sizes.recipe, D=D)))


def estimate_run(plan: Plan) -> dict[str, float]:
    """Seconds of each stage, from rates measured here and now."""
    sizes = plan.sizes
    recipe = sizes.recipe
    assert isinstance(recipe, Recipe)
    pilot = 0.0 if recipe.pilot == NONE or recipe.map == TREES else _pilot_seconds(sizes, recipe)
    pilot += weighting_seconds(recipe.D) if recipe.map == "weighted" else 0.0
    seconds = {"pilot": pilot, **_solver(plan).estimate(plan)}
    return {**seconds, "total": sum(seconds.values())}


def _pilot_seconds(sizes: Sizes, recipe: Recipe) -> float:
    """Counted work over the rate at which this machine factors matrices, and what reading the sample takes."""
    if recipe.map not in (ANY, BLEND):
        return budget_seconds(sizes.rows, recipe.D)
    seen = max(1, sizes.rows - sizes.held_out)
    rows, columns = min(seen, sampled_rows(sizes, recipe)), sizes.source.n_features
    rates = rates_of_this_machine(likely_bits(sizes), sizes.threads)
    read = sizes.rows * sizes.row_bytes / READ_RATE
    return (
        read
        + kernel_work(rows, columns) / rates.factor
        + USUAL_TRIALS * TRIAL_SECONDS
        + binning_work(rows, columns) / (CELLS_A_SECOND * sizes.threads)
        + _tree_trials(sizes, min(rows, TREE_ROWS))
    )


def _tree_trials(sizes: Sizes, rows: int) -> float:
    """Two where there are codes of categories, which trees may do without."""
    columns, judges = sizes.source.columns, int(rows * VALIDATION)
    ways = 2 if columns is not None and columns.by_target else 1
    return tree_seconds(sizes, ways * TRIED, max(1, rows - judges), judges)


def weighting_seconds(D: int) -> float:
    """What the non-negative least squares of ``weighted`` took on one core, which grows with the cube of D."""
    return 60.0 * (D / 5000) ** 3
