"""Random binning by losses other than the squared one: the minimum that a dense minimiser finds, the same bits on every
way to it, and what users see."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from cluster_tools import local_cluster
from commands import done
from interruptions import Stops
from scipy.optimize import minimize
from statistics_conformance import StatisticConformance, make_blocks
from tables import labelled, smooth, write_zarr

import streamrf
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.split import Split
from streamrf.features.binning.index_cache import BinIndexer
from streamrf.features.binning.map import BinningMap, GammaWidths
from streamrf.features.binning.numbering import Numbering
from streamrf.features.targets import TargetCoding
from streamrf.recipe import Recipe
from streamrf.solvers import bin_newton, bin_rounds, binning
from streamrf.statistics.bin_pulls import BinPulls
from streamrf.statistics.bins import RowIntegers
from streamrf.statistics.losses import Huber, Logistic, Quantile, class_loss
from streamrf.statistics.targets import Weighting
from streamrf.support.errors import DataError, InputError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import Threads
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, Training, train

FIXED = Recipe(map="binning", grids=12, table_bits=6, pilot="none", scaling="standard", seed=3)
X, Y = smooth(2500)
SIDES = (np.median(Y) < Y).astype(int)
CLASSES = np.digitize(Y, np.quantile(Y, [0.2, 0.5, 0.9]))
TARGETS = {
    "logistic": SIDES, "squared-hinge": SIDES, "multinomial": CLASSES, "one against the rest": CLASSES,
    "huber": np.stack([Y, 1e3 * np.tanh(X[:, 1])], axis=1), "quantile": Y,
}  # fmt: skip
LOSSES = {"multinomial": "logistic", "one against the rest": "squared-hinge"}
ALONE = Settings(threads=1)
HEAVY = np.random.default_rng(5).uniform(0.0, 3.0, len(X)) ** 2


def recipe_of(name, **how):
    return FIXED.with_(loss=LOSSES.get(name, name), **how)


def bits(model):
    """Everything that prediction depends on."""
    return model.weights.coefficients.tobytes(), model.weights.intercept.tobytes(), model.metadata["statistics_digest"]


def dense_features(model, rows):
    with Threads(1) as threads:
        return model.map.dense(model.scaling.transform(rows, np.float32), threads) * np.sqrt(model.map.grids)


# -- the minimum


def loss_at_the_end(model, name, unit):
    """The loss that the last rounds minimised, of targets in their units."""
    recipe, outputs = model.recipe, model.coding.outputs
    if recipe.loss == "huber":
        return Huber(np.array(model.metadata["binning"]["threshold"]) / unit)
    if recipe.loss == "quantile":
        return Quantile(recipe.quantile, np.full(outputs, bin_rounds.CORNERS[-1]))
    return class_loss(recipe.loss, outputs)


def unit_of(model, targets):
    """What targets are counted in, from the model: a deviation by medians of all rows, as all of them are the sample."""
    return (
        np.ones(1) if model.coding.classes else 1.4826 * np.median(np.abs(targets - np.median(targets, axis=0)), axis=0)
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_many_rounds_without_hold_out_rows_give_the_dense_minimum(name, weighted, monkeypatch):
    """By scipy, of one-hot bins written out; at the intercept that the rounds ended with, which bins take up as well."""
    monkeypatch.setattr(bin_newton, "BLIND_ROUNDS", 60)
    source = open_source((X, TARGETS[name]), sample_weight=HEAVY) if weighted else ArraySource(X, TARGETS[name])
    recipe = recipe_of(name, holdout=0.0, grids=4, table_bits=4, ridge=0.3)
    if weighted and not recipe.loss == "logistic":
        return
    model = train(source, recipe, ALONE).model
    Z, values = dense_features(model, X), model.coding.values(TARGETS[name])
    weights = HEAVY if weighted else np.ones(len(X))
    unit = unit_of(model, values)
    loss, targets = loss_at_the_end(model, name, unit), values / unit
    ridge = 0.3 * 4 * weights.mean()

    def objective(flat):
        w = flat.reshape(Z.shape[1] + 1, -1)
        pulls, losses = loss.of_rows(Z @ w[:-1] + w[-1], targets)
        pulls = pulls * weights[:, None]
        slopes = np.concatenate([Z.T @ pulls + 2 * ridge * w[:-1], pulls.sum(axis=0, keepdims=True)])
        return weights @ losses[:, 0] + ridge * (w[:-1] ** 2).sum(), slopes.ravel()

    own = np.concatenate([model.weights.coefficients, model.weights.intercept[None]]) / unit
    exact = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0, "gtol": 1e-10}
    found = minimize(objective, np.zeros_like(own).ravel(), jac=True, method="L-BFGS-B", options=exact)
    wanted = found.x.reshape(own.shape)
    if name == "multinomial":
        wanted[-1] -= wanted[-1].mean()  # which changes no probability
    print(
        name,
        np.abs(own - wanted).max(),
        objective(own.ravel())[0] / found.fun - 1,
        np.abs(objective(own.ravel())[1]).max(),
    )
    np.testing.assert_allclose(own, wanted, atol=1e-6)
