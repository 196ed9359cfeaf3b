"""Training by random binning: the solution of a dense solver, the same bits on every way to it, and clear refusals."""

import os
import pickle
import signal
from dataclasses import replace

import numpy as np
import pytest
from cluster_tools import local_cluster
from commands import done, everything_in, streamrf
from interruptions import Kills, Stops
from tables import labelled, smooth, write_zarr

from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Span
from streamrf.data.split import JUDGE, Split
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.solvers import bin_groups, binning
from streamrf.solvers import binning as route
from streamrf.solvers.bin_groups import mixing_signs
from streamrf.solvers.binning import choose_cache, on_workers, table_of
from streamrf.solvers.plan import CachePlan, Sizes
from streamrf.support.errors import BudgetError, DataError, InputError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import Threads
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, Training, train

FIXED = Recipe(map="binning", grids=12, table_bits=8, pilot="none", scaling="standard", seed=3)
X, Y = smooth(2500)
SOURCE = ArraySource(X, Y, chunk_rows=400)
ALONE = Settings(threads=1)


def bits(model):
    """Everything that prediction depends on."""
    return model.weights.coefficients.tobytes(), model.weights.intercept.tobytes(), model.metadata["statistics_digest"]


@pytest.fixture(scope="module")
def reference():
    return bits(train(SOURCE, FIXED, ALONE).model)


def dense_features(model, rows):
    with Threads(1) as threads:
        return model.map.dense(model.scaling.transform(rows, np.float32), threads) * np.sqrt(model.map.grids)


def test_many_steps_without_hold_out_rows_give_the_dense_solution(monkeypatch):
    monkeypatch.setattr(route, "BLIND_STEPS", 300)
    targets = np.stack([Y, -3 * Y + X[:, 0]], axis=1)
    model = train(ArraySource(X, targets), FIXED.with_(holdout=0.0, table_bits=6), ALONE).model
    Z = dense_features(model, X)
    centre = targets.mean(axis=0)
    wanted = np.linalg.solve(Z.T @ Z + 0.03 * 12 * np.eye(Z.shape[1]), Z.T @ (targets - centre))
    np.testing.assert_allclose(model.weights.intercept, centre, atol=1e-7)
    np.testing.assert_allclose(model.weights.coefficients, wanted, atol=2e-5)  # steps are in single precision
    with Threads(1) as threads:
        np.testing.assert_allclose(model.scores(X, threads), Z @ wanted + centre, atol=1e-4)


def test_held_out_rows_choose_the_step_and_then_join(monkeypatch):
    monkeypatch.setattr(route, "JOIN_STEPS", 300)
    monkeypatch.setattr(bin_groups, "STEPS_OF_FEW", 0)
    model = train(SOURCE, FIXED.with_(table_bits=6), ALONE).model
    Z = dense_features(model, X)
    wanted = np.linalg.solve(Z.T @ Z + 0.03 * 12 * np.eye(Z.shape[1]), Z.T @ (Y - Y.mean()))
    np.testing.assert_allclose(model.weights.coefficients[:, 0], wanted, atol=2e-5)  # of all rows
    split = Split.from_json(model.metadata["split"])
    judges = split.roles(Block(X, None, np.arange(len(X)))) == JUDGE
    assert model.metadata["holdout"]["rows"] == judges.sum() > 0
    assert model.metadata["rows"] == len(X)
    facts = model.metadata["binning"]
    assert 1 <= facts["best_step"] <= facts["steps"]
    occupied = np.count_nonzero(Z.any(axis=0))
    assert facts["occupied"] == occupied / (12 * 64)
    assert Z.shape[1] == occupied + 12  # and one for all empty slots of each grid
    assert facts["empty"] == 1 - facts["occupied"]


