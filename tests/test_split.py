"""The wall between choosing and judging: roles of rows, and figures of rows that chose nothing."""

import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import done
from hypothesis import given
from hypothesis import strategies as st

from streamrf.api import evaluate
from streamrf.api.estimators import KernelRegressor
from streamrf.data.columns import Handling
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Span
from streamrf.data.split import CHOOSE, FIT, JUDGE, Split, from_ordered, group_keys, input_keys, key_for, ordered
from streamrf.models.model import Model
from streamrf.models.uncertainty import Posterior, attach_posterior
from streamrf.recipe import Recipe
from streamrf.solvers.judging import by_role
from streamrf.statistics.holdout import SampleState
from streamrf.statistics.intervals import Judges, mean_interval, number_intervals, share_interval
from streamrf.support.errors import InputError
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads
from streamrf.training.plan import plan_run, replan
from streamrf.training.run import Settings, Training, train
from streamrf.training.update.statistics import Statistics

FIXED = Recipe(
    D=200, kernel="gaussian", length_scale=4.0, scaling="standard", bits="12", map="sobol", pilot="none", seed=2
)
ALONE = Settings(threads=1)


def block(X, index=None):
    return Block(np.asarray(X), None, np.arange(len(X)) if index is None else index)


# -- roles


@pytest.mark.parametrize("key", ["number", "inputs"])
def test_roles_are_shares_of_the_rows_and_do_not_depend_on_the_cut(key):
    X = np.random.default_rng(0).standard_normal((20_000, 3)).astype(np.float32)
    split, rows = Split(0.1, 0.2, 4, key), block(X)
    roles = split.roles(rows)
    shares = np.bincount(roles, minlength=3) / len(X)
    np.testing.assert_allclose(shares[[FIT, CHOOSE, JUDGE]], [0.7, 0.2, 0.1], atol=0.01)
    order = np.random.default_rng(1).permutation(len(X))
    pieces = [split.roles(rows.take(order[i : i + 777])) for i in range(0, len(X), 777)]
    assert np.array_equal(np.concatenate(pieces), roles[order])
    assert not np.array_equal(Split(0.1, 0.2, 5, key).roles(rows), roles)


def test_judges_stay_judges_where_nobody_chooses():
    rows = block(np.random.default_rng(0).standard_normal((500, 2)))
    split = Split(0.2, 0.3, 1, "inputs")
    assert np.array_equal(split.judges_only().roles(rows) == JUDGE, split.roles(rows) == JUDGE)
    assert not (split.judges_only().roles(rows) == CHOOSE).any()


def test_copies_of_a_row_have_one_role_and_one_fold():
    X = np.repeat(np.random.default_rng(0).standard_normal((400, 2)), 3, axis=0)
    X[0, 0], X[1, 0] = 0.0, -0.0
    X[:2, 1] = 1.0
    split, rows = Split(0.2, 0.2, 0, "inputs", folds=5), block(X)
    for found in (split.roles(rows), split.folds_of(rows)):
        assert (found.reshape(400, 3)[1:] == found.reshape(400, 3)[1:, :1]).all()
        assert found[0] == found[1]


def test_a_row_that_loses_its_inputs_keeps_its_role():
    split, rows = Split(0.2, 0.2, 0, "inputs"), block(np.random.default_rng(0).standard_normal((300, 2)))
    kept = split.keyed(rows)
    kept.X = kept.X[:, :0]
    assert np.array_equal(split.roles(kept), split.roles(rows))


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=20))
def test_ordered_keys_have_the_order_of_the_numbers(values):
    keys = ordered(np.array(values))
    assert np.array_equal(np.array(values)[np.argsort(keys, kind="stable")], np.sort(values))
    assert [from_ordered(int(key)) for key in keys] == values


def test_keys_of_numbers_and_texts():
    assert np.array_equal(input_keys(np.array([[1], [2]], np.int16)), input_keys(np.array([[1.0], [2.0]])))
    assert len(np.unique(input_keys(np.array([[np.nan, 0.0], [-np.nan, -0.0]])))) == 1
    names = np.array(["b", "a", "b"], object)
    assert np.array_equal(group_keys(names), group_keys(names.astype("U")))
    assert len(np.unique(group_keys(names))) == 2


