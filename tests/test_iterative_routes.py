"""Iterative routes against dense references; the same weights whatever the order, the engine or the interruption."""

import os
import pickle
import shutil
import signal

import numpy as np
import pytest
from cluster_tools import local_cluster
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, QuantileRegressor, Ridge
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_sample_weight
from tables import labelled, smooth, write_zarr

import streamrf.solvers.plan as plan
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.data.split import Split
from streamrf.engines.cluster import ClusterEngine
from streamrf.recipe import Recipe
from streamrf.solvers import newton
from streamrf.solvers import rates as speed
from streamrf.solvers.iterative import IterativeSolver
from streamrf.solvers.lambda_path import LambdaTrial, next_block, next_ridge
from streamrf.solvers.rates import Rates
from streamrf.statistics import descent
from streamrf.statistics.descent import Descent
from streamrf.statistics.losses import Huber
from streamrf.support.errors import BudgetError, InputError, MismatchError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import ALONE, Threads
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, Training, train

FIXED = Recipe(
    D=60, kernel="gaussian", length_scale=2.0, scaling="standard", bits="8", ridge=1e-3, pilot="none", holdout=0.0
)
ROWS = 900
CG = FIXED.with_(solver="cg")


def numbers():
    return smooth(ROWS)


def classes(count):
    return labelled(ROWS, classes=count)


def fit(X, y, recipe, **settings):
    return train(ArraySource(X, y, chunk_rows=250), recipe, Settings(threads=1, **settings)).model


def features(model, X):
    return model.map.dense(model.scaling.transform(X, model.map.precision.inputs), ALONE)


def scores(model, X):
    return model.scores(X, ALONE)


@pytest.mark.parametrize("bits", ["7", "8", "12", "float32", "float64"])
@pytest.mark.parametrize("preconditioner", ["sample", "nystrom"])
def test_conjugate_gradients_solve_the_ridge_problem(bits, preconditioner):
    X, y = numbers()
    Y = np.stack([y, y**2], axis=1)
    model = fit(X, Y, CG.with_(bits=bits, preconditioner=preconditioner))
    Z = features(model, X)
    dense = Ridge(alpha=ROWS * 1e-3, solver="cholesky").fit(Z, Y)
    np.testing.assert_allclose(scores(model, X), dense.predict(Z), atol=2e-3 * np.abs(Y).max())


def test_held_out_rows_choose_a_lambda_near_that_of_the_direct_route():
    X, y = numbers()
    recipe = FIXED.with_(ridge=None, holdout=0.2)
    direct, iterative = fit(X, y, recipe), fit(X, y, recipe.with_(solver="cg"))
    rows_less = 1.05  # those that chose are in the sums that are judged, and not in the passes that are
    assert iterative.metadata["holdout"]["rmse"] <= rows_less * direct.metadata["holdout"]["rmse"]
    assert len(iterative.metadata["solver"]["path"]) >= 3


def test_held_out_rows_join_the_last_steps_of_conjugate_gradients():
    X, y = numbers()
    plain = CG.with_(scaling="none", map="mc")  # no sample has a part in these
    held, never = fit(X, y, plain.with_(holdout=0.2)), fit(X, y, plain)
    roles = Split.from_json(held.metadata["split"]).roles(Block(X, y, np.arange(ROWS)))
    without = fit(X[roles == 0], y[roles == 0], plain)
    far, near = (np.abs(scores(model, X) - scores(never, X)).max() for model in (without, held))
    assert near < far / 5


@pytest.mark.parametrize("how", [{}, {"ridge": None}])
def test_figures_are_those_of_weights_that_had_not_seen_the_rows(how, monkeypatch):
    X, y = numbers()
    recipe = CG.with_(holdout=0.2, **how)
    joined = fit(X, y, recipe).metadata["holdout"]
    monkeypatch.setattr(IterativeSolver, "join", lambda *_: None)
    assert joined == fit(X, y, recipe).metadata["holdout"]


