"""K-fold cross-validation and GCV from sums alone, against loops over rows that are obviously right."""

import math

import numpy as np
import pytest
from commands import done, streamrf
from hypothesis import given
from hypothesis import strategies as st
from interruptions import Impatient
from statistics_conformance import StatisticConformance, assert_same, make_blocks
from tables import labelled, smooth, write_zarr

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.data.split import JUDGE, Split, chosen_rows, fold_of
from streamrf.features.scaling_fits import fit_scaling
from streamrf.recipe import Recipe
from streamrf.solvers import plan, rates
from streamrf.solvers.lambda_path import (
    HAIR,
    FoldPath,
    GcvPath,
    LambdaWalk,
    generalised_errors,
    squared_errors,
    total_of,
)
from streamrf.solvers.rates import Rates
from streamrf.solvers.ridge import NormalEquations, RidgeSolver
from streamrf.statistics.gram import Gram
from streamrf.statistics.holdout import Folds, Holdout
from streamrf.statistics.scores import Weights
from streamrf.support.errors import InputError
from streamrf.support.progress import Interrupted
from streamrf.support.threads import Threads
from streamrf.training.plan import estimate_run, plan_run
from streamrf.training.run import Settings, train
from streamrf.training.update.statistics import Statistics

FIXED = Recipe(D=48, kernel="gaussian", length_scale=1.5, scaling="standard", bits="12", pilot="none")


def dense_ridge(Z, Y, ridge):
    """Weights and intercept of ridge regression on the rows themselves."""
    mean, offset = Z.mean(axis=0), Y.mean(axis=0)
    C = Z - mean
    w = np.linalg.solve(C.T @ C / len(Z) + ridge * np.eye(Z.shape[1]), C.T @ (Y - offset) / len(Z))
    return w, offset - mean @ w


def features(model, X):
    with Threads(1) as threads:
        return model.map.dense(model.scaling.transform(X, model.map.precision.inputs), threads)


# -- folds


@given(st.integers(2, 20), st.integers(0, 2**31), st.integers(0, 2**40))
def test_folds_depend_on_the_row_number_alone(folds, seed, first):
    index = np.arange(first, first + 200)
    whole = fold_of(index, folds, seed)
    assert np.array_equal(np.concatenate([fold_of(index[i : i + 7], folds, seed) for i in range(0, 200, 7)]), whole)
    assert whole.min() >= 0
    assert whole.max() < folds


def test_folds_are_even_and_independent_of_the_kept_rows():
    index = np.arange(200_000)
    folds = fold_of(index, 5, seed=3)
    counts = np.bincount(folds, minlength=5)
    assert np.abs(counts - 40_000).max() < 5 * math.sqrt(200_000 * 0.2 * 0.8)
    among_kept = np.bincount(folds[chosen_rows(index, 0.1, 3)], minlength=5) / 20_000
    assert np.abs(among_kept - 0.2).max() < 0.015
    assert not np.array_equal(folds, fold_of(index, 5, seed=4))


class TestFoldsConformance(StatisticConformance):
    @pytest.fixture
    def blocks(self):
        X, y = smooth(240)
        return make_blocks(X, y, [50, 50, 131])

    @pytest.fixture(params=["8", "12"])
    def statistic(self, request):
        X, y = smooth(240)
        model = train(ArraySource(X, y), FIXED.with_(D=16, bits=request.param)).model
        gram = Gram.on_this_machine(model.scaling, model.map, model.coding, 1)
        split = Split(seed=1, folds=3)
        return Holdout(Folds(gram, 3, split), split, (0, 100, 170))


@pytest.mark.parametrize("bits", ["8", "12"])
def test_folds_sum_to_the_bits_of_the_whole(bits):
    X, y = smooth(900)
    source = ArraySource(X, y, chunk_rows=130)
    plain, folded = (train(source, FIXED.with_(bits=bits, cv=cv)) for cv in (None, 4))
    assert folded.state.digest() == plain.state.digest()
    assert sum(folded.model.metadata["cross_validation"]["rows"]) == folded.model.metadata["rows"] == 900


