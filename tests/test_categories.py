"""Categories with many levels: sums of the target by level, codes without a row's own target, and models of them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import FAST, done
from commands import streamrf as streamrf_command
from hypothesis import given, settings
from hypothesis import strategies as st
from interruptions import Stops
from statistics_conformance import StatisticConformance, make_blocks
from test_columns import TableInMemory, encoded, learned

import streamrf
from streamrf.data.columns import FEW_LEVELS, TARGET, Column, Columns, Handling, scanning
from streamrf.data.columns.encoding import Encoder, hash_texts
from streamrf.data.columns.learning import learn_columns
from streamrf.data.columns.levels import (
    FOLDS,
    LEAST_SMOOTHING,
    MANY_ROWS,
    MOST_SMOOTHING,
    LevelTable,
    fold_of,
    smoothing_of,
)
from streamrf.data.open import open_source
from streamrf.data.source import Span
from streamrf.data.split import Split
from streamrf.features.targets import TargetCoding
from streamrf.models.export import export_model
from streamrf.models.export.numpy_script import write_script
from streamrf.models.model import Model
from streamrf.statistics.levels import LevelSums, target_sums, whole_targets
from streamrf.support import errors
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import Threads
from streamrf.training.update.changes import forget, update
from streamrf.training.update.statistics import Statistics

RECIPE = streamrf.Recipe(D=32, pilot="none", length_scale=2.0, bits="8", ridge=1e-4)
ROWS, LEVELS = 1200, 60


def make_table(seed: int, rows: int = ROWS, classes: int = 0) -> pa.Table:
    """A zip code that matters, missing in places, and a number."""
    rng = np.random.default_rng(seed)
    place = (LEVELS * rng.random(rows) ** 2).astype(int)
    a = rng.standard_normal(rows)
    y = np.sin(7.0 * place) * 3 + a + 0.1 * rng.standard_normal(rows)
    zips = pa.array([f"{10_000 + 7 * p}" for p in place], mask=rng.random(rows) < 0.05)
    target = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1])) if classes else y
    return pa.table({"a": a, "zip": zips, "y": target})


@pytest.fixture
def shards(tmp_path):
    for name, seed in (("one", 1), ("two", 2), ("new", 3)):
        pq.write_table(make_table(seed), tmp_path / f"{name}.parquet", row_group_size=500)
    return tmp_path


def held_out(trained):
    """Mask of the rows that choose or judge."""
    source = trained.source
    return Split.from_json(trained.model.metadata["split"]).held(source.read(Span(0, source.n_rows)))


def opened(place, **options):
    return open_source(place, target="y", columns=Handling(**options))


# -- codes, against a reference that is obviously right


def naive_code(zips, y, rows, held, smoothing, row, fold):
    """The code of one row: by plain sums over the rows of other folds; over all where its level has many rows."""
    count = sum(zips[i] == row for i in range(rows) if not held[i])
    fold = None if count >= MANY_ROWS else fold
    others = [i for i in range(rows) if not held[i] and (fold is None or fold_of(np.array([i]))[0] != fold)]
    prior = np.mean([y[i] for i in others])
    same = [y[i] for i in others if zips[i] == row]
    mean = (sum(same) + smoothing * prior) / (len(same) + smoothing)
    power = 0
    while 2 ** (power + 1) <= count + 1:
        power += 1
    return mean, power + (count + 1) / 2**power - 1


def test_codes_are_means_over_the_other_folds(tmp_path):
    table = make_table(4, 300)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=77)
    trained = streamrf.train(opened(tmp_path / "t.parquet"), RECIPE)
    X = trained.source.read(Span(0, 300)).X
    assert trained.source.feature_names == ("a", "zip mean", "zip rows")
    smoothing = trained.model.columns.columns[1].table.smoothing[0]
    zips, y = table["zip"].to_pylist(), table["y"].to_pylist()
    held = held_out(trained)
    counts = {level: zips.count(level) for level in zips if level is not None}
    for i in range(0, 300, 7):
        level = zips[i] if zips[i] is None or counts[zips[i]] > 1 else "never seen"
        wanted = naive_code(zips, y, 300, held, smoothing, level, fold_of(np.array([i]))[0])
        assert X[i, 1:] == pytest.approx(wanted, abs=1e-6)
    new = open_source(tmp_path / "t.parquet", target="y", columns=trained.model.columns).read(Span(0, 300)).X
    assert new[5, 1:] == pytest.approx(naive_code(zips, y, 300, held, smoothing, zips[5], None), abs=1e-6)


def test_no_code_holds_the_rows_own_target_and_none_that_of_a_row_held_out(tmp_path):
    table = make_table(5, 400)

    def trained(y):
        pq.write_table(table.set_column(2, "y", pa.array(y)), tmp_path / "t.parquet")
        return streamrf.train(opened(tmp_path / "t.parquet"), RECIPE.with_(holdout=0.1))

    def coded(y):
        return trained(y).source.read(Span(0, 400)).X[:, 1]

    y = table["y"].to_numpy().copy()
    ends, same, held = (int(np.argmin(y)), int(np.argmax(y))), coded(y), held_out(trained(y))  # ends fix the scale
    assert held.any()
    changed = y.copy()
    changed[[i for i in range(400) if held[i] and i not in ends]] = 0.0
    assert np.array_equal(coded(changed), same)
    zips = table["zip"].to_pylist()
    rare = [level is not None and 1 < zips.count(level) < MANY_ROWS for level in zips]
    one = next(i for i in range(400) if not held[i] and i not in ends and rare[i])
    changed = y.copy()
    changed[one] += 1.0
    fold = fold_of(np.array([one]))[0]
    before, after = (
        LevelTable.of(("mean",), np.zeros(1), np.ones(1), _sums(table, targets, held), [1]).codes
        for targets in (y, changed)
    )
    few = _sums(table, y, held).sum(axis=0)[:, 0] < MANY_ROWS
    assert 1 < few.sum() < len(few)
    assert np.array_equal(before[fold][few], after[fold][few])
    assert not any(np.array_equal(before[other][few], after[other][few]) for other in range(FOLDS + 1) if other != fold)
    assert (before[:, ~few] == before[-1, ~few]).all()  # of many rows: the same code in every fold


def _sums(table, y, held):
    """Sums of whole numbers by fold and level, one row after the other."""
    levels = sorted({level for level in table["zip"].to_pylist() if level})
    sums = np.zeros((FOLDS, len(levels) + 2, 2), np.int64)
    for i, level in enumerate(table["zip"].to_pylist()):
        if not held[i]:
            sums[fold_of(np.array([i]))[0], levels.index(level) if level else -1] += [1, round(1000 * y[i])]
    return sums


def test_a_target_that_has_nothing_to_do_with_a_category_is_not_learned_from_it(tmp_path):
    """500 levels with two rows each and noise: codes that held a row's own target would seem to explain half of it."""
    rng = np.random.default_rng(0)
    levels = rng.permutation(np.repeat(np.arange(500), 2))
    pq.write_table(
        pa.table({"c": [f"level {i}" for i in levels], "y": rng.standard_normal(1000)}), tmp_path / "t.parquet"
    )
    trained = streamrf.train(opened(tmp_path / "t.parquet"), RECIPE.with_(holdout=0.3))
    X, y = trained.source.read(Span(0, 1000)).X, trained.source.read_targets(Span(0, 1000))
    assert abs(np.corrcoef(X[:, 0], y)[0, 1]) < 0.12
    assert trained.model.metadata["holdout"]["r2"] < 0.1


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-100, 100)), min_size=3, max_size=40))
@settings(max_examples=50, deadline=None)
def test_smoothing_is_within_over_between(values):
    """One-way analysis of variance, written with means and deviations."""
    whole = [(level, round(1000 * y)) for level, y in values]
    groups = [[y for level, y in whole if level == place] for place in range(5)]
    rows = np.array([len(group) for group in groups])
    sums = np.array([sum(group) for group in groups])
    found = smoothing_of(rows, sums, sum(y * y for _, y in whole))
    groups = [np.array(group, float) for group in groups if group]
    n, k = len(whole), len(groups)
    assert LEAST_SMOOTHING <= found <= MOST_SMOOTHING
    if k < 2 or n <= k:
        return
    mean = np.mean([y for _, y in whole])
    within = sum(((group - group.mean()) ** 2).sum() for group in groups) / (n - k)
    between = sum(len(group) * (group.mean() - mean) ** 2 for group in groups) - (k - 1) * within
    between /= n - sum(len(group) ** 2 for group in groups) / n
    if between > 1e-3 * within and between > 1e-3:
        assert found == pytest.approx(max(LEAST_SMOOTHING, within / between), rel=1e-4)


