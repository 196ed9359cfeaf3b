"""The plan of any run: Fourier features, random binning, or whichever of them the pilot will choose."""

from __future__ import annotations

from typing import Any

from streamrf.data.source import Source
from streamrf.recipe import ANY, AUTO, BINNING, NONE, Recipe
from streamrf.solvers.binning_plan import estimate_binning, measure_binning, pilot_bytes, plan_binning
from streamrf.solvers.plan import SLACK, Plan, estimate_seconds, make_plan
from streamrf.solvers.rates import measure_rates
from streamrf.support.errors import InputError
from streamrf.support.threads import Threads
from streamrf.support.units import format_seconds
from streamrf.training.pilot.fourier import sample_rows

WORTH_SAYING = 5.0  # seconds


def plan_run(source: Source, recipe: Recipe, *, outputs: int, keeps: bool = True, **sizes: Any) -> Plan:
    """As ``make_plan``. Where the pilot chooses, this is the plan for Fourier features, with room for its trials of
    random binning: once it has chosen that, there is a plan of its own."""
    if recipe.map == BINNING:
        if source.has_weights:
            raise InputError("random binning counts rows, which cannot have weights: use Fourier features (--map auto)")
        return plan_binning(source, recipe, outputs=outputs, **sizes)
    plan = make_plan(source, recipe, outputs=outputs, keeps=keeps, **sizes)
    if recipe.map == "weighted" and weighting_seconds(recipe.D) > WORTH_SAYING:
        seconds = format_seconds(weighting_seconds(recipe.D))
        plan.why += f"; fitting the weights of {recipe.D:,} frequencies takes about {seconds} before the pass"
    if compares(source, recipe):
        rows = min(source.n_rows, sample_rows(source.n_rows, source.n_features * source.x_dtype.itemsize, recipe))
        plan.parts["pilot"] = max(plan.parts["pilot"], pilot_bytes(rows, source.n_features, outputs))
        plan.stages["pilot"] = plan.reserved + int(SLACK * (plan.parts["pilot"] + plan.parts["sample"]))
        plan.why += "; the pilot compares random binning, and takes it if it is better"
    return plan


def compares(source: Source, recipe: Recipe) -> bool:
    """Whether the pilot will compare random binning with Fourier features; where it cannot, ``any`` is the latter."""
    return recipe.map == ANY and recipe.pilot != NONE and not source.has_weights and recipe.can_be_binned


def estimate_run(plan: Plan, source: Source, recipe: Recipe, outputs: int, threads: Threads) -> dict[str, float]:
    """Seconds of each stage, from rates measured here and now."""
    if recipe.map == BINNING:
        return estimate_binning(plan, source, recipe, outputs, measure_binning(threads))
    rates = measure_rates("12" if recipe.bits == AUTO else recipe.bits, threads)
    seconds = estimate_seconds(plan, source, recipe, outputs, rates)
    if recipe.map == "weighted":
        seconds["pilot"] += weighting_seconds(recipe.D)
        seconds["total"] += weighting_seconds(recipe.D)
    return seconds


def weighting_seconds(D: int) -> float:
    """What the non-negative least squares of ``weighted`` took on one core, which grows with the cube of D."""
    return 60.0 * (D / 5000) ** 3
