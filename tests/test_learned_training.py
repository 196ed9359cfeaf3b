"""Learned maps and metrics in whole runs: what they gain, what models tell of them, and that these load as any do."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from commands import streamrf

from streamrf.data.readers.memory import ArraySource
from streamrf.features.fourier import Learning, draw
from streamrf.features.kernels import make_kernel
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.support.errors import InputError
from streamrf.support.threads import Threads
from streamrf.training.pilot.choice import learning_bytes, learning_rows, map_sentence, with_names
from streamrf.training.run import Settings, train

PROJECT = str(Path(__file__).resolve().parents[1])
LEARNED = ("ekal-sample", "ekal-cluster", "supervised")
FEW = {"learning_iterations": 8, "learning_steps": 10}
FIXED = Recipe(D=60, kernel="gaussian", scaling="standard", bits="12", pilot="none", **FEW)


def one_direction(n=3000, d=6, seed=0):
    """Targets that oscillate along one direction of several."""
    X = np.random.default_rng(seed).normal(size=(n, d))
    return X, np.sin(2.5 * X[:, 0])


def rmse(result):
    return result.model.metadata["holdout"]["rmse"]


@pytest.fixture(scope="module")
def data():
    return ArraySource(*one_direction())


@pytest.fixture(scope="module")
def plain(data):
    return train(data, FIXED)


@pytest.fixture(scope="module")
def supervised(data):
    return train(data, FIXED.with_(map="supervised", learning_steps=60))


# -- maps


def test_frequencies_that_know_the_targets_predict_better(plain, supervised):
    assert rmse(supervised) < 0.5 * rmse(plain)
    assert supervised.model.recipe.form == "pairs"
    assert plain.model.recipe.form == "phase"
    assert supervised.model.map.n_features == 60


def test_the_story_tells_what_was_learned(supervised):
    told = supervised.model.metadata["learning"]["map"]
    assert told["kept"] == "learned"
    for measure in ("landmark_loss", "kernel_error", "holdout_error"):
        assert set(told[measure]) == {"before", "after"}
    assert told["holdout_error"]["after"] < 0.5 * told["holdout_error"]["before"]
    assert (told["iterations"], told["steps"]) == (8, 60)
    ((name, sentence),) = learning_rows(supervised.model.metadata["learning"])
    assert name == "learned map"
    assert sentence.count("->") == 3


@pytest.mark.parametrize("kind", ["ekal-sample", "ekal-cluster"])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "matern32"])
def test_the_kernel_is_approximated_better_for_every_kernel(data, kind, kernel):
    result = train(data, FIXED.with_(map=kind, kernel=kernel, landmarks=40, weight_decay=0.05))
    told = result.model.metadata["learning"]["map"]
    assert told["landmarks"] == 40
    assert told["kernel_error"]["after"] < 0.8 * told["kernel_error"]["before"]
    assert told["landmark_loss"]["after"] < told["landmark_loss"]["before"]


@pytest.mark.parametrize("loss", ["squared", "hinge", "logistic"])
def test_classes_are_learned_with_every_loss(loss):
    X, y = one_direction(1500)
    source = ArraySource(X, np.digitize(y, [-0.5, 0.5]))
    few = FIXED.with_(learning_iterations=5, learning_steps=40, eta=0.0)
    learned = train(source, few.with_(map="supervised", prediction_loss=loss)).model.metadata
    assert learned["holdout"]["error"] < 0.8 * train(source, few).model.metadata["holdout"]["error"]
    assert learned["learning"]["map"]["loss"] == loss


def test_several_outputs_are_learned_together():
    X, y = one_direction(1500)
    source = ArraySource(X, np.stack([y, np.sin(2.5 * X[:, 1])], axis=1))
    learned = train(source, FIXED.with_(map="supervised", learning_steps=60))
    assert rmse(learned) < 0.8 * rmse(train(source, FIXED))


def test_an_odd_number_of_features_has_no_pairs():
    with pytest.raises(InputError, match="`D=61`: must be even"):
        FIXED.with_(map="ekal-sample", D=61)
    assert FIXED.with_(map="ekal-sample", D=61, form="phase").settled_form == "phase"


@pytest.mark.parametrize("kind", LEARNED)
def test_learning_is_the_same_for_any_number_of_threads(data, kind):
    one, two = (train(data, FIXED.with_(map=kind), Settings(threads=count)).model.map for count in (1, 2))
    np.testing.assert_array_equal(one.frequencies.W, two.frequencies.W)
    np.testing.assert_array_equal(one.frequencies.weights, two.frequencies.weights)


def test_another_seed_learns_others(data, supervised):
    other = train(data, FIXED.with_(map="supervised", learning_steps=5, seed=1))
    assert not np.isin(other.model.map.frequencies.W, supervised.model.map.frequencies.W).any()


def test_a_learned_model_loads_and_predicts_without_learning_code(tmp_path, supervised):
    supervised.model.save(tmp_path / "m.model")
    X = one_direction(50, seed=1)[0]
    np.save(tmp_path / "X.npy", X)
    script = """
import sys, numpy as np
from streamrf.models.model import Model
from streamrf.support.threads import Threads
with Threads(1) as threads:
    np.save("scores.npy", Model.load("m.model").scores(np.load("X.npy"), threads))
assert not [name for name in sys.modules if name.startswith(("streamrf.features.learned", "sklearn"))]
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": PROJECT})
    with Threads(1) as threads:
        np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), supervised.model.scores(X, threads))