def test_a_split_is_json():
    split = Split(0.1, 0.2, 3, "order", 4.5, -1.0, 5)
    assert Split.from_json(split.to_json()) == split


def test_few_distinct_rows_are_told_apart_by_their_numbers():
    X = np.random.default_rng(0).integers(0, 3, (300, 2))
    assert key_for(block(X)) == "number"
    assert key_for(block(X + np.arange(300)[:, None] / 7)) == "inputs"
    model = train(ArraySource(X.astype(np.float32), X.sum(axis=1) * 1.0), FIXED.with_(D=20), ALONE).model
    assert model.metadata["split"]["key"] == "number"


# -- what is learned


def table_of_groups(kind, rows=900):
    """Columns, targets, weights and groups; one column is text of many levels."""
    rng = np.random.default_rng(5)
    X, group = rng.standard_normal((rows, 3)), rng.integers(0, 300, rows)
    y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(rows)
    y = y if kind == "numbers" else (y > 1).astype(np.int64)
    return X, [f"t{i}" for i in rng.integers(0, 40, rows)], y, rng.uniform(0.5, 2, rows), group


def with_others_changed(X, text, y, w, group, held):
    """Other inputs, levels, targets and weights in the rows that are held out; nothing else."""
    rng = np.random.default_rng(6)
    X, y, w = X.copy(), y.copy(), w.copy()
    X[held] = 3 * X[held] + rng.standard_normal(X[held].shape)
    y[held] = 3 * y[held] + 1 if y.dtype.kind == "f" else 1 - y[held]
    w[held] = rng.uniform(0.5, 2, held.sum())
    known = sorted(set(text))
    text = [known[rng.integers(len(known))] if out else level for level, out in zip(text, held, strict=True)]
    return X, text, y, w, group


def learned(place, X, text, y, w, group, recipe):
    """Everything that is fixed before the first pass of a solver, and the rows that are held out."""
    columns = {f"x{i}": X[:, i] for i in range(X.shape[1])} | {"text": text, "y": y, "w": w, "group": group}
    pq.write_table(pa.table(columns), place)
    source = open_source(
        place, target="y", exclude="group", columns=Handling(), holdout_by="group",
        sample_weight="w" if recipe.class_weight else None,
    )  # fmt: skip
    with Threads(1) as threads:
        document, arrays = Training(source, recipe, ALONE, Reporter(), threads).prepare().to_parts()
    split = Split.from_json(document["story"]["split"])
    return document, arrays, split.held(source.read(Span(0, len(y))))


def said(document):
    """Without times, names of tables, and the medians that would fill gaps: roles are decided by inputs without gaps,
    so these are of all rows."""
    if isinstance(document, dict):
        return {name: said(value) for name, value in document.items() if name not in ("seconds", "shards", "fill")}
    return [said(each) for each in document] if isinstance(document, list) else document


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("numbers", {"scaling": "minmax", "map": "supervised"}),
        ("numbers", {"scaling": "auto", "length_scale": None, "kernel": "auto", "pilot": "auto"}),
        ("classes", {"class_weight": "balanced", "metric": "learned", "bits": "float32", "scaling": "quantile"}),
    ],
)
def test_what_is_learned_knows_the_rows_to_fit_alone(kind, how, tmp_path):
    recipe, table = FIXED.with_(**{"D": 60, "holdout": 0.2, **how}), table_of_groups(kind)
    document, arrays, held = learned(tmp_path / "a.parquet", *table, recipe)
    changed = with_others_changed(*table, held)
    again, others, same = learned(tmp_path / "b.parquet", *changed, recipe)
    assert 0.2 < held.mean() < 0.6
    assert np.array_equal(held, same)
    assert said(document) == said(again)
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert np.array_equal(array, others[name]), name


# -- figures


def noisy(rows, noise=2.0):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((rows + 5000, 30)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3] + noise * rng.standard_normal(len(X))
    return (X[:rows], y[:rows]), (X[rows:], y[rows:])


