"""Blends: members and their shares, the same bits by every route, whole models, and damaged parts."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from cluster_tools import local_cluster
from commands import done, streamrf
from interruptions import Kills, Stops
from solvers_conformance import FIXED, SolverConformance
from tables import labelled, smooth, write_zarr

from streamrf.api import predict
from streamrf.api.estimators import KernelRegressor
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.engines.cluster import ClusterEngine
from streamrf.features.blend import BlendMap
from streamrf.features.pipeline import map_from_parts
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.solvers import boosting, stacking
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import ALONE, Threads
from streamrf.training.pilot import room
from streamrf.training.pilot.blend import together
from streamrf.training.pilot.choice import Choice
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, Training, train

pytestmark = pytest.mark.usefixtures("in_little_time")
RECIPE = Recipe(map="blend", D=40, grids=12, table_bits=7, pilot="none", seed=3)
X, Y = smooth(900)
LABELS = labelled(900, 3)[1]


def trained(X: np.ndarray = X, y: np.ndarray = Y, recipe: Recipe = RECIPE, **settings: Any) -> Model:
    return train(ArraySource(X, y, chunk_rows=200), recipe, Settings(**{"threads": 1, **settings})).model


MEMBERS = ["landmarks", "binning", "trees"]


@pytest.fixture(scope="module")
def model() -> Model:
    return trained()


@pytest.fixture(scope="module")
def classifier() -> Model:
    return trained(y=LABELS)


@pytest.fixture(scope="module")
def whole() -> Model:
    """With every member, whatever the rows that choose take of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacking, "LEAST_SHARE", -1.0)
        return trained()


def kinds(model: Model) -> list[str]:
    """Each once, however many turns it has."""
    return list(dict.fromkeys(member.map.kind for member in model.map.members))


def by_kind(model: Model) -> dict[str, float]:
    """What is taken of each kind of member for the first output, all turns together."""
    taken = dict.fromkeys(kinds(model), 0.0)
    for member, share in zip(model.map.members, model.map.shares(model.weights.coefficients)[:, 0], strict=True):
        taken[member.map.kind] += share
    return taken


def everything(model: Model) -> dict[str, bytes]:
    """Every array of the model by its name, and the digest of its sums."""
    arrays = {name: array.tobytes() for name, array in model.to_parts()[1].items()}
    return arrays | {"digest": model.metadata["statistics_digest"].encode()}


# -- as a solver


class TestStacking(SolverConformance):
    settings: ClassVar = {"map": "blend", "solver": "stacking", "grids": 20, "table_bits": 8, "kernel": "gaussian"}
    larger: ClassVar = {"D": 50 * FIXED.D, "grids": 1000}

    @staticmethod
    def bits(trained: Any) -> Any:
        return everything(trained.model)

    @pytest.mark.parametrize("after", [1, 9, 10, 18, 19, 40, 70])
    def test_an_interrupted_run_resumes_to_the_same_bits(self, tmp_path, after) -> None:
        """Nine blocks are the pass of the landmarks, nine more the first of random binning; then come its steps."""
        super().test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, after)


# -- the same bits


def in_small_spans(settings: Settings, reporter: Reporter | None = None) -> Model:
    """A run that sums 200 rows at a time."""
    with Threads(1) as threads:
        training = Training(ArraySource(X, Y, chunk_rows=200), RECIPE, settings, reporter or Reporter(), threads)
        usual = training._agreed
        training._agreed = lambda plan: usual(replace(plan, span_rows=200))
        return training.run().model


class Titles(Reporter):
    """Counts the blocks of all passes by their titles."""

    def __init__(self) -> None:
        self.blocks: list[str] = []

    def started(self, title, rows, done) -> None:
        self.title = title

    def advanced(self, done, checkpoint_age) -> None:
        self.blocks.append(self.title)


@pytest.fixture(scope="module")
def titles() -> list[str]:
    told = Titles()
    in_small_spans(Settings(threads=1), told)
    return told.blocks


def test_bits_do_not_depend_on_threads_chunks_or_order(model):
    source, order = ArraySource(X, Y, chunk_rows=77), np.random.default_rng(5).permutation
    assert everything(train(source, RECIPE, Settings(threads=2, order=order)).model) == everything(model)