@pytest.mark.parametrize("classes", [0, 2, 4])
def test_few_steps_are_made_again_with_all_rows(classes):
    """More of them would fit noise: there are as many conjugate gradients from zero as rows held out liked best."""
    noise = np.random.default_rng(0).standard_normal(len(X))
    y = np.digitize(noise, np.linspace(-1, 1, classes - 1)) if classes else noise
    model = train(ArraySource(X, y), FIXED.with_(table_bits=6), ALONE).model
    best = model.metadata["binning"]["best_step"]
    assert best <= bin_groups.STEPS_OF_FEW
    Z, targets = dense_features(model, X), model.coding.values(y)
    A = Z.T @ Z + 0.03 * 12 * np.eye(Z.shape[1])
    residual, solution = Z.T @ (targets - targets.mean(axis=0)), 0.0
    scaled = direction = residual / np.diag(A)[:, None]
    for _ in range(best):
        product, size = A @ direction, (residual * scaled).sum(axis=0)
        by = size / (direction * product).sum(axis=0)
        solution, residual = solution + by * direction, residual - by * product
        scaled = residual / np.diag(A)[:, None]
        direction = scaled + (residual * scaled).sum(axis=0) / size * direction
    np.testing.assert_allclose(model.weights.coefficients, solution, atol=2e-5)  # steps are in single precision


def test_the_hold_out_error_is_that_of_weights_which_have_not_seen_the_rows():
    """Forty columns of noise, and a target that cannot be learned: weights that had seen the rows would know it."""
    rng = np.random.default_rng(0)
    noise = ArraySource(rng.standard_normal((800, 40)).astype(np.float32), rng.standard_normal(800))
    model = train(noise, FIXED.with_(table_bits=12, holdout=0.3), ALONE).model
    assert model.metadata["holdout"]["rmse"] > 0.9


# -- the same bits


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chunk", [97, 1000, 2500])
def test_bits_do_not_depend_on_chunks_threads_or_order(reference, threads, chunk):
    source = ArraySource(X, Y, chunk_rows=chunk)
    order = np.random.default_rng(chunk).permutation
    assert bits(train(source, FIXED, Settings(threads=threads, order=order)).model) == reference


@pytest.mark.parametrize("place", ["memory", "disk", "nowhere"])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_bits_do_not_depend_on_where_slots_are_kept(reference, place, share, monkeypatch):
    def chosen(sizes, grids, room):
        size = sizes.rows * grids * 4
        return CachePlan(place, size, int(share * size), "a test wants it so")

    monkeypatch.setattr(binning, "choose_cache", chosen)
    model = train(SOURCE, FIXED, ALONE).model
    assert model.metadata["binning"]["cache"] == place
    assert bits(model) == reference


def test_slots_that_are_kept_are_not_read_again(monkeypatch):
    reads = []
    usual = ArraySource.read
    monkeypatch.setattr(ArraySource, "read", lambda self, span: reads.append(span) or usual(self, span))
    train(SOURCE, FIXED, ALONE)
    assert sum(map(len, reads)) == 2 * len(X)  # the sample is one of them, the first pass the other


def in_small_spans(source, settings, reporter=None):
    """A run that sums 500 rows at a time, so that there is something between the blocks."""
    with Threads(1) as threads:
        training = Training(source, FIXED, settings, reporter or Reporter(), threads)
        usual = training._agreed

        def small(plan):
            return usual(replace(plan, span_rows=500))

        training._agreed = small
        return training.run()


@pytest.mark.parametrize("after", [1, 5, 6, 8, 13, 31, 36, 40])
def test_a_run_that_is_stopped_anywhere_goes_on_to_the_same_bits(tmp_path, reference, after):
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=3600)
    with pytest.raises(Interrupted, match="kept in"):
        in_small_spans(SOURCE, settings, Stops(after))
    assert bits(in_small_spans(SOURCE, settings).model) == reference


def test_a_run_that_is_stopped_again_and_again_goes_on_to_the_same_bits(tmp_path, reference):
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=3600)
    stops, model = 0, None
    while model is None:
        try:
            model = in_small_spans(SOURCE, settings, Stops(3)).model
        except Interrupted:
            stops += 1
    assert stops > 10
    assert bits(model) == reference


@pytest.mark.parametrize("after", [4, 27, 44])
def test_a_process_that_is_killed_goes_on_to_the_same_bits(tmp_path, reference, after):
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=0)
    child = os.fork()
    if child == 0:
        in_small_spans(SOURCE, settings, Kills(after))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    resumed = Notes()
    assert bits(in_small_spans(SOURCE, settings, resumed).model) == reference
    assert any("resuming" in note for note in resumed.notes)


