"""The learned metric: gradients beside finite differences, and the promise never to be worse than no metric."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrf.data.source import Block
from streamrf.features.learned.kernel_ridge import Fit, KernelRidge, few_outputs
from streamrf.features.learned.metric import Judged, gradient_outer_product, learn_metric, root
from streamrf.features.scaling import apply_factor
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.recipe import Recipe
from streamrf.support.errors import InputError
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads
from streamrf.training.pilot.fourier import PilotRun
from streamrf.training.pilot.kernel import KernelPilot
from streamrf.training.pilot.metric import forms_for


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_the_outer_product_is_that_of_numerical_gradients(seed, k, d):
    rng = np.random.default_rng(seed)
    X, W, phases = rng.normal(size=(9, d)), rng.normal(size=(5, d)), rng.random(5)
    a, step = rng.normal(size=(5, k)), 1e-6

    def predict(x):
        return np.cos(W @ x + phases) @ a

    expected = np.zeros((d, d))
    for x in X:
        gradients = np.array([(predict(x + step * e) - predict(x - step * e)) / (2 * step) for e in np.eye(d)])
        expected += gradients @ gradients.T / len(X)
    np.testing.assert_allclose(gradient_outer_product(X, W, phases, a), expected, rtol=1e-5, atol=1e-6)


def test_rows_are_summed_in_blocks():
    rng = np.random.default_rng(0)
    X, W, phases, a = rng.normal(size=(5000, 2)), rng.normal(size=(3, 2)), rng.random(3), rng.normal(size=(3, 1))
    halves = [gradient_outer_product(part, W, phases, a) for part in (X[:2500], X[2500:])]
    np.testing.assert_allclose(gradient_outer_product(X, W, phases, a), sum(halves) / 2, rtol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_root_squared_is_the_matrix_to_scale(seed, d):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(d, d))
    M = half @ half.T + 0.1 * np.eye(d)
    factor = root(M, 0.5)
    np.testing.assert_allclose(factor @ factor, M / np.trace(M) * d, atol=1e-4)
    assert (factor**2).sum() == pytest.approx(d)
    diagonal = root(M, 0.5, "diagonal")
    np.testing.assert_allclose(diagonal**2, np.diag(M) / np.diag(M).mean(), rtol=1e-3)


def test_no_gradient_is_no_metric():
    np.testing.assert_array_equal(root(np.zeros((3, 3)), 0.5), np.eye(3))
    np.testing.assert_array_equal(root(np.zeros((3, 3)), 0.5, "diagonal"), np.ones(3))


def test_a_factor_serves_inputs_and_frequencies():
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    for factor in (rng.random(3), root(np.cov(X.T), 0.5)):
        np.testing.assert_allclose(apply_factor(X, factor) @ W.T, X @ apply_factor(W, factor).T, atol=1e-12)


# -- scripted fits


class Scripted:
    """Fits whose errors are read from a list; a tuned fit is the fit."""

    def __init__(self, errors):
        self.told = iter(errors)

    def fit(self, factor, near):
        return Judged(next(self.told), 1.0, lambda: np.diag([4.0, 1.0]))

    def tuned(self, judged):
        return judged


def learned(errors, **options):
    """The first error is the isotropic one."""
    start = Judged(errors[0], 1.0, lambda: np.diag([4.0, 1.0]))
    return learn_metric(Scripted(errors[1:]), start, 2, **options)


STRETCHED = root(np.diag([4.0, 1.0]), 0.5, "diagonal")


def test_the_best_round_is_kept_and_rounds_end_when_one_is_worse():
    metric = learned([1.0, 0.9, 0.7, 0.8], forms=("diagonal",), powers=(0.5,), rounds=9)
    assert metric.judged.error == 0.7
    assert (metric.learned, metric.form) == (True, "diagonal")
    assert [step.number for step in metric.history] == [0, 1, 2, 3], "the third round is worse, and the last"
    np.testing.assert_allclose(metric.factor, STRETCHED)
    np.testing.assert_allclose(metric.shares(), [0.8, 0.2], atol=1e-5)


def test_the_better_form_and_power_win():
    errors = [1.0, 0.9, 0.8, 0.6, 0.95]  # isotropic, full at two powers, diagonal at two powers
    metric = learned(errors, rounds=1, powers=(0.5, 0.25))
    assert metric.judged.error == 0.6
    assert [(step.form, step.power) for step in metric.history[1:]] == [("full", 0.25), ("diagonal", 0.5)]
    np.testing.assert_allclose(metric.factor, STRETCHED)


def test_a_form_that_is_far_behind_is_given_up():
    metric = learned([1.0, 0.5, 0.499, 0.9, 0.8, 0.7], powers=(0.5,), rounds=9)
    assert [step.form for step in metric.history] == ["isotropic", "full", "full", "diagonal", "diagonal"]
    assert metric.form == "full"


def test_every_form_has_one_round_however_late_it_is():
    metric = learned([1.0, 0.9, 0.8], powers=(0.5,), rounds=9, late=lambda: True)
    assert [(step.number, step.form) for step in metric.history] == [(0, "isotropic"), (1, "full"), (1, "diagonal")]
    assert metric.judged.error == 0.8


@pytest.mark.parametrize("others", [[1.2, 1.3, 1.1, 1.4], [0.999, 0.998, 0.997, 0.999]])
def test_no_clear_gain_is_no_metric(others):
    metric = learned([1.0, *others], rounds=1)
    assert (metric.learned, metric.form) == (False, "isotropic")
    assert metric.judged is metric.isotropic
    np.testing.assert_array_equal(metric.factor, np.ones(2))


def test_there_are_two_forms():
    with pytest.raises(InputError, match="full or diagonal"):
        learned([1.0], forms=("round",))
    assert forms_for("learned", 2048) == ("full", "diagonal")
    assert forms_for("learned", 2049) == ("diagonal",)
    with pytest.raises(InputError, match="2,049 columns and a full metric at most 2,048"):
        forms_for("full", 2049)


def test_many_outputs_are_few_sums_with_the_same_outer_product():
    rng = np.random.default_rng(0)
    few = rng.normal(size=(3, 16))
    assert few_outputs(few) is few
    many = rng.normal(size=(3, 5000))
    np.testing.assert_allclose(few_outputs(many) @ few_outputs(many).T, many @ many.T, rtol=1.0, atol=3000)
    assert few_outputs(many).shape == (3, 16)


# -- exact kernel ridge


@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from(["isotropic", "diagonal", "full"]))
@settings(max_examples=20, deadline=None)
def test_gradients_of_kernel_ridge_are_numerical_ones(seed, d, form):
    rng = np.random.default_rng(seed)
    fits = KernelRidge(rng.normal(size=(30, d)), rng.normal(size=(30, 2)), 20, rng.integers(1, 4, 30))
    factor = {
        "isotropic": np.ones(d),
        "diagonal": rng.random(d) + 0.1,
        "full": root(np.cov(fits.X.T).reshape(d, d), 0.5),
    }[form]
    a, step, scale = rng.normal(size=(20, 2)), 1e-6, 1.7
    rows = apply_factor(fits.X[:20], factor)

    def predict(x, skipped):
        values = np.exp(-np.linalg.norm(apply_factor(x[None], factor) - rows, axis=1) / scale)
        return np.delete(values, skipped) @ np.delete(a, skipped, axis=0)  # a row has no slope at itself

    expected = np.zeros((d, d))
    for i, x in enumerate(fits.X[:20]):
        slopes = np.array([(predict(x + step * e, i) - predict(x - step * e, i)) / (2 * step) for e in np.eye(d)])
        expected += fits.shares[i] * slopes @ slopes.T / fits.shares[:20].sum()
    found = fits._outer_product(Fit("matern12", scale, coefficients=a), factor)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.trace(expected))


def test_kernel_ridge_finds_columns_among_many_that_do_not_matter():
    X = np.random.default_rng(0).normal(size=(1500, 16))
    found = KernelRidge(X, (X[:, 3] * np.sin(2 * X[:, 5]))[:, None], 1125).metric(("diagonal",))
    assert set(np.argsort(-found.shares())[:2]) == {3, 5}
    assert found.judged.error < 0.3 * found.isotropic.error


def test_kernel_ridge_of_noise_is_no_metric():
    rng = np.random.default_rng(0)
    found = KernelRidge(rng.normal(size=(600, 4)), rng.normal(size=(600, 1)), 450).metric(("full",))
    assert found.form in ("isotropic", "full")
    assert found.judged.error <= found.isotropic.error


def test_a_row_of_weight_nothing_is_not_there_and_whole_weights_count():
    rng = np.random.default_rng(0)
    X, y, weights = rng.normal(size=(200, 3)), rng.normal(size=(200, 1)), rng.integers(0, 3, 200)
    kept = weights > 0
    some = KernelRidge(X[kept], y[kept], int(kept[:150].sum()), weights[kept])
    assert some._start().error == KernelRidge(X, y, 150, weights)._start().error
    assert not KernelRidge(X[:30], y[:30], 20).enough


# -- in the pilot


@pytest.fixture(scope="module")
def threads():
    with Threads(2) as two:
        yield two


def piloted(X, y, threads, classes=(), **settings):
    """A pilot run, settled; its recipe."""
    low, high = np.atleast_1d(y.min(axis=0)), np.atleast_1d(y.max(axis=0))
    coding = TargetCoding.classification(classes) if classes else TargetCoding.regression(low, high)
    given = {"D": 120, "kernel": "gaussian", "scaling": "standard", "bits": "12", "metric": "learned", **settings}
    recipe = Recipe(task=coding.task, **given)
    rows = Block(np.asarray(X, np.float32), y, np.arange(len(X)))
    run = PilotRun(rows, coding, recipe, threads, budget=1.0, reporter=Reporter())
    choice = run.choose()
    run.metric = choice.metric
    return run, choice.recipe


def drop(run):
    errors = run.learning["holdout_error"]
    return errors["after"] / errors["before"]


def test_a_metric_finds_the_columns_that_matter(threads):
    X = np.random.default_rng(0).normal(size=(2000, 10))
    run, _ = piloted(X, np.sin(2 * X[:, 0]) * X[:, 1], threads)
    assert drop(run) < 0.5
    assert {each["column"] for each in run.learning["columns"][:2]} == {0, 1}
    assert sum(each["share"] for each in run.learning["columns"][:2]) > 0.8


def test_a_full_metric_finds_a_direction_between_columns(threads):
    X = np.random.default_rng(0).normal(size=(2000, 8))
    direction = np.ones(8) / np.sqrt(8)
    run, _ = piloted(X, np.sin(3 * X @ direction), threads)
    assert run.metric.shape == (8, 8)
    assert run.learning["form"] == "full"
    assert abs(np.linalg.eigh(run.metric)[1][:, -1] @ direction) > 0.95


@pytest.mark.parametrize("kernel", ["laplacian", "cauchy", "matern32"])
def test_every_kernel_has_metrics(threads, kernel):
    X = np.random.default_rng(0).normal(size=(1200, 8))
    run, recipe = piloted(X, np.sin(2 * X[:, 0]), threads, kernel=kernel, metric="diagonal")
    assert drop(run) < 0.8
    assert recipe.kernel == kernel
    assert run.metric.shape == (8,)


def test_classes_and_several_outputs_have_metrics(threads):
    X = np.random.default_rng(0).normal(size=(1500, 8))
    labels = np.digitize(X[:, 0] * X[:, 1], [-0.4, 0.4])
    run, _ = piloted(X, labels, threads, classes=(0, 1, 2))
    assert drop(run) < 0.9
    run, _ = piloted(X, np.stack([np.sin(2 * X[:, 0]), np.sin(2 * X[:, 1])], axis=1), threads)
    assert drop(run) < 0.7
    assert {each["column"] for each in run.learning["columns"][:2]} == {0, 1}


def test_targets_that_use_every_direction_alike_lose_nothing(threads):
    X = np.random.default_rng(0).normal(size=(1000, 4))
    run, recipe = piloted(X, np.exp(-(X**2).sum(axis=1) / 4), threads)
    assert drop(run) <= 1.0
    assert (run.metric is None) == (run.learning["form"] == "none")
    assert recipe.length_scale in {trial.length_scale for trial in run.trials if trial.metric == "none"}


def test_the_metric_carries_the_width_that_was_tuned_with_it(threads):
    X = np.random.default_rng(0).normal(size=(800, 6))
    run, recipe = piloted(X, np.sin(2 * X[:, 0]), threads, metric="diagonal")
    best = min((trial for trial in run.trials if trial.metric != "none"), key=lambda trial: trial.error)
    np.testing.assert_allclose(run.metric / recipe.length_scale, run.factors[best.metric] / best.length_scale)


def test_a_metric_is_the_same_for_any_number_of_threads(threads):
    X = np.random.default_rng(0).normal(size=(800, 5))
    y = np.sin(2 * X[:, 0])
    with Threads(1) as one:
        alone, _ = piloted(X, y, one, metric="full")
    both, _ = piloted(X, y, threads, metric="full")
    np.testing.assert_array_equal(alone.metric, both.metric)


def test_the_pilot_may_take_the_gaussian_kernel_for_its_metric(threads):
    """Without a metric a rough kernel is best, with one the smooth one that learned it: both are judged."""
    X = np.random.default_rng(0).normal(size=(1500, 8))
    run, recipe = piloted(X, np.sin(2.5 * X[:, 0]), threads, kernel="auto")
    kernels = {trial.kernel for trial in run.trials if trial.metric != "none"}
    assert "gaussian" in kernels
    best = min((trial for trial in run.trials if trial.metric != "none"), key=lambda trial: trial.error)
    assert recipe.kernel == best.kernel
    assert drop(run) < 0.5
    settled = {"kernel": recipe.kernel, "length_scale": recipe.length_scale, "ridge": 1e-3}
    again, _ = piloted(X, np.sin(2.5 * X[:, 0]), threads, **settled)
    np.testing.assert_array_equal(again.metric, run.metric)


def test_landmarks_take_a_metric(threads):
    X = np.random.default_rng(0).normal(size=(1500, 12))
    y = np.sin(2 * X[:, 0]) * X[:, 1]
    coding = TargetCoding.regression(np.array([y.min()]), np.array([y.max()]))
    recipe = Recipe(map="landmarks", D=200, task="regression")
    run = KernelPilot(Block(X, y, np.arange(len(X))), coding, recipe, threads, rows=1500, reporter=Reporter())
    choice = run.choose()
    assert choice.metric is not None
    assert drop(run) < 0.3


def test_without_a_metric_nothing_is_learned(threads):
    X = np.random.default_rng(0).normal(size=(400, 3))
    run, _ = piloted(X, X[:, 0], threads, metric="none")
    assert (run.learning, run.metric, run.factors) == ({}, None, {})


def test_a_given_width_is_where_the_search_of_a_metric_starts(threads):
    X = np.random.default_rng(0).normal(size=(800, 6))
    run, recipe = piloted(X, np.sin(2 * X[:, 0]), threads, length_scale=3.0)
    assert all(trial.length_scale == 3.0 for trial in run.trials if trial.metric == "none")
    assert recipe.length_scale == 3.0


def test_a_settled_recipe_learns_the_same_metric_again(threads):
    X = np.random.default_rng(0).normal(size=(800, 6))
    run, recipe = piloted(X, np.sin(2 * X[:, 0]), threads)
    settled = {"length_scale": recipe.length_scale, "ridge": 10 * recipe.ridge}
    again, _ = piloted(X, np.sin(2 * X[:, 0]), threads, **settled)
    np.testing.assert_array_equal(again.metric, run.metric)


def test_gradients_are_those_of_the_predictor_that_was_measured(threads):
    """The pilot's own weights and features, beside finite differences of its scores."""
    from streamrf.solvers.ridge import RidgeTrial
    from streamrf.training.pilot.choice import Trial
    from streamrf.training.pilot.metric import TrialFits

    X = np.random.default_rng(0).normal(size=(400, 3))
    run, recipe = piloted(X, np.sin(X[:, 0]) + X[:, 1], threads, metric="none", bits="float64")
    for form in ("phase", "pairs"):
        run.recipe = recipe.with_(form=form)
        fits = TrialFits(run, Trial("standard", "gaussian", 2.0, 40, "float64", 400))
        M, measured = fits.start().outer_product(), run.measure(fits.base)
        trial = RidgeTrial(fit_scaling("none", X), measured.map, run.coding, threads)
        rows, step = fits.X[: run.cut(fits.base)].astype(np.float64), 1e-4

        def scores(at, trial=trial, measured=measured):
            return trial.scores([measured.weights], Block(at, None, np.arange(len(at))))[:, 0, 0]

        slopes = np.stack([(scores(rows + step * e) - scores(rows - step * e)) / (2 * step) for e in np.eye(3)], 1)
        expected = slopes.T @ slopes / len(rows)
        np.testing.assert_allclose(M, expected, rtol=1e-3, atol=1e-4 * np.trace(expected))
