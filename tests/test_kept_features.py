"""Features that are kept between passes change nothing but the time."""

from dataclasses import replace

import numpy as np
import pytest
from interruptions import Stops
from tables import smooth
from test_gradient import make_gradient, table

from streamrf.data.readers.memory import ArraySource
from streamrf.data.screening import held_numbers
from streamrf.data.source import Block
from streamrf.data.split import Split
from streamrf.features.fourier.map import FourierMap
from streamrf.recipe import Recipe
from streamrf.solvers import iterative
from streamrf.solvers import plan as plans
from streamrf.solvers.factors import preconditioner_bytes, sample_rows
from streamrf.solvers.iterative import IterativeSolver
from streamrf.solvers.ridge import RidgeSolver
from streamrf.statistics.gradient_kernels import KeptFeatures
from streamrf.support.errors import BudgetError
from streamrf.support.progress import Interrupted
from streamrf.support.threads import ALONE
from streamrf.training import plan as choosing
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, train


def last(candidates):
    """Conjugate gradients, where both they and Cholesky could do it."""
    return candidates[-1]


def kept_for(gradient, rows):
    width = gradient._scorer.width
    return KeptFeatures(rows, width, gradient.map.precision.features)


@pytest.mark.parametrize("bits", ["7", "8", "12", "float32", "float64"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_sums_are_the_same_from_features_that_were_kept(bits, shuffled, monkeypatch):
    X, y = table()
    order = np.random.default_rng(0).permutation(len(X)) if shuffled else np.arange(len(X))
    block = Block(X[order], y[order], order)
    plain = make_gradient(bits)
    expected = plain.zero()
    plain.update(expected, block, ALONE)
    keeping = make_gradient(bits)
    keeping.features = kept_for(keeping, len(X))
    for made in (True, False):
        if not made:
            monkeypatch.setattr(type(keeping.map), "compute", None)  # whoever makes features now fails
        found = keeping.zero()
        keeping.update(found, block, ALONE)
        assert found.digest() == expected.digest()


def test_rows_that_are_not_there_yet_are_made():
    gradient, (X, _) = make_gradient("8"), table()
    kept, room = kept_for(gradient, len(X)), gradient._scorer.batch_features()
    assert kept.take(np.arange(5), room) is None
    rows = np.arange(room.size, dtype=np.int64).reshape(room.shape).astype(room.dtype)
    kept.put(np.array([7, 3, 9]), rows)
    assert kept.take(np.array([3, 4]), room) is None
    assert np.array_equal(kept.take(np.array([9, 7]), room), rows[[2, 0]])


def test_rows_apart_lie_behind_the_others():
    apart, width = np.array([2, 3, 9]), 32
    kept, room = KeptFeatures(10, width, np.dtype(np.int8), apart), np.zeros((10, width), np.int8)
    rows = np.arange(10, dtype=np.int8)[:, None].repeat(width, axis=1)
    summed = np.setdiff1d(np.arange(10), apart)
    assert kept.side_by_side(summed) is None
    kept.put(summed, rows[summed])
    assert kept.summed == len(summed)
    whole = kept.side_by_side(summed)
    assert np.shares_memory(whole, kept._features)  # nothing is copied
    assert np.array_equal(whole, rows[summed])
    assert np.array_equal(kept.side_by_side(np.array([4, 5, 6])), rows[4:7])
    assert kept.side_by_side(np.array([5, 4])) is None
    assert not kept.holds(apart)
    kept.put(apart, rows[apart])
    assert np.array_equal(kept.take(np.array([9, 1, 2]), room), rows[[9, 1, 2]])
    assert kept.summed == len(summed)
    assert kept.holds(np.arange(10))


@pytest.mark.parametrize("key", ["number", "inputs"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_numbers_held_are_those_of_the_rows_held(share, key):
    X = np.random.default_rng(0).standard_normal((950, 3))
    split, rows = Split(share, share, 5, key), Block(X, None, np.arange(950))
    assert np.array_equal(held_numbers(ArraySource(X), split, 100, 2**20), np.flatnonzero(split.held(rows)))


def test_inputs_are_read_once_where_features_are_kept(monkeypatch):
    reads, read = [], ArraySource.read
    monkeypatch.setattr(ArraySource, "read", lambda source, span: (reads.append(len(span)), read(source, span))[1])
    recipe = Recipe(
        D=128, kernel="gaussian", length_scale=2.0, bits="8", pilot="none", scaling="standard", solver="cg", ridge=1e-6
    )
    X, y = smooth(6000)
    X[17, 0] = np.nan  # a row that is left out is not waited for
    train(ArraySource(X, y, chunk_rows=1000), recipe.with_(nan="drop"), Settings(threads=2))
    kept = sum(reads)
    reads.clear()
    monkeypatch.setattr(IterativeSolver, "_kept_bytes", lambda *_: 0)
    train(ArraySource(X, y, chunk_rows=1000), recipe.with_(nan="drop"), Settings(threads=2))
    assert kept < 4 * 6000  # to scale, to know the rows apart, and in the first pass
    assert sum(reads) > 6 * 6000


@pytest.mark.parametrize("loss", ["squared", "logistic", "hinge"])
def test_kept_or_not_the_weights_are_the_same(loss, monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((3000, 4)).astype(np.float32)
    y = (np.sin(2 * X[:, 0]) + X[:, 1] > 0).astype(int)
    recipe = Recipe(
        D=256, kernel="gaussian", length_scale=2.0, scaling="standard", bits="8", pilot="none", loss=loss,
        solver={"squared": "cg"}.get(loss, "auto"), epochs=2 if loss == "hinge" else None,
    )  # fmt: skip
    found, made, compute = [], [], FourierMap.compute
    monkeypatch.setattr(FourierMap, "compute", lambda map, X, *rest: (made.append(len(X)), compute(map, X, *rest)))
    for kept in (True, False):
        made.clear()
        if not kept:
            monkeypatch.setattr(IterativeSolver, "_kept_bytes", lambda *_: 0)
        result = train(ArraySource(X, y), recipe, Settings(threads=2))
        assert bool(result.plan.bytes["features kept"]) == kept
        found.append((result.model.weights.coefficients, sum(made)))
    (weights, few), (same, many) = found
    assert np.array_equal(weights, same)
    assert many > few + 2 * 2500  # rows whose features were made again, in two passes at least


def test_features_are_kept_where_all_of_them_fit_beside_the_rest():
    rows, D = 200_000, 2000
    source = ArraySource(np.zeros((rows, 4), np.float32), np.arange(rows))
    recipe = Recipe(D=D, bits="8", pilot="none", solver="cg")
    sizes = {"outputs": 1, "threads": 2, "reserved": 10**8}
    whole = plan_run(source, recipe, budget=10**10, **sizes)
    size = whole.bytes["features kept"]
    all_rows = (rows + 4 * 20_000) * D  # those that choose have floats, as they are served
    assert all_rows <= size <= 1.1 * all_rows
    assert not plan_run(source, recipe, budget=10**10, local=False, **sizes).keeps_features
    assert plan_run(source, recipe, budget=whole.projected + 4, **sizes).keeps_features
    narrow = plan_run(source, recipe, budget=whole.projected - size // 2, **sizes)
    assert not narrow.keeps_features
    assert narrow.projected <= whole.projected - size // 2


def table_of_classes(rows, classes):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((rows, 4)).astype(np.float32)
    y = np.digitize(np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2], np.linspace(-0.5, 0.5, classes - 1))
    return ArraySource(X, y, chunk_rows=1000)


def test_a_plan_that_no_longer_keeps_them_replaces_one_that_did(monkeypatch):
    """With all classes counted there may be no room for features, and the plan is the smaller one for it."""
    sizes = iter([10**9, 0, 0])
    monkeypatch.setattr(IterativeSolver, "_kept_bytes", lambda *_: next(sizes))
    recipe = Recipe(D=64, kernel="gaussian", length_scale=2.0, bits="8", pilot="none", loss="logistic", solver="newton")
    assert not train(table_of_classes(1000, 3), recipe, Settings(threads=1)).plan.keeps_features


def test_a_run_resumed_under_another_plan_ends_the_same(monkeypatch, tmp_path):
    """Other memory, another choice of solver and of sample: what was begun goes on as it was."""
    source = table_of_classes(8000, 2)
    recipe = Recipe(D=256, kernel="gaussian", length_scale=2.0, bits="8", pilot="none", scaling="standard")
    monkeypatch.setattr(choosing, "_choose", last)
    expected = train(source, recipe, Settings(threads=1)).model.weights.coefficients
    settings = Settings(threads=1, checkpoint=tmp_path / "kept")
    with pytest.raises(Interrupted):
        train(source, recipe, settings, Stops(4))
    monkeypatch.setattr(choosing, "_choose", lambda candidates: candidates[0])
    monkeypatch.setattr(iterative, "sample_rows", lambda *_: 300)
    resumed = train(source, recipe, settings)
    assert resumed.plan.solver == "cg"
    assert resumed.plan.keeps_features
    assert np.array_equal(resumed.model.weights.coefficients, expected)


class StopsIn(Stops):
    """Asks the run to stop after the first block of the first pass with this title."""

    def __init__(self, title):
        super().__init__(1)
        self.title, self.now = title, None

    def started(self, title, rows, done):
        self.now = title

    def advanced(self, done, checkpoint_age):
        if self.now == self.title:
            super().advanced(done, checkpoint_age)


@pytest.mark.parametrize(
    ("preconditioner", "stage"),
    [("sample", "first pass"), ("nystrom", "first pass"), ("nystrom", "sketch"), ("nystrom", "conjugate gradients")],
)
def test_a_run_resumed_with_less_memory_keeps_its_sample(monkeypatch, tmp_path, preconditioner, stage):
    monkeypatch.setattr(plans, "SPAN_ROWS", 1000)
    source = table_of_classes(8000, 2)
    recipe = Recipe(
        D=200, kernel="gaussian", length_scale=2.0, bits="8", pilot="none", scaling="standard", solver="cg",
        preconditioner=preconditioner, ridge=1e-6,
    )  # fmt: skip
    expected = train(source, recipe, Settings(threads=1)).model.weights.coefficients
    settings = Settings(threads=1, checkpoint=tmp_path / "kept")
    with pytest.raises(Interrupted):
        train(source, recipe, settings, StopsIn(stage))
    size = sample_rows(recipe, 8000, 2**40)
    monkeypatch.setattr(iterative, "sample_rows", lambda *_: size // 2)
    resumed = train(source, recipe, settings)
    assert np.array_equal(resumed.model.weights.coefficients, expected)
    assert resumed.plan.bytes["preconditioner"] == preconditioner_bytes(recipe, size)  # what will be held is counted


def test_a_run_resumed_under_a_budget_that_it_no_longer_fits_is_refused(monkeypatch, tmp_path):
    """Conjugate gradients would fit, and are not what the run was begun with."""
    source = ArraySource(*smooth(140_000), chunk_rows=2000)
    recipe = Recipe(D=30, kernel="gaussian", length_scale=2.0, bits="8", pilot="none", scaling="standard")
    settings = Settings(threads=1, checkpoint=tmp_path / "kept")
    with pytest.raises(Interrupted):
        train(source, recipe, settings, Stops(1))
    monkeypatch.setattr(RidgeSolver, "matrix_bytes", lambda D: 2**45)
    assert plan_run(source, recipe, outputs=1, threads=1, budget=None).solver == "cg"
    with pytest.raises(BudgetError, match="the largest part is matrix"):
        train(source, recipe, settings)


def test_features_that_fit_at_the_precision_chosen_leave_the_reason_for_the_solver(monkeypatch):
    def choose(candidates):
        if len(candidates) == 1:
            return candidates[0]
        return replace(last(candidates), why="it is quicker", others={"cg": {"total": 1.0}})

    def kept(sizes, room):
        return 0 if sizes.recipe.bits == "auto" else 2**20

    monkeypatch.setattr(choosing, "_choose", choose)
    monkeypatch.setattr(IterativeSolver, "_kept_bytes", kept)
    recipe = Recipe(D=64, kernel="gaussian", length_scale=2.0, pilot="none")
    plan = train(table_of_classes(1000, 2), recipe, Settings(threads=1)).plan
    assert plan.keeps_features
    assert (plan.why, plan.others) == ("it is quicker", {"cg": {"total": 1.0}})