class Notes(Reporter):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_saves_on_the_way_change_nothing(tmp_path, reference):
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=0)
    assert bits(in_small_spans(SOURCE, settings).model) == reference


def test_a_cluster_gives_the_bits_of_one_process(tmp_path, monkeypatch):
    from streamrf.engines.cluster import ClusterEngine

    monkeypatch.setattr(route, "STEPS", 2)
    reference = bits(train(SOURCE, FIXED, ALONE).model)
    stored = open_source(write_zarr(tmp_path / "data.zarr", X, Y, chunk=300))
    with local_cluster(2, memory_limit="2GiB") as (_, client):
        engine = ClusterEngine(client, order=np.random.default_rng(0).permutation)
        trained = train(stored, FIXED, Settings(threads=1, engine=engine))
        assert trained.plan.cache.place == "memory"
        assert bits(trained.model) == reference
        assert list(client.run(kept_runs).values()) == [0, 0]


def kept_runs():
    from streamrf.features.binning import index_cache

    return len(index_cache._known)


def test_nothing_is_kept_after_a_run_or_an_error():
    train(SOURCE, FIXED, ALONE)
    with pytest.raises(Interrupted):
        train(SOURCE, FIXED, ALONE, Stops(3))
    assert kept_runs() == 0


def test_bits_do_not_depend_on_how_many_words_a_bin_index_takes(reference, monkeypatch):
    monkeypatch.setattr("streamrf.features.binning.layout.WORD_BINS", 16)
    assert bits(train(SOURCE, FIXED, ALONE).model) == reference


@pytest.mark.parametrize("group", [1, 2, 5])
def test_bits_do_not_depend_on_how_many_outputs_share_passes(group, monkeypatch, tmp_path):
    rows, codes = labelled(3000, 5)
    recipe = FIXED.with_(length_scale=1.0)
    reference = train(ArraySource(rows, codes), recipe, ALONE)
    assert reference.plan.outputs_at_once == 5
    monkeypatch.setattr(binning, "_outputs_at_once", lambda plan, parts: group)
    grouped = train(ArraySource(rows, codes), recipe, Settings(threads=2))
    assert grouped.plan.passes > 10 * (5 // group)
    assert bits(grouped.model) == bits(reference.model)
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=3600)
    stops, model = 0, None
    while model is None:
        try:
            model = train(ArraySource(rows, codes), recipe, settings, Stops(3)).model
        except Interrupted:
            stops += 1
    assert stops >= 2
    assert bits(model) == bits(reference.model)


# -- weights of rows

HEAVY = np.random.default_rng(5).uniform(0.0, 3.0, len(X)) ** 2


def weighted(weights=HEAVY, y=Y, **how):
    return train(open_source((X, y), sample_weight=weights), FIXED.with_(table_bits=6, **how), ALONE).model


@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_weighted_rows_give_the_weighted_dense_solution(holdout, monkeypatch):
    monkeypatch.setattr(route, "BLIND_STEPS", 300)
    monkeypatch.setattr(route, "JOIN_STEPS", 300)
    monkeypatch.setattr(bin_groups, "STEPS_OF_FEW", 0)
    model = weighted(holdout=holdout)
    Z, centre = dense_features(model, X), np.average(Y, weights=HEAVY)
    gram = Z.T @ (HEAVY[:, None] * Z) + 0.03 * 12 * HEAVY.mean() * np.eye(Z.shape[1])
    np.testing.assert_allclose(model.weights.intercept, centre, atol=1e-6)
    np.testing.assert_allclose(
        model.weights.coefficients[:, 0], np.linalg.solve(gram, Z.T @ (HEAVY * (Y - centre))), atol=2e-5
    )


def test_weights_of_one_change_nothing_and_their_unit_does_not_count():
    plain, ones = train(SOURCE, FIXED.with_(table_bits=6), ALONE).model, weighted(np.ones(len(X)))
    assert bits(ones)[:2] == bits(plain)[:2]
    light, heavy = weighted(HEAVY), weighted(1000 * HEAVY)
    np.testing.assert_allclose(heavy.weights.coefficients, light.weights.coefficients, atol=1e-5)