# -- the pass


class TestLevelSums(StatisticConformance):
    @pytest.fixture
    def statistic(self):
        return LevelSums(TargetCoding.regression(np.array([-9.0]), np.array([9.0])), (0, 2), (7, 4))

    @pytest.fixture
    def blocks(self):
        rng = np.random.default_rng(1)
        X = np.column_stack([rng.integers(0, 7, 500), rng.random(500), rng.integers(0, 4, 500)])
        return make_blocks(X, rng.uniform(-9, 9, 500), [3, 3, 120])


@given(st.permutations(range(6)), st.lists(st.integers(1, 299), min_size=5, max_size=5))
@settings(max_examples=20, deadline=None)
def test_sums_by_level_depend_on_neither_order_nor_chunks(order, cuts):
    rng = np.random.default_rng(2)
    X, y = rng.integers(0, 9, (300, 1)).astype(float), rng.standard_normal(300)
    statistic = LevelSums(TargetCoding.regression(np.array([-5.0]), np.array([5.0])), (0,), (9,))
    blocks, state = make_blocks(X, y, sorted(cuts)), statistic.zero()
    with Threads(1) as threads:
        for place in order:
            statistic.update(state, blocks[place], threads)
    whole = whole_targets(statistic.coding, y)[:, 0]
    for fold in range(FOLDS):
        for level in range(9):
            rows = (fold_of(np.arange(300)) == fold) & (X[:, 0] == level)
            assert state.sums[fold, level].tolist() == [rows.sum(), whole[rows].sum()]
    square = statistic.tables(state)[0], sum(int(v) ** 2 for v in whole)
    upper, both, lower = state.squares[0].tolist()
    assert (upper << 34) + (both << 18) + lower == square[1]