def test_two_workers_give_the_bits_of_one_process(tmp_path, model):
    stored = open_source(write_zarr(tmp_path / "data.zarr", X, Y, chunk=200))
    with local_cluster(2, memory_limit="2GiB") as (_, client):
        engine = ClusterEngine(client, order=np.random.default_rng(0).permutation)
        assert everything(train(stored, RECIPE, Settings(threads=1, engine=engine)).model) == everything(model)


class KilledInMemory(Reporter):
    """The same, half way through a stage that is no pass."""

    def working(self, what, share) -> None:
        if what == boosting.STAGE and share is not None and share > 0.1:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_at(title: str, titles: list[str]) -> Reporter:
    if title == boosting.STAGE:
        return KilledInMemory()
    places = {"binning": titles.index("training", 5), "trees": len(titles) - titles[::-1].index("training") - 5}
    return Kills(places.get(title, titles.index(title) if title in titles else 0) + 3)


@pytest.mark.parametrize("title", ["training", "binning", "step 3", "joining step 1", "trees", boosting.STAGE])
def test_a_process_that_is_killed_anywhere_goes_on_to_the_same_bits(tmp_path, model, titles, title):
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=0)
    child = os.fork()
    if child == 0:
        in_small_spans(settings, killed_at(title, titles))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    resumed = in_small_spans(settings)
    assert everything(resumed) == everything(model)
    assert resumed.metadata["members"] == model.metadata["members"]
    assert resumed.metadata["lambda_path"] == model.metadata["lambda_path"]


def test_a_run_that_is_stopped_again_and_again_goes_on_to_the_same_bits(tmp_path, model, titles):
    settings = Settings(threads=1, checkpoint=tmp_path / "kept", checkpoint_every=3600)
    stops, found = 0, None
    while found is None:
        try:
            found = in_small_spans(settings, Stops(4))
        except Interrupted:
            stops += 1
    assert stops > len(titles) // 6
    assert everything(found) == everything(model)


# -- members and shares


def test_the_prediction_is_a_sum_of_members_by_their_shares(model):
    assert isinstance(model.map, BlendMap)
    shares = model.map.shares(model.weights.coefficients)[:, 0]
    parts = [member.scores(X, ALONE)[:, 0] for member in model.map.members]
    assert len(shares) == len(parts) > 1
    assert by_kind(model) == {each["map"]: pytest.approx(each["share"][0]) for each in model.metadata["members"]}
    found = sum(share * part for share, part in zip(shares, parts, strict=True)) + model.weights.intercept
    np.testing.assert_allclose(predict(model, X), found, rtol=1e-12)
    out = np.zeros((5, len(parts)))
    model.map.compute(X[:5], out, ALONE)
    np.testing.assert_array_equal(out, np.stack(parts, axis=1)[:5])


def test_a_blend_is_about_as_good_as_its_best_member(model, classifier):
    for found, figure in ((model, "rmse"), (classifier, "error")):
        alone = [each["holdout"][figure] for each in found.metadata["members"]]
        assert found.metadata["holdout"][figure] <= max(alone)
        assert found.metadata["holdout"][figure] <= 1.1 * min(alone)


def test_members_that_bring_nothing_are_left_out(model, whole):
    """They have no share, no weights and no facts in the model; the others count as they do beside them."""
    assert kinds(whole) == MEMBERS
    assert [each["map"] for each in model.metadata["members"]] == kinds(model)
    shares = by_kind(whole)
    left = set(MEMBERS) - set(kinds(model))
    assert left == {kind for kind, share in shares.items() if share < stacking.LEAST_SHARE} == {"binning"}
    assert by_kind(model) == {
        kind: pytest.approx(share, abs=0.02) for kind, share in shares.items() if kind not in left
    }
    np.testing.assert_allclose(predict(model, X), predict(whole, X), atol=0.02)
    assert "steps" not in model.metadata.get("binning", {})
    assert model.metadata["trees"] == whole.metadata["trees"]


