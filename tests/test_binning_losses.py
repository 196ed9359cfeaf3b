"""Random binning by losses other than the squared one: the minimum that a dense minimiser finds, the same bits on every
way to it, and what users see."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from cluster_tools import local_cluster
from commands import done
from interruptions import Kills, Stops
from scipy.optimize import minimize
from statistics_conformance import StatisticConformance, make_blocks
from tables import smooth, write_zarr

import streamrf
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.data.split import Split
from streamrf.features.binning.index_cache import BinIndexer
from streamrf.features.binning.map import BinningMap, GammaWidths
from streamrf.features.binning.numbering import Numbering
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.solvers import bin_newton, bin_rounds, binning
from streamrf.solvers.bin_newton import BinNewton
from streamrf.solvers.plan import CachePlan
from streamrf.solvers.registry import solver_of
from streamrf.statistics import bin_pulls
from streamrf.statistics.bin_pulls import BinPulls
from streamrf.statistics.bins import RowIntegers
from streamrf.statistics.losses import Huber, Logistic, Quantile, class_loss
from streamrf.statistics.targets import Weighting
from streamrf.support.errors import DataError, InputError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.quantiles import robust_deviation
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
        return Huber(np.array(model.metadata["solver"]["threshold"]) / unit)
    if recipe.loss == "quantile":
        return Quantile(recipe.quantile, np.full(outputs, bin_rounds.CORNERS[-1]))
    return class_loss(recipe.loss, outputs)


def unit_of(model, targets):
    """What targets are counted in: a deviation by medians of all rows, as all of them are the sample."""
    return np.ones(1) if model.coding.classes else robust_deviation(targets)


@pytest.mark.parametrize(
    ("name", "weighted"),
    [*((name, False) for name in TARGETS), ("logistic", True), ("multinomial", True), ("huber", True)],
)
def test_many_rounds_without_hold_out_rows_give_the_dense_minimum(name, weighted, monkeypatch):
    """By scipy, of one-hot bins written out."""
    monkeypatch.setattr(bin_newton, "BLIND_ROUNDS", 60)
    source = open_source((X, TARGETS[name]), sample_weight=HEAVY) if weighted else ArraySource(X, TARGETS[name])
    recipe = recipe_of(name, holdout=0.0, grids=4, table_bits=4, ridge=0.3)
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
    if name == "quantile":  # whose parabolas lead slowly into corners this sharp
        assert objective(own.ravel())[0] <= found.fun * (1 + 1e-7)
        return
    assert objective(own.ravel())[0] <= found.fun * (1 + 1e-12)
    np.testing.assert_allclose(own[:-1], wanted[:-1], atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(own[-1], wanted[-1], atol=3e-6)  # which bins take up as well


# -- the same bits


@pytest.fixture(scope="module")
def reference():
    return {
        name: bits(train(ArraySource(X, y, chunk_rows=400), recipe_of(name), ALONE).model)
        for name, y in TARGETS.items()
    }


@pytest.mark.parametrize("name", TARGETS)
def test_bits_do_not_depend_on_chunks_threads_or_order(name, reference):
    for threads, chunk in ((1, 97), (3, 1000)):
        source = ArraySource(X, TARGETS[name], chunk_rows=chunk)
        order = np.random.default_rng(chunk).permutation
        assert bits(train(source, recipe_of(name), Settings(threads=threads, order=order)).model) == reference[name]


def test_weighted_rows_have_the_same_bits_in_any_order():
    found = set()
    for chunk, threads in ((97, 1), (1000, 3)):
        source = open_source((X, SIDES), sample_weight=HEAVY)
        source.chunk_rows = chunk
        order = np.random.default_rng(chunk).permutation
        found.add(bits(train(source, recipe_of("logistic"), Settings(threads=threads, order=order)).model))
    assert len(found) == 1


@pytest.mark.parametrize("place", ["memory", "disk", "nowhere"])
def test_bits_do_not_depend_on_what_is_kept(place, reference, monkeypatch):
    """Neither on where bin indices are, nor on whether scores are looked up again."""
    monkeypatch.setattr(binning, "choose_cache", lambda sizes, *_: CachePlan(place, 10**6, 10**6, "a test wants it so"))
    monkeypatch.setattr(BinNewton, "keeps_scores", False)
    assert bits(train(ArraySource(X, SIDES), recipe_of("logistic"), ALONE).model) == reference["logistic"]


def test_scores_are_looked_up_once_at_a_point(monkeypatch):
    looked = []
    usual = bin_pulls.scores

    def counted(indices, table, *how, **more):
        looked.append(table.dtype)
        return usual(indices, table, *how, **more)

    monkeypatch.setattr(bin_pulls, "scores", counted)
    facts = train(ArraySource(X, SIDES), recipe_of("logistic"), ALONE).model.metadata["binning"]
    points, directions = looked.count(np.float32), looked.count(np.int32)
    assert directions == facts["steps"]
    assert facts["rounds"] <= points < directions  # and a few that were too far


@pytest.mark.parametrize("name", ["multinomial", "one against the rest", "huber"])
@pytest.mark.parametrize("group", [1, 2])
def test_bits_do_not_depend_on_how_many_outputs_share_passes(name, group, reference, monkeypatch, tmp_path):
    monkeypatch.setattr(binning, "_outputs_at_once", lambda plan, parts: group)
    source = ArraySource(X, TARGETS[name])
    assert bits(train(source, recipe_of(name), Settings(threads=2)).model) == reference[name]
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=3600)
    assert bits(stopped_again_and_again(source, recipe_of(name), settings, 7)) == reference[name]


def in_small_spans(source, recipe, settings, reporter=None):
    """A run that sums 500 rows at a time, so that there is something between the blocks."""
    with Threads(1) as threads:
        training = Training(source, recipe, settings, reporter or Reporter(), threads)
        usual = training._agreed
        training._agreed = lambda plan: usual(replace(plan, span_rows=500))
        return training.run().model


def stopped_again_and_again(source, recipe, settings, after):
    stops = 0
    while True:
        try:
            model = in_small_spans(source, recipe, settings, Stops(after))
        except Interrupted:
            stops += 1
        else:
            assert stops > 3
            return model


@pytest.mark.parametrize("name", TARGETS)
def test_a_run_that_is_stopped_again_and_again_goes_on_to_the_same_bits(name, tmp_path, reference):
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=3600)
    model = stopped_again_and_again(ArraySource(X, TARGETS[name], chunk_rows=400), recipe_of(name), settings, 11)
    assert bits(model) == reference[name]


@pytest.mark.parametrize("after", [9, 40, 77])
def test_a_process_that_is_killed_goes_on_to_the_same_bits(tmp_path, reference, after):
    settings, source = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=0), ArraySource(X, SIDES)
    child = os.fork()
    if child == 0:
        in_small_spans(source, recipe_of("logistic"), settings, Kills(after))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert bits(in_small_spans(source, recipe_of("logistic"), settings)) == reference["logistic"]


def test_a_cluster_gives_the_bits_of_one_process(tmp_path, monkeypatch):
    from streamrf.engines.cluster import ClusterEngine

    monkeypatch.setattr(bin_newton, "ROUNDS", 3)
    recipe = recipe_of("multinomial")
    reference = bits(train(ArraySource(X, CLASSES), recipe, ALONE).model)
    stored = open_source(write_zarr(tmp_path / "data.zarr", X, CLASSES, chunk=300))
    with local_cluster(2, memory_limit="2GiB") as (_, client):
        engine = ClusterEngine(client, order=np.random.default_rng(0).permutation)
        assert bits(train(stored, recipe, Settings(threads=1, engine=engine)).model) == reference


class TestLaws(StatisticConformance):
    @pytest.fixture(params=["pulls", "products", "classes"])
    def statistic(self, request):
        rng = np.random.default_rng(0)
        map = BinningMap.draw(GammaWidths(), 6, 4, 5, 0)
        counts = np.zeros((4, 32), np.int64)
        scaling = fit_scaling("none", X)
        np.add.at(counts, (np.arange(4)[:, None], map.indices(scaling.transform(X, np.float32))), 1)
        map = replace(map, numbering=Numbering.of(counts))
        k = 3 if request.param == "classes" else 1
        coding = TargetCoding.classification(tuple(range(max(k, 2))))
        rows = RowIntegers(coding, Weighting(3.0, None, True), 10_000)
        point = rng.standard_normal((k, map.n_features)).astype(np.float32)
        directions = rng.integers(-1000, 1000, (k, map.n_features)).astype(np.int32)
        self.indexer = BinIndexer(scaling, map, "a test")
        return BinPulls(
            self.indexer, rows, Split(choose=0.3, seed=5), Logistic(k), point, rng.standard_normal(k), np.ones(k),
            np.arange(k), directions if request.param == "products" else None,
        )  # fmt: skip

    @pytest.fixture
    def blocks(self, statistic):
        """Bin indices of rows, with coded targets."""
        words = np.ascontiguousarray(statistic.indexer.indices(X[:700]).T)
        codes = np.random.default_rng(1).integers(0, len(statistic.rows.coding.classes), 700).astype(np.int32)
        return make_blocks(words, codes, cuts=[0, 101, 102, 500])


# -- what is learned


def test_huber_and_quantiles_are_not_led_by_outliers():
    spoiled = Y + np.where(np.random.default_rng(0).random(len(Y)) < 0.05, 300.0, 0.0)
    errors = {}
    for loss in ("squared", "huber", "quantile"):
        model = train(ArraySource(X, spoiled), FIXED.with_(loss=loss, table_bits=8), ALONE).model
        with Threads(1) as threads:
            errors[loss] = np.abs(model.scores(X, threads)[:, 0] - Y).mean()
    assert errors["huber"] < 0.5 * errors["squared"]
    assert errors["quantile"] < 0.5 * errors["squared"]


@pytest.mark.parametrize("quantile", [0.1, 0.9])
def test_so_many_targets_are_below_a_quantile(quantile):
    rng = np.random.default_rng(0)
    rows = rng.uniform(-2, 2, (6000, 2)).astype(np.float32)
    y = np.sin(2 * rows[:, 0]) + (0.2 + 0.3 * np.abs(rows[:, 0])) * rng.standard_normal(6000)
    recipe = FIXED.with_(loss="quantile", quantile=quantile, grids=50, table_bits=None)
    model = train(ArraySource(rows[:4000], y[:4000]), recipe, ALONE).model
    with Threads(1) as threads:
        below = (y[4000:] <= model.scores(rows[4000:], threads)[:, 0]).mean()
    assert abs(below - quantile) < 0.04


def test_logistic_scores_are_log_odds():
    """Of a target that is known: probabilities are right without a calibration."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (20_000, 2)).astype(np.float32)
    chance = 1 / (1 + np.exp(-3 * rows[:, 0]))
    sides = (rng.random(len(rows)) < chance).astype(int)
    model = train(ArraySource(rows, sides), FIXED.with_(loss="logistic", grids=50, table_bits=None), ALONE).model
    assert (model.calibration.slope == 1).all()
    assert (model.calibration.shift == 0).all()
    with Threads(1) as threads:
        found = model.probabilities(model.scores(rows, threads))[:, 1]
    assert np.abs(found - chance).mean() < 0.05
    assert abs(found.mean() - sides.mean()) < 0.005