@pytest.mark.parametrize("map", ["supervised", "aligned"])
def test_maps_that_learn_from_targets_do_not_see_those_that_judge(map):
    (X, y), fresh = noisy(2000)
    model = train(ArraySource(X, y), FIXED.with_(D=400, map=map), ALONE).model
    reported, found = model.metadata["holdout"]["rmse"], evaluate(model, fresh, threads=1)["rmse"]
    assert reported == pytest.approx(found, rel=0.2)
    assert reported > 2.0  # the noise


@pytest.mark.parametrize("how", [{}, {"cv": 4}, {"holdout": 0.1}, {"solver": "cg"}])
def test_a_lambda_for_each_output_whatever_its_units(how):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2500, 3)).astype(np.float32)
    f = np.sin(3 * X[:, 0]) + X[:, 1]
    Y = np.stack([1e3 * rng.standard_normal(2500), f + 0.01 * rng.standard_normal(2500)], axis=1)
    model = train(ArraySource(X[:1500], Y[:1500]), FIXED.with_(length_scale=1.5, **how), ALONE).model
    rmse = evaluate(model, (X[1500:], Y[1500:]), threads=1)["rmse_by_output"][1]
    assert 1 - rmse**2 / f[1500:].var() > 0.99
    assert model.weights.ridges[0] > 1000 * model.weights.ridges[1]


@pytest.mark.parametrize("classes", [20])
def test_calibration_reports_no_fit_of_its_own_and_costs_no_accuracy(classes):
    rng = np.random.default_rng(1)
    centres, y = rng.standard_normal((classes, 10)), rng.integers(0, classes, 12_000)
    X = (rng.standard_normal((12_000, 10)) + centres[y]).astype(np.float32)
    model = train(ArraySource(X[:2000], y[:2000]), FIXED.with_(length_scale=5.0, holdout=0.1), ALONE).model
    fresh = evaluate(model, (X[2000:], y[2000:]), threads=1)["accuracy"]
    with Threads(1) as threads:
        plain = (model.scores(X[2000:], threads).argmax(axis=1) == y[2000:]).mean()
    assert fresh > plain - 0.005
    low, high = model.metadata["holdout"]["interval"]["accuracy"]
    assert low < fresh < high


def test_small_tables_choose_lambda_by_folds():
    """The mean error over a few tables is near that of folds of all rows, and no table goes wrong."""
    errors = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((2060, 6)).astype(np.float32)
        y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(len(X))
        model = train(ArraySource(X[:60], y[:60]), FIXED.with_(D=300, length_scale=2.5, seed=seed), ALONE).model
        assert model.metadata["cross_validation"]["folds"] == 10
        errors.append(evaluate(model, (X[60:], y[60:]), threads=1)["rmse"])
    assert np.mean(errors) < 0.88
    assert max(errors) < 1.05


# -- intervals


def naive_bootstrap(metric, groups, rng, times=400):
    """The 95 % interval of a metric of rows, by drawing whole groups again."""
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    drawn = [metric(np.concatenate([members[i] for i in rng.integers(0, len(members), len(members))]))
             for _ in range(times)]  # fmt: skip
    return np.quantile(drawn, [0.025, 0.975])


@pytest.mark.parametrize("grouped", [False, True])
def test_intervals_are_about_those_of_a_bootstrap(grouped):
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 200, 1000) if grouped else np.arange(1000)
    shared = rng.standard_normal(1000)[groups]
    truth, weights = rng.standard_normal(1000) * 2, rng.uniform(0.5, 2, 1000)
    scores = truth + 0.5 * shared + 0.5 * rng.standard_normal(1000)
    found = number_intervals(scores[:, None], truth[:, None], Judges.of(weights, groups))
    square = (scores - truth) ** 2

    def rmse(rows):
        return np.sqrt(np.average(square[rows], weights=weights[rows]))

    def r2(rows):
        y, w = truth[rows], weights[rows]
        return 1 - np.average(square[rows], weights=w) / np.average((y - np.average(y, weights=w)) ** 2, weights=w)

    for name, metric in (("rmse", rmse), ("r2", r2)):
        wanted = naive_bootstrap(metric, groups, rng)
        np.testing.assert_allclose(found[name], wanted, atol=0.15 * np.ptp(wanted))