@pytest.mark.parametrize("count", [2, 3])
def test_logistic_loss_is_that_of_scikit_learn(count):
    X, y = classes(count)
    model = fit(X, y, FIXED.with_(loss="logistic"))
    Z = features(model, X)
    dense = LogisticRegression(C=1 / (2 * ROWS * 1e-3), tol=1e-8, max_iter=2000).fit(Z, y)
    found, expected = model.probabilities(scores(model, X)), dense.predict_proba(Z)
    rows = np.arange(ROWS)
    gap = np.log(expected[rows, y]).mean() - np.log(found[rows, y]).mean()
    assert abs(gap) < 1e-3
    np.testing.assert_allclose(found, expected, atol=0.02)


@pytest.mark.parametrize("count", [2, 3])
def test_squared_hinge_is_at_its_minimum(count):
    X, y = classes(count)
    model = fit(X, y, FIXED.with_(loss="squared-hinge"))
    Z = features(model, X)
    sides = 2.0 * y[:, None] - 1 if count == 2 else 2.0 * np.eye(count)[y] - 1
    expected = np.stack([squared_hinge_scores(Z, side, np.ones(ROWS)) for side in sides.T], axis=1)
    np.testing.assert_allclose(scores(model, X), expected, atol=0.03)


def squared_hinge_scores(Z, sides, weights, ridge=1e-3):
    """Scores at the minimum of the objective as it is written down, found by scipy."""

    def objective(theta):
        short = np.maximum(1 - sides * (Z @ theta[:-1] + theta[-1]), 0)
        pull = -2 * sides * short * weights / weights.sum()
        value = weights @ short**2 / weights.sum() + ridge * theta[:-1] @ theta[:-1]
        return value, np.append(Z.T @ pull + 2 * ridge * theta[:-1], pull.sum())

    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 3000}
    theta = minimize(objective, np.zeros(Z.shape[1] + 1), jac=True, method="L-BFGS-B", options=options).x
    return Z @ theta[:-1] + theta[-1]


def test_the_huber_fit_is_the_minimum_and_does_not_feel_outliers():
    X, y = numbers()
    y = y.copy()
    y[::20] += 50
    model = fit(X, y, FIXED.with_(loss="huber"))
    Z, n = features(model, X), ROWS
    loss = Huber(np.array(model.metadata["solver"]["threshold"]))

    def objective(theta):
        pulls, losses = loss.of_rows((Z @ theta[:-1] + theta[-1])[:, None], y[:, None])
        gradient = np.append(Z.T @ pulls[:, 0] / n + 2e-3 * theta[:-1], pulls.mean())
        return losses.mean() + 1e-3 * theta[:-1] @ theta[:-1], gradient

    dense = minimize(objective, np.zeros(Z.shape[1] + 1), jac=True, method="L-BFGS-B", options={"ftol": 1e-15})
    expected = Z @ dense.x[:-1] + dense.x[-1]
    np.testing.assert_allclose(scores(model, X)[:, 0], expected, atol=0.05)
    clean = np.ones(n, bool)
    clean[::20] = False
    squared = fit(X, y, FIXED)
    errors = [np.abs(scores(m, X)[clean, 0] - y[clean]).mean() for m in (model, squared)]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_quantiles_are_those_of_scikit_learn(quantile):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2)).astype(np.float32)
    y = X[:, 0] + (1 + np.abs(X[:, 1])) * rng.standard_normal(300)
    model = train(
        ArraySource(X, y), FIXED.with_(D=20, loss="quantile", quantile=quantile, ridge=1e-4), Settings(threads=1)
    ).model
    Z = features(model, X)
    dense = QuantileRegressor(quantile=quantile, alpha=0.0, solver="highs").fit(Z, y)

    def objective(prediction, weights):
        above = y - prediction
        return np.maximum(quantile * above, (quantile - 1) * above).mean() + 1e-4 * weights @ weights

    mine = model.weights.coefficients[:, 0] / model.map.amplitudes
    assert objective(scores(model, X)[:, 0], mine) <= objective(dense.predict(Z), dense.coef_) * 1.01
    assert (y <= scores(model, X)[:, 0]).mean() == pytest.approx(quantile, abs=0.04)


