"""The scikit-learn face: what it takes, what it keeps, and that it is the command's model and nothing else."""

import inspect
import pickle
from dataclasses import fields

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from commands import FAST, done
from scipy import sparse
from sklearn.base import clone
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from tables import labelled, smooth, write_zarr

from streamrf import KernelClassifier, KernelRegressor, Model, RandomFeatures, Recipe
from streamrf.api import inputs
from streamrf.api.inputs import SETTINGS, Batch
from streamrf.data.readers.memory import ArraySource
from streamrf.features.fourier import KINDS, kind_of
from streamrf.support import errors
from streamrf.training.update.changes import accumulate, prepare

QUICK = {"D": 40, "pilot": "none", "length_scale": 2.0, "bits": "8", "ridge": 1e-4, "threads": 1}
NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def rows():
    return smooth(800)


@pytest.fixture(scope="module")
def fitted(rows):
    return KernelRegressor(**QUICK).fit(*rows)


def as_inputs(kind, X, y, folder):
    """The same rows, as another library holds them."""
    table = pd.DataFrame(X, columns=NAMES)
    if kind == "sparse":
        return sparse.csr_matrix(X), y
    if kind == "pandas":
        return table, pd.Series(y)
    if kind == "arrow":
        return pa.table(dict(zip(NAMES, X.T, strict=True))), pa.array(y)
    if kind == "dask array":
        return da.from_array(X, chunks=(300, 3)), da.from_array(y, chunks=250)
    if kind == "dask table":
        frame = dd.from_pandas(table.assign(y=y), npartitions=3)
        return frame[NAMES], frame["y"]
    if kind == "zarr array":
        group = zarr.open_group(write_zarr(folder / "arrays.zarr", X, y, chunk=300), mode="r")
        return group["X"], group["y"]
    if kind == "zarr path":
        return write_zarr(folder / "rows.zarr", X, y, chunk=300), None
    if kind == "two paths":
        return [write_zarr(folder / f"{i}.zarr", X[i::2], y[i::2], chunk=300) for i in (0, 1)], None
    pq.write_table(pa.table({**dict(zip(NAMES, X.T, strict=True)), "price": y}), folder / "rows.parquet")
    return folder / "rows.parquet", "price"


KINDS_OF_INPUT = [
    "sparse", "pandas", "arrow", "dask array", "dask table", "zarr array", "zarr path", "two paths", "parquet path",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS_OF_INPUT)
def test_every_kind_of_input_gives_the_same_sums(kind, rows, fitted, tmp_path):
    X, y = as_inputs(kind, *rows, tmp_path)
    other = KernelRegressor(**QUICK).fit(X, y)
    assert other.n_features_in_ == 6
    names = NAMES if kind in ("pandas", "arrow", "dask table", "parquet path") else None
    assert (list(other.feature_names_in_) if names else getattr(other, "feature_names_in_", None)) == names
    order = np.argsort(np.r_[0:800:2, 1:800:2]) if kind == "two paths" else slice(None)
    if kind != "two paths":  # other rows are held out there, and the scaling is drawn in another order
        assert other.statistics_.digest() == fitted.statistics_.digest()
        assert np.array_equal(other.predict(X), fitted.predict(rows[0]))
        assert other.score(X, y) == pytest.approx(fitted.score(*rows), abs=1e-9)
    assert np.abs(other.predict(X)[order] - fitted.predict(rows[0])).max() < 0.05


def test_text_in_stored_tables_is_coded_as_the_command_does(tmp_path):
    X, y = smooth(600)
    town = np.array(["Rome", "Oslo", "Bern"])[np.arange(600) % 3]
    table = pa.table({"a": X[:, 0], "town": town, "price": y + (town == "Oslo")})
    pq.write_table(table, tmp_path / "towns.parquet")
    model = KernelRegressor(**QUICK).fit(tmp_path / "towns.parquet", "price")
    assert model.n_features_in_ == 4
    pq.write_table(table.select(["town", "a"]), tmp_path / "new.parquet")  # another order, no target
    assert np.array_equal(model.predict(tmp_path / "new.parquet"), model.predict(tmp_path / "towns.parquet"))
    model.partial_fit(tmp_path / "towns.parquet", "price")
    assert model.statistics_.rows == 1200
    assert model.score(tmp_path / "towns.parquet") > 0.1