@pytest.mark.parametrize("rows", [12, 40, 400])
def test_intervals_hold_the_truth_as_often_as_they_say(rows):
    rng, inside = np.random.default_rng(rows), np.zeros(2)
    for _ in range(300):
        judges = Judges.of(None, np.arange(rows))
        low, high = mean_interval(rng.standard_normal(rows) ** 2, judges, 0.5)
        down, up = share_interval((rng.random(rows) < 0.1).astype(float), judges)
        inside += [low < 1 < high, down < 0.1 < up]
    assert (inside / 300 > 0.9).all()


@pytest.mark.parametrize("rows", [150, 600])
def test_intervals_of_rows_with_weights_hold_as_often(rows):
    """Few heavy rows decide a figure and its variance alike: intervals that did not mind held in 89 to 93 of 100."""
    rng, inside = np.random.default_rng(rows), np.zeros(2)
    for _ in range(400):
        shift = rng.standard_normal(rows)
        weights = rng.gamma(1.0, size=rows) * np.exp(0.5 * shift)
        judges = Judges.of(weights, np.arange(rows))
        low, high = mean_interval(rng.standard_normal(rows) ** 2 * np.exp(0.5 * shift), judges, 0.5)
        down, up = share_interval((rng.random(rows) < 0.1).astype(float), judges)
        # with such weights, shifts have a mean of a half: squares have exp(1 / 8 + 1 / 4)
        inside += [low**2 < np.exp(0.375) < high**2, down < 0.1 < up]
    assert (inside / 400 > 0.92).all()


# -- splits by a column