def accuracy(scores, y):
    return ((scores.reshape(len(y), -1)[:, 0] > 0) == y).mean()


@pytest.mark.parametrize("shards", [1, 4])
def test_stochastic_gradients_reach_the_hinge_loss_of_scikit_learn(shards):
    X, y = labelled(4000, classes=2)
    recipe = FIXED.with_(loss="hinge", ridge=1e-4, epochs=20, shards=shards)
    model = train(ArraySource(X, y, chunk_rows=250), recipe, Settings(threads=1)).model
    Z = features(model, X)
    dense = LinearSVC(C=1 / (2 * 4000 * 1e-4), loss="hinge", tol=1e-3, max_iter=20_000, intercept_scaling=10.0)
    expected = dense.fit(Z, y).decision_function(Z)

    def hinge(scores):
        return np.maximum(1 - (2 * y - 1) * scores, 0).mean()

    found = scores(model, X)[:, 0]
    assert hinge(found) <= hinge(expected) * 1.03
    assert accuracy(found, y) >= accuracy(expected, y) - 0.006


@pytest.mark.parametrize("settings", [{"solver": "cg", "preconditioner": "nystrom"}, {"loss": "hinge", "epochs": 2}])
def test_constant_inputs_predict_the_mean(settings):
    y = (np.arange(ROWS) % 4 > 0).astype(np.float64)
    model = fit(np.ones((ROWS, 3), np.float32), y, FIXED.with_(task="classification", D=20, **settings))
    found = model.labels(model.codes(scores(model, np.ones((1, 3), np.float32))))
    assert found[0] == 1


def test_stochastic_gradients_look_at_a_sample_whatever_preconditions_the_others():
    X, y = classes(2)
    recipe = FIXED.with_(loss="hinge", epochs=1, D=4)
    sample, nystrom = (fit(X, y, recipe.with_(preconditioner=name)) for name in ("sample", "nystrom"))
    assert np.array_equal(nystrom.weights.coefficients, sample.weights.coefficients)


@pytest.mark.parametrize("loss", ["huber", "quantile"])
def test_residuals_beside_a_sketch_are_those_of_many_rows(loss, monkeypatch):
    seen = []
    monkeypatch.setattr(newton, "robust_deviation", lambda residuals, _: seen.append(residuals) or np.ones(1))
    fit(*numbers(), FIXED.with_(loss=loss, preconditioner="nystrom", D=16))
    assert {len(residuals) for residuals in seen} == {ROWS}


@pytest.mark.parametrize("loss", ["huber", "quantile"])
def test_outliers_do_not_widen_the_threshold(loss):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 3)).astype(np.float32)
    truth = X[:, 0] ** 2 + np.sin(2 * X[:, 1])
    y = truth + 0.1 * rng.standard_normal(len(X))
    y[rng.choice(4000, 40, replace=False)] += 1000 * rng.standard_normal(40)
    recipe = Recipe(D=200, loss=loss, kernel="gaussian", length_scale=1.5, scaling="standard", bits="12", map="sobol")
    trained = train(ArraySource(X[:4000], y[:4000]), recipe, Settings(threads=1))
    error = scores(trained.model, X[4000:])[:, 0] - truth[4000:]
    assert 1 - (error**2).mean() / truth[4000:].var() > 0.95
    if loss == "huber":
        assert trained.model.metadata["solver"]["threshold"][0] < 0.5