def test_several_classes_have_a_share_each_and_many_have_ten_mixtures():
    two, five = (TargetCoding.classification(tuple(range(k))) for k in (2, 5))
    assert target_sums(two)[0] == ("share of 1",)
    assert target_sums(five)[0] == tuple(f"share of {k}" for k in range(5))
    assert whole_targets(five, np.array([3, 0])).tolist() == [[0, 0, 0, 1, 0], [1, 0, 0, 0, 0]]
    many = TargetCoding.classification(tuple(range(40)))
    signs = whole_targets(many, np.arange(40))
    assert signs.shape == (40, 10)
    assert set(np.unique(signs).tolist()) == {-1, 1}
    assert len({tuple(row) for row in signs.tolist()}) > 35


@pytest.mark.parametrize("classes", [2, 3, 12])
def test_classes_are_told_by_a_category(tmp_path, classes):
    pq.write_table(make_table(1, 2000, classes), tmp_path / "t.parquet")
    recipe = RECIPE.with_(task="classification", D=200)
    model = streamrf.train(opened(tmp_path / "t.parquet"), recipe).model
    assert model.n_inputs == 2 + min(10, 1 if classes == 2 else classes)
    assert model.metadata["holdout"]["error"] < 0.7 * (1 - 1 / classes)


# -- models


def test_chunks_order_workers_and_resume_change_no_bit(shards, monkeypatch):
    from cluster_tools import local_cluster

    from streamrf.engines.cluster import ClusterEngine

    wanted = streamrf.train(opened(shards / "one.parquet"), RECIPE).model.metadata["statistics_digest"]
    pq.write_table(make_table(1), shards / "cut.parquet", row_group_size=77)
    order = streamrf.Settings(order=lambda n: range(n)[::-1], threads=2)
    assert streamrf.train(opened(shards / "cut.parquet"), RECIPE, order).model.metadata["statistics_digest"] == wanted
    monkeypatch.setattr("streamrf.solvers.plan.SPAN_ROWS", 100)
    place = streamrf.Settings(checkpoint=shards / "c", checkpoint_every=0.0)
    with pytest.raises(Interrupted):
        streamrf.train(opened(shards / "cut.parquet"), RECIPE, place, Stops(24))
    assert streamrf.train(opened(shards / "cut.parquet"), RECIPE, place).model.metadata["statistics_digest"] == wanted
    with local_cluster(2) as (_, client):
        far = streamrf.Settings(engine=ClusterEngine(client))
        found = streamrf.train(opened(shards / "cut.parquet"), RECIPE, far).model
    assert found.metadata["statistics_digest"] == wanted