def test_folds_hold_their_rows_and_no_others():
    X, y = smooth(300)
    model = train(ArraySource(X, y), FIXED).model
    gram = Gram.on_this_machine(model.scaling, model.map, model.coding, 1)
    split = Split(judge=0.3, seed=7, folds=5)
    statistic, judges = Holdout(Folds(gram, 5, split), split), chosen_rows(np.arange(300), 0.3, 7)
    state, place = statistic.zero(), np.where(judges, -1, fold_of(np.arange(300), 5, 7))
    with Threads(1) as threads:
        statistic.update(state, Block(X, y, np.arange(300)), threads)
        for number, fold in enumerate(state.sums.folds):
            alone = gram.zero()
            gram.update(alone, Block(X, y, np.arange(300)).take(place == number), threads)
            assert fold.digest() == alone.digest()
    assert np.array_equal(state.holdout.table().index, np.flatnonzero(judges))


def test_kept_rows_merge_and_leave_with_their_folds():
    X, y = smooth(300)
    model = train(ArraySource(X, y), FIXED).model
    split = Split(judge=0.4, seed=2, folds=3)
    statistic = Holdout(
        Folds(Gram.on_this_machine(model.scaling, model.map, model.coding, 1), 3, split), split, (0,), 0.5
    )
    whole, cut = Block(X, y, np.arange(300)), [slice(0, 120), slice(120, 300)]
    total, first, second = (TestFoldsConformance.total(statistic, [whole.take(part)]) for part in (slice(0, 300), *cut))
    second += first
    assert_same(second, total)
    total -= first
    assert_same(total, TestFoldsConformance.total(statistic, [whole.take(cut[1])]))


def test_cross_validation_is_interrupted_and_resumed_to_the_same_bits(tmp_path, monkeypatch):
    X, y = smooth(1500)
    recipe = FIXED.with_(cv=3)
    settings = Settings(checkpoint=tmp_path / "kept", checkpoint_every=3600, threads=1)
    monkeypatch.setattr(plan, "SPAN_ROWS", 300)
    with pytest.raises(Interrupted, match="600 of 1,500 rows are done and kept"):
        train(ArraySource(X, y, chunk_rows=300), recipe, settings, Impatient(600))
    again, fresh = train(ArraySource(X, y, chunk_rows=300), recipe, settings), train(ArraySource(X, y), recipe)
    assert again.state.digest() == fresh.state.digest()
    assert again.model.metadata["cross_validation"] == fresh.model.metadata["cross_validation"]


# -- errors from sums


@pytest.mark.parametrize(
    ("bits", "form"), [("8", "phase"), ("12", "pairs"), ("float32", "phase"), ("float64", "phase")]
)
@pytest.mark.parametrize("D", [48, 300])  # one panel, and several
def test_squared_errors_from_sums_are_those_of_a_loop_over_rows(bits, form, D):
    X, y = smooth(400)
    Y = np.stack([y, 100 + X[:, 3], -3 * y], axis=1)
    result = train(ArraySource(X, Y), FIXED.with_(bits=bits, form=form, D=D, ridge=1e-3))
    model, rng = result.model, np.random.default_rng(0)
    with Threads(2) as threads:
        equations = NormalEquations.from_state(result.state, model.map, model.coding)
        raw = features(model, X) / model.map.amplitudes
        others = Weights(rng.standard_normal((D, 3)) * 1e-3, rng.standard_normal(3), 1.0)
        for weights in (model.weights, others):
            expected = ((raw @ weights.coefficients + weights.intercept - Y) ** 2).mean(axis=0)
            tolerance = 1e-4 if bits == "float32" else 1e-6  # float32 products are rounded
            assert np.allclose(squared_errors(equations, weights, threads), expected, rtol=tolerance)


@pytest.mark.parametrize("task", ["regression", "classes"])
def test_fold_errors_are_those_of_a_naive_cross_validation(task):
    X, y = smooth(700) if task == "regression" else labelled(700)
    result = train(ArraySource(X, y), FIXED.with_(cv=4))
    story, split = result.model.metadata["cross_validation"], Split.from_json(result.model.metadata["split"])
    rows = Block(X, y, np.arange(700))
    Z, place = features(result.model, X), split.folds_of(rows)
    Y = result.model.coding.values(y)
    for step in story["path"]:
        errors = []
        for fold in range(4):
            w, b = dense_ridge(Z[place != fold], Y[place != fold], step["lambda"])
            errors.append(((Z[place == fold] @ w + b - Y[place == fold]) ** 2).mean())
        assert step["by_fold"] == pytest.approx(errors, rel=1e-5)
        assert step["mean"] == pytest.approx(np.average(errors, weights=np.bincount(place)), rel=1e-5)
    best = min(story["path"], key=lambda step: step["mean"])
    assert story["mean_squared_error"] <= best["mean"] * (1 + 2e-4)
    assert result.model.weights.ridge == next(s["lambda"] for s in story["path"] if s["by_fold"] == story["by_fold"])
    assert story["spread"] == pytest.approx(np.std(story["by_fold"], ddof=1))


