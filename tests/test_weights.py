"""Weights of rows and of classes: read beside the rows, and the same as rows that come so many times."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from tables import write_zarr

from streamrf import KernelClassifier, KernelRegressor
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Span
from streamrf.data.split import Split
from streamrf.engines.local import LocalEngine
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.recipe import Recipe
from streamrf.solvers import passes
from streamrf.solvers.passes import scan_targets
from streamrf.solvers.ridge import RidgeTrial
from streamrf.statistics.calibration import fit_calibration
from streamrf.statistics.scores import Calibration
from streamrf.statistics.targets import TargetScan, Weighting
from streamrf.support.errors import DataError, InputError
from streamrf.support.threads import ALONE, Threads
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, train


def table(rows=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 3)).astype(np.float32)
    return X, rng.standard_normal(rows), rng.integers(0, 4, rows).astype(np.float64)


def zarr_with_weights(tmp_path):
    import zarr

    X, y, w = table()
    place = write_zarr(tmp_path / "t.zarr", X, y, 50)
    zarr.open_group(place, mode="a").create_array("w", data=w, chunks=(50,))
    return place


def parquet_with_weights(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    X, y, w = table()
    columns = {f"x{i}": X[:, i] for i in range(3)} | {"price": y, "w": w}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=50)
    return tmp_path / "t.parquet"


def sources(tmp_path):
    X, y, w = table()
    return {
        "zarr": open_source(zarr_with_weights(tmp_path), sample_weight="w"),
        "parquet": open_source(parquet_with_weights(tmp_path), target="price", sample_weight="w"),
        "arrays": open_source((X, y), sample_weight=w),
    }


@pytest.mark.parametrize("kind", ["zarr", "parquet", "arrays"])
def test_weights_come_with_their_rows(tmp_path, kind):
    source, (X, y, w) = sources(tmp_path)[kind], table()
    block = source.read(Span(30, 80))
    assert source.has_weights
    assert source.n_features == 3
    assert np.array_equal(block.X, X[30:80])
    assert np.array_equal(block.y, y[30:80])
    assert np.array_equal(block.weights, w[30:80])
    assert np.array_equal(block.take(slice(3, 5)).weights, w[33:35])


@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_another_process_opens_the_same_weights(tmp_path, kind):
    source = sources(tmp_path)[kind]
    again = open_source(**source.spec())
    assert again.fingerprint() == source.fingerprint()
    assert np.array_equal(again.read(Span(0, 120)).weights, table()[2])


def test_other_weights_are_other_data():
    X, y, w = table()
    first, second = (open_source((X, y), sample_weight=weights) for weights in (w, w + 1))
    assert first.fingerprint() != second.fingerprint()


@pytest.mark.parametrize("wrong", [np.nan, -1.0, np.inf])
def test_impossible_weights_are_refused_by_row(wrong):
    X, y, w = table()
    w[17] = wrong
    with pytest.raises(DataError, match="row 17"):
        open_source((X, y), sample_weight=w).read(Span(0, 120))


def test_one_weight_for_each_row():
    X, y, w = table()
    with pytest.raises(DataError, match="100 weights do not go with 120 rows"):
        open_source((X, y), sample_weight=w[:100])


def test_balanced_classes_are_those_of_scikit_learn():
    X, _, w = table()
    labels = np.where(w > 2, "a", np.where(w > 0, "b", "c"))
    coding = TargetCoding.classification(("a", "b", "c"))
    with Threads(1) as threads:
        scan = scan_targets(ArraySource(X, labels, chunk_rows=11), LocalEngine(threads))
    weighting = Weighting.of(scan, coding, "balanced", weighted=False)
    expected = compute_class_weight("balanced", classes=np.array(coding.classes), y=labels)
    np.testing.assert_allclose(weighting.class_weights, expected, rtol=1e-12)
    assert weighting.heaviest == expected.max()


def test_numbers_have_no_class_weights():
    _, y, _ = table()
    with pytest.raises(InputError, match="`sample_weight`"):
        Weighting.of(TargetScan(), TargetCoding.regression(y.min()[None], y.max()[None]), "balanced", weighted=False)


def test_plain_rows_are_not_even_scanned(monkeypatch):
    X, y, _ = table()
    scans = []
    monkeypatch.setattr(passes, "scan_targets", lambda *_: scans.append(1))
    train(ArraySource(X, y), Recipe(D=8, pilot="none"))
    assert scans == []


RECIPE = Recipe(
    D=40, kernel="gaussian", length_scale=2.0, scaling="standard", bits="float64", ridge=1e-3, pilot="none", holdout=0.0
)


MANY = 16_000  # rows, a quarter of no weight, that are not summed in float64 any more


def trained(recipe, weights=None, rows=120):
    X, y, _ = table(rows)
    return train(open_source((X, y), sample_weight=weights), recipe, Settings(threads=1)).model


@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_the_direct_route_weighs_rows_as_scikit_learn_does(holdout):
    """With rows held out too: they join with their weights, and what is left is the same."""
    X, y, w = table()
    model = trained(RECIPE.with_(holdout=holdout), w)
    assert model.recipe.solver == "cholesky"
    Z = model.map.dense(model.scaling.transform(X, np.dtype(np.float64)), ALONE)
    dense = Ridge(alpha=w.sum() * 1e-3, solver="cholesky").fit(Z, y, sample_weight=w)
    np.testing.assert_allclose(model.scores(X, ALONE)[:, 0], dense.predict(Z), atol=1e-8)


def test_balanced_classes_reach_the_direct_route():
    X, y, _ = table()
    labels = (y > 0.8).astype(int)
    model = train(ArraySource(X, labels), RECIPE.with_(class_weight="balanced"), Settings(threads=1)).model
    Z = model.map.dense(model.scaling.transform(X, np.dtype(np.float64)), ALONE)
    used = compute_sample_weight("balanced", labels)
    dense = Ridge(alpha=used.sum() * 1e-3, solver="cholesky").fit(Z, 2.0 * labels - 1, sample_weight=used)
    np.testing.assert_allclose(model.scores(X, ALONE)[:, 0], dense.predict(Z), atol=1e-8)


def test_exact_features_of_many_rows_are_weighed_by_conjugate_gradients():
    few, many = table()[2], table(MANY)[2]
    assert trained(RECIPE.with_(bits="8"), few).recipe.solver == "cholesky"
    assert trained(RECIPE.with_(bits="8"), many, MANY).recipe.solver == "cg"


def test_exact_sums_of_many_rows_refuse_weights():
    _, _, w = table(MANY)
    with pytest.raises(InputError, match="`solver='cg'`"):
        trained(RECIPE.with_(bits="8", solver="cholesky"), w, MANY)


@pytest.mark.parametrize("bits", ["auto", "8"])
@pytest.mark.parametrize(
    ("how", "cure"),
    [({"solver": "cholesky"}, "use `solver='cg'`, or `bits='float32'`$"), ({"cv": 3}, "use `bits='float32'`$")],
)
def test_the_plan_refuses_weights_that_the_sums_would(bits, how, cure):
    X, y, w = table(MANY)
    sizes = {"outputs": 1, "threads": 1, "budget": None}
    weighted, balanced = open_source((X, y), sample_weight=w), ArraySource(X, (y > 0).astype(int))
    for source, class_weight in ((weighted, None), (balanced, "balanced")):
        recipe = Recipe(D=20, bits=bits, class_weight=class_weight, **how)
        with pytest.raises(InputError, match=rf"cannot enter exact sums \(`bits={bits!r}`\): {cure}"):
            plan_run(source, recipe, **sizes)
        assert plan_run(source, recipe.with_(bits="float32"), **sizes).solver == "cholesky"


def test_weights_of_one_change_nothing():
    X, y, _ = table()
    plain = train(ArraySource(X, y), RECIPE, Settings(threads=1)).model
    assert np.array_equal(trained(RECIPE, np.ones(120)).weights.coefficients, plain.weights.coefficients)


def rare_class(rows=1500):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((rows, 3)).astype(np.float32)
    return X, np.where(X[:, 0] + 0.5 * rng.standard_normal(rows) > 1.7, "rare", "common")


def on_rare_class(weights=None, **settings):
    X, labels = rare_class()
    recipe = RECIPE.with_(**{"holdout": 0.4, **settings})
    return train(open_source((X, labels), sample_weight=weights), recipe, Settings(threads=1)).model


def row_weights_of(model):
    _, labels = rare_class()
    return np.array(model.metadata["weighting"]["class_weights"])[(labels == "rare").astype(int)]


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_classes_that_were_held_out_join_with_their_weights(class_weight):
    w = np.random.default_rng(3).integers(1, 20, 1500).astype(np.float64)
    fixed = {"class_weight": class_weight, "scaling": "none", "map": "mc"}  # no sample has a part in these
    held = on_rare_class(w, holdout=0.4, **fixed)
    if class_weight:  # which are those of the rows to fit
        w, fixed["class_weight"] = w * row_weights_of(held), None
    held, never = held.weights, on_rare_class(w, holdout=0.0, **fixed).weights
    np.testing.assert_allclose(held.coefficients, never.coefficients, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(held.intercept, never.intercept, rtol=1e-6)


@pytest.mark.parametrize("how", [{}, {"cv": 3}, {"solver": "cg"}])
def test_a_rare_class_that_counts_for_as_much_is_found(how):
    """The calibration decides, so it must know of the weights too."""
    X, labels = rare_class()
    model = on_rare_class(class_weight="balanced", **how)
    predicted = model.labels(model.codes(model.scores(X, ALONE)))
    assert (predicted[labels == "rare"] == "rare").mean() > 0.85


def test_every_route_calibrates_with_the_same_weights():
    w = np.random.default_rng(3).integers(1, 20, 1500).astype(np.float64)
    direct, cg = (on_rare_class(w, class_weight="balanced", solver=solver) for solver in ("cholesky", "cg"))
    assert (direct.recipe.solver, cg.recipe.solver) == ("cholesky", "cg")
    np.testing.assert_allclose(direct.calibration.slope, cg.calibration.slope, rtol=0.1)
    np.testing.assert_allclose(direct.calibration.shift, cg.calibration.shift, atol=0.2)


def test_rows_of_no_weight_might_as_well_not_be_there():
    """They made a small table a large one: other rows judged, no folds chose lambda, and the pilot saw other rows. A
    kernel was chosen that the rows which count would not have chosen."""
    X, y, _ = table(12_000)
    counts = np.arange(12_000) % 20 == 0
    y = np.where(counts, np.sin(3 * X[:, 0]), 5.0 * y)
    recipe = Recipe(D=60, map="sobol")
    model, alone = (
        train(source, recipe, Settings(threads=1)).model
        for source in (open_source((X, y), sample_weight=counts.astype(float)), ArraySource(X[counts], y[counts]))
    )
    for name in ("scaling", "kernel", "length_scale", "bits", "ridge", "solver"):
        assert getattr(model.recipe, name) == getattr(alone.recipe, name)
    assert model.metadata["split"] == alone.metadata["split"]
    np.testing.assert_allclose(model.scores(X[:50], ALONE), alone.scores(X[:50], ALONE), rtol=1e-4, atol=1e-4)
    assert model.metadata["holdout"]["rmse"] == pytest.approx(alone.metadata["holdout"]["rmse"], rel=1e-4)


def test_rows_of_no_weight_have_no_say_in_lambda():
    X, y, w = table()
    model = trained(RECIPE.with_(holdout=0.4), w)
    y = np.where(w == 0, 1e3, y)
    astray = train(open_source((X, y), sample_weight=w), RECIPE.with_(holdout=0.4), Settings(threads=1)).model
    (error,), (expected,) = (one.metadata["lambda_path"] for one in (astray, model))
    assert error["mean_squared_error"] == pytest.approx(expected["mean_squared_error"], rel=1e-6)


def test_folds_count_for_the_weights_of_their_rows():
    w = np.where(np.arange(120) % 5 == 0, 20.0, 1.0)
    found = trained(RECIPE.with_(cv=3, holdout=0.2), w).metadata["cross_validation"]
    X, _, _ = table()
    split, rows = Split(0.2, key="inputs", folds=3, seed=RECIPE.seed), Block(X, None, np.arange(120))
    fold = split.folds_of(rows)
    weights = [w[fold == i].sum() for i in range(3)]
    assert found["mean_squared_error"] == pytest.approx(np.average(found["by_fold"], weights=weights), rel=1e-12)


def test_rows_of_no_weight_calibrate_nothing():
    scores, codes = np.random.default_rng(0).standard_normal((50, 1)), np.arange(50) % 2
    assert np.array_equal(fit_calibration(scores, codes, np.zeros(50)).slope, Calibration.plain(1).slope)


@pytest.mark.parametrize("how", [{}, {"cv": 3}, {"solver": "cg"}, {"solver": "newton", "loss": "logistic"}])
def test_figures_of_held_out_rows_count_weights(how):
    """Labels of rows that weigh nothing are turned round, which no figure may see; and the rest is weighed."""
    X, labels = rare_class()
    w = np.random.default_rng(3).integers(0, 3, 1500).astype(np.float64)
    turned = np.where(w == 0, np.where(labels == "rare", "common", "rare"), labels)
    recipe = RECIPE.with_(**{"holdout": 0.4, "ridge": 1e-2, **how})
    found, astray = (
        train(open_source((X, y), sample_weight=w), recipe, Settings(threads=1)).model.metadata["holdout"]
        for y in (labels, turned)
    )
    assert found["rows"] < 500  # of some 600, a third of which weigh nothing
    assert found["weight"] == np.sum(found["confusion"]) > found["rows"]
    assert found["confusion"] == astray["confusion"]
    assert found["log_loss"] == pytest.approx(astray["log_loss"], rel=1e-6)


def test_weights_of_classes_do_not_change_what_is_counted():
    """They are a way of training. The figures stay those that `evaluate` gives of such rows."""
    found = on_rare_class(class_weight="balanced").metadata["holdout"]
    assert "weight" not in found
    assert np.sum(found["confusion"]) == found["rows"]
    assert found["baseline"]["error"] < 0.2


@pytest.mark.parametrize(
    ("kind", "bits"), [("mc", "8"), ("mc", "12"), ("mc", "float32"), ("mc", "float64"), ("sorf", "8")]
)
def test_small_fits_weigh_the_features_that_the_map_has(kind, bits):
    """Half of the features were memory as it was found."""
    X, y, w = table()
    map = train(ArraySource(X, y), RECIPE.with_(bits=bits, map=kind), Settings(threads=1)).model.map
    scaling, coding = fit_scaling("standard", X), TargetCoding.regression(y.min()[None], y.max()[None])
    state = RidgeTrial(scaling, map, coding, ALONE).sums(Block(X, y, np.arange(120), w))
    Z = map.dense(scaling.transform(X, map.precision.inputs), ALONE) / map.amplitudes
    wanted = Z.T @ (w[:, None] * Z)
    np.testing.assert_allclose(
        np.tril(state.layout.columns(state.totals, 0, 40)[:40]), np.tril(wanted), rtol=1e-4, atol=1e-3 * wanted.max()
    )


@pytest.mark.parametrize(("bits", "close"), [("float64", 1e-10), ("12", 1e-4)])
@pytest.mark.parametrize("classifier", [False, True])
def test_a_weight_is_a_number_of_copies(classifier, bits, close):
    """Scikit-learn's check_sample_weight_equivalence, with lambda given and nothing held out."""
    rng = np.random.default_rng(42)
    X, counts = rng.normal(size=(200, 6)), rng.integers(0, 5, 200)
    y = (X[:, 0] * X[:, 1] > 0).astype(int) if classifier else X[:, 0] * X[:, 1]
    order = rng.permutation(counts.sum())
    copies = (np.repeat(array, counts, axis=0)[order] for array in (X, y))
    kind, settings = KernelClassifier if classifier else KernelRegressor, {"holdout": 0.0, "ridge": 1e-3, "bits": bits}
    weighted = kind(D=60, pilot="none", threads=1, **settings).fit(X, y, sample_weight=counts)
    repeated = kind(D=60, pilot="none", threads=1, **settings).fit(*copies)
    assert weighted.model_.recipe.length_scale == pytest.approx(repeated.model_.recipe.length_scale, rel=1e-9)
    assert weighted.model_.scores(X, ALONE) == pytest.approx(repeated.model_.scores(X, ALONE), abs=close)


