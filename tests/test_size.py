"""How many landmarks a run with nothing set has: by a budget of counted work, and by how errors of trials fall."""

from __future__ import annotations

import numpy as np
import pytest
from commands import done, streamrf
from tables import smooth, write_zarr

from streamrf.data.readers.memory import ArraySource
from streamrf.recipe import Recipe
from streamrf.statistics.calibration import fit_calibration
from streamrf.statistics.scores import bent
from streamrf.support.errors import InputError
from streamrf.training.pilot.size import (
    Curve,
    affordable_features,
    budget_for,
    default_seconds,
    enough_features,
    error_curve,
    fewest_features,
    larger_budget,
)
from streamrf.training.plan import estimate_run, least_plan, likely_targets, plan_run


def test_a_budget_is_a_time():
    assert Recipe(budget="5min").seconds == 300
    assert Recipe(budget=90).seconds == 90
    assert Recipe().seconds is None
    for wrong in ("soon", 0, "-1s"):
        with pytest.raises(InputError, match="must be a time"):
            Recipe(budget=wrong)
    for given in ({"D": 100}, {"map": "sobol"}, {"kernel": "gaussian"}):
        with pytest.raises(InputError, match="must be left out where"):
            Recipe(budget="5min", **given)


def test_a_larger_budget_buys_more_features():
    source = ArraySource(*smooth(9000))
    sizes = [plan_run(source, Recipe(budget=b), outputs=1, threads=1, budget=2**34) for b in ("10s", "1min")]
    assert sizes[0].sizes.recipe.D < sizes[1].sizes.recipe.D


def test_features_are_no_more_than_rows_bear_and_fewer_for_longer_tables():
    assert affordable_features(3000, 5) == 2000
    found = [affordable_features(rows, 20) for rows in (50_000, 500_000, 5_000_000)]
    assert found == sorted(found, reverse=True)
    assert default_seconds(50_000) == 8
    assert default_seconds(200_000) == 16


def test_a_budget_buys_the_features_that_it_is_for():
    for features in (1024, 4096):
        assert affordable_features(36_000, 8, budget_for(features, 36_000, 8) + 1) >= features
    assert affordable_features(36_000, 8, budget_for(4096, 36_000, 8) / 2) < 4096


def test_the_curve_of_errors_falls_as_trials_do():
    halved = Curve.of({256: 0.4, 512: 0.2, 1024: 0.1}, 1.0)
    assert halved.fall(1024, 2048) == pytest.approx(0.5)
    assert halved.fall(2048, 4096) == pytest.approx(0.5)
    assert Curve.of({256: 0.1, 512: 0.1, 1024: 0.1}, 1.0).fall(1024, 2048) == 0


def test_the_curve_goes_from_the_trials_to_what_rows_bear():
    falling = {256: 0.4, 512: 0.2, 1024: 0.1}
    found = error_curve(falling, 36_000, 8, 4.0)
    assert [each["features"] for each in found] == [1024, 2048, 4096, 8192, 16384]  # the root of 4 times as many
    assert [each["error"] for each in found] == pytest.approx([0.2, 0.1, 0.05, 0.025, 0.0125])
    assert all(affordable_features(36_000, 8, each["budget"]) > each["features"] - 128 for each in found)
    assert [each["features"] for each in error_curve(falling, 3_200, 8, 1.0)] == [2048]  # the least budget buys it
    assert error_curve({256: 0.4}, 36_000, 8, 4.0) == []


def test_a_plan_shows_the_error_to_expect_of_more_time(tmp_path):
    X, y = smooth(8000)
    data = write_zarr(tmp_path / "t.zarr", X, y)
    found = done("plan", data, "--errors", "--json", "--threads", "1").json["error_curve"]
    assert len(found) >= 2
    assert [each["budget"] for each in found] == sorted(each["budget"] for each in found)
    assert [each["error"] for each in found] == sorted((each["error"] for each in found), reverse=True)
    assert "error_curve" not in done("plan", data, "--json").json
    rows = [line for line in done("plan", data, "--errors", "--threads", "1").out.splitlines() if "--budget" in line]
    assert [f"--budget {each['budget']:.0f}s" for each in found] == [" ".join(row.split()[:2]) for row in rows]
    refused = streamrf("plan", data, "--errors", "--D", "100")
    assert refused.code == 2
    assert "leave out --D, --map" in refused.sentence