def grouped(rows=1200):
    """Rows of a group share a value that no input tells: whoever has seen the group would seem to know it."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 60, rows)
    X = (rng.standard_normal((60, 5))[group] + 0.01 * rng.standard_normal((rows, 5))).astype(np.float32)
    return X, rng.standard_normal(60)[group], group


def test_many_equal_rows_widen_an_interval_by_what_they_vary_alone():
    """500 copies of one row among 2,000: all right, as most others are. Their number alone would leave 16 rows."""
    keys = np.r_[np.zeros(500, int), np.arange(1, 1501)]
    wrong = np.r_[np.zeros(500), np.arange(1500) % 10 == 0].astype(float)
    apart, together = (share_interval(wrong, Judges.of(None, each)) for each in (np.arange(2000), keys))
    widths = [up - down for down, up in (apart, together)]
    assert 2 * widths[0] < widths[1] < 0.15


@pytest.mark.parametrize("how", [{}, {"solver": "cg"}, {"map": "binning", "D": None, "grids": 20}])
def test_groups_are_never_on_both_sides(how):
    X, y, group = grouped()
    plain = {"D": 100, "length_scale": 1.0, "holdout": 0.2}
    if "map" in how:
        recipe = Recipe(pilot="none", scaling="standard", holdout=0.2, **how)
    else:
        recipe = FIXED.with_(**plain, **how)
    alone = train(open_source((X, y)), recipe, ALONE).model.metadata["holdout"]
    together = train(open_source((X, y), holdout_by=group), recipe, ALONE).model.metadata
    assert together["split"]["key"] == "group"
    assert alone["rmse"] < 0.5 < 0.8 < together["holdout"]["rmse"]
    assert np.ptp(together["holdout"]["interval"]["rmse"]) > 5 * np.ptp(alone["interval"]["rmse"])


def test_the_last_rows_judge_and_those_before_them_choose():
    X, y, _ = grouped()
    time = np.random.default_rng(1).permutation(1200) / 7
    source = open_source((X, y), holdout_after=time)
    model = train(source, FIXED.with_(D=50), ALONE).model
    split, rows = Split.from_json(model.metadata["split"]), source.read(Span(0, 1200))
    roles, ranks = split.roles(rows), np.argsort(np.argsort(time))
    assert np.array_equal(np.flatnonzero(roles == JUDGE), np.flatnonzero(ranks >= 960))
    assert np.array_equal(np.flatnonzero(roles == CHOOSE), np.flatnonzero((ranks >= 840) & (ranks < 960)))
    assert model.metadata["holdout"]["rows"] == 240
    after = train(open_source((X, y), holdout_after=(time, 150.0)), FIXED.with_(D=50), ALONE).model
    assert after.metadata["holdout"]["rows"] == (time > 150).sum()
    with pytest.raises(InputError, match=r"no row has 'the column' after 1e\+09"):
        train(open_source((X, y), holdout_after=(time, 1e9)), FIXED.with_(D=50), ALONE)


@pytest.mark.parametrize("column", ["patient", "x1", "3"])
def test_a_column_of_a_table_decides_wherever_it_is(column, tmp_path):
    X, y, group = grouped(400)
    columns = {f"x{i}": X[:, i] for i in range(5)} | {"y": y, "patient": [f"p{g}" for g in group], "day": group * 1.0}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=90)
    options = ("--exclude", "patient,day", "--D", "20", "--pilot", "none", "--threads", "1", "--json")
    found = done("train", tmp_path / "t.parquet", *options, "--holdout-by", column, "--out", tmp_path / "a.model").json
    assert found["holdout"]["rows"] > 0
    assert Model.load(tmp_path / "a.model").metadata["split"]["key"] == "group"
    late = done("train", tmp_path / "t.parquet", *options, "--holdout-after", "day=50", "--out", tmp_path / "b.model")
    assert late.json["holdout"]["rows"] == (group > 50).sum()


@pytest.mark.parametrize("categories", ["onehot", "target", "ordinal"])
def test_a_category_is_a_feature_and_keeps_its_rows_together(categories, tmp_path):
    X, y, group = grouped(400)
    columns = {f"x{i}": X[:, i] for i in range(5)} | {"y": y, "patient": [f"p{g}" for g in group]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=90)
    source = open_source(tmp_path / "t.parquet", columns=Handling(categories=categories), holdout_by="patient")
    trained = train(source, FIXED.with_(D=20, holdout=0.2), ALONE)
    assert any("patient" in name for name in trained.model.feature_names)
    roles = Split.from_json(trained.model.metadata["split"]).roles(trained.source.read(Span(0, 400)))
    assert set(roles.tolist()) == {FIT, CHOOSE, JUDGE}
    assert all(len(set(roles[group == each].tolist())) == 1 for each in range(60))


def test_the_plan_has_room_for_the_order_of_rows_and_for_rows_kept_of_folds():
    X, y, group = grouped()
    sizes = {"outputs": 1, "threads": 1, "budget": None}
    late, plain = (plan_run(source, FIXED, **sizes) for source in (open_source((X, y), holdout_after=group),
                                                                  open_source((X, y))))  # fmt: skip
    assert (late.bytes["order of rows"], plain.bytes["order of rows"]) == (8 * 1200, 0)
    assert plain.folds
    classes = replan(plain, classes=True)
    judges = 1200 * 3 // 10  # a fifth, and a tenth that would choose
    share = plain.bytes["hold-out rows"] / judges
    assert classes.bytes["hold-out rows"] == pytest.approx(share * (judges + 1200), rel=1e-6)


def test_estimators_take_groups():
    X, y, group = grouped(600)
    model = KernelRegressor(D=50, pilot="none", length_scale=1.0, threads=1).fit(X, y, groups=group)
    assert model.model_.metadata["split"]["key"] == "group"


def test_a_source_with_a_key_opens_again_elsewhere(tmp_path):
    X, y, group = grouped(300)
    columns = {f"x{i}": X[:, i] for i in range(5)} | {"y": y, "patient": group}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=90)
    for keys in ({"holdout_by": "patient"}, {"holdout_after": ("patient", 20)}, {"holdout_after": "x1"}):
        source = open_source(tmp_path / "t.parquet", exclude="patient", **keys)
        again = open_source(**json.loads(json.dumps(source.spec())))
        assert again.fingerprint() == source.fingerprint()
        assert np.array_equal(again.read(Span(5, 250)).key, source.read(Span(5, 250)).key)


def test_dates_are_an_order(tmp_path):
    X, y, group = grouped(400)
    day = np.datetime64("2024-01-01") + group.astype("timedelta64[D]")
    columns = {f"x{i}": X[:, i] for i in range(5)} | {"y": y, "day": day}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    source = open_source(tmp_path / "t.parquet", columns=Handling(), holdout_after=("day", "2024-02-10"))
    model = train(source, FIXED.with_(D=20), ALONE).model
    assert model.metadata["holdout"]["rows"] == (group > 40).sum()


def test_models_keep_the_lambda_of_each_output(tmp_path):
    """In the file, in the uncertainty, and when the sums are solved again."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1000, 3)).astype(np.float32)
    Y = np.stack([rng.standard_normal(1000), np.sin(3 * X[:, 0])], axis=1)
    trained = train(ArraySource(X, Y), FIXED.with_(D=60, length_scale=1.5), ALONE)
    trained.model.save(tmp_path / "m.model", state=trained.state)
    model, sums = Model.load(tmp_path / "m.model"), Statistics.load(tmp_path / "m.model")
    assert model.weights.ridges == trained.model.weights.ridges != ()
    assert np.array_equal(sums.solve(sums.ridge).weights.coefficients, model.weights.coefficients)
    with Threads(1) as threads:
        attach_posterior(model, tmp_path / "m.model", threads)
        for output, ridge in enumerate(model.weights.ridges):
            alone = Posterior.from_state(trained.state, model.map, model.coding, ridge, threads)
            expected = alone.deviations(model.map, model.pipeline.scaled(X[:20]), threads, unrounded=True)[:, output]
            assert np.array_equal(model.deviations(X[:20], threads)[:, output], expected)


