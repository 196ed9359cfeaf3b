"""The pilot of landmarks: what it finds, what it is given, and that neither threads nor a stop change its choice."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from tables import smooth

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.features.learned import kernel_ridge
from streamrf.features.targets import TargetCoding
from streamrf.recipe import Recipe
from streamrf.support.errors import InputError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import Threads
from streamrf.training.pilot import kernel
from streamrf.training.pilot.choice import Choice
from streamrf.training.pilot.kernel import KernelPilot
from streamrf.training.pilot.room import WHOLE, Room
from streamrf.training.run import Settings, train

LANDMARKS = Recipe(map="landmarks", D=60)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(kernel_ridge, "FEW_ROWS", 200)
    monkeypatch.setattr(kernel_ridge, "ROWS", 400)


def columns(rows: int = 700, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Two columns matter, and they have outliers."""
    X = np.random.default_rng(0).normal(size=(rows, d))
    return X, np.sin(2 * X[:, 0]) * X[:, 1]


def piloted(
    X: np.ndarray, y: np.ndarray, threads: int = 1, recipe: Recipe = LANDMARKS, room: Room = WHOLE, **settings: Any
) -> Choice:
    low, high = np.atleast_1d(y.min(axis=0)), np.atleast_1d(y.max(axis=0))
    whole = y.dtype.kind in "iu"
    coding = TargetCoding.classification(np.unique(y).tolist()) if whole else TargetCoding.regression(low, high)
    recipe = recipe.with_(task=coding.task, **settings)
    rows = Block(X, y, np.arange(len(X)))
    with Threads(threads) as pool:
        return KernelPilot(rows, coding, recipe, pool, rows=len(X), reporter=Reporter(), room=room).choose()


def test_it_finds_the_columns_that_matter():
    choice = piloted(*columns())
    learned = choice.notes["learning"]["metric"]
    assert {each["column"] for each in learned["columns"][:2]} == {0, 1}
    assert learned["holdout_error"]["after"] < 0.6 * learned["holdout_error"]["before"]
    assert choice.metric is not None
    assert choice.recipe.metric == "learned"


def test_classes_and_several_outputs():
    X, y = columns()
    labels = np.digitize(y, [-0.3, 0.3])
    for targets in (labels, np.stack([y, 1e6 * np.sin(2 * X[:, 0])], axis=1)):
        columns_found = piloted(X, targets).notes["learning"]["metric"]["columns"]
        assert {each["column"] for each in columns_found[:2]} == {0, 1}


@pytest.mark.parametrize(
    "given",
    [
        {"scaling": "quantile"},
        {"kernel": "laplacian"},
        {"kernel": "matern32", "length_scale": 4.0},
        {"metric": "none"},
        {"metric": "diagonal"},
        {"metric": "full", "kernel": "gaussian"},
        {"bits": "8", "ridge": 1e-3},
        {"bits": "float64"},
    ],
    ids=str,
)
def test_what_is_given_is_kept(given):
    choice = piloted(*columns(), **given)
    assert {name: getattr(choice.recipe, name) for name in given} == given
    for trial in choice.trials:
        assert all(
            getattr(trial, name) == given[name] for name in ("scaling", "kernel", "length_scale") if name in given
        )
    shape = None if choice.metric is None else choice.metric.ndim
    assert shape in {"none": (None,), "diagonal": (1,), "full": (2,)}.get(given.get("metric", ""), (None, 1, 2))


def test_nothing_is_left_to_choose():
    recipe = piloted(*columns()).recipe
    assert "auto" not in (recipe.scaling, recipe.kernel, recipe.bits, recipe.form, recipe.metric)
    assert recipe.length_scale > 0
    assert recipe.ridge > 0
    assert recipe.D == 60


def test_kernels_without_a_profile_are_refused():
    for recipe in (LANDMARKS, Recipe(map="blend")):
        with pytest.raises(InputError, match="`map='landmarks'` has no cauchy kernel"):
            recipe.with_(kernel="cauchy")
    assert piloted(*columns(200), kernel="matern:1.5", metric="none").recipe.kernel == "matern32"


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_any_number_of_threads_makes_the_same_choice(noise):
    X, y = columns(1600, 12)
    y = y + noise * np.random.default_rng(1).standard_normal(len(y))
    one, two = piloted(X, y, 1), piloted(X, y, 2)
    assert one.recipe == two.recipe
    np.testing.assert_array_equal(one.metric, two.metric)


def test_rows_that_are_all_alike_have_a_choice():
    for X, y in ((np.ones((60, 3)), np.arange(60.0)), (np.random.default_rng(0).normal(size=(60, 3)), np.ones(60))):
        choice = piloted(X, y)
        assert np.isfinite(choice.recipe.length_scale)


# -- what it says


