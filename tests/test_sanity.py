"""What a user would check by hand: a plain linear ridge on the same rows, and words where a model should not be
trusted."""

import numpy as np
import pytest
from commands import FAST, done
from sklearn.linear_model import Ridge
from tables import labelled, smooth, write_zarr

from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.data.split import JUDGE, Split
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.reports.report import make_report
from streamrf.solvers.lambda_path import LambdaWalk
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE
from streamrf.training import plan as planning
from streamrf.training import sanity
from streamrf.training.run import Settings, train

pytestmark = pytest.mark.usefixtures("in_little_time")
RECIPE = Recipe(D=40, kernel="gaussian", length_scale=2.0, scaling="standard", bits="8", pilot="none")


class Notes(Reporter):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def trained(X, y, weights=None, reporter=None, **settings):
    source = open_source((X, y), sample_weight=weights)
    return train(source, RECIPE.with_(**settings), Settings(threads=1), reporter).model


def straight(rows=1500, seed=0):
    """A linear target: features of a narrow kernel cannot keep up."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 4)) * [1.0, 5.0, 0.1, 1.0] + 3.0
    return X, X @ [1.0, 0.2, 30.0, 0.0] + 0.3 * rng.standard_normal(rows)


# -- the linear ridge


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_ridge_of_scikit_learn(weighted):
    X, y = straight()
    w = np.random.default_rng(1).gamma(1.0, size=1500) if weighted else None
    Y = np.column_stack([y, -2 * y + X[:, 3]])
    scaling, coding = fit_scaling("standard", X), TargetCoding.regression(Y.min(axis=0), Y.max(axis=0))
    told = sanity.fit_linear(Block(X, Y, np.arange(1500), w), scaling, coding)
    scaled = scaling.transform(X, np.dtype(np.float64))
    total = 1500 if w is None else w.sum()
    dense = Ridge(alpha=told["lambda"] * total).fit(scaled, Y, sample_weight=w)
    np.testing.assert_allclose(np.array(told["coefficients"]), dense.coef_.T, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(told["intercept"], dense.intercept_, rtol=1e-8)
    assert told["rows"] == 1500


def test_lambda_is_small_for_a_line_and_large_for_noise():
    X, y = straight(300)
    scaling, noise = fit_scaling("standard", X), np.random.default_rng(2).standard_normal(300)
    found = []
    for target in (y, noise):
        coding = TargetCoding.regression(target.min()[None], target.max()[None])
        found.append(sanity.fit_linear(Block(X, target, np.arange(300)), scaling, coding)["lambda"])
    assert found[0] < 1e-2 < found[1]


BINNING = {"map": "binning", "D": None, "bits": "auto", "kernel": "auto", "grids": 20, "length_scale": None}


@pytest.mark.parametrize("how", [{}, {"cv": 3}, {"solver": "cg"}, BINNING])
def test_it_is_judged_on_the_rows_that_judge_the_model(how):
    X, y = straight()
    model = trained(X, y, **how)
    found = model.metadata["holdout"]
    split = Split.from_json(model.metadata["split"])
    rows = Block(X, y, np.arange(1500))
    judges = split.roles(rows) == JUDGE
    assert judges.sum() == found["rows"] > 100
    rest = model.scaling.transform(X[~judges], np.dtype(np.float64))
    dense = Ridge(alpha=1e-6).fit(rest, y[~judges])
    error = dense.predict(model.scaling.transform(X[judges], np.dtype(np.float64))) - y[judges]
    assert found["linear"]["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=0.02)
    assert found["linear"]["rows"] <= 1500 - judges.sum()  # fitted to none of them
    assert "linear" not in model.metadata


def test_classes_and_weights():
    X, c = labelled(2000)
    w = np.random.default_rng(1).integers(0, 3, 2000).astype(np.float64)
    turned = np.where(w == 0, 2 - c, c)
    found, astray = (trained(X, y, w, bits="float64").metadata["holdout"]["linear"] for y in (c, turned))
    assert 0 < found["error"] < 2 / 3
    assert found["error"] == pytest.approx(astray["error"])


@pytest.mark.parametrize("limit", ["MOST_COLUMNS", "MOST_WEIGHTS"])
def test_many_columns_have_none(monkeypatch, limit):
    monkeypatch.setattr(sanity, limit, 3)
    assert trained(*straight()).metadata["holdout"]["linear"] is None


def test_one_thread_or_two_are_the_same_bits():
    X, y = straight()
    one, two = (
        train(ArraySource(X, y), RECIPE, Settings(threads=count)).model.metadata["holdout"]["linear"]
        for count in (1, 2)
    )
    assert one == two


# -- words


def test_a_model_that_is_worse_than_a_line_says_so():
    told = Notes()
    model = trained(*straight(), length_scale=0.2, reporter=told)
    (warning,) = [text for text in model.metadata["warnings"] if "linear ridge" in text]
    assert f"{model.metadata['holdout']['linear']['rmse']:.4g}" in warning
    assert f"warning: {warning}" in told.notes
    assert not any("linear" in text for text in trained(*smooth(2000), D=200).metadata["warnings"])


def holdout(error, baseline, high, log_loss=0.5, **more):
    figures = {"class": "a", "error": baseline, "log_loss": 0.51}
    return {"error": error, "log_loss": log_loss, "interval": {"error": [0.0, high]}, "baseline": figures, **more}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(holdout(0.2, 0.3, 0.25), [], id="better"),
        pytest.param(holdout(0.2, 0.22, 0.25), ["no better than the baseline"], id="perhaps no better"),
        pytest.param(holdout(0.01, 0.01, 0.02, log_loss=0.03), [], id="a rare class that probabilities know"),
        pytest.param(holdout(0.2, 0.3, 0.25, linear={"error": 0.1}), ["linear ridge is better"], id="worse"),
        pytest.param(holdout(0.2, 0.3, 0.25, linear={"error": 0.199}), [], id="about a line"),
        pytest.param({"rmse": 2.0, "baseline": {"rmse": 1.9}}, ["always predicting the mean"], id="numbers"),
        pytest.param(
            {"rmse": 1.2, "r2": 0.2, "interval": {"rmse": (0.9, 1.5), "r2": (0.1, 0.3)}, "baseline": {"rmse": 1.35}},
            [],
            id="groups of rows make wide intervals, but each row is better",
        ),
        pytest.param(None, ["No row judges the model"], id="nothing held out"),
        pytest.param(
            {"rmse": 0.1, "rows": 3, "interval": {}, "baseline": {"rmse": 1.9}}, ["Only 3 rows judge"], id="few judges"
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_figures(found, said):
    warnings = sanity.advice({"holdout": found}, RECIPE)
    assert len(warnings) == len(said)
    assert all(words in text for words, text in zip(said, warnings, strict=True))


def test_classes_that_count_alike_are_judged_alike():
    """They cost error on purpose."""
    figures = holdout(0.18, 0.06, 0.21, log_loss=0.7, balanced_accuracy=0.82, by_class=[{}, {}])
    balanced = RECIPE.with_(class_weight="balanced")
    assert sanity.advice({"holdout": figures}, balanced) == []
    assert "no better" in sanity.advice({"holdout": {**figures, "balanced_accuracy": 0.5}}, balanced)[0]
    assert "no better" in sanity.advice({"holdout": figures}, RECIPE)[0]


def test_noise_is_no_better_than_the_mean():
    rng = np.random.default_rng(3)
    model = trained(rng.standard_normal((1000, 3)), rng.standard_normal(1000))
    assert any("no better than the baseline" in text for text in model.metadata["warnings"])


def test_features_that_are_used_up_are_said():
    X, y = smooth(2000, noise=0.0)
    few = trained(X, y, D=16, length_scale=3.0, ridge=1e-9).metadata
    assert few["effective_dimension"] == pytest.approx(16, rel=0.1)
    assert any("effective dimension is 16 of 16" in text for text in few["warnings"])
    blind = RECIPE.with_(holdout=0.0)
    assert sanity.advice({"effective_dimension": 30.0}, blind) == []
    assert len(sanity.advice({"effective_dimension": 39.0}, blind)) == 1


def test_features_of_a_blend_that_are_used_up_are_said_where_there_are_more_to_be_had():
    blend = RECIPE.with_(map="blend", holdout=0.0)
    (warning,) = sanity.advice({"effective_dimension": 39.0, "rows": 900}, blend)
    assert "Set `map` to blend and `D` to more than 40" in warning
    assert sanity.advice({"effective_dimension": 39.0, "rows": 60}, blend) == []  # most rows are landmarks already


def test_nothing_is_said_of_landmarks_that_a_blend_has_left_out():
    told, blend = {"effective_dimension": 39.0, "rows": 900, "warnings": ["narrow"]}, RECIPE.with_(map="blend")
    said = [
        sanity.advice({**told, "members": [{"map": name}]}, blend.with_(holdout=0.0)) for name in ("landmarks", "trees")
    ]
    assert [len(each) for each in said] == [2, 0]


def few_features(rng):
    """The quickstart's table and kernel, which ended at lambda 1e-12: D is too small."""
    X = rng.standard_normal((20_000, 20))
    y = np.sin(X[:, 0] + X[:, 1]) + 0.5 * np.cos(X[:, 2]) * X[:, 3] + 0.3 * rng.standard_normal(20_000)
    return X, y, {"D": 64, "kernel": "laplacian", "length_scale": 126.0}


