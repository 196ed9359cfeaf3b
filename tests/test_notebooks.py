"""Python at a prompt: documented parameters, types, fitted attributes, standard deviations, progress, HTML."""

import inspect
import pickle

import numpy as np
import pytest
from tables import labelled, smooth
from test_docs import load_script

import streamrf
from streamrf import KernelClassifier, KernelRegressor, Recipe, Settings
from streamrf.api import parameters
from streamrf.models.uncertainty import Posterior
from streamrf.support.errors import InputError
from streamrf.support.threads import ALONE

FAST = {"D": 32, "kernel": "gaussian", "length_scale": 2.0, "pilot": "none", "threads": 1}
FUNCTIONS = [
    streamrf.plan, streamrf.train, streamrf.predict, streamrf.evaluate, streamrf.importance, streamrf.load,
    streamrf.open_source, streamrf.prepare, streamrf.accumulate, streamrf.update, streamrf.forget,
    streamrf.RandomFeatures.fit, streamrf.RandomFeatures.transform,
]  # fmt: skip
METHODS = [
    getattr(kind, name)
    for kind in (KernelRegressor, KernelClassifier)
    for name in ("fit", "partial_fit", "predict", "predict_proba", "decision_function", "score", "save", "load")
    if hasattr(kind, name)
]


@pytest.fixture(scope="module")
def fitted():
    return KernelRegressor(**FAST).fit(*smooth(600))


@pytest.mark.parametrize("function", [*FUNCTIONS, *METHODS, KernelRegressor, KernelClassifier, Settings])
def test_every_parameter_is_documented_with_its_type(function):
    section = (inspect.getdoc(function) or "").split("Parameters\n----------\n")[1]
    heads = [line.split(" : ") for line in section.split("\n\n")[0].splitlines() if not line.startswith(" ")]
    assert all(len(head) == 2 for head in heads)
    expected = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    assert [name.lstrip("*") for name, _ in heads] == [p.name for p in expected]


def test_types_are_those_of_the_settings():
    made = load_script("make_api_reference").parameter_types()
    assert inspect.getsource(parameters) == made, "run scripts/make_api_reference"


def test_a_fit_tells_what_it_found(fitted):
    assert fitted.lambda_ == fitted.model_.weights.ridge
    assert (fitted.kernel_, fitted.length_scale_, fitted.scaling_) == ("gaussian", 2.0, "standard")
    assert fitted.holdout_["rmse"] > 0
    assert fitted.trials_ == []
    for name in ("lambda_", "length_scale_", "holdout_", "feature_importances_"):
        assert not hasattr(KernelRegressor(), name)


def test_importances_sum_to_one_and_find_what_matters():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 4))
    model = KernelRegressor(**FAST).fit(X, 3 * X[:, 2])
    found = model.feature_importances_
    assert found.shape == (4,)
    assert found.sum() == pytest.approx(1)
    assert found.argmax() == 2
    assert found[2] > 0.9


def test_no_row_leaves_with_the_estimator(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    assert again._rows is None
    assert fitted._rows is not None
    assert not hasattr(again, "feature_importances_")
    X, _ = smooth(50, seed=1)
    assert np.array_equal(again.predict(X), fitted.predict(X))


def test_standard_deviations_are_those_of_the_posterior(fitted):
    X, _ = smooth(80, seed=1)
    mean, deviation = fitted.predict(X, return_std=True)
    assert np.array_equal(mean, fitted.predict(X))
    model = fitted.model_
    posterior = Posterior.from_state(fitted.statistics_.state, model.map, model.coding, model.weights.ridge, ALONE)
    expected = posterior.deviations(model.map, model.pipeline.scaled(X), ALONE, unrounded=True)[:, 0]
    assert deviation == pytest.approx(expected, rel=1e-12)
    assert deviation.shape == (80,)
    weighted = KernelRegressor(**FAST).fit(*smooth(200), sample_weight=np.arange(200) + 1.0)
    with pytest.raises(InputError, match="`return_std=True` needs the sums"):
        weighted.predict(X, return_std=True)


def test_memory_may_be_text(tmp_path):
    X, y = smooth(300)
    given = [KernelRegressor(**FAST, memory=memory).fit(X, y).predict(X) for memory in ("2GB", 2 * 10**9)]
    assert np.array_equal(*given)
    assert Settings(memory="512MiB").budget == 512 * 2**20
    assert streamrf.plan((X, y), Recipe(D=32), memory="3GB").budget == 3 * 10**9
    for refused in (
        lambda: KernelRegressor(**FAST, memory="2XB").fit(X, y),
        lambda: streamrf.plan((X, y), memory="2XB"),
    ):
        with pytest.raises(InputError, match="`memory='2XB'`: must be a size such as '2GB'"):
            refused()


def test_progress_is_printed_for_those_who_ask(capsys):
    X, y = labelled(300, classes=2)
    KernelClassifier(**FAST).fit(X, y)
    assert capsys.readouterr() == ("", "")
    KernelClassifier(**FAST, verbose=1).fit(X, y)
    streamrf.train((X, y), Recipe(D=32, pilot="none"), verbose=1)
    said = capsys.readouterr()
    assert said.out.count("training: 300 of 300 rows") == 2
    assert said.err == ""


def test_models_have_html_and_one_line(fitted):
    html = fitted.model_._repr_html_()
    assert "<th style='text-align:left'>hold-out rmse</th>" in html
    assert "gaussian" in html
    trained = streamrf.train(smooth(200), Recipe(D=16, pilot="none"))
    assert trained._repr_html_() == trained.model._repr_html_()
    assert repr(trained) == repr(trained.model)
    assert "rows 200, inputs" in repr(trained)
    assert len(repr(trained).splitlines()) == 1
    assert "<style" in fitted._repr_html_()  # scikit-learn's own