def test_outputs_of_any_unit_are_learned_together():
    both = np.stack([Y, 1e6 * np.sin(3 * X[:, 1])], axis=1)
    model = train(ArraySource(X, both), FIXED.with_(loss="huber", grids=40, table_bits=8, pilot="auto"), ALONE).model
    assert (np.array(model.metadata["holdout"]["rmse_by_output"]) < 0.6 * both.std(axis=0)).all()


def test_a_rare_class_that_counts_more_is_found_more_often():
    labels = (np.quantile(Y, 0.93) < Y).astype(int)
    plain, balanced = (
        train(ArraySource(X, labels), recipe_of("logistic", class_weight=how), ALONE).model
        for how in (None, "balanced")
    )
    with Threads(1) as threads:
        found = [(each.codes(each.scores(X, threads))[labels == 1] == 1).mean() for each in (plain, balanced)]
    assert found[1] > found[0] + 0.1


@pytest.mark.parametrize("rows", [2, 3, 11])
@pytest.mark.parametrize("loss", ["logistic", "huber", "quantile", "squared-hinge"])
def test_few_rows_train(rows, loss):
    classes = loss in ("logistic", "squared-hinge")
    y, task = (np.arange(rows) % 2, "classification") if classes else (Y[:rows], "regression")
    model = train(ArraySource(X[:rows], y), Recipe(map="binning", loss=loss, task=task), ALONE).model
    with Threads(1) as threads:
        assert np.isfinite(model.scores(X, threads)).all()


