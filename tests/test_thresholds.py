"""The threshold of two classes: chosen on rows apart, kept in the model, and heeded wherever labels are made."""

import numpy as np
import pytest
import sklearn.metrics as sk
from commands import FAST, done
from tables import write_zarr
from test_export import in_numpy, in_onnx

import streamrf
from streamrf.data.readers.memory import ArraySource
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.statistics.metrics import best_threshold
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.threads import ALONE
from streamrf.training.run import Settings, train

RECIPE = Recipe(
    D=40, kernel="gaussian", length_scale=2.0, scaling="standard", bits="8", ridge=1e-3, pilot="none", holdout=0.4,
    threshold="auto",
)  # fmt: skip


def rare_class(rows=2500, seed=2):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 3)).astype(np.float32)
    return X, np.where(X[:, 0] + 0.7 * rng.standard_normal(rows) > 1.9, "rare", "common")


def trained(**settings):
    return train(ArraySource(*rare_class()), RECIPE.with_(**settings), Settings(threads=1)).model


def told(model, X):
    return model.labels(model.codes(model.scores(X, ALONE)))


# -- the choice


@pytest.mark.parametrize("f1", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_other_threshold_is_better(f1, weighted):
    rng = np.random.default_rng(7)
    codes = (rng.random(300) < 0.2).astype(int)
    logits = np.round(rng.standard_normal(300) + codes - 1, 1)  # with ties
    weights = rng.integers(0, 4, 300).astype(np.float64) if weighted else None
    chances = np.unique(1 / (1 + np.exp(-logits)))
    figure = sk.f1_score if f1 else sk.balanced_accuracy_score

    def score(threshold):
        return figure(codes, 1 / (1 + np.exp(-logits)) > threshold, sample_weight=weights)

    best = max(score(threshold) for threshold in chances - 1e-9)
    assert score(best_threshold(logits, codes, weights, f1=f1)) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(
    ("logits", "codes"), [([0.3, 0.1], [1, 1]), ([0.3, 0.1], [0, 0]), ([0.2, 0.2], [0, 1]), ([], [])]
)
def test_nothing_to_choose_from_leaves_one_half(logits, codes):
    assert best_threshold(np.array(logits), np.array(codes, int), None, f1=False) == 0.5


ROUTES = {
    "cholesky": {"solver": "cholesky"},
    "folds": {"cv": 3},
    "cg": {"solver": "cg"},
    "logistic": {"loss": "logistic"},
    "hinge": {"loss": "hinge", "epochs": 2, "solver": "sgd"},
    "binning": {"map": "binning", "D": None, "bits": "auto", "grids": 20, "kernel": "auto", "length_scale": None},
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_a_rare_class_is_found_by_every_route(route):
    model, (X, y) = trained(**ROUTES[route]), rare_class(4000, seed=9)
    threshold = model.calibration.threshold
    assert 0 < threshold < 0.3
    assert model.recipe.threshold == threshold  # a settled recipe has no auto left
    assert model.metadata["asked"]["threshold"] == "auto"
    chances = model.probabilities(model.scores(X, ALONE))
    by_half = model.labels((chances[:, 1] > 0.5).astype(int))
    assert np.array_equal(told(model, X), model.labels((chances[:, 1] > threshold).astype(int)))
    assert sk.balanced_accuracy_score(y, told(model, X)) > sk.balanced_accuracy_score(y, by_half) + 0.05


def test_another_aim_is_another_threshold():
    assert trained(threshold="f1").calibration.threshold > trained().calibration.threshold


def test_figures_are_those_of_the_labels():
    model, (X, y) = trained(), rare_class(1000, seed=9)
    found = streamrf.evaluate(model, (X, y))
    assert found["confusion"] == sk.confusion_matrix(y, told(model, X)).tolist()
    plain = streamrf.evaluate(trained(threshold=None), (X, y))
    for name in ("log_loss", "brier", "calibration_error", "auc"):  # of probabilities, which no threshold changes
        assert found[name] == plain[name]


# -- a number


@pytest.mark.parametrize("holdout", [0.0, 0.3])
@pytest.mark.parametrize("route", ["cholesky", "cg", "binning"])
def test_a_number_is_heeded_with_and_without_hold_out_rows(route, holdout):
    model, X = trained(**ROUTES[route], threshold="0.2", holdout=holdout), rare_class(500, seed=9)[0]
    assert model.recipe.threshold == 0.2
    chances = model.probabilities(model.scores(X, ALONE))[:, 1]
    assert np.array_equal(told(model, X) == "rare", chances > 0.2)


@pytest.mark.parametrize("wrong", ["often", 0, 1.0, "nan", -0.5, 2])
def test_what_is_no_probability_is_refused(wrong):
    with pytest.raises(InputError, match=r"must be auto, f1, or a probability above 0 to below 1"):
        Recipe(threshold=wrong)


def test_no_rows_to_choose_it_are_refused():
    with pytest.raises(InputError, match="must be a number where `holdout` is 0"):
        Recipe(threshold="auto", holdout=0.0)


@pytest.mark.parametrize("y", [np.arange(100) % 3, np.arange(100) / 7], ids=["three classes", "numbers"])
def test_only_two_classes_have_one(y):
    X = np.random.default_rng(0).standard_normal((100, 2))
    with pytest.raises(InputError, match="`threshold` is for two classes, and this is"):
        train(ArraySource(X, y), RECIPE, Settings(threads=1))


# -- what is kept


def test_a_model_keeps_it_through_files_updates_and_exports(tmp_path):
    X, y = rare_class()
    write_zarr(tmp_path / "t.zarr", X, (y == "rare").astype(int))
    write_zarr(tmp_path / "more.zarr", *(part[:300] for part in (rare_class(seed=5)[0], (y == "rare").astype(int))))
    place = tmp_path / "m.model"
    found = done("train", tmp_path / "t.zarr", *FAST, "--threshold", "auto", "--out", place, "--json").json
    model = Model.load(place)
    assert found["chosen"]["threshold"] == model.calibration.threshold < 0.3
    X = X.astype(np.float64)
    labels = told(model, X[:200])
    assert 10 < labels.sum() < 150
    assert np.array_equal(in_onnx(model, X[:200], tmp_path / "m.onnx")["label"], labels)
    assert np.allclose(in_numpy(model, X[:200], tmp_path / "m.py"), model.probabilities(model.scores(X[:200], ALONE)))
    space = {"__file__": str(tmp_path / "m.py"), "__name__": "script"}
    exec((tmp_path / "m.py").read_text(), space)
    assert np.array_equal(space["predict"](X[:200]), labels)
    done("update", place, tmp_path / "more.zarr")
    assert Model.load(place).calibration.threshold == model.calibration.threshold
    estimator = streamrf.KernelClassifier.load(place)
    assert np.array_equal(estimator.predict(X[:200]), told(Model.load(place), X[:200]))


def test_a_threshold_that_was_tampered_with_is_refused():
    document, arrays = trained().to_parts()
    for wrong in (1.5, "0.2", None, True):
        with pytest.raises(FileFormatError, match="must be a probability"):
            Model.from_parts({**document, "threshold": wrong}, arrays)


def test_an_estimator_has_the_setting():
    X, y = rare_class()
    fitted = streamrf.KernelClassifier(D=40, pilot="none", length_scale=2.0, threshold="auto", threads=1).fit(X, y)
    assert (fitted.predict(X) == "rare").mean() > 2 * (fitted.predict_proba(X)[:, 1] > 0.5).mean()