def test_its_lambda_is_that_of_its_landmarks(monkeypatch):
    """It used to be the pilot's first guess. A tenth of the rows chooses here, and by chance tells lambdas apart."""
    monkeypatch.setattr(stacking, "SMALL_ROWS", 0)
    found = trained(recipe=RECIPE.with_(ridge=None))
    errors = {each["lambda"]: each["mean_squared_error"] for each in found.metadata["lambda_path"]}
    assert errors[found.weights.ridge] < 1.001 * min(errors.values()) < 0.95 * max(errors.values())


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_not_negative(seed):
    """A member whose errors are those of the other, turned round, would be taken off."""
    rng = np.random.default_rng(seed)
    noise = trained(rng.standard_normal((400, 3)), rng.standard_normal(400), RECIPE.with_(seed=seed))
    assert all(share >= 0 for each in noise.metadata["members"] for share in each["share"])
    assert noise.metadata["holdout"]["rmse"] < 1.25


def test_outputs_have_shares_of_their_own_in_any_unit():
    targets = np.stack([Y, 1e6 * np.sin(3 * X[:, 1]), X[:, 0]], axis=1)
    found = trained(y=targets)
    alone = trained()
    shares = np.array([each["share"] for each in found.metadata["members"]])
    assert shares.shape == (len(kinds(found)), 3)
    assert (shares >= 0).all()
    own = {each["map"]: each["share"][0] for each in alone.metadata["members"]}
    for each in found.metadata["members"]:
        assert each["share"][0] == pytest.approx(own.get(each["map"], 0.0), abs=0.3)
    assert (np.array(found.metadata["holdout"]["rmse_by_output"]) < targets.std(axis=0)).all()
    assert predict(found, X[:7]).shape == (7, 3)


def test_rows_of_small_tables_take_turns(model, monkeypatch):
    """Each kind is solved once for each turn, and rows that no turn of it has seen say what is taken; a larger table,
    or one whose rows held out were asked for, is solved once."""
    assert {each["turns"] for each in model.metadata["members"]} == {stacking.TURNS}
    assert len(model.map.members) == stacking.TURNS * len(kinds(model))
    shares = model.map.shares(model.weights.coefficients)[:, 0].reshape(-1, stacking.TURNS)
    assert (shares == shares[:, :1]).all()
    trees = [member for member in model.map.members if member.map.kind == "trees"]
    assert not np.array_equal(trees[0].scores(X, ALONE), trees[1].scores(X, ALONE))
    monkeypatch.setattr(stacking, "SMALL_ROWS", len(X))
    for found in (trained(), trained(recipe=RECIPE.with_(holdout=0.2))):
        assert len(found.map.members) == len(kinds(found))
        assert "turns" not in found.metadata["members"][0]


def test_classes_have_the_same_shares(classifier):
    for each in classifier.metadata["members"]:
        assert len(set(each["share"])) == 1
    assert classifier.metadata["holdout"]["error"] < 0.5
    probabilities = predict(classifier, X[:20], proba=True)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_without_rows_apart_all_count_alike():
    found = trained(recipe=RECIPE.with_(holdout=0.0))
    assert [each["share"] for each in found.metadata["members"]] == [[1 / 3]] * 3
    assert found.metadata["holdout"] is None
    assert [each["holdout"] for each in found.metadata["members"]] == [None] * 3
    assert 1 - np.mean((predict(found, X) - Y) ** 2) / Y.var() > 0.5


def test_rows_with_nan_are_left_out_of_all_members():
    spoiled = X.copy()
    spoiled[[5, 700], 2] = np.nan
    found = trained(spoiled, Y, RECIPE.with_(nan="drop"))
    assert (found.metadata["dropped"], found.metadata["rows"]) == (2, 898)


@pytest.mark.parametrize("rows", [2, 3, 11])
def test_few_rows_train(rows):
    assert np.isfinite(predict(trained(X[:rows], Y[:rows], Recipe(map="blend", D=8, grids=4)), X)).all()


def test_predictions_do_not_depend_on_the_block(model):
    with Threads(3) as three, Threads(1) as one:
        whole = model.scores(X, three)
        assert (np.concatenate([model.scores(X[i : i + 7], one) for i in range(0, 70, 7)]) == whole[:70]).all()