def test_weighted_rows_have_the_same_bits_in_any_order():
    reference = bits(weighted())
    for chunk in (97, 1000):
        source = open_source((X, Y), sample_weight=HEAVY)
        source.chunk_rows = chunk
        order = np.random.default_rng(chunk).permutation
        settings = Settings(threads=3, order=order)
        assert bits(train(source, FIXED.with_(table_bits=6), settings).model) == reference


def test_a_rare_class_that_counts_more_is_found_more_often():
    labels = (np.quantile(Y, 0.93) < Y).astype(int)
    plain, balanced = (
        train(ArraySource(X, labels), FIXED.with_(class_weight=how, threshold=None), ALONE).model
        for how in (None, "balanced")
    )
    with Threads(1) as threads:
        found = [(each.codes(each.scores(X, threads))[labels == 1] == 1).mean() for each in (plain, balanced)]
    assert found[1] > found[0]


def test_a_table_without_weight_is_refused():
    """Where one row that is held out weighs so much that the others count for nothing beside it."""
    split = Split.from_json(weighted().metadata["split"])
    light = np.full(len(X), 1e-12)
    light[split.held(Block(X, None, np.arange(len(X)))).argmax()] = 1.0
    with pytest.raises(DataError, match="no row to fit has a positive weight"):
        weighted(light)


# -- targets and rows of all kinds


@pytest.mark.parametrize("classes", [2, 4])
def test_classes_with_names(tmp_path, classes):
    rows, codes = labelled(3000, classes)
    names = np.array(["ash", "birch", "cedar", "date"])[codes]
    model = train(ArraySource(rows, names), FIXED.with_(grids=40, pilot="auto", scaling="quantile"), ALONE).model
    assert model.coding.classes == tuple(sorted(set(names.tolist())))
    assert model.metadata["holdout"]["error"] < 0.2
    with Threads(1) as threads:
        scores = model.scores(rows, threads)
        assert (model.labels(model.codes(scores)) == names).mean() > 0.85
        model.save(tmp_path / "m")
        again = Model.load(tmp_path / "m")
        assert (again.scores(rows, threads) == scores).all()
        assert (pickle.loads(pickle.dumps(model)).scores(rows[:9], threads) == scores[:9]).all()


def test_outputs_of_any_unit_are_learned_together():
    both = np.stack([Y, 1e6 * np.sin(3 * X[:, 1])], axis=1)
    model = train(ArraySource(X, both), FIXED.with_(grids=40, pilot="auto"), ALONE).model
    assert (np.array(model.metadata["holdout"]["rmse_by_output"]) < 0.5 * both.std(axis=0)).all()


def test_rows_with_nan_are_left_out_of_every_pass():
    spoiled, targets = X.copy(), Y.copy()
    spoiled[[5, 700, 701], 2] = np.nan
    targets[[0, 2499]] = np.inf
    left = np.setdiff1d(np.arange(len(X)), [5, 700, 701, 0, 2499])
    recipe = FIXED.with_(holdout=0.0, length_scale=1.7)  # widths of its own would follow the order of the sample
    model = train(ArraySource(spoiled, targets, chunk_rows=400), recipe.with_(nan="drop"), ALONE).model
    assert model.metadata["dropped"] == 5
    assert model.metadata["rows"] == len(left)
    clean = train(ArraySource(X[left], Y[left]), recipe, ALONE).model
    assert bits(model)[0] == bits(clean)[0]


@pytest.mark.parametrize("rows", [2, 3, 11])
def test_few_rows_train(rows):
    model = train(ArraySource(X[:rows], Y[:rows]), Recipe(map="binning"), ALONE).model
    with Threads(1) as threads:
        assert np.isfinite(model.scores(X, threads)).all()


def test_no_ridge_leaves_bins_without_rows_alone():
    model = train(SOURCE, FIXED.with_(ridge=0.0), ALONE).model
    assert np.isfinite(model.weights.coefficients).all()
    assert model.metadata["holdout"]["r2"] > 0.5