def test_gcv_is_the_formula_on_the_hat_matrix():
    X, y = smooth(250)
    result = train(ArraySource(X, y), FIXED.with_(bits="float64", cv=3, holdout=0.0))
    Z = features(result.model, X)
    n = len(Z)
    A = np.column_stack([np.ones(n), Z])
    with Threads(1) as threads:
        solver = RidgeSolver(NormalEquations.from_state(result.state, result.model.map, result.model.coding), threads)
        for ridge in (1e-6, 1e-3, 1.0):
            penalty = n * ridge * np.diag([0.0, *np.ones(Z.shape[1])])
            hat = A @ np.linalg.solve(A.T @ A + penalty, A.T)
            expected = ((y - hat @ y) ** 2).mean() / (1 - np.trace(hat) / n) ** 2
            assert generalised_errors(solver, ridge)[1] == pytest.approx(expected, rel=1e-6)
        chosen = generalised_errors(solver, result.model.weights.ridge)[1]
    assert result.model.metadata["cross_validation"]["gcv"] == pytest.approx(chosen)


def test_gcv_of_more_features_than_rows_is_infinite_and_not_wrong():
    X, y = smooth(30)
    result = train(ArraySource(X, y), FIXED.with_(D=64, ridge=1e-4, holdout=0.0))
    with Threads(1) as threads:
        path = GcvPath(
            RidgeSolver(NormalEquations.from_state(result.state, result.model.map, result.model.coding), threads)
        )
        path.choose(1e-9)
    assert math.isfinite(path.best[0])
    assert path.weights.ridge == path.ridges[0]


# -- the walk


class Valley(LambdaWalk):
    def __init__(self, *bottoms):
        super().__init__(len(bottoms))
        self.bottoms = np.array(bottoms)

    def errors(self, ridge):
        return 1 + np.abs(np.log10(ridge / self.bottoms))

    def keep(self, outputs):
        assert (self.ridges[outputs] == list(self.tried)[-1]).all()


@given(st.floats(-12.5, 1.5), st.floats(-12.5, 1.5))
def test_the_walk_ends_near_the_bottom_of_a_valley(bottom, start):
    walk = Valley(10.0**bottom)
    (found,) = walk.choose(10.0**start)
    assert abs(math.log10(found) - bottom) <= 0.5 + 1e-6
    assert walk.best * (1 - HAIR) <= min(walk.tried.values()) <= walk.best


@given(st.lists(st.floats(-12.5, 1.5), min_size=2, max_size=4), st.floats(-12.5, 1.5))
def test_each_output_finds_the_bottom_of_its_own_valley(bottoms, start):
    walk = Valley(*(10.0**bottom for bottom in bottoms))
    assert np.abs(np.log10(walk.choose(10.0**start)) - bottoms).max() <= 0.5 + 1e-6


def test_a_fixed_lambda_is_only_judged():
    walk = Valley(1e-3)
    assert walk.choose(1.0, fixed=True) == 1.0
    assert list(walk.tried) == [1.0]
    X, y = smooth(400)
    story = train(ArraySource(X, y), FIXED.with_(cv=3, ridge=0.01)).model.metadata["cross_validation"]
    assert [step["lambda"] for step in story["path"]] == [0.01]