def test_rows_that_are_too_few_to_tell_kernels_apart_are_said():
    notes = piloted(*columns(80)).notes
    assert min(notes["certainty"]["standard_errors"]) < 2
    assert any("too few to tell the first 2 apart" in text for text in notes["warnings"])
    clear = piloted(*columns(), metric="none").notes
    assert not any("too few" in text for text in clear.get("warnings", ()))


def test_a_width_at_an_end_of_what_was_tried_is_said(monkeypatch):
    monkeypatch.setattr(kernel_ridge, "REACH", 1.0)
    monkeypatch.setattr(kernel_ridge, "FIRST_WIDTH", 0.05)
    given = {"metric": "none", "scaling": "standard", "kernel": "gaussian"}
    (text,) = [text for text in piloted(*columns(), **given).notes["warnings"] if "width" in text]
    assert "is the widest that the pilot tried: compare with a larger `length_scale`" in text
    fixed = piloted(*columns(), **given, length_scale=0.05).notes
    assert not any("width" in text for text in fixed.get("warnings", ()))


def test_a_width_that_has_others_on_both_sides_is_not_said():
    notes = piloted(*columns(), metric="none").notes
    assert not any("width" in text for text in notes.get("warnings", ()))


# -- a stop


class StopsAfter(Reporter):
    """Ctrl-C after so many trials."""

    def __init__(self, trials: int) -> None:
        self.left, self.notes = trials, []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def tried(self, trial: Any) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def _heeded():
    """A shell starts its background jobs with Ctrl-C ignored, and the tests with them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heeded")
@pytest.mark.parametrize("recipe", [LANDMARKS, Recipe(map="blend", D=30, grids=4)], ids=["landmarks", "blend"])
def test_a_pilot_that_was_stopped_makes_the_same_choice(tmp_path, recipe):
    source, kept = ArraySource(*smooth(600)), Settings(threads=1, checkpoint=tmp_path / "kept")
    expected = train(source, recipe, Settings(threads=1)).model
    for after in (2, 14):  # in the search of landmarks; in that of random binning, where there is one
        with pytest.raises(Interrupted):
            train(source, recipe, kept, StopsAfter(after if recipe is not LANDMARKS else 2))
    told = StopsAfter(10**9)
    found = train(source, recipe, kept, told).model
    assert found.recipe == expected.recipe
    arrays = [each.to_parts()[1] for each in (found, expected)]
    assert arrays[0].keys() == arrays[1].keys()
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
    assert any("trials of the pilot are done already" in note for note in told.notes)


def test_a_width_is_one_that_landmarks_can_tell_apart():
    """Exact fits to a polynomial without noise are best at widths where all rounded values of the kernel are alike."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4))
    y = X[:, 0] ** 2 + X[:, 1]
    model = train(ArraySource(X, y), Recipe(map="landmarks"), Settings(threads=1)).model
    assert model.metadata["holdout"]["r2"] > 0.95


@pytest.mark.parametrize("start", [1e-4, 1e-2, 1.0])
def test_ridges_behind_a_rise_are_not_solved_for(start, monkeypatch):
    """And the best is that of all of them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    Y = np.sin(X[:, :1]) + 0.3 * rng.standard_normal((300, 1))
    fits, solved = kernel_ridge.KernelRidge(X, Y, 200), []
    ridges, solve = list(kernel_ridge.RIDGES), kernel_ridge._solution

    def noted(K, penalties, targets, *, single):
        solved.append(float(penalties[0]))
        return solve(K, penalties, targets, single=single)

    slabs = fits.slabs("matern12", np.ones(2), few=True)
    wanted = fits.at(slabs, 4.0, ridges)
    monkeypatch.setattr(kernel_ridge, "_solution", noted)
    found = fits.downhill(slabs, 4.0, ridges, start, np.inf)
    assert (found.ridge, len(solved)) == (wanted.ridge, len(set(solved)))
    np.testing.assert_allclose(found.error, wanted.error, rtol=1e-9)
    assert len(solved) < len(ridges)
    assert fits.downhill(slabs, 4.0, ridges, start, 0.0).ridge == start


def rotated(rows: int, noise: float, d: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Classes by one direction across all columns, that noise hides more or less."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, d))
    return X, (np.sin(2 * X.sum(axis=1) / np.sqrt(d)) + noise * rng.normal(size=rows) > 0).astype(int)


def test_of_few_rows_a_full_metric_must_be_surely_better(monkeypatch):
    found = piloted(*rotated(800, 0.2))
    assert found.notes["learning"]["metric"]["form"] == "full"
    assert found.metric is not None
    X, y = rotated(800, 0.2)
    monkeypatch.setattr(kernel, "SURE", 1e9)
    refused = piloted(X, y)
    assert refused.notes["learning"]["metric"]["form"] == "none"
    assert refused.metric is None
    assert piloted(X, y, metric="full").metric is not None  # as was asked
    monkeypatch.setattr(kernel, "SMALL_ROWS", 800)
    assert piloted(X, y).metric is not None