@pytest.mark.parametrize(("rows", "parts"), [(700, 7), (90, 40), (450, 100_000)])
def test_the_plan_counts_where_every_part_of_a_leg_ends(rows, parts, monkeypatch):
    held, zero = [], Descent.zero
    monkeypatch.setattr(Descent, "zero", lambda leg: held.append(leg.nbytes()) or zero(leg))
    recipe = FIXED.with_(loss="hinge", epochs=1, D=20, shards=parts)
    found = train(ArraySource(*labelled(20_000, classes=2), chunk_rows=rows), recipe, Settings(threads=1)).plan
    assert max(held) <= found.bytes["statistics"] <= 4 * max(held)


def leg_through(source):
    """A leg as it is sent to a worker; only its source matters here."""
    return pickle.dumps(Descent(source, (), None, None, np.zeros(1), None, np.zeros(1), 0, (0,)))


def test_workers_read_a_table_that_was_written_anew_and_not_the_one_before(tmp_path):
    place = write_zarr(tmp_path / "t.zarr", *smooth(50))
    before = leg_through(open_source(place))
    assert pickle.loads(before).source.n_rows == 50
    shutil.rmtree(place)
    after = leg_through(open_source(write_zarr(tmp_path / "t.zarr", *smooth(80))))
    assert pickle.loads(after).source.n_rows == 80
    descent._source.cache_clear()
    with pytest.raises(MismatchError, match="other data"):
        pickle.loads(before)


@pytest.mark.parametrize("name", ["epochs", "shards"])
@pytest.mark.parametrize(
    "settings", [{}, {"solver": "cg"}, {"loss": "logistic"}, {"loss": "huber"}, {"map": "binning", "kernel": "auto"}]
)
def test_settings_of_stochastic_gradients_are_refused_elsewhere(name, settings):
    with pytest.raises(InputError, match=f"`{name}=3`: this is a setting of `solver='sgd'`"):
        FIXED.with_(**settings, **{name: 3})
    FIXED.with_(loss="hinge", **{name: 3})
    FIXED.with_(loss="logistic", solver="sgd", **{name: 3})


DENSE = {
    "squared": lambda Z, t, w: Ridge(alpha=w.sum() * 1e-3, solver="cholesky").fit(Z, t, sample_weight=w).predict(Z),
    "logistic": lambda Z, t, w: (
        LogisticRegression(C=1 / (2e-3 * w.sum()), tol=1e-8, max_iter=2000)
        .fit(Z, t, sample_weight=w)
        .decision_function(Z)
    ),
    "squared-hinge": squared_hinge_scores,
}


@pytest.mark.parametrize("loss", DENSE)
@pytest.mark.parametrize("by_class", [False, True])
def test_weights_count_as_scikit_learn_counts_them(loss, by_class):
    X, y = classes(2)
    y = np.where(np.random.default_rng(0).random(ROWS) < 0.7, 0, y)  # few of the second class
    weights = np.random.default_rng(1).random(ROWS) * 3
    solver = "cg" if loss == "squared" else "auto"
    recipe = FIXED.with_(loss=loss, solver=solver, class_weight="balanced" if by_class else None)
    model = train(open_source((X, y), sample_weight=weights), recipe, Settings(threads=1)).model
    used = weights * compute_sample_weight("balanced", y) if by_class else weights
    expected = DENSE[loss](features(model, X), 2.0 * y - 1, used)
    np.testing.assert_allclose(scores(model, X)[:, 0], expected, atol=0.03)


RUNS = {
    "cg": (numbers, CG.with_(holdout=0.1, ridge=None)),
    "nystrom": (numbers, CG.with_(preconditioner="nystrom")),
    "logistic": (lambda: classes(3), FIXED.with_(loss="logistic", holdout=0.1, ridge=None)),
    "quantile": (numbers, FIXED.with_(loss="quantile", holdout=0.1)),
    "hinge": (lambda: classes(2), FIXED.with_(loss="hinge", holdout=0.1, epochs=3, shards=3)),
}