# -- rows scored out of their fold


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_rows_apart_are_scored_by_weights_that_have_seen_all_others(classes):
    X, y = labelled(800, classes) if classes else smooth(800)
    result = train(ArraySource(X, y), FIXED.with_(cv=4, holdout=0.5, ridge=1e-3))
    model = result.model
    kept = Split.from_json(model.metadata["split"]).roles(Block(X, y, np.arange(800))) == JUDGE
    Z, Y = features(model, X), model.coding.values(y)
    w, b = dense_ridge(Z[~kept], Y[~kept], model.weights.ridge)
    scores = Z @ w + b
    metrics = model.metadata["holdout"]
    assert metrics["rows"] == kept.sum()
    if classes:
        wrong = model.codes(scores[kept]) != model.coding.codes(y[kept])
        assert metrics["error"] == pytest.approx(wrong.mean(), abs=3 / kept.sum())
    else:
        assert metrics["rmse"] == pytest.approx(np.sqrt(((scores[kept, 0] - y[kept]) ** 2).mean()), rel=1e-4)


def test_no_kept_rows_no_metrics_but_a_lambda():
    X, y = labelled(500)
    model = train(ArraySource(X, y), FIXED.with_(cv=3, holdout=0.0)).model
    assert model.metadata["holdout"] is None
    assert len(model.metadata["cross_validation"]["by_fold"]) == 3
    assert model.probabilities(np.eye(3)).shape == (3, 3)


# -- asking for it


@pytest.mark.parametrize("cv", [1, 0, -3, 101])
def test_impossible_numbers_of_folds_are_refused(cv):
    with pytest.raises(InputError, match=f"`cv={cv}`: must be from 2 to 100"):
        FIXED.with_(cv=cv)


def test_folds_go_with_the_solver_that_has_their_sums():
    with pytest.raises(InputError, match="`cv` goes with `solver='cholesky'`, not with cg: use `holdout`"):
        FIXED.with_(cv=3, solver="cg")


def test_folds_without_rows_are_refused():
    X, y = smooth(20)
    with pytest.raises(InputError, match=r"`cv=50`: a fold has [01] rows only"):
        train(ArraySource(X, y), FIXED.with_(cv=50))


def test_the_plan_counts_a_state_for_each_fold():
    X, y = smooth(400)
    recipe = FIXED.with_(D=3000, solver="cholesky", holdout=0.1)
    plain, folded = (
        plan_run(ArraySource(X, y), recipe.with_(cv=cv), outputs=1, threads=1, budget=None) for cv in (None, 5)
    )
    assert folded.bytes["statistics"] == 5 * plain.bytes["statistics"]
    assert folded.stages["solve"] - plain.stages["solve"] >= 5 * plain.bytes["statistics"]


def test_the_plan_counts_the_solves_of_each_fold(monkeypatch):
    source = ArraySource(*smooth(400))
    monkeypatch.setattr(rates, "rates_of_this_machine", lambda bits, threads: Rates(1e9, 1e9, 1e11, 1e10))
    seconds = {}
    for cv in (None, 5):
        recipe = FIXED.with_(cv=cv, holdout=0.1)
        plan_ = plan_run(source, recipe, outputs=1, threads=1, budget=None)
        seconds[cv] = estimate_run(plan_)["solve"]
    assert seconds[5] == pytest.approx(38 / 8 * seconds[None])  # six lambdas, kept rows, judges, the last, and GCV


def test_train_cv_as_a_command(tmp_path):
    X, y = smooth(600)
    data = write_zarr(tmp_path / "t.zarr", X, y)
    options = ("--D", "40", "--pilot", "none", "--threads", "1", "--out", tmp_path / "m.model")
    found = done("train", data, *options, "--cv", "5", "--json").json["cross_validation"]
    assert (found["folds"], len(found["by_fold"])) == (5, 5)
    shown = done("train", data, *options, "--cv", "5", "--overwrite").out
    assert f"{found['mean_squared_error']:.5g} ± {found['spread']:.2g} over 5 folds" in shown
    assert Statistics.load(tmp_path / "m.model").rows == 600
    assert streamrf("train", data, *options, "--cv", "1", "--overwrite").code == 2


def test_fold_paths_give_back_the_total_as_it_was():
    X, y = smooth(300)
    result = train(ArraySource(X, y), FIXED)
    gram = Gram.on_this_machine(fit_scaling("standard", X), result.model.map, result.model.coding, 1)
    statistic = Folds(gram, 3, Split(folds=3))
    state = statistic.zero()
    with Threads(1) as threads:
        statistic.update(state, Block(X, y, np.arange(300)), threads)
        path = FoldPath(state.folds, result.model.pipeline, threads)
        path.choose(1e-3)
    assert path.total.digest() == total_of(state.folds).digest()
