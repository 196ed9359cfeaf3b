"""The pilot judges by the loss that the model will be judged by, with weights, on rows that were not fitted to."""

import numpy as np
import pytest

from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.recipe import Recipe
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE, Threads
from streamrf.training.pilot.choice import Trial, folds_of
from streamrf.training.pilot.fourier import PilotRun
from streamrf.training.pilot.judging import Certainty, judge_of, standard_errors
from streamrf.training.pilot.trend import at_an_end, on_grid
from streamrf.training.run import Settings, train

NUMBERS = TargetCoding.regression(np.array([-5.0]), np.array([5.0]))
CHOSEN = ("scaling", "kernel", "length_scale", "bits")


class Notes(Reporter):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def block(y, weights=None):
    return Block(np.zeros((len(y), 1)), y, np.arange(len(y)), weights)


def settings_of(source, recipe):
    return [getattr(train(source, recipe, Settings(threads=1)).model.recipe, name) for name in CHOSEN]


@pytest.mark.parametrize("loss", ["squared", "huber", "quantile"])
def test_without_inputs_the_error_is_one_and_a_weight_is_a_number_of_copies(loss):
    rng = np.random.default_rng(0)
    y, counts = rng.normal(size=200), rng.integers(0, 4, 200)
    recipe = Recipe(loss=loss, quantile=0.8)
    scores = np.c_[y + 0.3 * rng.normal(size=200), rng.normal(size=200)][:, :, None]
    kept = counts > 0
    weighted = judge_of(block(y[kept], counts[kept].astype(float)), NUMBERS, recipe)
    copies = judge_of(block(np.repeat(y, counts)), NUMBERS, recipe)
    one = weighted.verdict(scores[kept], slice(0, kept.sum()))
    other = copies.verdict(np.repeat(scores, counts, axis=0), slice(0, counts.sum()))
    assert (one.best, one.error) == (other.best, pytest.approx(other.error)) == (0, pytest.approx(one.error))
    assert one.error < 0.5
    flat = copies.verdict(np.full((counts.sum(), 1, 1), copies.flat[0]), slice(0, counts.sum()))
    assert flat.error == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("loss", ["squared", "huber", "quantile"])
def test_an_outlier_does_not_hide_which_trial_is_better(loss):
    y = np.random.default_rng(0).normal(size=1000)
    y[0] = 1e9
    judge = judge_of(block(y), TargetCoding.regression(np.array([-5.0]), np.array([1e9])), Recipe(loss=loss))
    good, bad = (judge.verdict(f * y[:, None, None] * (np.abs(y) < 9)[:, None, None], slice(0, 1000)) for f in (1, 0))
    assert good.error < 0.5 * bad.error
    assert judge.coding.step[0] < 1e-4  # the digits of the others are not lost


def test_targets_that_are_mostly_equal_are_not_clipped_away():
    y = np.where(np.arange(1000) % 20 == 0, np.arange(1000.0), 0.0)
    assert np.array_equal(judge_of(block(y), NUMBERS, Recipe()).truth[:, 0], y)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_rare_class_is_seen(classes):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(4000) < 0.01, classes - 1, rng.integers(0, classes - 1, 4000))
    coding = TargetCoding.classification(tuple(range(classes)))
    judge = judge_of(block(y), coding, Recipe())
    knows = coding.values(y) + rng.normal(size=(4000, coding.outputs))
    useless = judge.verdict(rng.normal(size=knows[:, None].shape), slice(0, 4000)).error
    assert 0.98 < useless <= 1.0  # and never above that of the frequencies
    assert judge.verdict(knows[:, None], slice(0, 4000)).error < 0.9


def test_the_calibration_of_a_rare_class_does_not_go_too_far():
    rng = np.random.default_rng(0)
    y = (rng.random(5000) < 0.02).astype(int)
    scores = np.where(y, rng.exponential(0.4, 5000), 0.02 * rng.normal(size=5000)) - 0.96
    judge = judge_of(block(y), TargetCoding.classification((0, 1)), Recipe())
    assert judge.verdict(scores[:, None, None], slice(0, 5000)).error < 0.3


def test_weights_of_classes_count_as_copies():
    rng = np.random.default_rng(1)
    y, counts = rng.integers(0, 3, 300), rng.integers(1, 4, 300)
    coding, scores = TargetCoding.classification((0, 1, 2)), rng.normal(size=(300, 2, 3))
    one = judge_of(block(y, counts.astype(float)), coding, Recipe()).verdict(scores, slice(0, 300))
    n = counts.sum()
    other = judge_of(block(np.repeat(y, counts)), coding, Recipe()).verdict(np.repeat(scores, counts, 0), slice(0, n))
    assert (one.best, one.misses) == (other.best, pytest.approx(other.misses))
    assert one.error == pytest.approx(other.error, rel=1e-3)


def test_few_rows_are_judged_by_folds_as_fits_without_each_fold_judge_them():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(101, 2))
    sample = Block(X, X[:, 0] + 0.1 * rng.normal(size=101), np.arange(101))
    run = PilotRun(sample, NUMBERS, Recipe(D=20), ALONE, reporter=Reporter())
    done = run.fit(Trial("standard", "gaussian", 2.0, 20, "12", 101))
    assert len(run.losses[done]) == 101
    alone = []
    for fold in folds_of(101):
        order = np.r_[0 : fold.start, fold.stop : 101, fold.start : fold.stop]
        fitted = 101 - (fold.stop - fold.start)
        split = PilotRun(sample.take(order), NUMBERS, Recipe(D=20, ridge=done.ridge), ALONE, reporter=Reporter())
        split._has_folds, split.cut = lambda trial: False, lambda trial, cut=fitted: cut
        split.scaling = run.scaling
        alone.append(split.losses[split.fit(Trial("standard", "gaussian", 2.0, 20, "12", 101))])
    assert np.concatenate(alone) == pytest.approx(run.losses[done], rel=1e-6)


