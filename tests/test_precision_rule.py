"""Rounding is a ridge: how large it is, what the solver takes off again, and the bits that follow from it."""

from __future__ import annotations

import numpy as np
import pytest

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.features.kernels import make_kernel
from streamrf.features.pipeline import build_map
from streamrf.features.precision import LIMITS, make_precision
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.recipe import Recipe
from streamrf.solvers import ridge as solving
from streamrf.solvers.ridge import NormalEquations, RidgeSolver, RidgeTrial, removable_rounding
from streamrf.support.threads import ALONE
from streamrf.training.pilot.choice import Trial
from streamrf.training.pilot.precision import Rounding, bearable_in_run, bearable_ridge, in_valley
from streamrf.training.run import Settings, train

SMOOTH = make_kernel("gaussian", length_scale=2.0)


def drawn(bits: str = "7", D: int = 120, kind: str = "mc", d: int = 4):
    sample = np.random.default_rng(5).uniform(-1, 1, (400, d))
    return build_map(kind, SMOOTH, D, d, form="phase", precision=make_precision(bits), seed=0, sample=sample)


def table(rows: int, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (rows, 4))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.cos(X[:, 3]) + noise * rng.standard_normal(rows)


def sums(map, X: np.ndarray, y: np.ndarray):
    coding = TargetCoding.regression(y.min(keepdims=True), y.max(keepdims=True))
    trial = RidgeTrial(fit_scaling("none", X), map, coding, ALONE)
    return trial.sums(Block(X, y[:, None], np.arange(len(X)))), coding


# -- what rounding adds


@pytest.mark.parametrize("kind", ["mc", "sorf", "landmarks"])
@pytest.mark.parametrize("bits", ["7", "8"])
def test_rounding_adds_what_is_said_to_the_diagonal(kind, bits):
    map, X = drawn(bits, kind=kind), table(4000)[0].astype(np.float32)
    rounded, whole = (map.dense(X, ALONE, unrounded=each) for each in (False, True))
    noise = (rounded - whole).var(axis=0)
    said = Rounding(map, map.n_features, 0).ridge(int(bits))
    assert noise.mean() == pytest.approx(said, rel=0.05)
    assert Rounding(map, 2 * map.n_features, 0).ridge(int(bits)) == pytest.approx(said / 2)


def test_features_of_another_package_have_noise_in_predictions_too(monkeypatch):
    map = drawn()
    served = Rounding(map, 100, 0).ridge(7)
    monkeypatch.setattr(type(map), "rounds_integers_only", False)
    assert Rounding(map, 100, 0).ridge(7) == pytest.approx(4 * served)


# -- what the solver takes off


def test_nothing_comes_off_where_rows_are_few():
    assert removable_rounding(39_999, 10) == 0
    assert removable_rounding(50_000, 60_000) == 0
    assert 0.7 / 12 < removable_rounding(50_000, 1000) < removable_rounding(500_000, 1000) < 1 / 12


def test_unrounded_features_gain_from_what_comes_off(monkeypatch):
    X, y = table(20_000)
    map, unseen = drawn("7", 150), table(4000, seed=1)
    state, coding = sums(map, X, y)
    Z = map.dense(unseen[0].astype(np.float32), ALONE, unrounded=True) / map.amplitudes

    def error(enough: int) -> float:
        monkeypatch.setattr(solving, "ENOUGH_ROWS", enough)
        equations = NormalEquations.from_state(state, map, coding, unrounded=True)
        assert (equations.rounding > 0) == (enough == 1000)
        weights = RidgeSolver(equations, ALONE).solve(1e-12)
        assert weights.jitter == 0
        return float(np.sqrt(np.mean((Z @ weights.coefficients[:, 0] + weights.intercept[0] - unseen[1]) ** 2)))

    assert error(1000) < 0.9 * error(10**6)


def test_models_that_serve_integers_have_everything_left_on():
    map = drawn()
    state, coding = sums(map, *table(500))
    state.rows = 10**6
    assert NormalEquations.from_state(state, map, coding).rounding == 0
    assert NormalEquations.from_state(state, map, coding, unrounded=True).rounding > 0