def a_line(rng):
    X = rng.standard_normal((400, 2))
    return X, X[:, 0] * 0.5, {"D": 24, "length_scale": 8.0, "scaling": "none"}


def noise(rng):
    X = rng.standard_normal((2000, 3))
    return X, rng.standard_normal(2000), {"D": 64, "length_scale": 0.3}


@pytest.mark.parametrize(
    ("table", "what", "cure"),
    [
        (few_features, "The features are used up", "Raise `D` for a smaller error."),
        (a_line, "is the smallest there is", "raise `D`."),
        (noise, "The model is no better than the baseline", "Check the inputs"),
    ],
)
def test_lambda_at_an_end_of_its_range(table, what, cure):
    """Before, a run ended at lambda 1e-12 or 10 without a word."""
    X, y, settings = table(np.random.default_rng(0))
    told = Notes()
    model = trained(X, y, reporter=told, bits="float64", **settings)
    (warning,) = [text for text in model.metadata["warnings"] if what in text]
    assert cure in warning
    assert f"warning: {warning}" in told.notes


class Falling(LambdaWalk):
    """The larger, the better."""

    def errors(self, ridge):
        return np.array([1 / ridge])

    def keep(self, outputs):
        """Nothing."""


def test_the_largest_lambda_says_what_to_do():
    path = Falling()
    path.choose(1e-3)
    (words,) = path.at_an_end()
    assert words.startswith("Lambda 100 is the largest there is")
    assert "leave `kernel` and `length_scale` to the pilot" in words
    path = Falling()
    path.choose(1e-3, fixed=True)
    assert path.at_an_end() == []


