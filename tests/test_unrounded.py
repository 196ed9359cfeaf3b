"""Sums are of rounded features, predictions are made from unrounded ones: exact in training, without noise in use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import streamrf
from streamrf import Recipe
from streamrf.data.source import Block
from streamrf.features.base import Scorer
from streamrf.features.pipeline import Pipeline
from streamrf.models.model import Model
from streamrf.solvers.lambda_path import squared_errors
from streamrf.solvers.ridge import NormalEquations
from streamrf.statistics.gram import Gram
from streamrf.support.errors import FileFormatError
from streamrf.support.threads import ALONE, Threads

MAPS = ("mc", "sorf", "landmarks")
ROWS = 3000


def table(rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Smooth and almost without noise: there rounding shows."""
    X = np.random.default_rng(seed).uniform(-1, 1, (rows, 4))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.cos(X[:, 3])


def trained(bits: str = "7", **settings: object) -> streamrf.training.run.TrainResult:
    recipe = {"D": 300, "map": "mc", "kernel": "gaussian", "length_scale": 2.0, "scaling": "none", "pilot": "none"}
    return streamrf.train(table(), Recipe(bits=bits, **{**recipe, **settings}), streamrf.Settings(threads=1))


def as_integers(model: Model) -> Model:
    """The model as one of the first versions would be: it serves the integers of its sums."""
    document, arrays = model.to_parts()
    assert document.pop("serves") == "unrounded"
    return Model.from_parts(document, arrays)


def rmse(model: Model, rows: tuple[np.ndarray, np.ndarray]) -> float:
    return float(np.sqrt(np.mean((model.scores(rows[0], ALONE)[:, 0] - rows[1]) ** 2)))


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("bits", ["7", "8", "12"])
def test_predictions_are_those_of_unrounded_features(map, bits):
    model = trained(bits, map=map).model
    X = table(50, 1)[0]
    Z = np.zeros((len(X), model.map.width), np.float32)
    model.map.compute(model.pipeline.scaled(X), Z, ALONE)
    Z = Z[:, : model.map.n_features].astype(np.float64)
    assert 0 < np.abs(Z).max() <= 1 + 1e-6
    assert (np.rint(Z * model.map.precision.scale) != Z * model.map.precision.scale).mean() > 0.9
    w = model.weights.coefficients * model.map.precision.scale
    assert np.allclose(model.scores(X, ALONE), Z @ w + model.weights.intercept, atol=1e-4)
    assert np.allclose(model.map.dense(model.pipeline.scaled(X), ALONE, unrounded=True) @ w,
                       Z * model.map.amplitudes * model.map.precision.scale @ w)  # fmt: skip


@pytest.mark.parametrize("map", MAPS)
def test_bits_do_not_depend_on_blocks_or_threads(map):
    model, X = trained(map=map).model, table(700, 2)[0]
    with Threads(2) as threads:
        whole = model.scores(X, threads)
    assert np.array_equal(whole, np.concatenate([model.scores(X[i : i + 33], ALONE) for i in range(0, 700, 33)]))


def test_noise_of_rounding_is_gone():
    model, unseen = trained(ridge=1e-9).model, table(2000, 3)
    assert rmse(model, unseen) < 0.9 * rmse(as_integers(model), unseen)


def test_a_model_that_says_nothing_serves_integers(tmp_path):
    """Files of the first versions predict what they always did."""
    model, X = trained().model, table(50, 1)[0]
    old = as_integers(model)
    old.save(tmp_path / "old")
    expected = Scorer(model.map, model.weights.coefficients, model.weights.intercept).scores(X, ALONE)
    assert np.array_equal(Model.load(tmp_path / "old").scores(X, ALONE), expected)
    assert np.abs(expected - model.scores(X, ALONE)).max() > 1e-6
    model.save(tmp_path / "new")
    assert np.array_equal(Model.load(tmp_path / "new").scores(X, ALONE), model.scores(X, ALONE))


def test_what_is_served_is_no_part_of_the_digests():
    pipeline = trained().model.pipeline
    assert pipeline.unrounded
    assert pipeline.digests() == replace(pipeline, unrounded=False).digests()


@pytest.mark.parametrize("bits", ["float32", "float64"])
def test_floats_are_served_as_they_are(bits):
    model = trained(bits).model
    assert not model.pipeline.unrounded
    assert "serves" not in model.to_parts()[0]


@pytest.mark.parametrize("serves", ["integers", "unrounded", 1])
def test_a_file_that_serves_what_its_map_has_not_is_refused(serves):
    document, arrays = trained("float32").model.pipeline.to_parts()
    with pytest.raises(FileFormatError, match="serves"):
        Pipeline.from_parts({**document, "serves": serves}, arrays)


@pytest.mark.parametrize("settings", [{}, {"solver": "cg"}, {"cv": 4}])
def test_lambda_and_hold_out_are_judged_with_what_is_served(settings):
    """With 7 bits and no noise, lambda by rounded features would be far larger: their noise grows with the weights."""
    result = trained(**settings)
    unseen = table(2000, 3)
    told = result.model.metadata["holdout"]["rmse"]
    assert told == pytest.approx(rmse(result.model, unseen), rel=0.25)
    assert told < 0.9 * rmse(as_integers(result.model), unseen)


def test_sums_of_a_fold_judge_unrounded_features():
    """Taking the variance of rounding off comes near to what the rows themselves say."""
    model, rows = trained(ridge=1e-9).model, table(ROWS, 4)
    gram = Gram.on_this_machine(model.scaling, model.map, model.coding, 1)
    state = gram.zero()
    gram.update(state, Block(rows[0], rows[1], np.arange(ROWS)), ALONE)
    equations = NormalEquations.from_state(state, model.map, model.coding)
    found = [squared_errors(equations, model.weights, ALONE, unrounded=each)[0] for each in (False, True)]
    assert found[0] == pytest.approx(rmse(as_integers(model), rows) ** 2, rel=1e-3)
    assert found[1] == pytest.approx(rmse(model, rows) ** 2, rel=0.2)
    assert found[0] > 1.3 * rmse(model, rows) ** 2