@pytest.mark.parametrize("how", ["holdout_by", "holdout_after"])
def test_a_column_that_is_not_there_is_named(tmp_path, how):
    pq.write_table(pa.table({"a": np.arange(50.0), "y": np.arange(50.0) ** 2}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="rows cannot be held out by 'nope': the data has neither a column"):
        open_source(tmp_path / "t.parquet", target="y", **{how: "nope"})


def test_every_row_has_one_turn():
    """The judges are the same in each; every other row chooses once, and is fitted in all other turns."""
    block = Block(np.random.default_rng(0).standard_normal((3000, 2)), None, np.arange(3000))
    split = Split(judge=0.2, choose=0.1, seed=4, key="inputs")
    roles = np.stack([split.turned(turn, 5).roles(block) for turn in range(5)])
    judges = split.roles(block) == JUDGE
    assert ((roles == JUDGE) == judges).all()
    assert ((roles == CHOOSE).sum(axis=0) == ~judges).all()
    assert (split.all_choose().roles(block) == np.where(judges, JUDGE, CHOOSE)).all()
    older = {name: value for name, value in split.to_json().items() if name != "choose_at"}
    assert Split.from_json(older) == split


def test_rows_held_out_are_in_memory_once():
    """Put in order and handed to those who choose and judge, block by block: much of the peak of wide tables."""
    rng = np.random.default_rng(0)
    split = Split(judge=0.5, choose=0.5, seed=0)
    X = rng.normal(size=(8000, 200))
    wanted = [X[split.roles(Block(X, None, np.arange(8000))) == role] for role in (CHOOSE, JUDGE)]

    def state():
        order = rng.permutation(80)  # as workers bring them
        numbers = np.arange(8000).reshape(80, 100)[order]
        return SampleState([Block(X[each], np.zeros((100, 1)), each) for each in numbers])

    assert np.array_equal(state().table().X, X)
    tracemalloc.start()
    try:
        held = state()
        tracemalloc.reset_peak()
        choose, judge = by_role(split, held)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held.rows == 0
    assert [np.array_equal(part.X, rows) for part, rows in zip((choose, judge), wanted, strict=True)] == [True, True]
    assert peak < 1.6 * X.nbytes