class Impatient(Reporter):
    """Presses Ctrl-C in the middle of a pass, once so many passes have begun."""

    def __init__(self, passes):
        self.left = passes

    def started(self, title, total, done):
        self.left -= 1

    def advanced(self, done, checkpoint_age):
        if self.left == 0 and done > 0:
            self.left = -1000
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "hinge"])
def test_bits_do_not_depend_on_chunks_and_order(name):
    make, recipe = RUNS[name]
    X, y = make()
    whole = fit(X, y, recipe)
    other = train(
        ArraySource(X, y, chunk_rows=77), recipe, Settings(threads=1, order=np.random.default_rng(0).permutation)
    ).model
    assert np.array_equal(whole.weights.coefficients, other.weights.coefficients)
    assert np.array_equal(whole.weights.intercept, other.weights.intercept)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_stopped_again_and_again_ends_with_the_same_weights(name, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "SPAN_ROWS", 250)
    make, recipe = RUNS[name]
    X, y = make()
    whole = fit(X, y, recipe)
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=3600)
    stops = 0
    with Threads(1) as threads:
        for passes in (1, 2, 3, 5, 1000):
            training = Training(ArraySource(X, y, chunk_rows=250), recipe, settings, Impatient(passes), threads)
            try:
                model = training.run().model
                break
            except Interrupted:
                stops += 1
    assert stops >= 2
    assert np.array_equal(whole.weights.coefficients, model.weights.coefficients)
    assert whole.metadata["solver"] == model.metadata["solver"]


def test_a_cluster_gives_the_same_weights(tmp_path):
    recipes = {
        "cg": CG.with_(holdout=0.1, D=20),
        "logistic": RUNS["logistic"][1].with_(ridge=1e-2, D=20),
        "hinge": RUNS["hinge"][1].with_(epochs=2, D=20),
    }
    with local_cluster(2) as (_, client):
        for name, recipe in recipes.items():
            source = open_source(write_zarr(tmp_path / f"{name}.zarr", *RUNS[name][0](), 200))
            engine = ClusterEngine(client, group_seconds=0.0)
            local = train(source, recipe, Settings(threads=1)).model
            there = train(source, recipe, Settings(threads=1, engine=engine)).model
            assert np.array_equal(local.weights.coefficients, there.weights.coefficients), name


def test_the_walk_over_lambda_goes_where_it_is_better():
    def walk(score, fixed=False):
        tried = []
        while (ridge := next_ridge(1e-4, tried, fixed)) is not None:
            tried.append(LambdaTrial(ridge, score(ridge), 1))
        return [trial.ridge for trial in tried]

    assert walk(lambda ridge: 1 + abs(np.log10(ridge) + 6)) == pytest.approx([1e-4, 1e-5, 1e-6, 1e-7])
    assert walk(lambda ridge: 1 + abs(np.log10(ridge) + 2)) == pytest.approx([1e-4, 1e-5, 1e-3, 1e-2, 1e-1])
    assert walk(lambda ridge: 1.0) == pytest.approx([1e-4, 1e-5, 1e-3])
    assert walk(lambda ridge: 1.0, fixed=True) == [1e-4]


@pytest.mark.parametrize(
    ("best", "powers"), [(-1, [0, -1, -2]), (0, [0, -1, -2, 1, 2]), (3, [0, -1, -2, 1, 2]), (-5, [0, -1, -2, -3, -4])]
)
def test_blocks_of_lambdas_follow_the_edge(best, powers):
    tried = []
    while (ridges := next_block(1e-4, tried, fixed=False)) is not None:
        tried += [LambdaTrial(ridge, 1 + abs(np.log10(ridge / 1e-4) - best), 1) for ridge in ridges]
    assert [trial.ridge for trial in tried] == pytest.approx([1e-4 * 10.0**power for power in powers])
    assert next_block(1e-4, [], fixed=True) == [1e-4]