def test_targets_that_are_mostly_equal_have_a_unit_all_the_same():
    mostly = np.where(np.quantile(Y, 0.8) < Y, Y, 0.0)
    model = train(ArraySource(X, mostly), recipe_of("huber"), ALONE).model
    with Threads(1) as threads:
        assert np.isfinite(model.scores(X, threads)).all()
    assert model.metadata["holdout"]["mae"] < np.abs(mostly - mostly.mean()).mean()


def test_a_table_without_weight_is_refused():
    light = np.full(len(X), 1e-12)
    split = Split.from_json(train(ArraySource(X, SIDES), recipe_of("logistic"), ALONE).model.metadata["split"])
    light[split.held(Block(X, None, np.arange(len(X)))).argmax()] = 1.0
    with pytest.raises(DataError, match="no row to fit has a positive weight"):
        train(open_source((X, SIDES), sample_weight=light), recipe_of("logistic"), ALONE)


def test_lambda_is_chosen_unless_it_is_given():
    free = train(ArraySource(X, SIDES), recipe_of("logistic"), ALONE).model
    given = train(ArraySource(X, SIDES), recipe_of("logistic", ridge=0.5), ALONE).model
    tried = free.metadata["solver"]["path"]
    assert len(tried) >= 2
    assert free.weights.ridge == min(tried, key=lambda each: each["score"])["ridge"]
    assert [each["ridge"] for each in given.metadata["solver"]["path"]] == [0.5]
    assert given.weights.ridge == 0.5