def test_settings_are_those_of_a_recipe():
    ours = set(inspect.signature(KernelRegressor).parameters) - {
        "gamma",
        "random_state",
        "threads",
        "memory",
        "verbose",
        "engine",
    }
    recipe = {field.name: field.default for field in fields(Recipe) if field.name not in ("task", "seed")}
    assert set(recipe) == ours == {each.name for each in SETTINGS}
    assert {name: value for name, value in KernelRegressor().get_params().items() if name in ours} == recipe


def test_random_state_is_the_seed(rows, fitted):
    assert fitted.model_.recipe.seed == 0
    other = KernelRegressor(**{**QUICK, "random_state": 5}).fit(*rows)
    assert other.model_.recipe.seed == 5
    generator = np.random.RandomState(3)
    seeds = {KernelRegressor(**QUICK, random_state=generator)._recipe().seed for _ in range(3)}
    assert len(seeds) == 3


def test_gamma_is_a_width(rows):
    settings = {**QUICK, "length_scale": None, "gamma": 0.125}
    model = KernelRegressor(**settings, kernel="gaussian").fit(*rows).model_
    assert model.recipe.length_scale == pytest.approx(2.0)
    with pytest.raises(errors.InputError, match="name one"):
        KernelRegressor(**settings).fit(*rows)


# -- rows that join


@pytest.mark.parametrize("bits", ["8", "12"])
def test_partial_fit_adds_sums_exactly(rows, bits):
    X, y = rows
    settings = {**QUICK, "bits": bits}
    grown = KernelRegressor(**settings)
    for part in np.array_split(np.arange(800), 7):
        grown.partial_fit(X[part], y[part])
    first = np.array_split(np.arange(800), 7)[0]
    prepared = prepare(ArraySource(X[first], y[first]), KernelRegressor(**settings)._recipe())
    once = accumulate(prepared, ArraySource(X, y))
    assert grown.statistics_.digest() == once.digest()
    assert np.array_equal(grown.model_.weights.coefficients, once.solve(1e-4).weights.coefficients)


def test_rows_may_come_twice(rows):
    X, y = rows[0][:200], rows[1][:200]
    twice = KernelRegressor(**QUICK).partial_fit(X, y).partial_fit(X, y)
    both = KernelRegressor(**QUICK).partial_fit(X, y)
    doubled = both.statistics_.state.copy()
    doubled += both.statistics_.state
    assert twice.statistics_.digest() == doubled.digest()
    assert Batch(ArraySource(X, y), 0).fingerprint() != Batch(ArraySource(X, y), 1).fingerprint()


def test_rows_join_what_was_fitted(rows):
    X, y = rows
    grown = KernelRegressor(**QUICK).fit(X[:500], y[:500])
    before = grown.predict(X)
    grown.partial_fit(X[500:], y[500:])
    assert grown.statistics_.rows == 800
    assert not np.array_equal(grown.predict(X), before)
    assert grown.model_.weights.ridge == 1e-4


def test_lambda_is_chosen_when_it_is_not_given(rows):
    X, y = rows
    model = KernelRegressor(**{**QUICK, "D": 100, "ridge": None}).partial_fit(X, y)
    assert len(model.model_.metadata["lambda_path"]) > 2
    assert model.score(X, y) > 0.8


def test_classes_may_be_named_beforehand():
    X, y = labelled(600)
    model = KernelClassifier(**QUICK)
    order = np.argsort(y, kind="stable")  # the first batch has one class only
    for part in np.array_split(order, 6):
        model.partial_fit(X[part], y[part], classes=[0, 1, 2])
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(X, y) > 0.6
    with pytest.raises(errors.DataError, match="not one of the 3 classes"):
        model.partial_fit(X, y + 1)


# -- classes


@pytest.mark.parametrize("labels", [[0, 1], [0, 1, 2], ["no", "yes"], ["a", "b", "c"], [False, True], [1.0, 2.0]])
def test_labels_of_any_type(labels):
    X, y = labelled(600, classes=len(labels))
    truth = np.array(labels)[y]
    model = KernelClassifier(**QUICK).fit(X, truth)
    assert model.classes_.tolist() == sorted(labels)
    assert set(model.predict(X)) <= set(labels)
    chances, logits = model.predict_proba(X), model.decision_function(X)
    assert np.allclose(chances.sum(axis=1), 1)
    assert np.array_equal(model.classes_[chances.argmax(axis=1)], model.predict(X))
    best = (logits > 0).astype(int) if len(labels) == 2 else logits.argmax(axis=1)
    assert np.array_equal(model.classes_[best], model.predict(X))
    assert model.score(X, truth) == np.mean(model.predict(X) == truth)


