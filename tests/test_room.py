"""Where memory is scarce a blend is made smaller, and its trials too: it is far better than what else would fit."""

import numpy as np
import pytest
from tables import smooth, write_zarr
from test_kernel_pilot import columns, piloted
from test_memory import measured

from streamrf.data.readers.memory import ArraySource
from streamrf.recipe import Recipe
from streamrf.training.pilot.room import (
    BINS,
    EXACT_ROWS,
    FEATURES,
    FEWEST_SAMPLED,
    WHOLE,
    Room,
    room_for,
    sampled_rows,
    scarce_rows,
)
from streamrf.training.plan import plan_run, replan, scarce_grids

MB = 10**6


def planned(room: int, rows: int = 20_000, columns: int = 10, recipe: Recipe | None = None):
    source = ArraySource(np.zeros((rows, columns)), np.arange(rows, dtype=np.float64))
    return plan_run(source, recipe or Recipe(), outputs=1, threads=2, reserved=400 * MB, budget=(400 + room) * MB)


@pytest.mark.parametrize("room", [60, 100, 300, 600, 2000])
def test_a_blend_is_made_to_fit(room):
    plan = planned(room)
    assert plan.solver == "stacking"
    assert plan.fits


def test_less_memory_makes_everything_smaller_and_enough_changes_nothing():
    plans = [planned(room) for room in (60, 300, 2000)]
    rooms = [room_for(plan.sizes, Recipe()) for plan in plans]
    sizes = np.array(
        [
            (plan.sizes.recipe.D, plan.sizes.recipe.grids, room.exact, not room.alone, room.features, room.bins)
            for plan, room in zip(plans, rooms, strict=True)
        ]
    )
    assert (np.diff(sizes, axis=0) >= 0).all()
    assert (sizes[0] < sizes[2]).all()
    assert rooms[2] == WHOLE == Room(EXACT_ROWS[0], False, FEATURES[0], BINS[0])
    assert scarce_grids(plans[2].sizes) is None
    assert scarce_grids(plans[0].sizes) == plans[0].sizes.recipe.grids


def wide(budget, recipe):
    """80,273 rows of 2,590 coded columns, which take no memory here."""
    X = np.lib.stride_tricks.as_strided(np.zeros(1), (80_273, 2_590), (0, 0))
    source = ArraySource(X, np.arange(80_273, dtype=np.float64))
    return plan_run(source, recipe, outputs=1, threads=2, reserved=300 * MB, budget=budget)


@pytest.mark.parametrize("recipe", [Recipe(D=300), Recipe(D=300, pilot="none"), Recipe(D=300, map="landmarks")])
def test_the_sample_of_a_wide_table_is_as_large_as_memory_holds(recipe):
    usual = sampled_rows(wide(10**11, recipe).sizes, recipe)
    assert scarce_rows(wide(10**11, recipe).sizes, recipe) is None
    rows = []
    for budget in (2000 * MB, 1600 * MB, 1200 * MB):
        plan = wide(budget, recipe)
        assert plan.fits
        rows.append(sampled_rows(plan.sizes, recipe))
    assert usual >= rows[0] > rows[1] > rows[2] >= FEWEST_SAMPLED
    least = wide(400 * MB, recipe)  # which nothing fits: refused with the fewest rows, and not with none
    assert not least.fits
    assert sampled_rows(least.sizes, recipe) == FEWEST_SAMPLED


def test_a_plan_is_one_line():
    """As a notebook shows it: its sizes would fill a page."""
    assert repr(wide(2000 * MB, Recipe(D=300))) == "<streamrf plan: cholesky, 1 pass, 1.63 GB of a budget of 2.00 GB>"


def test_grids_that_were_asked_for_stay():
    assert planned(100, recipe=Recipe(map="blend", grids=90)).sizes.recipe.grids == 90


def test_what_is_known_later_is_planned_from_what_was_asked():
    """Many classes make wide scores: the plan for them is smaller, not refused."""
    first = planned(560)
    later = replan(first, outputs=26, classes=True)
    assert later.solver == "stacking"
    assert later.fits
    assert later.sizes.recipe.grids < first.sizes.recipe.grids
    assert replan(later, outputs=1, classes=False).sizes.recipe == first.sizes.recipe


def test_small_trials_still_find_the_columns_that_matter():
    choice = piloted(*columns(), room=Room(300, True, 64, BINS[-1]))
    assert {each["column"] for each in choice.notes["learning"]["metric"]["columns"][:2]} == {0, 1}
    assert max(trial.D for trial in choice.trials) <= 300


def test_under_half_a_gigabyte(tmp_path):
    data = write_zarr(tmp_path / "t.zarr", *smooth(2500, 4))
    said, peak = measured("train", data, "--memory", "500MB", "--threads", "2", "--json", "--out", tmp_path / "m.model")
    assert said["map"] in ("blend", "landmarks")  # random binning may be far behind
    assert peak <= said["memory"]["projected"] <= said["memory"]["budget"] == 500 * MB