# -- what may be asked for


def test_settings_that_binning_does_not_have_are_refused():
    for setting in ({"loss": "huber"}, {"cv": 3}, {"solver": "cg"}):
        with pytest.raises(InputError):
            RECIPE.with_(**setting)


# -- weights


def weighted(X: np.ndarray, y: np.ndarray, weights: np.ndarray, recipe: Recipe) -> Model:
    return train(open_source((X, y), sample_weight=weights), recipe, Settings(threads=1)).model


@pytest.mark.parametrize(
    ("rows", "recipe", "classes", "close"),
    [(900, RECIPE, False, 1e-8), (900, RECIPE, True, 1e-8), (700, Recipe(), False, 1e-4)],
)
def test_a_weight_is_a_number_of_copies(rows, recipe, classes, close, monkeypatch):
    """With nothing set too: pilots, members and shares all count weights. One of 0 is a row that is not there. Trees
    draw rows for each tree, so two copies are not one row that counts twice to them."""
    monkeypatch.setattr(room, "FEWEST_ROWS", 300)
    X, y = labelled(rows, 3) if classes else smooth(rows)
    weights = np.random.default_rng(1).integers(0, 4, rows)
    copied, some = np.repeat(np.arange(rows), weights), weights > 0
    whole = weighted(X, y, weights.astype(float), recipe)
    left = weighted(X[some], y[some], weights[some].astype(float), recipe)
    repeated = train(ArraySource(X[copied], y[copied]), recipe, Settings(threads=1)).model
    np.testing.assert_allclose(left.scores(X[:200], ALONE), whole.scores(X[:200], ALONE), rtol=0, atol=close)
    figure = "error" if classes else "rmse"
    assert left.metadata["holdout"][figure] == pytest.approx(whole.metadata["holdout"][figure], rel=close)
    found, wanted = (
        {member.map.kind: member.scores(X[:200], ALONE) for member in model.map.members} for model in (repeated, whole)
    )
    for name in {"landmarks", "binning"} & set(found) & set(wanted):  # those that have a share
        np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=close)


def test_balanced_classes_find_a_rare_one():
    X, y = smooth(2400)
    rare = (y > np.quantile(y, 0.95)).astype(int)
    plain, balanced = (trained(X, rare, RECIPE.with_(class_weight=each)) for each in (None, "balanced"))
    recall = [predict(model, X, threads=1)[rare == 1].mean() for model in (plain, balanced)]
    assert recall[1] > recall[0]
    assert balanced.metadata["weighting"]["class_weights"][1] > 5


def test_rows_of_no_weight_do_not_make_a_blend(monkeypatch):
    """A table that is too small for shares is so whatever else is in it."""
    monkeypatch.setattr(room, "FEWEST_ROWS", 300)
    X, y = smooth(400)
    weights = (np.arange(400) < 250).astype(float)
    source, small = open_source((X, y), sample_weight=weights), Recipe(map="any", D=64)
    for recipe in (Recipe(), small):  # before rows are read
        assert plan_run(source, recipe, outputs=1, threads=1, budget=None).solver == "stacking"
    assert weighted(X, y, weights, small).recipe.solver == "cholesky"
    assert weighted(X, y, weights + 1, small).recipe.solver == "stacking"


def test_a_plan_says_what_a_blend_is():
    source = ArraySource(*smooth(2100))
    plan = plan_run(source, Recipe(), outputs=1, threads=1, budget=None)
    assert plan.solver == "stacking"
    assert plan.sizes.recipe.D == 1400
    assert plan.why.startswith("a blend: the 1400 x 1400 system fits in memory")
    assert plan.why.endswith("the pilot leaves out those that are far behind")
    assert "finished members" in plan.parts
    assert plan_run(source, Recipe(map="any", D=64), outputs=1, threads=1, budget=None).sizes.recipe.D == 64
    small = plan_run(ArraySource(*smooth(140)), Recipe(), outputs=1, threads=1, budget=None)
    assert small.solver == "cholesky"
    assert "binning" not in small.why


