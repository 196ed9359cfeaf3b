"""Widths for more features than any trial has: the parabola, the power, and a pilot that follows it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.recipe import Recipe
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads
from streamrf.training.pilot import fourier
from streamrf.training.pilot.fourier import PilotRun
from streamrf.training.pilot.trend import FAR, ROWS_A_FEATURE, STEEPEST, lowest, power, reach

FEW = 64


@given(st.floats(0.1, 10), st.floats(0.85, 1.18), st.floats(0.1, 5))
def test_the_lowest_point_of_a_parabola_is_found_between_widths(middle, off, bend):
    widths = middle * off * 2.0 ** np.array([-0.5, 0.5, 0.0])
    errors = 0.3 + bend * np.log(widths / middle) ** 2
    assert lowest(zip(widths, errors, strict=True)) == pytest.approx(middle, rel=1e-6)


@pytest.mark.parametrize("errors", [(1.0, 2.0, 3.0), (3.0, 2.0, 1.0)])
def test_at_an_edge_the_best_width_stands(errors):
    assert lowest(zip((1.0, 2.0, 4.0), errors, strict=True)) == pytest.approx((1.0, 4.0)[errors[0] > 2])


def test_widths_that_are_as_good_as_each_other_leave_the_best_where_it_is():
    assert lowest([(1.0, 0.5), (2.0, 0.5), (4.0, 0.5)]) == pytest.approx(1.0)


@pytest.mark.parametrize(("true", "found"), [(-0.25, -0.25), (0.0, 0.0), (0.2, 0.0), (-0.9, STEEPEST)])
def test_the_power_is_that_of_the_points_within_bounds(true, found):
    assert power([(D, 3.0 * D**true) for D in (2048, 1024, 512)]) == pytest.approx(found, abs=1e-12)


def test_features_without_rows_do_not_count():
    assert reach(20_000, 10**6) == 20_000
    assert reach(20_000, 80_000) == 80_000 // ROWS_A_FEATURE


def pilot(monkeypatch, D, rows=10**6, sample=4000, **fixed):
    """A pilot whose largest trials have FEW features, on waves that few features cannot follow."""
    monkeypatch.setattr(fourier, "PILOT_D", FEW)
    monkeypatch.setattr(fourier, "SMALL_D", FEW // 4)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (sample, 2)).astype(np.float32)
    y = np.sin(9 * X[:, 0]) * np.cos(7 * X[:, 1]) + 0.5 * np.sign(X[:, 0] * X[:, 1]) + 0.1 * rng.standard_normal(sample)
    recipe = Recipe(D=D, kernel="gaussian", scaling="none", bits="12", **fixed)
    block, coding = Block(X, y, np.arange(sample)), TargetCoding.regression(y.min(keepdims=True), y.max(keepdims=True))
    with Threads(1, limit_blas=False) as threads:
        run = PilotRun(block, coding, recipe, threads, budget=1.0, reporter=Reporter(), rows=rows)
        return run.choose().recipe, run


def test_many_more_features_get_a_narrower_kernel(monkeypatch):
    near, _ = pilot(monkeypatch, FAR * FEW - 1)
    far, run = pilot(monkeypatch, 50 * FEW)
    further, _ = pilot(monkeypatch, 100 * FEW)
    assert further.length_scale < far.length_scale < near.length_scale
    assert {trial.D for trial in run.trials} == {FEW, FEW // 2, FEW // 4}


def test_few_rows_do_not_narrow_it(monkeypatch):
    rows = FAR * FEW * ROWS_A_FEATURE - 1
    near, far = (pilot(monkeypatch, D, rows, rows)[0] for D in (FAR * FEW - 1, 50 * FEW))
    assert far.length_scale == near.length_scale


def test_a_width_that_was_given_stands(monkeypatch):
    settled, run = pilot(monkeypatch, 50 * FEW, length_scale=0.3)
    assert settled.length_scale == 0.3
    assert {trial.length_scale for trial in run.trials} == {0.3}