def test_a_matrix_without_noise_keeps_its_diagonal(monkeypatch):
    """Few different rows have few roundings: there is nothing to take off, and the plain matrix is solved."""
    X, y = table(20)
    X, y = np.tile(X, (100, 1)), np.tile(y, 100)
    map = drawn()
    state, coding = sums(map, X, y)
    plain = RidgeSolver(NormalEquations.from_state(state, map, coding), ALONE).solve(1e-9)
    monkeypatch.setattr(solving, "ENOUGH_ROWS", 1000)
    equations = NormalEquations.from_state(state, map, coding, unrounded=True)
    found = RidgeSolver(equations, ALONE).solve(1e-9)
    assert equations.rounding > 0
    assert found.jitter == plain.jitter == 0
    assert np.array_equal(found.coefficients, plain.coefficients)


# -- the rule


def test_the_bearable_ridge_lies_between_those_tried():
    ridges = [1e-6, 1e-8, 1e-7]  # in any order
    assert bearable_ridge(ridges, np.array([1.5, 1.0, 1.0])) == pytest.approx(1e-7 * 10 ** (0.0201 / 0.5))
    assert bearable_ridge(ridges, np.array([np.inf, 1.0, 2.0])) == pytest.approx(1e-8 * 10**0.0201)
    assert bearable_ridge([1e-3], np.array([4.0])) == 1e-3


def test_beyond_the_last_a_path_goes_on_as_a_parabola():
    ridges = [1e-8, 1e-7, 1e-6]
    assert bearable_ridge(ridges, np.array([1.0, 1.0, 1.0])) == pytest.approx(1e-5)  # a decade at most
    curve = [1 + 0.01 * (np.log10(ridge) + 7) ** 2 for ridge in ridges]
    found = bearable_ridge(ridges, np.array(curve))
    assert found == pytest.approx(10 ** (-7 + np.sqrt(0.0201 / 0.01)), rel=1e-6)


def test_fewer_bits_where_a_larger_ridge_can_be_borne():
    map = drawn()
    rounding = Rounding(map, 1000, 10_000)
    steps = [rounding.ridge(bits) for bits in sorted(LIMITS)]
    assert steps == sorted(steps, reverse=True)
    found = [rounding.cheapest(10 * factor * step) for step in steps[:3] for factor in (1.001, 0.999)]
    assert found == ["7", "8", "8", "12", "12", "20"]
    assert rounding.cheapest(0.0) == "20"
    assert rounding.cheapest(0.0, structured=True) == "12"
    assert Rounding(map, 1000, 0).cheapest(0.0) == "float64"  # gradients have no sums of 20 bits
    assert Rounding(map, 1000, 10**6).ridge(7) < rounding.ridge(7) / 5  # most comes off again


def test_more_rows_bear_less():
    trial = Trial("none", "gaussian", 1.0, 100, "12", 1000, ridge=1e-8, bearable=1e-6)

    def bearable(rows: int, **more: bool) -> float:
        return bearable_in_run(trial, 750, rows, **{"classes": False, "given": False, **more})

    assert bearable(7500) == pytest.approx(bearable(750) / 10**1.5)
    assert bearable(100) == bearable(750)  # folds see fewer rows than the run has
    assert bearable(750, classes=True) < bearable(750) / 30
    assert bearable(7500, given=True) == bearable(10**9, given=True) == pytest.approx(3e-8)


@pytest.mark.parametrize(("noise", "width", "bits"), [(0.5, 2.0, {"7"}), (0.0, None, {"12", "20"})])
def test_a_pilot_needs_no_trials_of_other_precisions(noise, width, bits):
    X, y = table(3000, noise)
    recipe = Recipe(D=100, map="sobol", kernel="gaussian", length_scale=width)
    model = train(ArraySource(X, y), recipe, Settings(threads=1)).model
    assert model.recipe.bits in bits
    assert {trial["bits"] for trial in model.metadata["pilot"]} == {"12"}


def test_structured_maps_have_no_floats_to_fall_back_to():
    recipe = Recipe(D=64, map="sorf", kernel="gaussian", scaling="none", length_scale=3.0)
    assert train(ArraySource(*table(3000)), recipe, Settings(threads=1)).model.recipe.bits == "12"


@pytest.mark.parametrize("lowest", range(15))
def test_the_lowest_place_of_a_valley_is_found_without_trying_all(lowest):
    asked = []

    def errors(places):
        asked.extend(places)
        return [abs(place - lowest) for place in places]

    found = in_valley(15, errors)
    assert min(found, key=found.get) == lowest
    assert len(asked) == len(set(asked)) <= 7