def test_predictions_do_not_depend_on_the_block():
    model = train(SOURCE, FIXED, ALONE).model
    with Threads(3) as three, Threads(1) as one:
        whole = model.scores(X, three)
        assert (np.concatenate([model.scores(X[i : i + 7], one) for i in range(0, 70, 7)]) == whole[:70]).all()


# -- what the pilot chooses


def stairs(n=6000):
    """Steps along two columns, and three columns of noise: what bins are for."""
    rng = np.random.default_rng(1)
    rows = rng.uniform(-1, 1, (n, 5)).astype(np.float32)
    return rows, np.floor(4 * rows[:, 0]) * np.sign(rows[:, 1]) + 0.1 * rng.standard_normal(n)


@pytest.mark.parametrize(("rows", "kinds"), [(400, {"binning", "blend"}), (140, {"fourier"})])
def test_the_pilot_tries_binning_where_rows_are_enough(rows, kinds):
    model = train(ArraySource(*stairs(rows)), Recipe(map="any", D=60), ALONE).model
    assert model.map.kind in kinds
    assert any("grids" in trial for trial in model.metadata["pilot"]) == ("compared" in model.metadata) == (rows > 150)


def test_the_pilot_finds_the_columns_that_matter():
    model = train(ArraySource(*stairs()), Recipe(map="binning", grids=50), ALONE).model
    matter, noise = np.split(np.array(model.metadata["binning"]["length_scales"]), [2])
    assert matter.max() < noise.min()
    assert model.recipe.kernel == "bins:4"
    assert 4000 < model.metadata["binning"]["sample"]["rows"] < 4400  # those that are fitted


def test_one_width_can_be_asked_for():
    model = train(SOURCE, FIXED.with_(pilot="auto", length_scale=0.7, kernel="laplacian"), ALONE).model
    assert model.metadata["binning"]["length_scales"] == [0.7] * 6


@pytest.mark.parametrize(
    "setting",
    [{"loss": "logistic"}, {"cv": 3}, {"solver": "cholesky"}, {"kernel": "gaussian"}],
)
def test_settings_that_binning_does_not_have_leave_fourier_features(setting):
    X, y = stairs(400)
    recipe = Recipe(map="any", D=16, **setting)
    trained = train(ArraySource(X, (y > 0).astype(int)), recipe, ALONE)
    assert trained.model.map.kind == "fourier"
    assert "compared" not in trained.model.metadata
    assert "random binning" not in trained.plan.why


# -- plans


class Unreadable(ArraySource):
    def read(self, span: Span):
        raise AssertionError("planning reads no rows")


def planned(recipe=FIXED, budget=10**10, source=SOURCE):
    return plan_run(source, recipe, outputs=1, threads=1, budget=budget, reserved=10**8)


def sizes(recipe=FIXED, source=SOURCE):
    return Sizes.of(source, recipe, outputs=1, threads=1, budget=10**10, reserved=10**8)


def test_planning_reads_no_rows():
    plan = planned(source=Unreadable(X, Y))
    assert plan.solver == "cg"
    assert plan.passes > 2
    assert "bin indices of 2,500 rows take 140 kB" in plan.cache.why


def test_a_plan_grows_with_grids_and_slots():
    small, more, wider = planned(), planned(FIXED.with_(grids=24)), planned(FIXED.with_(table_bits=12))
    assert small.projected < more.projected < wider.projected
    with pytest.raises(BudgetError, match="lower `grids` or `table_bits`"):
        planned(FIXED.with_(grids=900, table_bits=20), budget=2 * 10**9).check()


@pytest.mark.parametrize(
    ("room", "free", "place"), [(10**6, 0, "memory"), (10**4, 10**9, "disk"), (10**4, 10**5, "nowhere")]
)
def test_slots_are_kept_where_bytes_allow(room, free, place, monkeypatch):
    class Usage:
        pass

    Usage.free = free
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    assert choose_cache(sizes(), 12, room).place == place