def test_a_budget_too_small_for_a_blend_leaves_fourier_features():
    source, known = ArraySource(*smooth(9000)), {"outputs": 1, "threads": 1, "reserved": 2**28}
    assert plan_run(source, Recipe(), budget=2**31, **known).solver == "stacking"
    plan = plan_run(source, Recipe(), budget=2**28 + 20 * 2**20, **known)
    assert plan.solver != "stacking"
    assert plan.why.startswith("a blend would need ")


def test_settings_of_a_blend_go_to_its_members(monkeypatch):
    monkeypatch.setattr(stacking, "LEAST_SHARE", -1.0)
    given = {"kernel": "laplacian", "length_scale": 7.0, "bits": "8", "ridge": 1e-3, "scaling": "quantile"}
    found = trained(recipe=RECIPE.with_(pilot="auto", metric="none", **given))
    landmarks, binning = (found.map.members[number].map for number in (0, stacking.TURNS))
    assert (landmarks.kernel, landmarks.precision.name, landmarks.n_features) == ("laplacian", "8", 40)
    assert (binning.grids, binning.bits) == (12, 7)
    assert {name: getattr(found.recipe, name) for name in given} == given
    assert {len(member.scaling.rank_columns) for member in found.map.members} == {6}


def test_it_says_how_inputs_are_scaled():
    estimator = KernelRegressor(map="blend", D=40, grids=12, pilot="none", threads=1).fit(X, Y)
    assert estimator.scaling_ == estimator.model_.recipe.scaling == "standard"
    (first, *_), recipe = estimator.model_.metadata["members"], estimator.model_.recipe
    estimator.model_.metadata["members"] = [first, {**first, "scaling": "quantile"}]
    assert estimator.scaling_ == "standard + quantile"
    smooth, bins = Choice(recipe.with_(scaling="log")), Choice(recipe.with_(scaling="quantile"))
    assert together((smooth, bins)).recipe.scaling == "auto"


def test_the_linear_ridge_beside_it_sees_scaled_inputs():
    """Of inputs as they come, any penalty would hide the first column."""
    holdout = trained(X * [1e-4, 1.0, 1e4, 1.0, 1.0, 1e2], X[:, 0]).metadata["holdout"]
    assert holdout["linear"]["rmse"] < 1e-3 * holdout["baseline"]["rmse"]


def test_rows_that_are_left_out_are_told_once():
    told: list[str] = []
    reporter = Reporter()
    reporter.note = told.append  # type: ignore[method-assign]
    Z = X.copy()
    Z[5, 2] = np.nan
    train(ArraySource(Z, Y), RECIPE.with_(nan="drop"), Settings(threads=1), reporter)
    assert [text for text in told if "left out" in text] == ["1 rows with NaN or infinite values were left out"]


def test_a_plan_that_stays_as_it_was_is_told_once():
    """It is made anew once classes are counted."""
    shown: list[int] = []
    reporter = Reporter()
    reporter.planned = lambda plan: shown.append(plan.sizes.outputs)  # type: ignore[method-assign]
    train(ArraySource(X, Y), RECIPE, Settings(threads=1), reporter)
    assert shown == [1]
    train(ArraySource(X, labelled(900, 30)[1]), RECIPE, Settings(threads=1), reporter)
    assert shown == [1, 1, 30]


def test_a_metric_may_be_learned_without_a_pilot():
    found = trained(recipe=RECIPE.with_(metric="diagonal"))
    assert found.metadata["learning"]["metric"]["asked"] == "diagonal"
    assert found.recipe.solver == "stacking"


def test_the_command_line_asks_for_a_blend(tmp_path):
    data = write_zarr(tmp_path / "t.zarr", X, Y)
    options = ("--map", "blend", "--D", "40", "--grids", "12", "--pilot", "none", "--threads", "1")
    done("train", data, *options, "--out", tmp_path / "m.model", "--quiet")
    loaded = Model.load(tmp_path / "m.model")
    assert loaded.recipe.solver == "stacking"
    answer = streamrf("train", data, *options, "--solver", "cg", "--quiet", "--out", tmp_path / "other.model")
    assert answer.code == InputError.exit_code
    assert "--solver cg: must be auto or stacking: blend has no other" in answer.sentence