def test_a_trial_has_the_frequencies_of_the_run():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)) * [1, 10, 0.1]
    recipe = Recipe(D=40, map="sobol", scaling="none", kernel="gaussian", length_scale=2.0, bits="12", holdout=0.0)
    model = train(ArraySource(X, X[:, 0]), recipe, Settings(threads=1)).model
    sample = Block(X, X[:, 0], np.arange(400))
    run = PilotRun(sample, model.coding, recipe, ALONE, reporter=Reporter())
    map = run._map(Trial("none", "gaussian", 2.0, 40, "12", 400))
    assert map.waves()[0] == pytest.approx(model.map.waves()[0])


def test_rows_that_weigh_nothing_choose_nothing():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1500, 2)).astype(np.float32)
    counts = rng.random(1500) < 0.3
    y = np.where(counts, np.sin(6 * X[:, 0]), 100 * rng.normal(size=1500))
    X[~counts] *= 50
    recipe = Recipe(D=60, map="sobol", holdout=0.0, ridge=1e-4)
    weighted = settings_of(open_source((X, y), sample_weight=3.0 * counts), recipe)
    assert weighted == settings_of(ArraySource(X[counts], y[counts]), recipe)


def test_weights_that_differ_are_a_number_of_copies_to_a_trial():
    rng = np.random.default_rng(0)
    X, counts = rng.normal(size=(60, 2)), rng.integers(1, 4, 60)
    y = np.sin(X[:, 0])
    fits = []
    for sample in (
        Block(X, y, np.arange(60), counts.astype(float)),
        Block(*(np.repeat(a, counts, 0) for a in (X, y, y))),
    ):
        run = PilotRun(sample, NUMBERS, Recipe(D=20), ALONE, reporter=Reporter())
        fits.append(run._predicted(Trial("standard", "gaussian", 2.0, 20, "8", len(sample), ridge=1e-3)))
    assert np.repeat(fits[0], counts, axis=0) == pytest.approx(fits[1], abs=1e-6)


@pytest.mark.parametrize("loss", ["huber", "quantile"])
def test_outliers_do_not_choose_the_kernel(loss):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 3)).astype(np.float32)
    truth = X[:, 0] ** 2 + np.sin(2 * X[:, 1])
    y = truth + 0.1 * rng.standard_normal(4000)
    y[rng.choice(2500, 25, replace=False)] += 1000 * rng.standard_normal(25)
    model = train(ArraySource(X[:2500], y[:2500]), Recipe(D=100, map="sobol", loss=loss), Settings(threads=1)).model
    error = model.scores(X[2500:], ALONE)[:, 0] - truth[2500:]
    assert 1 - (error**2).mean() / truth[2500:].var() > 0.98


def test_sure_and_unsure_choices_are_told():
    rng = np.random.default_rng(0)
    trials = [Trial("standard", name, 1.0, 10, "8", 400, error=1.0) for name in ("gaussian", "laplacian", "matern32")]
    base = rng.random(400)
    losses = dict(zip(trials, (base, base + 0.1, base + 0.5 + rng.random(400)), strict=True))
    sure = Certainty.of(trials[0], trials[1:], losses, None)
    assert "standard gaussian 1 is best, by" in sure.sentence()
    assert not sure.warning()
    losses[trials[1]] = base + rng.normal(size=400) * 20
    unsure = Certainty.of(trials[0], trials[1:], losses, None)
    assert "cannot tell the first 2 trials apart" in unsure.sentence()
    assert "too few to tell the first 3 apart" in unsure.warning()
    assert standard_errors(base, base + 0.1, None)[0] > 1e6


def test_a_width_at_an_end_is_told():
    assert not at_an_end(1.0, [0.5, 1.0, 2.0])
    assert not at_an_end(1.0, [1.0])
    assert "narrowest that the pilot tried: compare with a smaller `length_scale`" in at_an_end(0.5, [0.5, 1.0])
    assert "widest" in at_an_end(2.0, [1.0, 2.0])
    assert on_grid(1.45) == pytest.approx(2**0.5)


def test_what_the_pilot_warns_of_is_in_the_metadata(monkeypatch):
    monkeypatch.setattr("streamrf.training.pilot.fourier.REACH", 1.2)  # hardly any width is within reach
    monkeypatch.setattr("streamrf.training.pilot.fourier.SCANNED", 1)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 1))
    notes = Notes()
    model = train(ArraySource(X, np.sin(20 * X[:, 0])), Recipe(D=40, map="sobol"), Settings(threads=1), notes).model
    assert any("that the pilot tried: compare with" in warning for warning in model.metadata["warnings"])
    assert any(note.startswith("warning: the kernel's width") for note in notes.notes)
    assert model.metadata["certainty"]["others"]


def test_trials_give_the_same_whatever_the_threads():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    sample = Block(X, np.sin(X[:, 0]), np.arange(500), rng.random(500) + 0.1)
    found = []
    for count in (1, 2):
        with Threads(count) as threads:
            run = PilotRun(sample, NUMBERS, Recipe(D=30), threads, reporter=Reporter())
            found.append(run.fit(Trial("standard", "gaussian", 2.0, 30, "8", 500)).error)
    assert found[0] == found[1]
