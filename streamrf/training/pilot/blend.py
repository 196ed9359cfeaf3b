"""Which of landmarks, random binning and trees are trained together, or one of them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamrf.recipe import AUTO, BINNING, BLEND, LANDMARKS, TREES, Recipe
from streamrf.support.progress import Reporter
from streamrf.training.pilot.choice import Choice

TRAINED = "trained"  # the note that says which maps were
FAR_BEHIND = 2.5  # times the error of the best: a blend would hardly listen to it
MANY_ROWS, BEHIND_OF_MANY = 100_000, 1.6  # whose pass takes so long that it must bring more
SMALL_ROWS = 10_000  # tables whose members take next to no time: the rows that choose may judge all of them
OF_LANDMARKS = ("kernel", "bits", "form", "metric", "solver")  # settings of a blend that its binning does not have


def smooth_recipe(recipe: Recipe) -> Recipe:
    """What is asked of the landmarks of a blend."""
    return recipe.with_(map=LANDMARKS, grids=None, table_bits=None, solver=AUTO)


def binned_recipe(recipe: Recipe) -> Recipe:
    """What is asked of the random binning of a blend."""
    return recipe.with_(map=BINNING, length_scale=None, ridge=None, **dict.fromkeys(OF_LANDMARKS, AUTO))


def blended(
    members: Sequence[Choice], errors: Mapping[str, float], rows: int, asked: Recipe, reporter: Reporter
) -> Choice:
    """All of them, but for those that are far behind on the rows that judge trials; ``errors`` are by maps."""
    verdict = ", ".join(f"{name} {error:.4f}" for name, error in errors.items())
    far = FAR_BEHIND if rows < MANY_ROWS else BEHIND_OF_MANY
    if asked.map == BLEND or rows < SMALL_ROWS:
        far = float("inf")
    members = [each for each in members if errors[each.recipe.map] <= far * min(errors.values())]
    kinds = " and ".join(each.recipe.map for each in members)
    reporter.detail(f"errors of trials: {verdict}; trained: {kinds}")
    choice = members[0] if len(members) == 1 else together(members)
    told = {"compared": verdict, TRAINED: [each.recipe.map for each in members]}
    return replace(choice, notes={**choice.notes, **told})


def together(members: Sequence[Choice]) -> Choice:
    """A blend: its recipe has the settings of its landmarks, if it has any, and the grids of its binning."""
    by_map = {each.recipe.map: each for each in members}
    first, bins = members[0], by_map.get(BINNING)
    own = {} if LANDMARKS in by_map else {"kernel": AUTO, "length_scale": None}
    scalings = {each.recipe.scaling for each in members if each.recipe.map != TREES}  # which need none
    scaling = scalings.pop() if len(scalings) == 1 else AUTO
    recipe = first.recipe.with_(map=BLEND, scaling=scaling, solver=AUTO, **own)
    if bins is None:
        return Choice(recipe, members=tuple(members), notes=first.notes)
    recipe = recipe.with_(grids=bins.recipe.grids, table_bits=bins.recipe.table_bits)
    return Choice(
        recipe, length_scales=bins.length_scales, growth=bins.growth, mixed=bins.mixed, members=tuple(members),
        notes=first.notes,
    )  # fmt: skip
