"""Features of 20 bits: exact sums by float64 products, how many rows they hold, and which solvers have them."""

from __future__ import annotations

import numpy as np
import pytest
from commands import done
from tables import labelled, smooth, write_zarr

from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.features.precision import make_precision
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.statistics.gram import Gram
from streamrf.support.errors import InputError, NumericalError
from streamrf.support.threads import ALONE, Threads
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, train
from streamrf.training.update.statistics import check_room_for

FIXED = Recipe(
    D=24, map="landmarks", kernel="gaussian", length_scale=3.0, scaling="standard", bits="20", ridge=1e-6, pilot="none"
)
X, Y = smooth(700)


@pytest.fixture(scope="module")
def model() -> Model:
    return train(ArraySource(X, Y, chunk_rows=150), FIXED, Settings(threads=1)).model


@pytest.mark.parametrize("map", ["landmarks", "sobol", "orthogonal"])
def test_sums_are_those_of_int64_arithmetic(map):
    model = train(ArraySource(X, Y), FIXED.with_(map=map), Settings(threads=1)).model
    gram, source = Gram.on_this_machine(model.scaling, model.map, model.coding, 1), ArraySource(X, Y)
    state, block = gram.zero(), source.read(source.chunks()[0])
    with Threads(2) as threads:
        gram.update(state, block, threads)
    Z = model.map.block(len(X), np.dtype(np.int32))
    model.map.compute(model.pipeline.scaled(X), Z, ALONE)
    assert np.abs(Z).max() > 2**18
    ones, targets = np.ones((len(X), 1), np.int64), model.coding.encode(block.targets, model.map.precision)
    whole = np.concatenate([Z[:, :24].astype(np.int64), ones, targets.astype(np.int64)], axis=1)
    assert np.array_equal(gram.layout.columns(state.totals, 0, gram.layout.size), whole.T @ whole)
    assert state.digest() == model.metadata["statistics_digest"]


def test_more_rows_than_the_totals_hold_are_refused_with_both_numbers(model):
    most = make_precision("20").most_rows
    assert most == (2**63 - 1) // (2**19 - 1) ** 2
    gram, source = Gram.on_this_machine(model.scaling, model.map, model.coding, 1), ArraySource(X, Y)
    state = gram.zero()
    state.rows = most - 10
    for act in (
        lambda: gram.update(state, source.read(source.chunks()[0]), ALONE),
        lambda: check_room_for(state, 700, "more", model.map.precision),
    ):
        with pytest.raises(NumericalError, match=f"{most + 690:,} rows.* hold up to {most:,}"):
            act()


def test_rows_join_and_leave_exactly(tmp_path):
    first, second = write_zarr(tmp_path / "a.zarr", X[:500], Y[:500]), write_zarr(tmp_path / "b.zarr", X[500:], Y[500:])
    options = ("--D", "24", "--map", "landmarks", "--length-scale", "3", "--bits", "20", "--lambda", "1e-6")
    out = tmp_path / "m.model"
    done("train", first, *options, "--pilot", "none", "--threads", "1", "--out", out, "--quiet")
    before = Model.load(out)
    done("update", out, second, "--threads", "1", "--quiet")
    both = Model.load(out)
    gram, state = Gram.on_this_machine(both.scaling, both.map, both.coding, 1), None
    source = ArraySource(X, Y)
    state = gram.zero()
    gram.update(state, source.read(source.chunks()[0]), ALONE)
    assert both.metadata["statistics_digest"] == state.digest()
    done("forget", out, second, "--threads", "1", "--quiet")
    after = Model.load(out)
    assert after.metadata["statistics_digest"] == before.metadata["statistics_digest"]


@pytest.mark.parametrize("settings", [{"solver": "cg"}, {"loss": "logistic"}, {"loss": "hinge"}, {"loss": "huber"}])
def test_solvers_that_cannot_sum_them_refuse_them(settings):
    with pytest.raises(InputError, match=r"`bits='20'`: must be at most 12, or floats: \w+ multiplies integers"):
        FIXED.with_(**settings)


def test_auto_takes_the_solver_that_can():
    source = ArraySource(*smooth(1000))
    small = {"outputs": 1, "threads": 1, "budget": 700 * 2**20, "reserved": 300 * 2**20}
    plan = plan_run(source, FIXED.with_(D=8000), **small)
    assert plan.solver == "cholesky"  # which does not fit
    assert not plan.fits
    assert plan_run(source, FIXED.with_(D=8000, bits="8"), **small).solver == "cg"


def test_weights_of_rows_need_floats():
    weighted = open_source(smooth(12_000), sample_weight=np.arange(12_000.0))
    with pytest.raises(InputError, match=r"`bits='20'`\): use `bits='float32'`"):
        plan_run(weighted, FIXED, outputs=1, threads=1, budget=None)


def test_the_pilot_keeps_to_what_the_solver_can_sum():
    X, y = labelled(400, 2)
    recipe = Recipe(map="landmarks", D=30, loss="logistic", kernel="gaussian", length_scale=20.0, metric="none")
    found = train(ArraySource(X, y), recipe, Settings(threads=1)).model
    assert found.recipe.solver == "newton"
    assert found.recipe.bits != "20"