def test_a_disk_that_would_be_slower_is_not_used():
    narrow = ArraySource(X[:, :1], Y)
    assert choose_cache(sizes(source=narrow), 100, 0).place == "nowhere"


def test_workers_keep_what_they_have_room_for():
    plan = planned()

    class Needs:
        limit, projected = 10**9, 7 * 10**8

    plan = replace(plan, workers=Needs)
    assert (on_workers(plan).cache.place, on_workers(plan).cache.limit) == ("memory", 10**8)
    Needs.limit = None
    assert on_workers(plan).cache.place == "nowhere"


def test_sizes_follow_the_rows_unless_they_are_asked_for():
    many = ArraySource(np.broadcast_to(np.float32(0), (522_000, 1)), np.broadcast_to(0.0, (522_000,)))
    assert table_of(sizes(Recipe(map="binning"), many)) == (153, 2**17)
    assert table_of(sizes(FIXED, many)) == (12, 2**8)


def test_a_plan_says_when_weights_take_long_to_fit():
    assert "fitting the weights of 5,000 frequencies takes about" in planned(Recipe(map="weighted", D=5000)).why
    assert "fitting" not in planned(Recipe(map="weighted", D=500)).why


def test_many_outputs_make_wide_plans():
    one, many = (plan_run(SOURCE, FIXED, outputs=k, threads=1, budget=10**10, reserved=1) for k in (1, 10))
    assert many.bytes["vectors"] > 5 * one.bytes["vectors"]


# -- the command line

FAST = ("--map", "binning", "--grids", "12", "--table-bits", "8", "--pilot", "none", "--threads", "1")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    place = tmp_path_factory.mktemp("binning")
    write_zarr(place / "data.zarr", X, Y, chunk=400)
    done("train", place / "data.zarr", *FAST, "--out", place / "bins.model", "--seed", 3, "--scaling", "standard")
    return place


def test_the_command_trains_what_the_library_trains(shelf, reference):
    assert bits(Model.load(shelf / "bins.model")) == reference


def test_a_model_says_what_it_is(shelf):
    found = done("inspect", shelf / "bins.model", "--json").json
    assert found["map"] == "binning"
    assert 12 * 2 < found["D"] < 12 * 256  # bins that have rows
    assert found["chosen"]["grids"] == 12
    assert "bits" not in found["chosen"]
    assert {"occupied", "empty", "colliding", "steps", "sample"} <= set(found["binning"])
    shown = done("inspect", shelf / "bins.model").out
    assert "colliding" in shown


def test_training_prints_one_object(shelf):
    out = shelf / "json.model"
    found = done("train", shelf / "data.zarr", *FAST, "--out", out, "--json").json
    assert found["map"] == "binning"
    assert found["binning"]["cache"] == "memory"
    assert found["holdout"]["r2"] > 0.5
    assert found["memory"]["projected"] > 0
    people = done("train", shelf / "data.zarr", *FAST, "--out", out, "--overwrite").out
    assert "12 grids of 256 hashed bins" in people
    assert "of them share a bin" in people


def test_models_evaluate_and_predict(shelf):
    metrics = done("evaluate", shelf / "bins.model", shelf / "data.zarr", "--json").json
    done("predict", shelf / "bins.model", shelf / "data.zarr", "--out", shelf / "p.npy", "--overwrite")
    written = np.load(shelf / "p.npy").reshape(-1)
    np.testing.assert_allclose(np.sqrt(((written - Y) ** 2).mean()), metrics["rmse"])


def test_a_plan_says_where_slots_are_kept(shelf):
    found = done("plan", shelf / "data.zarr", *FAST, "--json").json
    assert found["solver"] == "cg"
    assert found["cache"]["place"] == "memory"
    assert found["seconds"]["total"] > 0
    assert "bin indices" in done("plan", shelf / "data.zarr", *FAST).out


