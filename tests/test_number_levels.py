"""Numbers of few values beside categories coded by the target, and weights in the means of both."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_categories import RECIPE, held_out, naive_code, opened
from test_columns import TableInMemory

import streamrf
from streamrf.data.columns import Columns, Handling
from streamrf.data.columns.learning import learn_columns
from streamrf.data.columns.levels import beyond_line, fold_of, place_among
from streamrf.data.open import open_source
from streamrf.data.source import Block, Span
from streamrf.features.targets import TargetCoding
from streamrf.models.export import export_model
from streamrf.models.export.numpy_script import write_script
from streamrf.models.model import Model
from streamrf.statistics.levels import LevelSums
from streamrf.statistics.targets import Weighting
from streamrf.support.errors import FileFormatError
from streamrf.support.threads import Threads


def make_traffic(seed: int, rows: int = 1200) -> pa.Table:
    """An hour that goes round, an age that is a line, a number with gaps, and a category of many levels."""
    rng = np.random.default_rng(seed)
    hour, age, place = rng.integers(0, 24, rows), rng.integers(20, 60, rows), rng.integers(0, 40, rows)
    y = 5 * np.sin(hour * 1.7) + age / 10 + np.cos(place) + 0.1 * rng.standard_normal(rows)
    return pa.table(
        {
            "hour": hour,
            "age": age,
            "gaps": pa.array(rng.integers(0, 5, rows).astype(float) ** 2, mask=rng.random(rows) < 0.3),
            "place": [f"place {p}" for p in place],
            "y": y,
        }
    )


@pytest.fixture
def trained(tmp_path):
    pq.write_table(make_traffic(1), tmp_path / "t.parquet", row_group_size=333)
    return streamrf.train(opened(tmp_path / "t.parquet"), RECIPE)


def test_a_number_that_is_no_line_has_the_mean_of_each_value_without_the_rows_own_fold(trained):
    names = trained.source.feature_names
    assert names == ("hour", "hour mean", "age", "gaps", "gaps is missing", "place mean", "place rows")
    X, table = trained.source.read(Span(0, 1200)).X, make_traffic(1)
    hours, y = table["hour"].to_pylist(), table["y"].to_pylist()
    smoothing = trained.model.columns.columns[0].table.smoothing[0]
    held = held_out(trained)
    for i in range(0, 1200, 97):
        fold = fold_of(np.array([i]))[0]
        assert X[i, :2] == pytest.approx(
            [hours[i], naive_code(hours, y, 1200, held, smoothing, hours[i], fold)[0]], abs=1e-6
        )


def test_no_pass_is_made_for_numbers_alone():
    table = make_traffic(2)
    named = ["hour", "age", "gaps"]
    alone = learn_columns(TableInMemory(table.select(named), 500), named, Handling())
    assert alone.by_target == ()
    named = [*named, "place"]
    beside = learn_columns(TableInMemory(table.select(named), 500), named, Handling())
    assert [len(column.values) for column in beside.columns] == [24, 40, 5, 0]
    two = pa.table({"yes": [0, 1] * 100, "c": [f"{i % 40}" for i in range(200)], "x": np.arange(200.0)})
    found = learn_columns(TableInMemory(two, 77), two.column_names, Handling())
    assert [len(column.values) for column in found.columns] == [0, 0, 0]


def test_exports_and_files_know_the_means(trained, tmp_path):
    trained.model.save(tmp_path / "m.model")
    model = Model.load(tmp_path / "m.model")
    assert Columns.from_json(model.columns.to_json()) == trained.model.columns
    table = make_traffic(3, 200).set_column(
        0, "hour", pa.array([99, None, *make_traffic(3, 200)["hour"].to_pylist()[2:]])
    )
    pq.write_table(table, tmp_path / "new.parquet")
    wanted = streamrf.predict(model, str(tmp_path / "new.parquet"))
    write_script(export_model(model), tmp_path / "page.py")
    space = {"__file__": str(tmp_path / "page.py"), "__name__": "script"}
    exec(compile((tmp_path / "page.py").read_text(), "page.py", "exec"), space)
    found = space["predict"]({name: table[name].to_pylist() for name in model.columns.names})
    assert np.abs(found[:, 0] - wanted).max() < 1e-5
    ort = pytest.importorskip("onnxruntime")
    from streamrf.models.export.onnx_model import write_onnx

    write_onnx(export_model(model), tmp_path / "m.onnx")
    feed = {name: table[name].cast(pa.float64()).to_numpy()[:, None] for name in ("hour", "age", "gaps")}
    feed["place"] = np.array(table["place"].to_pylist(), dtype=object)[:, None]
    (found,) = ort.InferenceSession(str(tmp_path / "m.onnx")).run(None, feed)
    assert np.abs(found[:, 0] - wanted).max() < 1e-5


@pytest.mark.parametrize("values", [[2.0, 1.0], [1.0, 1.0], [1], ["a"], [float("inf")]])
def test_damaged_values_are_refused(trained, values):
    document = trained.model.columns.to_json()
    document["columns"][0]["values"] = values
    with pytest.raises(FileFormatError, match="'hour' does not fit together"):
        Columns.from_json(document)


def test_what_values_say_beyond_a_line():
    """Against shares of variance from residuals."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, 500).astype(float)
    y = np.where(x == 3, 4.0, 0.5 * x) + rng.standard_normal(500)
    values = np.unique(x)
    rows, sums = np.array([(x == v).sum() for v in values]), np.array([y[x == v].sum() for v in values])
    within = sum(((y[x == v] - y[x == v].mean()) ** 2).sum() for v in values)
    total = ((y - y.mean()) ** 2).sum()
    wanted = (1 - within / 494 / (total / 499)) - np.corrcoef(x, y)[0, 1] ** 2
    assert beyond_line(values, rows, sums, float((y**2).sum())) == pytest.approx(wanted)
    assert place_among((0.0, 2.0, 5.0), np.array([2, 3, 5, np.nan, -1])).tolist() == [1, 3, 2, 3, 3]