# -- weights


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_weight_of_three_is_a_row_three_times(loss):
    X, y = labelled(500, classes=2)
    weights = np.random.default_rng(0).integers(0, 4, 500).astype(float)
    settings = {**QUICK, "D": 30, "scaling": "none", "holdout": 0.0, "loss": loss, "map": "mc"}
    weighted = KernelClassifier(**settings).fit(X, y, sample_weight=weights)
    times = np.repeat(np.arange(500), weights.astype(int))
    solver = {"solver": "cg"} if loss == "squared" else {}
    repeated = KernelClassifier(**settings, **solver).fit(X[times], y[times])
    assert np.abs(weighted.decision_function(X) - repeated.decision_function(X)).max() < 0.02  # mc looks at no rows
    plain = KernelClassifier(**settings, **solver).fit(X, y)
    assert np.abs(weighted.decision_function(X) - plain.decision_function(X)).max() > 0.1


def test_equal_weights_are_none(rows, fitted):
    assert np.array_equal(KernelRegressor(**QUICK).fit(*rows, sample_weight=np.full(800, 2.0)).predict(rows[0]),
                          fitted.predict(rows[0]))  # fmt: skip


def test_weights_of_classes_move_the_border():
    X, y = labelled(1500, classes=2)
    y = np.where(np.random.default_rng(0).random(1500) < 0.8, 0, y)  # one class is rare
    plain, balanced, heavy = (
        KernelClassifier(**QUICK, class_weight=weight).fit(X, y).predict(X).mean()
        for weight in (None, "balanced", {1: 50})
    )
    assert plain < 0.1 < balanced < heavy


def test_rows_that_all_count_for_nothing_are_refused(rows, monkeypatch):
    with pytest.raises(ValueError, match=r"sample_weight 0|non-zero"):
        KernelRegressor(**QUICK).fit(*rows, sample_weight=np.zeros(800))
    # Of the versions of scikit-learn that are supported, only the later ones refuse them.
    monkeypatch.setattr(inputs, "_check_sample_weight", lambda weights, *_, **__: weights)
    with pytest.raises(errors.InputError, match="all 800 rows have the sample_weight 0"):
        KernelRegressor(**QUICK).fit(*rows, sample_weight=np.zeros(800))


def test_a_target_column_is_not_named_beside_arrays(tmp_path):
    path = write_zarr(tmp_path / "t.zarr", *smooth(300))
    with pytest.raises(errors.InputError, match=r"y='price' names a column of parquet, and .*t\.zarr is not parquet"):
        KernelRegressor(**QUICK).fit(path, "price")


def test_weights_that_cannot_be(rows, tmp_path):
    X, y = rows
    with pytest.raises(errors.InputError, match="count every row once"):
        KernelRegressor(**QUICK).partial_fit(X, y, sample_weight=np.arange(800.0))
    with pytest.raises(errors.InputError, match="the quantile loss has no sums"):
        KernelRegressor(**QUICK, loss="quantile").partial_fit(X, y)
    path = write_zarr(tmp_path / "c.zarr", *labelled(300))
    with pytest.raises(errors.InputError, match="`class_weight='balanced'` depends on all rows"):
        KernelClassifier(**QUICK, class_weight="balanced").partial_fit(path)
    with pytest.raises(errors.InputError, match="arrays in memory"):
        KernelClassifier(**QUICK, class_weight={1: 2.0}).fit(path)
    weighted = KernelClassifier(**QUICK).fit(path, sample_weight=np.arange(300.0))
    assert weighted.model_.recipe.solver == "cholesky"  # so few rows are summed in float64


# -- files


@pytest.mark.parametrize("classes", [None, 3])
def test_a_model_of_the_command_is_an_estimator_and_back(classes, tmp_path):
    X, y = smooth(900) if classes is None else labelled(900)
    kind = KernelRegressor if classes is None else KernelClassifier
    data = write_zarr(tmp_path / "rows.zarr", X, y)
    done("train", data, *FAST, "--out", tmp_path / "rows.model", "--quiet")
    loaded = kind.load(tmp_path / "rows.model")
    done("predict", tmp_path / "rows.model", data, "--out", tmp_path / "p.npy", "--quiet")
    written = np.load(tmp_path / "p.npy")
    written = written[written.dtype.names[0]] if written.dtype.names else written.reshape(len(X))
    assert np.array_equal(loaded.predict(X), written)
    assert np.array_equal(loaded.predict(data), written)
    loaded.save(tmp_path / "again.model")
    again = Model.load(tmp_path / "again.model")
    assert np.array_equal(again.weights.coefficients, loaded.model_.weights.coefficients)
    assert loaded.get_params()["ridge"] == 1e-4
    grown = kind.load(tmp_path / "again.model").partial_fit(X, y)  # the statistics came along
    assert grown.statistics_.rows == 1800


