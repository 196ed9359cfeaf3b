"""Models of trees: as a solver, the same bits by every route, awkward tables, weights, classes, and files."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from cluster_tools import local_cluster
from commands import done, streamrf
from solvers_conformance import ROWS, SolverConformance, Unread
from tables import smooth, write_zarr

from streamrf.api import predict
from streamrf.api.estimators import KernelClassifier, KernelRegressor
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.data.split import CHOOSE, JUDGE, Split
from streamrf.engines.cluster import ClusterEngine
from streamrf.features.trees.map import TreesMap
from streamrf.features.trees.scores import CLASSES, SQUARES
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.solvers import boosting
from streamrf.solvers.plan import Sizes
from streamrf.support.errors import DataError, FileFormatError, InputError
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE, Threads
from streamrf.training import prepare
from streamrf.training.pilot import blend as pilot_blend
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, Training, train

pytestmark = pytest.mark.usefixtures("in_little_time")
RECIPE = Recipe(map="trees", seed=3)
RNG = np.random.default_rng(8)
X = RNG.standard_normal((900, 5))
X[:, 3], X[:, 4] = np.round(X[:, 3]), 2.5
Y = X[:, 0] + 3.0 * (X[:, 1] > 0.4) * (X[:, 3] > 0) + 0.2 * RNG.standard_normal(900)
LABELS = np.digitize(Y, np.quantile(Y, [0.33, 0.67]))


def trained(X: np.ndarray = X, y: np.ndarray = Y, recipe: Recipe = RECIPE, **settings: Any) -> Model:
    return train(ArraySource(X, y, chunk_rows=200), recipe, Settings(**{"threads": 1, **settings})).model


def everything(model: Model) -> dict[str, bytes]:
    """Every array of the model by its name, and the digest of its sums."""
    arrays = {name: array.tobytes() for name, array in model.to_parts()[1].items()}
    return arrays | {"digest": model.metadata["statistics_digest"].encode()}


@pytest.fixture(scope="module")
def model() -> Model:
    return trained()


# -- as a solver


class TestBoosted(SolverConformance):
    settings: ClassVar = {"map": "trees", "solver": "boosting", "kernel": "auto", "length_scale": None, "bits": "auto"}

    @staticmethod
    def bits(trained: Any) -> Any:
        return everything(trained.model)

    def test_more_rows_and_features_never_need_less(self) -> None:
        """No setting makes trees larger: columns do."""
        small, long = self.plan(), self.plan(rows=50 * ROWS)
        wide = np.broadcast_to(np.zeros((1, 3000), np.float32), (ROWS, 3000))
        source = Unread(wide, np.broadcast_to(np.zeros(1), (ROWS,)), chunk_rows=10_000)
        known = {"outputs": 1, "threads": 2, "budget": 4 * 2**30, "reserved": 2**28}
        assert long.projected >= small.projected
        assert plan_run(source, self.recipe, **known).projected > small.projected


class TestBoostedClasses(TestBoosted):
    classes = True


# -- the same bits


def test_bits_do_not_depend_on_threads_chunks_or_order(model):
    source, order = ArraySource(X, Y, chunk_rows=77), np.random.default_rng(5).permutation
    assert everything(train(source, RECIPE, Settings(threads=2, order=order)).model) == everything(model)


def test_two_workers_give_the_bits_of_one_process(tmp_path, model):
    stored = open_source(write_zarr(tmp_path / "data.zarr", X, Y, chunk=200))
    with local_cluster(2, memory_limit="2GiB") as (_, client):
        engine = ClusterEngine(client, order=np.random.default_rng(0).permutation)
        assert everything(train(stored, RECIPE, Settings(threads=1, engine=engine)).model) == everything(model)


class Killed(Reporter):
    """Ends the process at once, as kill -9 or a power cut would: in the pass, or while trees are grown."""

    def __init__(self, growing: bool) -> None:
        self.growing = growing

    def advanced(self, done, checkpoint_age) -> None:
        if not self.growing and checkpoint_age is not None and done >= 400:  # two blocks of 200 are saved by then
            os.kill(os.getpid(), signal.SIGKILL)

    def working(self, what, share) -> None:
        if self.growing and what == boosting.STAGE and share > 0.02:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: Path, growing: bool) -> Settings:
    """How a run is resumed that was killed: in the middle of its pass, or as trees were grown."""
    settings = Settings(threads=1, checkpoint=folder / "kept", checkpoint_every=0)
    child = os.fork()
    if child == 0:
        with Threads(1) as threads:
            source = ArraySource(X, Y, chunk_rows=200)
            training = Training(source, RECIPE, settings, Killed(growing), threads)
            usual = training._agreed
            training._agreed = lambda plan: usual(replace(plan, span_rows=200))
            training.run()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert list((folder / "kept").iterdir())
    return settings


@pytest.mark.parametrize("growing", [False, True])
def test_a_process_that_is_killed_goes_on_to_the_same_bits(tmp_path, model, growing):
    settings = killed(tmp_path, growing)
    assert everything(train(ArraySource(X, Y, chunk_rows=200), RECIPE, settings).model) == everything(model)


def test_a_run_that_is_resumed_keeps_the_rows_it_was_begun_for_whatever_memory_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(boosting, "PIECE", 1)
    monkeypatch.setattr(boosting, "_room", lambda sizes: 1 << 16)
    unbroken = trained()
    assert 0 < unbroken.metadata["trees"]["rows"] < 700
    settings = killed(tmp_path, growing=False)
    monkeypatch.setattr(boosting, "_room", lambda sizes: 1 << 30)
    assert everything(train(ArraySource(X, Y, chunk_rows=200), RECIPE, settings).model) == everything(unbroken)


@pytest.mark.parametrize("held", [0, 10 * 2**20])
def test_what_the_process_happens_to_hold_does_not_change_trees(held):
    sizes = Sizes.of(ArraySource(np.zeros((10**6, 20)), np.zeros(10**6)), RECIPE, outputs=1, threads=1,
                     budget=10**9, reserved=480 * 2**20 + held)  # fmt: skip
    assert boosting.tree_limits(sizes) == boosting.tree_limits(replace(sizes, reserved=485 * 2**20))
    assert boosting.rows_kept(sizes) < 10**6


def test_rows_that_choose_may_all_be_without_weight(model):
    """Then nothing stops trees but their number; and where all rows to fit are, there is nothing to grow them on."""
    roles = Split.from_json(model.metadata["split"]).roles(Block(X, Y, np.arange(len(X))))

    def weighted(heavy: np.ndarray) -> Model:
        return train(open_source((X, Y), sample_weight=heavy.astype(float)), RECIPE, Settings(threads=1)).model

    blind = weighted(roles != CHOOSE)
    assert blind.metadata["trees"]["trees"] == boosting.BLIND_TREES
    with pytest.raises(DataError, match="no row to fit has a positive weight"):
        weighted(np.isin(roles, (CHOOSE, JUDGE)))


def test_a_part_of_the_rows_may_be_kept(model, monkeypatch):
    """All are counted, and the bits are still those of any chunks."""
    monkeypatch.setattr(boosting, "rows_kept", lambda sizes: 400)
    few = trained()
    assert few.metadata["rows"] == 900
    assert 200 < few.metadata["trees"]["rows"] < 400
    assert everything(few) != everything(model)
    source = ArraySource(X, Y, chunk_rows=9)
    assert everything(train(source, RECIPE, Settings(threads=2)).model) == everything(few)
    assert few.metadata["holdout"]["r2"] > 0.8


# -- what is learned


def test_thresholds_and_their_combinations_are_found(model):
    assert model.metadata["holdout"]["r2"] > 0.9
    assert isinstance(model.map, TreesMap)
    assert model.map.loss == SQUARES
    assert model.metadata["trees"]["trees"] == model.map.trees > 10
    used = set(np.concatenate([model.map.columns.ravel(), model.map.nodes.columns.ravel()]).tolist())
    assert used == {0, 1, 2, 3}  # the last one is constant


def test_rows_held_out_join_by_fitting_the_values_of_the_same_cells_again(monkeypatch):
    joined, cells = trained(), []
    monkeypatch.setattr(boosting.Boosting, "refitted", lambda self, forest, rows: cells.append(len(rows)) or forest)
    alone = trained()
    assert cells == [900]
    for name in ("trees.node_columns", "trees.node_thresholds", "trees.children", "trees.cuts"):
        assert alone.to_parts()[1][name].tobytes() == joined.to_parts()[1][name].tobytes()
    assert alone.weights.coefficients.tobytes() != joined.weights.coefficients.tobytes()
    assert alone.metadata["holdout"] == joined.metadata["holdout"]


def test_outputs_count_alike_in_any_unit():
    targets = np.stack([Y, 1e6 * np.cos(X[:, 0]), X[:, 1]], axis=1)
    found = trained(y=targets)
    assert (np.array(found.metadata["holdout"]["rmse_by_output"]) < 0.5 * targets.std(axis=0)).all()
    assert predict(found, X[:7]).shape == (7, 3)
    small = trained(y=targets * np.array([1, 2.0**-20, 1]))
    assert np.array_equal(small.map.columns, found.map.columns)
    assert np.array_equal(small.map.nodes.columns, found.map.nodes.columns)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_classes(classes):
    labels = np.digitize(Y, np.quantile(Y, np.arange(1, classes) / classes))
    found = trained(y=labels)
    assert found.map.loss == CLASSES
    assert found.metadata["holdout"]["error"] < 0.12 * classes
    scores = found.scores(X, ALONE)
    assert scores.shape == (900, 1 if classes == 2 else classes)
    np.testing.assert_allclose(predict(found, X, proba=True).sum(axis=1), 1)


def test_words_are_classes():
    found = trained(y=np.array(["low", "middle", "tall"])[LABELS])
    assert set(predict(found, X[:50])) <= {"low", "middle", "tall"}


# -- awkward tables


def finite(model: Model, X: np.ndarray) -> np.ndarray:
    found = np.asarray(predict(model, X))
    assert np.isfinite(found).all()
    return found


def test_one_column():
    assert trained(X[:, :1]).metadata["trees"]["trees"] > 0


@pytest.mark.parametrize("labelled", [False, True])
def test_columns_that_are_all_constant_leave_a_constant(labelled, tmp_path):
    found = trained(np.full((300, 3), 1.5), LABELS[:300] > 0 if labelled else Y[:300])
    assert found.metadata["trees"]["trees"] == 0
    assert len(np.unique(finite(found, X[:20, :3]))) == 1
    found.save(tmp_path / "m.model")
    assert np.array_equal(predict(tmp_path / "m.model", X[:20, :3]), predict(found, X[:20, :3]))


@pytest.mark.parametrize("rows", [2, 3, 5, 11])
def test_few_rows_train(rows):
    """Fewer than the leaves of one tree."""
    finite(trained(X[:rows], Y[:rows]), X)


def test_fewer_than_two_usable_rows_are_refused():
    with pytest.raises(DataError):
        trained(X[:1], Y[:1])
    spoiled = X.copy()
    spoiled[1:] = np.nan
    with pytest.raises(DataError):
        trained(spoiled, Y, RECIPE.with_(nan="drop"))


def test_huge_values_and_targets():
    found = trained(X * 1e30, Y * 1e12)
    assert found.metadata["holdout"]["r2"] > 0.9


def test_without_rows_held_out_a_fixed_number_of_trees_is_grown():
    found = trained(recipe=RECIPE.with_(holdout=0.0))
    assert found.metadata["trees"] == {"trees": boosting.BLIND_TREES, "leaves": 64, "rows": 900}
    assert found.metadata["holdout"] is None
    assert np.corrcoef(finite(found, X), Y)[0, 1] > 0.9


def test_values_beyond_those_of_training_are_those_at_the_ends(model):
    ends = np.where(X > 0, X.max(axis=0), X.min(axis=0))[:40]
    assert np.array_equal(finite(model, 1e6 * ends), predict(model, ends))


# -- weights


def weighted(weights: np.ndarray, recipe: Recipe = RECIPE, y: np.ndarray = Y) -> Model:
    return train(open_source((X, y), sample_weight=weights), recipe, Settings(threads=1)).model


@pytest.mark.parametrize("y", [Y, LABELS])
def test_a_row_of_weight_zero_is_a_row_left_out(y):
    """Whatever it says. What rows are is decided by their values, so the others keep their roles."""
    weights = 1.0 + np.arange(900) % 3
    gone = np.random.default_rng(2).random(900) < 0.2
    weights[gone] = 0
    other = y.copy()
    other[gone] = other[~gone][0]
    spoiled = X.copy()
    spoiled[gone] *= 7.0
    found = train(open_source((spoiled, other), sample_weight=weights), RECIPE, Settings(threads=1)).model
    left = open_source((X[~gone], y[~gone]), sample_weight=weights[~gone])
    wanted = train(left, RECIPE, Settings(threads=1)).model
    assert found.metadata["trees"] == wanted.metadata["trees"]
    assert np.array_equal(predict(found, X), predict(wanted, X))


def test_all_weights_times_a_number_change_nothing():
    weights = 0.5 + np.arange(900) % 4
    one, other = weighted(weights), weighted(8 * weights)
    assert one.map.columns.tobytes() == other.map.columns.tobytes()
    assert one.map.nodes.columns.tobytes() == other.map.nodes.columns.tobytes()
    np.testing.assert_allclose(predict(one, X), predict(other, X), rtol=1e-9)


def test_heavy_rows_have_more_say():
    """Two kinds of rows that nothing tells apart: the prediction is a mean by weights."""
    heavy = np.random.default_rng(3).random(900) < 0.5
    y = np.where(heavy, 1.0, -1.0) + 0.01 * X[:, 0]
    means = [np.mean(predict(weighted(np.where(heavy, w, 1.0), y=y), X)) for w in (1.0, 50.0)]
    assert abs(means[0]) < 0.3
    assert means[1] > 0.9


def test_classes_may_be_balanced():
    rare = (np.quantile(Y, 0.9) < Y).astype(int) ^ (np.random.default_rng(0).random(900) < 0.1)
    plain, balanced = trained(y=rare), trained(y=rare, recipe=RECIPE.with_(class_weight="balanced"))
    assert np.mean(predict(balanced, X)) > np.mean(predict(plain, X))


# -- files and commands


def test_a_model_comes_back_from_its_file_and_from_another_process(tmp_path, model):
    model.save(tmp_path / "m.model")
    for again in (Model.load(tmp_path / "m.model"), pickle.loads(pickle.dumps(model))):
        assert everything(again) == everything(model)
        assert np.array_equal(again.scores(X[:99], ALONE), model.scores(X[:99], ALONE))
    with Threads(3) as threads:
        assert np.array_equal(model.scores(X, threads), model.scores(X, ALONE))


DAMAGE = {
    "fewer values": {"weights.coefficients": lambda a: a[:-1]},
    "a tree more": {f"trees.{name}": lambda a: np.concatenate([a, a[:1]])
                    for name in ("node_columns", "node_thresholds", "children")},
    "a symmetric tree more": {"trees.columns": lambda a: np.zeros((1, 1), np.int32),
                              "trees.thresholds": lambda a: np.zeros((1, 1), np.float32)},
    "trees without end": {"trees.columns": lambda a: np.zeros((9000, 16), np.int32),
                          "trees.thresholds": lambda a: np.zeros((9000, 16), np.float32)},
    "a column that is not there": {"trees.node_columns": lambda a: a + 5},
    "fewer columns": {"trees.cuts": lambda a: a[:2]},
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_models_are_refused(model, what):
    document, arrays = model.to_parts()
    with pytest.raises(FileFormatError):
        Model.from_parts(document, arrays | {name: change(arrays[name]) for name, change in DAMAGE[what].items()})


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """A model that the command line trained, what it said, and its data."""
    folder = tmp_path_factory.mktemp("trees")
    data = write_zarr(folder / "t.zarr", X, Y)
    said = done("train", data, "--map", "trees", "--seed", "3", "--threads", "1", "--out", folder / "m.model",
                "--save-config", folder / "run.toml")  # fmt: skip
    return folder / "m.model", said.out, data


def test_commands_tell_of_trees(on_disk, model):
    path, said, data = on_disk
    facts = model.metadata["trees"]
    assert f"{facts['trees']:,} trees of up to {facts['leaves']} leaves, grown on" in said
    assert "lambda" not in said
    assert "kernel" not in said
    found = done("inspect", path, "--json").json
    assert (found["map"], found["trees"]) == ("trees", facts)
    assert not {"kernel", "D", "grids", "ridge"} & found["chosen"].keys()
    done("inspect", path)
    assert "map trees" in repr(model)
    assert "kernel" not in repr(model)
    assert done("plan", data, "--map", "trees", "--json").json["solver"] == "boosting"


def test_its_settings_train_it_again(on_disk, model):
    path, _, data = on_disk
    again = path.parent / "again.model"
    done("train", data, "--config", path.parent / "run.toml", "--out", again, "--quiet", "--threads", "1")
    assert everything(Model.load(again)) == everything(Model.load(path)) == everything(model)


@pytest.mark.parametrize("errors", [{"trees": 1e-9}, {"trees": 1e-9, "binning": 1e-9}])
def test_settings_train_again_what_the_pilot_left(errors, tmp_path, monkeypatch):
    """Whatever it took: trees alone, or a blend without landmarks."""
    monkeypatch.setattr(prepare, "tried_trees", lambda choice, *known: (choice, errors["trees"]))
    monkeypatch.setattr(pilot_blend, "SMALL_ROWS", 0)  # of which none is left out
    if "binning" in errors:
        monkeypatch.setattr(prepare.BinningPilot, "compared", lambda self, choice: SimpleNamespace(error=1e-9))
    data = write_zarr(tmp_path / "t.zarr", np.tile(X, (3, 1)) + 1e-3 * np.arange(2700)[:, None], np.tile(Y, 3))
    done("train", data, "--budget", "1s", "--threads", "1", "--out", tmp_path / "m.model", "--save-config",
         tmp_path / "run.toml", "--quiet")  # fmt: skip
    found = Model.load(tmp_path / "m.model")
    assert found.metadata["trained"] == (["binning", "trees"] if "binning" in errors else ["trees"])
    done("train", data, "--config", tmp_path / "run.toml", "--threads", "1", "--out", tmp_path / "n.model", "--quiet")
    assert everything(Model.load(tmp_path / "n.model")) == everything(found)


def test_a_report_on_trees(on_disk):
    pytest.importorskip("matplotlib")
    path, _, data = on_disk
    done("report", path, "--data", data, "--out", path.parent / "report.html")
    page = (path.parent / "report.html").read_text()
    assert "auto kernel" not in page
    assert "λ" not in page


@pytest.mark.parametrize(
    "option",
    [("--D", "500"), ("--grids", "20"), ("--kernel", "gaussian"), ("--bits", "8"), ("--lambda", "1e-3"),
     ("--solver", "cg"), ("--loss", "huber"), ("--cv", "3"), ("--metric", "full")],
)  # fmt: skip
def test_settings_of_other_maps_are_refused(on_disk, option):
    answer = streamrf(
        "train", on_disk[2], "--map", "trees", *option, "--quiet", "--out", on_disk[0].parent / "no.model"
    )
    assert answer.code == InputError.exit_code
    assert option[0].replace("lambda", "ridge") in answer.sentence or option[0] in answer.sentence


def test_rows_can_neither_join_nor_leave(on_disk, tmp_path):
    path, _, data = on_disk
    for command in (("update", path, data), ("forget", path, data)):
        answer = streamrf(*command, "--quiet")
        assert answer.code == InputError.exit_code
        assert "is a model of trees, which rows can neither join nor leave" in answer.sentence
    assert streamrf("predict", path, data, "--std", "--out", tmp_path / "p.csv", "--quiet").code == InputError.exit_code
    answer = streamrf("prepare", data, "--map", "trees", "--out", tmp_path / "shared.prepared", "--quiet")
    assert "trees have no sums that can be added or taken away" in answer.sentence


def test_a_plan_says_what_trees_do():
    plan = plan_run(ArraySource(*smooth(2100)), RECIPE, outputs=1, threads=1, budget=None)
    assert (plan.solver, plan.passes) == ("boosting", 1)
    assert "one pass keeps rows as bytes" in plan.why
    many = ArraySource(np.broadcast_to(np.zeros((1, 4)), (10**8, 4)), np.broadcast_to(np.zeros(1), (10**8,)))
    plan = plan_run(many, RECIPE, outputs=1, threads=1, budget=2**31, reserved=2**28)
    assert f"keeps {boosting.MOST_KEPT:,} of the rows" in plan.why
    assert plan.fits


def test_a_budget_of_time_may_end_with_trees_alone():
    assert Recipe(budget="5min").with_(map="trees").seconds == 300


def test_estimators_take_trees():
    assert KernelRegressor(map="trees", random_state=0).fit(X, Y).score(X, Y) > 0.9
    assert KernelClassifier(map="trees", random_state=0).fit(X, LABELS).score(X, LABELS) > 0.8