# -- words of the default model, with nothing set


def default(X, y):
    return train(open_source((X, y)), Recipe(), Settings(threads=1)).model


def test_the_default_says_that_few_rows_judge():
    X = np.random.default_rng(0).standard_normal((20, 2))
    words = default(X, X[:, 0]).metadata["warnings"]
    assert any("rows judge the model" in text for text in words)


def test_the_default_says_that_noise_is_no_better_than_the_mean():
    rng = np.random.default_rng(0)
    model = default(rng.standard_normal((2100, 3)), rng.standard_normal(2100))
    assert model.recipe.map == "blend"
    assert any("no better than the baseline" in text for text in model.metadata["warnings"])


def test_the_default_says_that_kernels_cannot_be_told_apart():
    """A rare class: some ten rows of it judge the trials."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2100, 3))
    model = default(X, (rng.random(2100) < 0.02 * (X[:, 0] > 0)).astype(int))
    assert "landmarks" in model.metadata["trained"]
    assert model.metadata["certainty"]["others"]
    kept = [each["map"] for each in model.metadata["members"]]
    said = [text for text in model.metadata["warnings"] if "too few to tell" in text]
    assert bool(said) == ("landmarks" in kept)
    assert not any("`kernel`" in text for text in said)  # which would leave the other members out


def fast_wave(rows):
    x = np.random.default_rng(0).uniform(0, 1, (rows, 1))
    return x, np.sin(3000 * x[:, 0]) + 0.1 * np.random.default_rng(1).standard_normal(rows)


def test_the_default_says_that_width_and_lambda_are_at_an_end(monkeypatch):
    monkeypatch.setattr(planning, "affordable_features", lambda *sizes: 1700)  # there would be twice as many
    model = default(*fast_wave(21_000))
    assert any("is the narrowest that the pilot tried" in text for text in model.metadata["warnings"])
    (text,) = [text for text in model.metadata["warnings"] if text.startswith("Lambda")]
    assert text.endswith("give it a larger `budget`.")  # which says how many features there are


def test_warnings_are_in_every_place(tmp_path):
    place = tmp_path / "m.model"
    write_zarr(tmp_path / "t.zarr", *straight())
    found = done("train", tmp_path / "t.zarr", *FAST, "--length-scale", "0.2", "--out", place, "--json").json
    (text,) = [text for text in found["warnings"] if "linear ridge" in text]
    assert Model.load(place).metadata["warnings"] == found["warnings"]
    assert found["warnings"] == done("inspect", place, "--json").json["warnings"]
    shown = done("train", tmp_path / "t.zarr", *FAST, "--length-scale", "0.2", "--out", place, "--overwrite").out
    assert "warning" in shown
    assert "leave --kernel, --length-scale and --scaling to it" in shown
    assert "Warning: A plain linear ridge is better" in make_report(place, threads=ALONE).html
    assert text.endswith("(leave `kernel`, `length_scale` and `scaling` to it).")