def test_what_was_learned_of_the_target_makes_no_other_table(shards):
    source = opened(shards / "one.parquet")
    learned_source = streamrf.train(source, RECIPE).source
    assert learned_source.fingerprint() == source.fingerprint()
    assert not np.array_equal(source.read(Span(0, 9)).X, learned_source.read(Span(0, 9)).X)


def test_shards_join_and_leave_as_they_were_coded(shards):
    """Rows that were in the sums leave as they came: by the other folds; rows that join are new, and leave as such."""
    data = [shards / "one.parquet", shards / "two.parquet"]
    done("train", *data, "--target", "y", *FAST, "--quiet", "--out", shards / "m.model")
    statistics = Statistics.load(shards / "m.model")
    before, columns = statistics.state.digest(), statistics.prepared.columns
    assert columns.first is None
    assert [start for _, start in columns.shards] == [0, ROWS]
    new = open_source(shards / "new.parquet", target="y", columns=columns)
    update(statistics, new)
    forget(statistics, new)
    assert statistics.state.digest() == before
    two = open_source(shards / "two.parquet", target="y", columns=columns)
    forget(statistics, two)
    assert statistics.rows == ROWS
    update(statistics, two)
    assert statistics.state.digest() == before


def test_strict_forgetting_learns_the_levels_again(shards):
    data = [shards / "one.parquet", shards / "two.parquet"]
    done("train", *data, "--target", "y", *FAST, "--quiet", "--out", shards / "m.model")
    found = done("forget", shards / "m.model", data[1], "--strict", "--data", data[0], "--json", "--out", shards / "n")
    done("train", data[0], "--target", "y", *FAST, "--quiet", "--out", shards / "only.model")
    assert found.json["statistics_digest"] == Model.load(shards / "only.model").metadata["statistics_digest"]


@pytest.mark.parametrize("buckets", [False, True])
def test_exports_know_levels_that_are_missing_or_were_never_seen(shards, buckets, monkeypatch):
    monkeypatch.setattr(scanning, "LISTED_LEVELS", 10 if buckets else 10_000)
    monkeypatch.setattr(scanning, "BUCKETS", 64)
    source = open_source(shards / "one.parquet", target="y", columns=Handling())
    model = streamrf.train(source, RECIPE).model
    model.save(shards / "m.model")
    model = Model.load(shards / "m.model")
    assert model.columns.columns[1].buckets == (64 if buckets else 0)
    table = make_table(9, 200).set_column(
        1, "zip", pa.array(["never seen", None, *make_table(9, 200)["zip"].to_pylist()[2:]])
    )
    pq.write_table(table, shards / "t.parquet")
    wanted = streamrf.predict(model, str(shards / "t.parquet"))
    write_script(export_model(model), shards / "page.py")
    space = {"__file__": str(shards / "page.py"), "__name__": "script"}
    exec(compile((shards / "page.py").read_text(), "page.py", "exec"), space)
    raw = {name: table[name].to_pylist() for name in model.columns.names}
    assert np.abs(space["predict"](raw)[:, 0] - wanted).max() < 1e-5
    ort = pytest.importorskip("onnxruntime")
    from streamrf.models.export.onnx_model import write_onnx

    if buckets:
        with pytest.raises(errors.InputError, match="'zip' has too many levels to list"):
            write_onnx(export_model(model), shards / "m.onnx")
        return
    write_onnx(export_model(model), shards / "m.onnx")
    zips = np.array([v or "" for v in table["zip"].to_pylist()], dtype=object)[:, None]
    feed = {"a": table["a"].to_numpy()[:, None], "zip": zips}
    (found,) = ort.InferenceSession(str(shards / "m.onnx")).run(None, feed)
    assert np.abs(found[:, 0] - wanted).max() < 1e-5


def test_a_level_never_seen_or_seen_once_gets_the_mean_of_all(shards):
    trained = streamrf.train(opened(shards / "one.parquet"), RECIPE)
    model = trained.model
    encoder, out = Encoder(model.columns), np.empty((2, 3))
    encoder.encode(pa.table({"a": [0.0, 0.0], "zip": ["never seen", "nor this"]}), out)
    y = make_table(1)["y"].to_numpy()
    assert out[0, 1:] == pytest.approx([y[~held_out(trained)].mean(), 0.0], abs=1e-5)
    assert encoder.unknown["zip"] == 2
    once = learned(pa.table({"c": [f"{i // 2}" for i in range(100)] + ["once"]}), categories="target")
    assert len(once.columns[0].levels) == 50
    assert "once" not in once.columns[0].levels