@pytest.mark.parametrize(
    ("scores", "goes_on"),
    [
        ([0.435, 0.419, 0.417], False),  # gains of 0.016 and 0.002: the next would be of 0.0003
        ([0.435, 0.425, 0.416], True),
        ([0.425, 0.426, 0.416], True),
        ([0.4160, 0.4159, 0.4158], False),
    ],
)
def test_a_smaller_lambda_must_promise_something(scores, goes_on):
    tried = [LambdaTrial(10.0**-power, score, 1) for power, score in enumerate(scores, 4)]
    assert (next_block(1e-4, tried, fixed=False) is not None) == goes_on


class TestPlan:
    slow_gram = Rates(projection=1e10, cosines=1e9, gram=1e10, factor=1e10)
    fast_gram = Rates(projection=1e10, cosines=1e9, gram=1e14, factor=1e13)

    @staticmethod
    def planned(recipe, budget=10 * 2**30, rows=400_000):
        X = np.broadcast_to(np.zeros((1, 4), np.float32), (rows, 4))
        source = ArraySource(X, np.broadcast_to(np.zeros(1), (rows,)))
        return plan_run(source, recipe, outputs=1, threads=2, budget=budget)

    @pytest.mark.parametrize(("rates", "expected"), [(slow_gram, "cg"), (fast_gram, "cholesky")])
    def test_the_measured_rates_decide(self, monkeypatch, rates, expected):
        monkeypatch.setattr(speed, "rates_of_this_machine", lambda bits, threads: rates)
        found = self.planned(Recipe(D=10_000, bits="8"))
        assert found.solver == expected
        assert found.to_json()["solvers"].keys() == {"cholesky", "cg"}
        assert "exact sums" in found.why
        assert "conjugate gradients" in found.why

    def test_what_does_not_fit_as_a_matrix_is_iterated(self):
        found = self.planned(Recipe(D=20_000, bits="8"), budget=3 * 2**30)
        assert found.solver == "cg"
        assert "the budget is 3" in found.why
        found.check()

    def test_a_hundred_thousand_features_fit_in_24_gigabytes(self):
        found = self.planned(Recipe(D=100_000, bits="8", pilot="none"), budget=24 * 2**30)
        assert found.solver == "cg"
        assert found.projected < 12 * 2**30
        found.check()

    def test_small_systems_are_solved_directly_without_measuring(self, monkeypatch):
        monkeypatch.setattr(speed, "rates_of_this_machine", None)
        assert self.planned(Recipe(D=1000)).solver == "cholesky"

    def test_a_budget_for_neither_is_refused(self):
        found = self.planned(Recipe(D=2_000_000, bits="8"), budget=2**30)
        assert found.why == "the budget is too small for any solver (cholesky, cg); cg needs the least"
        with pytest.raises(BudgetError):
            found.check()

    def test_a_solver_that_was_not_asked_for_is_not_called_so(self):
        assert self.planned(Recipe(D=100, solver="cg")).why == "as asked for"
        assert "weights" in self.planned(Recipe(D=100, class_weight="balanced")).why

    def test_stochastic_gradients_take_a_sample_and_never_a_sketch(self):
        asked = Recipe(D=5000, bits="8", loss="hinge", pilot="none")
        found = [self.planned(asked.with_(preconditioner=name)).to_json() for name in ("sample", "nystrom")]
        assert found[0] == found[1]

    def test_the_rows_beside_a_sketch_are_planned(self):
        found = self.planned(Recipe(D=5000, bits="8", solver="cg", preconditioner="nystrom", pilot="none"))
        assert found.bytes["rows that precondition"] > 0


@pytest.mark.parametrize("settings", [{"solver": "cg", "loss": "hinge"}, {"loss": "logistic", "cv": 3}])
def test_pairings_that_do_not_exist_are_refused(settings):
    with pytest.raises(InputError):
        Recipe(**settings)