# -- plans and refusals


def planned(outputs=1, **how):
    recipe = FIXED.with_(grids=100, table_bits=12, **how)
    many = ArraySource(np.broadcast_to(np.float32(0), (200_000, 6)), np.broadcast_to(0.0, (200_000,)))
    return plan_run(many, recipe, outputs=outputs, threads=1, budget=10**10, reserved=10**8)


def test_a_plan_knows_rounds_and_what_they_hold():
    squared, logistic, wide = planned(), planned(loss="logistic"), planned(20, loss="logistic")
    assert logistic.solver == "newton"
    assert "rounds of Newton's" in logistic.why
    assert logistic.passes > squared.passes
    assert logistic.projected > squared.projected
    assert logistic.bytes["scores kept"] == 800_000
    assert wide.outputs_at_once < 20
    assert wide.passes > logistic.passes
    assert wide.bytes["vectors"] + wide.bytes["totals"] < binning.GROUP_BYTES
    seconds = [dict(solver_of(each.sizes.recipe).estimate(each))["solve"] for each in (squared, logistic, wide)]
    assert seconds == sorted(seconds)


def test_scores_that_have_no_room_are_not_kept():
    recipe = FIXED.with_(loss="logistic")
    many = ArraySource(np.broadcast_to(np.float32(0), (50_000_000, 6)), np.broadcast_to(0.0, (50_000_000,)))
    plan = plan_run(many, recipe, outputs=1, threads=1, budget=3 * 10**8, reserved=10**8)
    assert "scores kept" not in plan.parts


def test_what_is_refused_says_what_there_is():
    with pytest.raises(InputError, match="binning has no hinge, whose corner squared-hinge rounds off"):
        FIXED.with_(loss="hinge")
    with pytest.raises(InputError, match="must be auto or newton: binning has no other for the logistic loss"):
        FIXED.with_(loss="logistic", solver="cg")
    with pytest.raises(InputError, match="is judged by `holdout` rows"):
        FIXED.with_(loss="logistic", cv=3)
    with pytest.raises(InputError, match="trees has no logistic"):
        Recipe(map="trees", loss="logistic")
    with pytest.raises(InputError, match="is for classes"):
        train(ArraySource(X, Y), FIXED.with_(loss="logistic"), ALONE)
    with pytest.raises(InputError, match="is for numbers"):
        train(ArraySource(X, SIDES), FIXED.with_(loss="huber"), ALONE)


# -- the command line and Python


def test_the_command_trains_what_the_library_trains(tmp_path, reference):
    write_zarr(tmp_path / "data.zarr", X, SIDES, chunk=400)
    options = ("--map", "binning", "--grids", "12", "--table-bits", "6", "--pilot", "none", "--scaling", "standard")
    out = tmp_path / "bins.model"
    shown = done("train", tmp_path / "data.zarr", *options, "--loss", "logistic", "--seed", 3, "--out", out).out
    assert "of conjugate gradients, bin indices cached in memory" in shown
    assert bits(Model.load(out)) == reference["logistic"]
    found = done("inspect", out, "--json").json
    assert found["chosen"]["loss"] == "logistic"
    assert found["chosen"]["solver"] == "newton"
    assert found["binning"]["rounds"] >= found["binning"]["best_round"] >= 1
    plan = done("plan", tmp_path / "data.zarr", *options, "--loss", "logistic", "--json").json
    assert plan["solver"] == "newton"


def test_estimators_take_a_loss():
    how = {"map": "binning", "grids": 20, "pilot": "none", "threads": 1}
    classifier = streamrf.KernelClassifier(loss="logistic", **how).fit(X, CLASSES)
    assert classifier.score(X, CLASSES) > 0.6
    assert np.allclose(classifier.predict_proba(X[:9]).sum(axis=1), 1)
    lower, upper = (
        streamrf.KernelRegressor(loss="quantile", quantile=q, **how).fit(X, Y).predict(X) for q in (0.1, 0.9)
    )
    assert (lower < upper).mean() > 0.98