# -- how many levels there are


def test_few_levels_are_one_hot_many_by_the_target_and_identifiers_left_out():
    few = pa.array([f"{i % FEW_LEVELS}" for i in range(200)])
    many = pa.array([f"{i % (FEW_LEVELS + 1)}" for i in range(200)])
    said: list[str] = []
    table = pa.table({"few": few, "many": many, "id": [f"no {i}" for i in range(200)]})
    columns = learn_columns(TableInMemory(table, 11), table.column_names, Handling(), say=said.append)
    assert [(column.name, column.kind) for column in columns.columns] == [("few", "onehot"), ("many", "target")]
    assert columns.left_out == (("id", "is an identifier: 200 different values in 200 rows"),)
    assert "`exclude=['id']`" in said[0]
    assert columns.describe().endswith("; left out: id")
    asked = learn_columns(TableInMemory(table, 11), table.column_names, Handling(), asked=["id"])
    assert asked.columns[2].kind == TARGET
    assert Columns.from_json(asked.to_json()) == asked


def test_levels_beyond_a_limit_are_counted_in_little_memory_and_in_any_order(monkeypatch):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 150_000, 400_000)
    texts = pa.array([f"user {i}" for i in numbers])
    sketch = scanning.DistinctCount()
    for start in range(0, 400_000, 50_000):
        sketch.update(texts.slice(start, 50_000))
    assert sketch.estimate() == pytest.approx(len(np.unique(numbers)), rel=0.03)
    monkeypatch.setattr(scanning, "LISTED_LEVELS", 1000)
    one, other = (
        learned(pa.table({"user": texts.take(pa.array(rows))}), 40_000)
        for rows in (np.arange(400_000), rng.permutation(400_000))
    )
    assert one == other
    assert one.columns == (Column("user", TARGET, fill=0.0, buckets=scanning.BUCKETS),)


def test_texts_are_hashed_as_written_out():
    texts = ["", "a", "Zürich", "x" * 100]
    for text, found in zip(texts, hash_texts(pa.array(["cut", *texts]).slice(1)).tolist(), strict=True):
        h = 0xCBF29CE484222325
        for byte in text.encode():
            h = (h ^ byte) * 0x100000001B3 % 2**64
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        assert found == h ^ h >> 31


# -- files


DAMAGE = {
    "packed": "no base64", "places": -1, "names": [], "smoothing": [0.0], "step": [float("nan")], "offset": "x",
}  # fmt: skip


@pytest.mark.parametrize("part", [*DAMAGE, "shape", "rows", "more"])
def test_damaged_sums_of_levels_are_refused(part):
    sums = np.ones((FOLDS, 5, 2), np.int64)
    table = LevelTable.of(("mean",), np.zeros(1), np.ones(1), sums, [25])
    assert LevelTable.from_json(table.to_json()) == table
    document = table.to_json()
    if part in DAMAGE:
        document[part] = DAMAGE[part]
    elif part == "shape":
        document["places"] = 6
    elif part == "rows":
        document = LevelTable.of(("mean",), np.zeros(1), np.ones(1), -sums, [25]).to_json()
    else:
        document["run"] = "this"
    with pytest.raises(errors.FileFormatError, match="coding of columns"):
        LevelTable.from_json(document)


def test_encoded_codes_are_those_of_the_table():
    sums = np.zeros((FOLDS, 4, 2), np.int64)
    sums[0, 0], sums[1, 0], sums[2, 1] = (2, 20), (1, 4), (3, -9)
    table = LevelTable.of(("mean",), np.zeros(1), np.full(1, 0.5), sums, [1000])
    columns = Columns((Column("c", TARGET, ("a", "b"), 0.0, table=table),))
    rows = pa.table({"c": ["a", "b", "new", None]})
    assert np.array_equal(encoded(columns, rows), table.codes[-1])
    out = np.empty((4, 2))
    Encoder(columns.at(5)).encode(rows, out, 3)
    assert np.array_equal(out, table.codes[fold_of(np.arange(8, 12)), np.arange(4)])