def test_what_more_time_would_bring_is_said_where_it_is_much():
    falling, flat = {256: 0.4, 512: 0.2, 1024: 0.1}, {256: 0.1, 512: 0.1, 1024: 0.1}
    told = larger_budget(falling, 3000, 36_000, 8, 1.0)["larger_budget"]
    assert told["features"] == 6000
    assert 0.4 < told["fall"] < 0.6
    assert affordable_features(36_000, 8, told["seconds"]) >= 6000 - 128
    assert not larger_budget(flat, 3000, 36_000, 8, 1.0)
    assert not larger_budget(falling, 3000, 4_500, 8, 1.0)  # rows bear no more


def test_features_that_bring_nothing_are_left_out():
    flat, falling = {256: 0.1, 512: 0.1, 1024: 0.1}, {256: 0.4, 512: 0.2, 1024: 0.1}
    assert enough_features(flat, 8000, 1.0) == 1024
    assert enough_features(flat, 8000, 4.0) == 2048  # more rows bear more
    assert enough_features(falling, 8000, 1.0) > 4096
    assert enough_features(falling, 700, 1.0) == 700


def test_time_is_estimated_for_the_most_features_and_for_the_fewest():
    flat = {256: 0.1, 512: 0.1, 1024: 0.1}
    for rows in (1.0, 4.0):
        assert fewest_features(8000, rows) == enough_features(flat, 8000, rows)
    assert fewest_features(700, 1.0) == 700
    source = ArraySource(*smooth(9000))
    plan = plan_run(source, Recipe(), outputs=1, threads=1, budget=2**34)
    least, most = (estimate_run(each) for each in (least_plan(plan), plan))
    assert least["pilot"] == most["pilot"]
    assert least["pass"] < most["pass"]
    given = plan_run(source, Recipe(D=3000), outputs=1, threads=1, budget=2**34)
    assert least_plan(given) is given  # nothing is left to the pilot


@pytest.mark.parametrize(("targets", "task", "found"), [
    (np.arange(600) % 7, "auto", (7, True)), (np.arange(600) % 2, "auto", (1, True)),
    (np.arange(600), "auto", (1, False)), (np.arange(600) % 7 / 1.0, "auto", (1, False)),
    (np.arange(600) % 7 / 1.0, "classification", (7, True)), (np.arange(600) % 7, "regression", (1, False)),
    (np.array(list("abc") * 200), "auto", (3, True)), (np.array(["a"] * 600), "auto", (1, False)),
])  # fmt: skip
def test_a_plan_counts_classes_by_the_first_targets(targets, task, found):
    """One class alone is for the run to refuse."""
    told = likely_targets(ArraySource(np.zeros((600, 2)), targets), task, 500)
    assert (told["outputs"], told["classes"]) == found


def test_many_classes_take_longer():
    X, seconds = np.zeros((9000, 4)), []
    for labels in (2, 20):
        source = ArraySource(X, np.arange(9000) % labels)
        plan = plan_run(source, Recipe(), **likely_targets(source, "auto", 9000), threads=1, budget=2**34)
        seconds.append(estimate_run(plan))
    assert seconds[1]["solve"] > 2 * seconds[0]["solve"]
    assert seconds[1]["pilot"] > seconds[0]["pilot"]


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_that_are_probabilities_are_bent(classes):
    """As least squares gives them: log-odds grow faster than the scores."""
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.full(classes, 0.3), 4000)
    codes = (chances.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1).clip(max=classes - 1)
    scores = 2 * chances[:, 1:] - 1 if classes == 2 else chances
    found = fit_calibration(scores, codes)
    assert found.bend > 0
    assert np.abs(found.probabilities(scores) - chances).mean() < 0.05


def test_no_bend_leaves_scores_as_they_are():
    scores = np.random.default_rng(0).normal(size=(5, 3))
    assert bent(scores, 0.0) is scores