@pytest.mark.parametrize("rows", [200, 1600])  # with ten folds, and with five; 1,600 rows come 3,200 times
@pytest.mark.parametrize("classifier", [False, True])
def test_a_weight_is_a_number_of_copies_for_all_that_chooses_and_judges(classifier, rows):
    """Pilot, roles, folds, lambda, calibration and figures: nothing is set but D."""
    rng = np.random.default_rng(42)
    X, counts = rng.normal(size=(rows, 3)), rng.integers(0, 5, rows)
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.5 * rng.normal(size=rows)  # no lambda so small that rounding matters
    y = (y > 0).astype(int) if classifier else y
    order = rng.permutation(counts.sum())
    copies = (np.repeat(array, counts, axis=0)[order] for array in (X, y))
    kind = KernelClassifier if classifier else KernelRegressor
    weighted = kind(D=50, threads=1, random_state=3).fit(X, y, sample_weight=counts).model_
    repeated = kind(D=50, threads=1, random_state=3).fit(*copies).model_
    for name in ("scaling", "kernel", "length_scale", "bits", "solver"):
        assert getattr(weighted.recipe, name) == getattr(repeated.recipe, name)
    assert weighted.metadata["split"] == repeated.metadata["split"]
    assert weighted.weights.ridge == repeated.weights.ridge
    np.testing.assert_allclose(weighted.scores(X, ALONE), repeated.scores(X, ALONE), rtol=1e-6, atol=1e-6)
    found, expected = (model.metadata["holdout"] for model in (weighted, repeated))
    for name in ("log_loss", "error") if classifier else ("rmse", "r2"):
        assert found[name] == pytest.approx(expected[name], rel=1e-6)
        assert found["interval"][name] == pytest.approx(expected["interval"][name], rel=1e-6)


def test_classes_are_balanced_by_the_rows_to_fit():
    X, labels = rare_class()
    model = on_rare_class(class_weight="balanced")
    rows = Block(X, None, np.arange(len(X)))
    fitted = labels[~Split.from_json(model.metadata["split"]).held(rows)]
    expected = compute_class_weight("balanced", classes=np.unique(labels), y=fitted)
    np.testing.assert_allclose(model.metadata["weighting"]["class_weights"], expected, rtol=1e-12)