def test_copies_of_a_row_have_one_role_whatever_their_fold(tmp_path):
    """Codes of copies differ, as they are in different folds; what rows are known by does not."""
    table = make_table(1, 600)
    pq.write_table(pa.concat_tables([table, table]), tmp_path / "t.parquet", row_group_size=250)
    trained = streamrf.train(opened(tmp_path / "t.parquet"), RECIPE.with_(holdout=0.2))
    assert trained.model.metadata["split"]["key"] == "inputs"
    held, X = held_out(trained), trained.source.read(Span(0, 1200)).X
    assert held.any()
    assert np.array_equal(held[:600], held[600:])
    assert not np.array_equal(X[:600], X[600:])


def test_a_data_frame_is_coded_as_the_file_is(tmp_path):
    table = make_table(1)
    pq.write_table(table, tmp_path / "t.parquet")
    stored = streamrf.train(opened(tmp_path / "t.parquet"), RECIPE)
    frame = streamrf.train(table.to_pandas(), RECIPE, target="y", columns=Handling())
    assert frame.model.metadata["statistics_digest"] == stored.model.metadata["statistics_digest"]
    new = make_table(2, 50)
    pq.write_table(new, tmp_path / "new.parquet")
    assert np.array_equal(
        streamrf.predict(frame.model, new.to_pandas()), streamrf.predict(stored.model, str(tmp_path / "new.parquet"))
    )


# -- columns that tell the target


class Notes(Reporter):
    def __init__(self):
        self.said: list[str] = []

    def note(self, sentence):
        self.said.append(sentence)


def test_a_column_that_determines_the_target_is_flagged(tmp_path):
    rng = np.random.default_rng(0)
    table = make_table(1, 2000)
    y = table["y"].to_numpy()
    code = [f"code {int(value // 0.01)}" for value in y]  # each of about three rows: too few to tell
    bands = np.digitize(y, [-2.0, 0.0, 2.0])
    flagged = {
        "same": y, "cubed": -(y**3), "band": [f"band {band}" for band in bands], "zip of bands": [
            f"zip {band} {number}" for band, number in zip(bands, rng.integers(0, 20, 2000), strict=True)
        ],
    }  # fmt: skip

    def warnings(target, **more):
        pq.write_table(pa.table({"a": table["a"], "code": code, **more, "y": target}), tmp_path / "t.parquet")
        notes = Notes()
        streamrf.train(opened(tmp_path / "t.parquet"), RECIPE, None, notes)
        return [said for said in notes.said if said.startswith("warning")]

    assert warnings(y) == []
    said = warnings(y, same=flagged["same"], cubed=flagged["cubed"])
    assert "columns 'same', 'cubed' determine the target" in said[0]
    assert "`exclude=['same', 'cubed']`" in said[0]
    said = " ".join(warnings(bands, **{"band": flagged["band"], "zip of bands": flagged["zip of bands"]}))
    assert "column 'band' determines the target" in said
    assert "column 'zip of bands' determines the target" in said


def test_rows_without_a_target_are_dropped_and_said(tmp_path):
    table = make_table(1, 300)
    y = pa.array(table["y"].to_numpy(), mask=np.arange(300) % 10 == 0)
    pq.write_table(table.set_column(2, "y", y), tmp_path / "t.parquet")
    notes = Notes()
    trained = streamrf.train(opened(tmp_path / "t.parquet"), RECIPE, None, notes)
    assert trained.model.metadata["rows"] == 270
    assert "30 rows without a target were left out" in notes.said
    with pytest.raises(errors.DataError, match="30 of 300 targets are missing"):
        streamrf.train(opened(tmp_path / "t.parquet"), RECIPE.with_(nan="error"))


def test_infinite_values_count_as_missing_and_that_is_said(tmp_path):
    table = make_table(1, 300)
    a = table["a"].to_numpy().copy()
    a[[3, 5]] = np.inf, -np.inf
    pq.write_table(table.set_column(0, "a", pa.array(a)), tmp_path / "t.parquet")
    answer = done("train", tmp_path / "t.parquet", "--target", "y", *FAST)
    assert "infinite values count as missing: 2 in 'a'" in answer.err
    X = (
        open_source(tmp_path / "t.parquet", target="y", columns=Model.load(tmp_path / "t.model").columns)
        .read(Span(0, 9))
        .X
    )
    assert X[[3, 4, 5], 1].tolist() == [1, 0, 1]
    assert X[3, 0] == pytest.approx(np.median(np.delete(a, [3, 5])))
    asked = streamrf_command(
        "train", tmp_path / "t.parquet", "--target", "y", "--missing", "error", *FAST, "--overwrite"
    )
    assert asked.code == errors.DataError.exit_code