# -- files


def test_a_blend_comes_back_from_its_file_and_from_another_process(tmp_path, model, classifier):
    for number, each in enumerate((model, classifier)):
        each.save(tmp_path / f"{number}.model")
        for again in (Model.load(tmp_path / f"{number}.model"), pickle.loads(pickle.dumps(each))):
            assert everything(again) == everything(each)
            assert np.array_equal(again.scores(X[:99], ALONE), each.scores(X[:99], ALONE))


def test_an_untrained_member_has_no_predictions(model):
    untrained = replace(model.map.members[0], coefficients=None, intercept=None)
    with pytest.raises(InputError, match="not trained yet"):
        untrained.scores(X, ALONE)
    again = map_from_parts(*BlendMap((untrained,), 1).to_parts())
    assert again.members[0].coefficients is None


DAMAGE = {
    "no members": ({"members": []}, {}),
    "members that are no list": ({"members": 3}, {}),
    "a member that is nothing": ({"members": [{}, {}]}, {}),
    "too many": ({"members": [{}] * 17}, {}),
    "outputs": ({"outputs": 2}, {}),
    "outputs of text": ({"outputs": "1"}, {}),
    "a truth value": ({"outputs": True}, {}),
    "weights of another shape": ({}, {"member0.coefficients": np.zeros((3, 1))}),
    "weights of whole numbers": ({}, {"member0.coefficients": np.zeros((40, 1), np.int64)}),
    "weights that are no numbers": ({}, {"member0.coefficients": np.full((40, 1), np.nan)}),
    "leaves without weights": ({}, {"member2.coefficients": None}),
    "leaves of fewer trees": ({}, {"member2.coefficients": np.zeros((16, 1), np.float32)}),
    "no intercept": ({}, {"member0.intercept": None}),
    "an intercept of another shape": ({}, {"member0.intercept": np.zeros((1, 1))}),
    "no landmarks": ({}, {"member0.landmarks.rows": None}),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_parts_are_refused(whole, what):
    document, changes = DAMAGE[what]
    good, arrays = whole.map.to_parts()
    left = {name: array for name, array in {**arrays, **changes}.items() if array is not None}
    with pytest.raises(FileFormatError):
        map_from_parts({**good, **document}, left)


def test_members_of_other_outputs_or_without_weights_are_refused(classifier):
    """Fewer outputs would be broadcast, and a member without weights be missed by the first prediction only."""
    document, arrays = classifier.to_parts()
    members = len(classifier.map.members)
    fewer = {
        name: array[..., :1] if name.endswith((".coefficients", ".intercept")) and name.startswith("member") else array
        for name, array in arrays.items()
    } | {"weights.coefficients": arrays["weights.coefficients"][:members]}
    bare = {name: array for name, array in arrays.items() if name not in ("member0.coefficients", "member0.intercept")}
    for wrong, outputs in ((fewer, 1), (bare, classifier.map.outputs)):
        with pytest.raises(FileFormatError, match="not all of its members have weights for 3 outputs"):
            Model.from_parts({**document, "map": {**document["map"], "outputs": outputs}}, wrong)


def test_members_of_unknown_or_of_the_same_kind_are_refused(model):
    good, arrays = model.map.to_parts()
    for kind in ("blend", "sideways", None, []):
        wrong = [{**good["members"][0], "map": {**good["members"][0]["map"], "kind": kind}}, good["members"][1]]
        with pytest.raises(FileFormatError, match="which this version does not know"):
            map_from_parts({**good, "members": wrong}, arrays)


# -- what people see, and what a blend does not have


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """A blend that the command line trained, what it said, and its data."""
    folder = tmp_path_factory.mktemp("blend")
    data = write_zarr(folder / "t.zarr", X, Y)
    options = ("--map", "blend", "--D", "80", "--grids", "12", "--pilot", "none", "--threads", "1")
    said = done("train", data, *options, "--out", folder / "m.model", "--save-config", folder / "run.toml")
    return folder / "m.model", said.out, data


def test_training_and_inspect_tell_of_members(on_disk):
    path, said, _ = on_disk
    loaded = Model.load(path)
    told = loaded.metadata["members"]
    names = [{"binning": "random binning"}.get(each["map"], each["map"]) for each in told]
    sentence = " + ".join(f"{each['share'][0]:.2f} {name}" for each, name in zip(told, names, strict=True))
    alone = [each["holdout"]["rmse"] for each in loaded.metadata["members"]]
    assert sentence in said
    assert f"hold-out rmse {alone[0]:.5g}" in said
    assert "80 (12 bits), gaussian, length scale" in said
    facts = loaded.metadata["trees"]
    assert f"{facts['trees']:,} trees of up to {facts['leaves']} leaves, grown on" in said
    assert sentence in done("inspect", path).out
    found = done("inspect", path, "--json").json
    assert [each["map"] for each in found["members"]] == kinds(loaded)
    assert found["members"][0]["scaling"] == "standard"
    assert found["chosen"]["grids"] == 12
    assert found["trees"] == facts


@pytest.mark.parametrize("taken", [["binning", "trees"], ["landmarks"], ["binning"], MEMBERS])
def test_training_tells_of_any_members(taken, tmp_path, monkeypatch):
    """Those that the rows that choose take something of, one or all."""
    data, usual = write_zarr(tmp_path / "t.zarr", X, Y), stacking.Stacking._shares

    def shares(self, scores, parts):
        _, intercept = usual(self, scores, parts)
        wanted = [[float(member.map.kind in taken)] for member in self.map.members[:: self.turns]]
        return np.array(wanted), intercept

    monkeypatch.setattr(stacking.Stacking, "_shares", shares)
    said = done("train", data, "--map", "blend", "--D", "40", "--grids", "12", "--pilot", "none", "--out",
                tmp_path / "m.model").out  # fmt: skip
    names = [{"binning": "random binning"}.get(kind, kind) for kind in taken]
    assert " + ".join(f"1.00 {name}" for name in names) in said
    assert ("12 grids of" in said) == ("binning" in taken)
    assert ("trees of up to" in said) == ("trees" in taken)
    assert ("length scale" in said) == ("landmarks" in taken)
    assert kinds(Model.load(tmp_path / "m.model")) == taken


def test_a_blend_shows_itself(model):
    assert "map blend, features " in repr(model)
    assert "of 40 (landmarks) + " in repr(model)
    assert "(trees)" in model._repr_html_()


def test_a_report_has_members(on_disk):
    path, _, data = on_disk
    pytest.importorskip("matplotlib")
    done("report", path, "--data", data, "--out", path.parent / "report.html")
    page = (path.parent / "report.html").read_text()
    assert "blend of" in page
    *others, last = [name.replace("binning", "random binning") for name in kinds(Model.load(path))]
    assert f"{', '.join(others)} and {last}" in page
    assert "trees alone" in page


def test_its_settings_train_it_again(on_disk):
    path, _, data = on_disk
    again = path.parent / "again.model"
    done("train", data, "--config", path.parent / "run.toml", "--out", again, "--quiet")
    assert everything(Model.load(again)) == everything(Model.load(path))


def test_a_blend_has_neither_sums_nor_deviations(on_disk, tmp_path):
    path, _, data = on_disk
    for command in (("update", path, data), ("forget", path, data)):
        answer = streamrf(*command, "--quiet")
        assert answer.code == InputError.exit_code
        assert "is a blend, which keeps no sums that rows can join or leave: retrain" in answer.sentence
        assert "--map landmarks or --D" in answer.sentence or "`map='landmarks'` or `D`" in answer.sentence
    answer = streamrf("predict", path, data, "--std", "--out", tmp_path / "p.csv", "--quiet")
    assert answer.code == InputError.exit_code
    assert "which a blend does not keep" in answer.sentence
    answer = streamrf("prepare", data, "--map", "blend", "--out", tmp_path / "shared.prepared", "--quiet")
    assert "a blend has no sums that can be added or taken away" in answer.sentence
