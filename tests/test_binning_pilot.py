"""The pilot of random binning: it finds the columns that matter, and how widths shrink with rows."""

import numpy as np
import pytest

from streamrf.features.binning.map import mixed_scales
from streamrf.solvers.binning import default_bits, default_grids
from streamrf.support.errors import DataError
from streamrf.support.threads import Threads
from streamrf.training.pilot.widths import Rows, WidthSearch, choose_widths, few_outputs


def sample(n, seed=0, d=6):
    """The first column decides finely, the second coarsely, the last (0 or 1) flips the sign; three are noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d)).astype(np.float32)
    X[:, -1] = X[:, -1] > 0
    y = np.sin(9 * X[:, 0]) * (2 * X[:, -1] - 1) + 0.5 * X[:, 1] + 0.05 * rng.standard_normal(n)
    return Rows(X, y[:, None])


@pytest.fixture(scope="module")
def search():
    with Threads(1) as threads:
        yield WidthSearch(sample(3000), sample(1500, seed=1), threads)


@pytest.fixture(scope="module")
def choice(search):
    return choose_widths({"standard": search})


def test_columns_that_matter_get_narrow_bins(choice):
    fine, coarse, *noise, flag = choice.trial.length_scales
    assert fine < coarse < min(noise)
    assert fine * 8 < min(noise)
    assert flag < min(noise)


def test_the_error_falls_to_that_of_a_good_fit(choice):
    first = choice.trials[0][1].error
    assert choice.trial.error == min(trial.error for _, trial in choice.trials)
    assert choice.trial.error < 0.5 * first
    assert choice.trial.error < 0.12


def test_errors_are_those_of_the_predictions(search, choice):
    wanted = search.held_out.Y
    mean = search.train.Y.mean()
    expected = ((choice.trial.predictions - wanted) ** 2).sum() / ((wanted - mean) ** 2).sum()
    np.testing.assert_allclose(choice.trial.error, expected, rtol=1e-9)


def test_more_rows_get_narrower_bins(choice):
    assert 0.05 < choice.exponent <= 1 / 3
    now, more = choice.length_scales(3000), choice.length_scales(24_000)
    np.testing.assert_allclose(more / now, 8**-choice.exponent)
    assert (choice.length_scales(100) == now).all()


def test_the_better_scaling_wins(search):
    with Threads(1) as threads:
        blurred = [Rows(np.sign(rows.X) * np.abs(rows.X) ** 9, rows.Y) for rows in (search.train, search.held_out)]
        chosen = choose_widths({"blurred": WidthSearch(*blurred, threads), "plain": search}, rounds=0)
    assert chosen.scaling == "plain"
    assert [name for name, _ in chosen.trials] == ["blurred", "plain"]  # no second round


def test_a_start_counts_every_column_alike(search):
    start = search.first()
    np.testing.assert_allclose(search.exponent(start), 4.0)
    np.testing.assert_allclose(start[:5] / search.spread[:5], start[0] / search.spread[0])
    np.testing.assert_allclose(search.spread, [2 / 3] * 5 + [1 / 2], rtol=0.05)


def test_slopes_of_columns_that_change_nothing_are_small(search):
    slopes = search.slopes(search.trial(search.first()))
    assert slopes[0] > 2 * max(slopes[2:5])


def test_targets_far_from_zero_are_judged_as_those_near_it(search):
    widths = np.full(search.train.X.shape[1], 2.0)
    moved = [Rows(rows.X, rows.Y + 1e9) for rows in (search.train, search.held_out)]
    with Threads(1) as threads:
        found = WidthSearch(*moved, threads).trial(widths).error
    assert found == pytest.approx(search.trial(widths).error, rel=1e-4)


def test_constant_columns_and_targets_are_harmless():
    rows = sample(400)
    X = rows.X.copy()
    X[:, 2] = 3.0
    with Threads(1) as threads:
        constant = choose_widths({"s": WidthSearch(Rows(X, rows.Y), Rows(X, rows.Y), threads)}, rounds=0)
        nothing = choose_widths({"s": WidthSearch(Rows(X, rows.Y * 0), Rows(X, rows.Y * 0), threads)}, rounds=0)
    assert np.isfinite(constant.length_scales(1000)).all()
    assert np.isfinite(nothing.length_scales(1000)).all()
    assert not nothing.trial.predictions.any()


def test_rounds_are_as_many_as_asked_for_and_fewer_where_they_are_dear(search, monkeypatch):
    assert len(list(search.rounds(0))) == 1
    assert search.affordable_rounds() == 10
    monkeypatch.setattr("streamrf.training.pilot.widths.WORK", 2.5 * 2 * 3000 * 32 * (6 + 50))
    assert search.affordable_rounds() == 2


def test_few_outputs_keeps_few_and_mixes_many():
    Y = np.eye(7)[np.random.default_rng(0).integers(0, 7, 50)]
    assert (few_outputs(Y[:, :3]) == Y[:, :3]).all()
    mixed = few_outputs(Y)
    assert mixed.shape == (50, 3)
    assert (np.abs(mixed) == 1).all()


def test_defaults_follow_the_rows():
    assert [default_bits(n) for n in (1, 1000, 41_157, 522_000, 10**9)] == [8, 8, 14, 17, 24]
    assert [default_grids(n) for n in (1, 19_999, 41_157, 160_000, 522_000, 10**7)] == [400, 400, 800, 500, 153, 100]
    assert [default_grids(n, 26) for n in (1, 41_157, 522_000)] == [400, 400, 100]


def test_no_rows_are_refused():
    with Threads(1) as threads, pytest.raises(DataError, match="0 and 5"):
        WidthSearch(sample(0), sample(5), threads)


def test_every_other_mixed_grid_sees_few_columns_that_matter():
    scales, importance = np.arange(1.0, 21.0), np.where(np.arange(20) < 5, 1.0, 0.01)
    mixed = mixed_scales(scales, importance, 400, seed=3)
    seen = np.isfinite(mixed)
    assert seen[1::2].all()
    assert set(seen[::2].sum(axis=1)) == set(range(1, 9))
    assert (mixed[seen] == np.broadcast_to(scales, mixed.shape)[seen]).all()
    often = seen[::2].mean(axis=0)
    assert often[:5].min() > 2 * often[5:].max()
    assert (mixed == mixed_scales(scales, importance, 400, seed=3)).all()
    assert (mixed != mixed_scales(scales, importance, 400, seed=4)).any()


def test_columns_that_never_vary_are_drawn_last():
    mixed = mixed_scales(np.ones(3), np.array([0.0, 1.0, 1.0]), 200, seed=0)
    few = np.isfinite(mixed[::2])
    assert not few[few.sum(axis=1) < 3, 0].any()


def additive(n, seed, d=12):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d)).astype(np.float32)
    return Rows(X, np.sin(4 * X).sum(axis=1, keepdims=True))


def test_mixed_grids_suit_a_sum_of_functions_of_one_column():
    with Threads(1) as threads:
        search = WidthSearch(additive(3000, 0), additive(1000, 1), threads, grids=100)
        full, mixed = (search.trial(search.first(), mixed=mixed, steps=24).error for mixed in (False, True))
    assert mixed < 0.95 * full