def test_batches_of_frames_add_up():
    """The first one is coded before it is known which means there are."""
    one, two = make_traffic(1).to_pandas(), make_traffic(2).to_pandas()
    model = streamrf.KernelRegressor(D=50, pilot="none", length_scale=2.0, threads=1)
    model.partial_fit(one, "y").partial_fit(two, "y")
    assert model.statistics_.rows == 2400
    assert model.score(two.drop(columns="y"), two["y"]) > 0.7
    whole = streamrf.KernelRegressor(D=50, pilot="none", length_scale=2.0, threads=1).fit(one, "y")
    assert list(whole.feature_names_in_)[:2] == ["hour", "hour mean"]


# -- weights


def test_weights_count_in_the_means_of_levels():
    """Whole weights are as good as copies of the rows, but for the folds; a weight of 0 says nothing."""
    rng = np.random.default_rng(4)
    X, y = rng.integers(0, 5, (400, 1)).astype(float), rng.standard_normal(400)
    weights = rng.integers(0, 5, 400).astype(float)
    coding = TargetCoding.regression(np.array([-5.0]), np.array([5.0]))
    statistic = LevelSums(coding, (0,), (7,), weighting=Weighting(4.0, sample_weights=True))
    state = statistic.zero()
    with Threads(1) as threads:
        statistic.update(state, Block(X, y, np.arange(400), weights), threads)
    (table,) = statistic.tables(state)
    sums = np.array([[weights[X[:, 0] == k].sum(), (weights * y)[X[:, 0] == k].sum()] for k in range(5)])
    rows = sums[:, 0] / weights.mean()
    means = (sums[:, 1] / weights.mean() + table.smoothing[0] * np.average(y, weights=weights)) / (
        rows + table.smoothing[0]
    )
    assert table.codes[-1, :5, 0] == pytest.approx(means, abs=1e-4)
    power = np.floor(np.log2(1 + rows))
    assert table.codes[-1, :5, 1] == pytest.approx(power + (1 + rows) / 2**power - 1)


@pytest.mark.parametrize("rows", [400, 10**6])
def test_one_heavy_row_leaves_the_means_of_other_levels(rows):
    """Light rows used to round to nothing beside one that counts ten thousand times as much."""
    rng = np.random.default_rng(4)
    X, y = np.sort(rng.integers(0, 5, (400, 1)).astype(float), axis=0), rng.standard_normal(400)
    weights = np.ones(400)
    weights[0] = 1e4  # of level 0
    coding = TargetCoding.regression(np.array([-5.0]), np.array([5.0]))
    statistic = LevelSums(coding, (0,), (7,), (), Weighting(1e4, sample_weights=True), rows)
    state = statistic.zero()
    with Threads(1) as threads:
        statistic.update(state, Block(X, y, np.arange(400), weights), threads)
    levels = state.sums.sum(axis=0)[1:5]
    means = levels[:, 1] / levels[:, 0] * coding.step[0] * 2.0**9 + coding.offset[0]
    assert means == pytest.approx([y[X[:, 0] == k].mean() for k in range(1, 5)], abs=2e-3)


def test_rows_of_no_weight_change_no_code(tmp_path):
    table = make_traffic(5, 600)
    weights = np.ones(600)
    weights[::3] = 0.0

    def codes(y):
        pq.write_table(
            table.set_column(4, "y", pa.array(y)).append_column("w", pa.array(weights)), tmp_path / "t.parquet"
        )
        source = open_source(tmp_path / "t.parquet", target="y", sample_weight="w", columns=Handling())
        return streamrf.train(source, RECIPE).source.read(Span(0, 600)).X

    y = table["y"].to_numpy().copy()
    other = y.copy()
    other[::3] = np.where(np.arange(200) % 2, y.max(), y.min())  # the range stays, and so does the step
    assert np.array_equal(codes(y), codes(other))
    weights[:] = 1.0
    assert not np.array_equal(codes(y), codes(other))