REFUSALS = {
    "gaussian": (("--map", "binning", "--kernel", "gaussian"), "gaussian kernel cannot be drawn by random binning"),
    "matern": (("--map", "binning", "--kernel", "matern32"), "it is not a product over columns"),
    "shape": (("--map", "binning", "--kernel", "bins:1"), "must be above 1"),
    "D": (("--map", "binning", "--D", "100"), "--map binning has --grids"),
    "bits": (("--map", "binning", "--bits", "8"), "is about Fourier features"),
    "grids with D": (("--grids", "10", "--D", "100"), "--D 100 asks for Fourier features"),
    "grids with a kind": (("--grids", "10", "--map", "sobol"), "--map sobol asks for Fourier features"),
    "no grids": (("--grids", "0"), "--grids 0: must be from 1"),
    "large tables": (("--map", "binning", "--table-bits", "40"), "--table-bits 40: must be from 1 to 24"),
    "cv": (("--map", "binning", "--cv", "5"), "is judged by --holdout rows"),
    "metric": (("--map", "binning", "--metric", "full"), "finds out by itself which columns matter"),
    "memory": (("--map", "binning", "--grids", "900", "--table-bits", "20", "--memory", "2GB"), "lower --grids"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_are_one_sentence(shelf, case):
    options, sentence = REFUSALS[case]
    before = everything_in(shelf)
    answer = streamrf("train", shelf / "data.zarr", *options, "--out", shelf / "never.model", "--quiet")
    assert answer.code in (2, 6)
    assert sentence in answer.sentence
    assert everything_in(shelf) == before


@pytest.mark.parametrize(
    "command", [("update", "{m}", "{d}"), ("forget", "{m}", "{d}"), ("merge", "{m}", "{m}", "--out", "{d}.x")]
)
def test_rows_cannot_join_or_leave(shelf, command):
    words = [word.format(m=shelf / "bins.model", d=shelf / "data.zarr") for word in command]
    answer = streamrf(*words)
    assert answer.code == 2
    assert "is a model of random binning, which has no sums that rows can join or leave" in answer.sentence


def test_sites_cannot_share_grids(shelf):
    answer = streamrf("prepare", shelf / "data.zarr", "--map", "binning", "--out", shelf / "x.prepared", "--quiet")
    assert answer.code == 2
    assert "no sums that can be added" in answer.sentence
    answer = streamrf("accumulate", shelf / "bins.model", shelf / "data.zarr", "--out", shelf / "x.statistics")
    assert answer.code == 2


@pytest.mark.parametrize(
    ("options", "map"),
    [
        ((), "any"), (("--D", "64"), "auto"), (("--kernel", "gaussian"), "auto"), (("--pilot", "none"), "auto"),
        (("--lambda", "1e-3"), "auto"), (("--loss", "logistic"), "auto"), (("--scaling", "quantile"), "any"),
        (("--grids", "9"), "binning"), (("--kernel", "bins:3"), "binning"), (("--map", "sobol"), "sobol"),
        (("--map", "any", "--D", "64"), "any"),
    ],
)  # fmt: skip
def test_what_is_given_decides_which_maps_are_compared(shelf, options, map, monkeypatch):
    asked = []

    def noted(source, recipe, *_, **__):
        asked.append(recipe)
        raise InputError("enough")

    monkeypatch.setattr("streamrf.training.plan.plan_run", noted)
    streamrf("plan", shelf / "data.zarr", *options)
    assert asked[0].map == map
    assert asked[0].D in (64, 2000)


def test_a_look_at_the_error_on_the_way_leaves_counts_alone():
    from streamrf.solvers.passes import ProgressError

    looks = []

    class Looks(Reporter):
        wants_progress_error = True

        def started(self, what, rows, done):
            looks.append(what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressError, "_guess", lambda self: 0.0)
        patch.setattr("streamrf.solvers.passes.FIRST", 0.0)
        train(SOURCE, FIXED.with_(grids=2), ALONE, Looks())
    assert looks[0] == "training"


@pytest.mark.parametrize("classes", range(3, 9))
def test_no_mixture_of_classes_is_the_same_for_every_row(classes):
    """With three classes and seed 0 all of them were, and random binning made no step at all."""
    for seed in range(20):
        signs = mixing_signs(classes, seed)
        assert np.abs(signs).min() == np.abs(signs).max() == 1
        assert (np.abs(signs.sum(axis=1)) < classes).all()