def test_a_model_of_another_kind_is_refused(fitted, tmp_path):
    fitted.save(tmp_path / "numbers.model", statistics=False)
    with pytest.raises(errors.MismatchError, match="KernelClassifier is for classification"):
        KernelClassifier.load(tmp_path / "numbers.model")
    alone = KernelRegressor.load(tmp_path / "numbers.model")
    with pytest.raises(errors.InputError, match="no statistics that rows could join"):
        alone.partial_fit(*smooth(50))


def test_pickle_and_clone(rows, fitted):
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict(rows[0]), fitted.predict(rows[0]))
    assert copy.partial_fit(*rows).statistics_.rows == 1600
    assert not clone(fitted).__sklearn_is_fitted__()


def test_grid_search(rows):
    search = GridSearchCV(KernelRegressor(**QUICK), {"length_scale": [0.05, 2.0], "D": [40, 80]}, cv=2)
    search.fit(*rows)
    assert search.best_params_ == {"length_scale": 2.0, "D": 80}


def test_several_outputs(rows):
    X, y = rows
    model = KernelRegressor(**QUICK).fit(X, np.stack([y, -y], axis=1))
    assert model.predict(X).shape == (800, 2)
    assert model.score(X, np.stack([y, -y], axis=1)) > 0.5


def test_other_losses_and_maps(rows):
    X, y = labelled(600, classes=2)
    logistic = KernelClassifier(**{**QUICK, "loss": "logistic"}).fit(X, y)
    assert logistic.score(X, y) > 0.7
    with pytest.raises(errors.InputError, match="no statistics that rows could join"):
        logistic.partial_fit(X, y)
    binned = {"map": "binning", "grids": 20, "pilot": "none", "threads": 1}
    assert KernelRegressor(**binned).fit(*rows).score(*rows) > 0.5


# -- random features


@pytest.mark.parametrize("kind", ["auto", *(kind for kind in KINDS if not kind_of(kind).whole)])
def test_features_approximate_the_kernel(kind, rows):
    X = rows[0][:60].astype(np.float64)
    learned = kind != "auto" and kind_of(kind).sample == "needed"  # slow, and of a kernel that suits the rows better
    D = 128 if learned else 2048
    Z = (
        RandomFeatures(gamma=0.05, n_components=D, map=kind, random_state=1, threads=1)
        .fit(X, rows[1][:60])
        .transform(X)
    )
    assert Z.shape == (60, D)
    assert np.abs(Z @ Z.T - rbf_kernel(X, gamma=0.05)).mean() < (0.3 if learned else 0.02)


def test_binning_is_sparse_and_laplacian(rows):
    X = rows[0][:60]
    Z = RandomFeatures(gamma=0.2, n_components=1000, kernel="laplacian", map="binning", random_state=0).fit_transform(X)
    assert sparse.issparse(Z)
    assert np.diff(Z.indptr).tolist() == [1000] * 60
    assert np.abs((Z @ Z.T).toarray() - laplacian_kernel(X, gamma=0.2)).max() < 0.07


def test_features_stand_in_for_rbf_sampler(rows):
    X, y = rows[0].astype(np.float64), rows[1]
    scores = [
        make_pipeline(sampler(gamma=0.1, n_components=300, random_state=0), Ridge(1e-3)).fit(X, y).score(X, y)
        for sampler in (RBFSampler, RandomFeatures)
    ]
    assert scores[1] > scores[0] - 0.02


def test_features_keep_the_float_type_and_name_columns(rows):
    features = RandomFeatures(n_components=3, random_state=0).set_output(transform="pandas")
    table = features.fit_transform(rows[0])
    assert list(table.columns) == ["randomfeatures0", "randomfeatures1", "randomfeatures2"]
    assert set(table.dtypes) == {np.dtype(np.float32)}


def test_a_width_by_scale(rows):
    X = rows[0].astype(np.float64)
    one = RandomFeatures(gamma="scale", random_state=0).fit_transform(X)
    two = RandomFeatures(gamma=1 / (6 * X.var()), random_state=0).fit_transform(X)
    assert np.array_equal(one, two)
    with pytest.raises(errors.InputError, match="'scale'"):
        RandomFeatures(gamma="wide").fit(X)