def test_too_few_rows_keep_the_start():
    result = train(ArraySource(*one_direction(12)), FIXED.with_(map="supervised", D=8, ridge=0.1))
    assert "too few" in map_sentence(result.model.metadata["learning"]["map"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"landmarks": 1}, "`landmarks=1`: must be from 2 to"),
        ({"learning_iterations": 0}, "`learning_iterations=0`"),
        ({"learning_steps": 0}, "`learning_steps=0`"),
        ({"weight_decay": -1.0}, "`weight_decay=-1.0`"),
        ({"eta": -1.0}, "`eta=-1.0`"),
        ({"prediction_loss": "absolute"}, "`prediction_loss='absolute'`"),
        ({"map": "supervised", "D": 10_002}, "must be at most 10,000 with `map='supervised'`"),
        ({"map": "supervised", "D": 5001, "form": "phase"}, "must be at most 5,000"),
        ({"metric": "round"}, "`metric='round'`: must be one of auto, none, diagonal, full, learned"),
        ({"metric": "full", "map": "sorf"}, "sorf has no matrix of frequencies"),
        ({"metric": "full", "map": "binning"}, "binning finds out by itself which columns matter"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Recipe(**wrong)


def test_losses_of_classes_are_refused_for_numbers(data):
    with pytest.raises(InputError, match="hinge loss is for classes"):
        train(data, FIXED.with_(map="supervised", prediction_loss="hinge"))


# -- metrics


@pytest.mark.parametrize("pilot", ["none", "auto"])
@pytest.mark.parametrize("metric", ["diagonal", "full", "learned"])
def test_a_metric_is_in_the_frequencies_and_nowhere_else(tmp_path, data, plain, metric, pilot):
    result = train(data, FIXED.with_(metric=metric, pilot=pilot))
    told = result.model.metadata["learning"]["metric"]
    assert rmse(result) < 0.6 * rmse(plain)
    assert told["form"] in ("diagonal", "full")
    assert told["form"] == metric or metric == "learned"
    assert told["holdout_error"]["after"] < told["holdout_error"]["before"]
    assert told["columns"][0]["column"] == 0
    energy = (result.model.map.frequencies.W**2).sum(axis=0)
    assert energy[0] > 5 * energy[1:].max()
    result.model.save(tmp_path / "m.model")
    X = one_direction(40, seed=2)[0]
    with Threads(2) as threads:
        again = Model.load(tmp_path / "m.model").scores(X, threads)
        np.testing.assert_array_equal(again, result.model.scores(X, threads))


@pytest.mark.parametrize("kind", ["mc", "sobol", "weighted", "aligned", "ekal-cluster", "supervised"])
def test_every_dense_map_has_a_metric(data, plain, kind):
    result = train(data, FIXED.with_(metric="diagonal", map=kind))
    assert rmse(result) < 0.7 * rmse(plain)


def test_noise_has_no_metric():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1500, 4)), rng.normal(size=1500)
    without, learned = (train(ArraySource(X, y), FIXED.with_(metric=metric)) for metric in ("none", "learned"))
    if learned.model.metadata["learning"]["metric"]["form"] == "none":
        np.testing.assert_array_equal(learned.model.map.frequencies.W, without.model.map.frequencies.W)
    assert rmse(learned) < 1.05 * rmse(without)


def test_columns_are_told_by_name():
    told = {"asked": "full", "form": "full", "holdout_error": {"before": 1.0, "after": 0.5},
            "columns": [{"column": 1, "share": 0.75}, {"column": 0, "share": 0.25}]}  # fmt: skip
    named = with_names(told, ("income", "age"), "standard")
    assert learning_rows({"metric": named}) == [
        ("metric", "full, hold-out error 1 -> 0.5; weight is on 75 % age, 25 % income")
    ]
    assert with_names(told, ("income", "age"), "pca") == with_names(told, None, "standard") == told


def test_commands_show_what_was_learned(tmp_path):
    X, y = one_direction(800, 3)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "X.npy", X)
    np.save(tmp_path / "data" / "y.npy", y)
    place, out = str(tmp_path / "data"), str(tmp_path / "m.model")
    few = ["--D", "40", "--pilot", "none", "--learning-iterations", "4", "--learning-steps", "20", "--out", out]
    shown = streamrf("train", place, *few, "--map", "supervised", "--metric", "learned").out
    assert "learned map" in shown
    assert "hold-out error" in shown
    assert "metric" in shown
    told = streamrf("inspect", out, "--json").json["learning"]
    assert set(told) == {"map", "metric"}
    assert re.search(r"weight is on \d+ % column 0", " ".join(streamrf("inspect", out).out.split()))
    again = streamrf("train", place, *few, "--metric", "diagonal", "--overwrite", "--json").json
    assert set(again["learning"]) == {"metric"}
    assert again["chosen"]["metric"] == "diagonal"


# -- memory


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize(("D", "d", "rows"), [(40, 60, 3000), (700, 5, 1500)])
def test_learning_takes_no_more_memory_than_planned(kind, D, d, rows):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, d)).astype(np.float32)
    recipe = FIXED.with_(map=kind, D=D)
    short = Learning(iterations=1, steps=2)
    kernel = make_kernel("gaussian", length_scale=np.sqrt(d))
    importlib.import_module("sklearn.cluster")  # slow while memory is traced
    tracemalloc.start()
    draw(kind, kernel, D // 2, d, 0, sample=X, targets=X[:, :2], learning=short)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < learning_bytes(recipe, d, rows) + 2**21
    assert peak > 0.05 * learning_bytes(recipe, d, rows)


def test_plain_maps_need_nothing_to_learn():
    assert learning_bytes(FIXED, 10, 10_000) == learning_bytes(FIXED.with_(map="weighted"), 10, 10_000) == 0
    assert learning_bytes(FIXED.with_(metric="full"), 1000, 10_000) > 8 * 1000**2
