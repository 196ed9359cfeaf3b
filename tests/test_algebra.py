"""The algebra of exact statistics: whichever way rows came and went, the bits are those of the rows that are in."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import PROJECT, done, streamrf
from hypothesis import given, settings
from hypothesis import strategies as st
from interruptions import Impatient
from tables import labelled, smooth, write_zarr

from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.wrappers import Shards, Weighted
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.statistics.rowset import RowSet, ledger_of
from streamrf.support.errors import BudgetError, DataError, FileFormatError, InputError, MismatchError, NumericalError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.storage.archive import read_archive
from streamrf.support.threads import Threads
from streamrf.training import plan
from streamrf.training.run import Settings, Training, train
from streamrf.training.update import statistics as memory
from streamrf.training.update.changes import Work, accumulate, combine, forget, prepare, retrain, update
from streamrf.training.update.statistics import Statistics, load_prepared, save_prepared

FIXED = Recipe(D=40, kernel="gaussian", length_scale=1.5, scaling="standard", bits="8", ridge=1e-4, pilot="none")
OPTIONS = ("--D", "40", "--pilot", "none", "--length-scale", "1.5", "--bits", "8", "--threads", "1", "--quiet")
X, y = smooth(900)


@pytest.fixture(scope="module", autouse=True)
def work():
    with Threads(1) as threads:
        yield Work(threads)


def rows(*parts):
    """A source of some rows of the table, as slices or positions."""
    sources = [ArraySource(X[part], y[part]) for part in parts]
    return sources[0] if len(sources) == 1 else Shards(sources)


FIRST, SECOND, THIRD = slice(0, 300), slice(300, 700), slice(700, 900)


@pytest.fixture(scope="module")
def prepared(work):
    return prepare(rows(FIRST), FIXED, work)


@pytest.fixture(scope="module")
def sums(prepared, work):
    """Statistics of each part, and of everything."""
    parts = {
        name: accumulate(prepared, rows(part), work) for name, part in zip("abc", (FIRST, SECOND, THIRD), strict=True)
    }
    return parts | {"abc": accumulate(prepared, rows(FIRST, SECOND, THIRD), work)}


# -- the group


@given(st.lists(st.integers(0, 900), max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=12)
def test_any_split_summed_in_any_order_has_the_bits_of_the_whole(prepared, sums, work, cuts, random):
    edges = sorted({0, 900, *cuts})
    parts = [accumulate(prepared, rows(slice(a, b)), work) for a, b in pairwise(edges)]
    random.shuffle(parts)
    total = Statistics.zero(prepared)
    for part in parts:
        total += part
    assert total.digest() == sums["abc"].digest()
    assert total.rows == total.ledger.count == 900
    for part in parts[1:]:
        total -= part
    assert total.digest() == parts[0].digest()
    assert total.ledger == parts[0].ledger


def test_plus_and_minus_leave_their_operands_alone(sums):
    before = {name: part.digest() for name, part in sums.items()}
    assert (sums["a"] + sums["b"] - sums["a"]).digest() == before["b"]
    assert (sums["a"] + sums["b"]).digest() == (sums["b"] + sums["a"]).digest()
    assert {name: part.digest() for name, part in sums.items()} == before
    assert sums["a"].ledger.count == 300


def test_statistics_are_those_of_a_training_run_with_the_same_map(work):
    source = rows(FIRST, SECOND)
    trained = train(source, FIXED.with_(holdout=0.2))
    again = Training(source, FIXED.with_(holdout=0.2), Settings(), work.reporter, work.threads).prepare()
    assert accumulate(again, source, work).digest() == trained.state.digest()
    assert accumulate(again, source, work).ledger == trained.model.ledger


def test_a_window_slides_with_the_bits_of_a_fresh_sum(prepared, work):
    days = [accumulate(prepared, rows(slice(i, i + 90)), work) for i in range(0, 900, 90)]
    window = days[0] + days[1] + days[2]
    for newest in range(3, 10):
        window = window + days[newest] - days[newest - 3]
        fresh = accumulate(prepared, rows(slice(90 * (newest - 2), 90 * (newest + 1))), work)
        assert window.digest() == fresh.digest()
    assert np.array_equal(window.solve(1e-3, threads=work.threads).weights.coefficients,
                          fresh.solve(1e-3, threads=work.threads).weights.coefficients)  # fmt: skip


def test_floats_add_and_subtract_to_rounding(work):
    prepared = prepare(rows(FIRST), FIXED.with_(bits="float64"), work)
    a, b = (accumulate(prepared, rows(part), work) for part in (FIRST, SECOND))
    rest = a + b - b
    assert not rest.exact
    assert np.allclose(rest.state.totals, a.state.totals, rtol=0, atol=1e-9 * np.abs(a.state.totals).max())


# -- what is refused


def test_rows_are_added_once(sums, prepared, work):
    with pytest.raises(MismatchError, match=r"arrays in memory: Rows 0 to 299 would be added a second time"):
        sums["abc"] + sums["a"]
    with pytest.raises(MismatchError, match=r"second time.*forget it first"):
        update(sums["abc"].copy(), rows(SECOND), work)
    with pytest.raises(MismatchError, match="second time"):
        accumulate(prepared, rows(FIRST, FIRST), work)
    with pytest.raises(MismatchError, match="second time"):
        train(rows(FIRST, FIRST), FIXED)


def test_what_was_never_in_cannot_leave(sums, work):
    with pytest.raises(MismatchError, match="is not among the 2 shards"):
        sums["a"] + sums["b"] - sums["c"]
    with pytest.raises(MismatchError, match="is not among the 1 shards"):
        forget(sums["a"].copy(), rows(FIRST, SECOND), work)
    with pytest.raises(InputError, match="nothing would be left"):
        forget(sums["a"].copy(), rows(FIRST), work)


def test_a_refusal_changes_nothing(sums):
    total = sums["a"] + sums["b"]
    before = total.digest(), total.ledger.digest(), total.rows
    with pytest.raises(MismatchError):
        total += sums["b"]
    with pytest.raises(MismatchError):
        total -= sums["c"]
    assert (total.digest(), total.ledger.digest(), total.rows) == before


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"seed": 1}, r"the scaling differs \(standard scaling of 6 columns, \w+ against standard"),  # of other rows
        ({"D": 48}, r"the map differs \(40 fourier features at 8 bits, \w+ against 48"),
        ({"bits": "12"}, "the map differs .* at 12 bits"),
        ({"scaling": "minmax"}, r"the scaling differs \(standard scaling of 6 columns, \w+ against minmax"),
    ],
)
def test_other_settings_are_refused_by_name(sums, work, change, part):
    other = accumulate(prepare(rows(FIRST), FIXED.with_(**change), work), rows(SECOND), work)
    with pytest.raises(MismatchError, match=part):
        sums["a"] + other


@pytest.mark.parametrize(
    ("change", "cure"),
    [
        ({"loss": "huber"}, "the huber loss has no sums .* use `loss='squared'`"),
        ({"class_weight": "balanced"}, "`class_weight='balanced'` depends on all rows"),
        ({"solver": "cg"}, "`solver='cg'` keeps no sums .* `solver='cholesky'`"),
        ({"map": "binning"}, "random binning has no sums"),
    ],
)
def test_settings_that_no_sums_have_are_refused_and_not_passed_over(prepared, work, change, cure):
    with pytest.raises(InputError, match=cure):
        prepare(rows(FIRST), Recipe(**change), work)
    with pytest.raises(InputError, match=cure):
        accumulate(replace(prepared, recipe=FIXED.with_(kernel="auto", **change)), rows(SECOND), work)


class Planned(Reporter):
    """Remembers the plans that were shown."""

    def __init__(self):
        self.solvers = []

    def planned(self, plan):
        self.solvers.append(plan.solver)


def test_sums_are_planned_as_what_they_are_and_not_for_a_solver_without_them(work, monkeypatch):
    monkeypatch.setattr(plan, "_choose", lambda plans: plans[-1])
    told = Planned()
    prepared = prepare(rows(FIRST), FIXED, replace(work, reporter=told))
    assert prepared.recipe.solver == "cholesky"
    accumulate(prepared, rows(SECOND), replace(work, reporter=told))
    assert told.solvers == ["cholesky", "cholesky"]


def test_other_target_codings_are_refused_by_name(prepared, sums, work):
    wider = ArraySource(X[FIRST], 3 * y[FIRST])
    other = prepare(wider, FIXED, work)
    assert other.pipeline.digests()["map"] == prepared.pipeline.digests()["map"]
    with pytest.raises(MismatchError, match=r"the target coding differs \(1 numbers"):
        sums["b"] + accumulate(other, wider, work)


def test_other_column_names_are_refused(work):
    def named(names, part):
        return ArraySource(X[part], y[part], feature_names=names)

    prepared = prepare(named("abcdef", FIRST), FIXED, work)
    a, b = accumulate(prepared, named("abcdef", FIRST), work), accumulate(prepared, rows(SECOND), work)
    assert (a + b).rows == 700  # columns without names are taken as they come
    with pytest.raises(MismatchError, match="the columns are in another order"):
        accumulate(prepared, named("abcdfe", SECOND), work)
    with pytest.raises(MismatchError, match="columns z are missing"):
        accumulate(prepare(named("abcdez", FIRST), FIXED, work), named("abcdef", SECOND), work)


def test_statistics_of_other_columns_are_refused(sums, prepared):
    def with_names(names):
        return replace(prepared, pipeline=replace(prepared.pipeline, feature_names=tuple(names)))

    renamed = [replace(sums[key], prepared=with_names(names)) for key, names in (("a", "abcdef"), ("b", "abcfed"))]
    with pytest.raises(MismatchError, match="column 'd' of one is 'f' in the other"):
        renamed[0] + renamed[1]


def test_data_that_cannot_be_the_same_table_is_refused(prepared, work):
    with pytest.raises(DataError, match="5 columns"):
        accumulate(prepared, ArraySource(X[:, :5], y), work)
    with pytest.raises(DataError, match="2 target columns, the statistics have 1"):
        accumulate(prepared, ArraySource(X, np.stack([y, y], axis=1)), work)
    with pytest.raises(DataError, match=r"outside .* the range that the first run fixed"):
        accumulate(prepared, ArraySource(X, 1e6 * y), work)
    with pytest.raises(DataError, match="labels"):
        accumulate(prepared, ArraySource(X, np.where(y > 0, "up", "down")), work)


def test_a_shard_that_was_changed_after_it_was_added_cannot_leave(prepared, work):
    """Its fingerprint, of the first and the last 64 rows, is the same; its mark, of all rows, is not."""
    changed = X[SECOND].copy()
    changed[200, 3] += 0.01
    total = accumulate(prepared, rows(FIRST, SECOND), work)
    before = total.digest()
    other = ArraySource(changed, y[SECOND])
    assert other.fingerprint() == rows(SECOND).fingerprint()
    with pytest.raises(MismatchError, match="has changed since it was added"):
        forget(total, other, work)
    with pytest.raises(MismatchError, match="has changed since it was added"):
        total -= accumulate(prepared, other, work)
    assert total.digest() == before
    assert forget(total, rows(SECOND), work) == 400


def test_the_same_rows_in_another_order_and_type_may_leave(prepared, sums, work):
    """Sums do not depend on the order of rows, and marks neither; but the ends must be the same to be recognised."""
    order = np.r_[0:64, 64 + np.random.default_rng(0).permutation(272), 336:400]
    total = sums["a"] + sums["b"]
    assert forget(total, ArraySource(X[SECOND][order], y[SECOND][order]), work) == 400
    assert total.digest() == sums["a"].digest()


def test_sums_that_no_rows_have_are_refused(prepared, work):
    """Where only some rows of a changed shard leave there is no mark to compare, but gross changes show."""
    changed = X[200:600].copy()
    total = accumulate(prepared, Shards([ArraySource(X[:200], y[:200]), ArraySource(X[200:600], y[200:600])]), work)
    before = total.digest()
    changed[64:-64] = changed[0]
    with pytest.raises(MismatchError, match="sums that no rows have"):
        forget(total, ArraySource(changed, y[200:600]), work, rows=RowSet([(1, 400)]))
    assert total.digest() == before


# -- updating and forgetting


def test_update_and_forget_have_the_bits_of_the_rows_that_are_in(sums, work):
    statistics = sums["a"].copy()
    assert update(statistics, rows(SECOND, THIRD), work) == 600
    assert statistics.digest() == sums["abc"].digest()
    assert statistics.ledger == sums["abc"].ledger
    assert forget(statistics, rows(SECOND), work) == 400
    assert statistics.digest() == (sums["a"] + sums["c"]).digest()
    assert [event["event"] for event in statistics.prepared.metadata["history"]] == ["update", "forget"]


def test_rows_of_a_shard_can_leave_and_come_back(sums, prepared, work):
    statistics = sums["a"] + sums["b"]
    assert forget(statistics, rows(SECOND), work, rows=RowSet([(10, 20), (390, 400)])) == 20
    left = np.r_[0:310, 320:690]
    assert statistics.digest() == accumulate(prepared, rows(left), work).digest()
    with pytest.raises(MismatchError, match="10 of the rows to forget are not in"):
        forget(statistics, rows(SECOND), work, rows=RowSet([(5, 20)]))
    assert update(statistics, rows(SECOND), work, rows=RowSet([(10, 20)])) == 10
    assert forget(statistics, rows(SECOND), work) == 390  # whatever is left of it
    assert statistics.digest() == sums["a"].digest()
    assert statistics.ledger == sums["a"].ledger


def test_rows_with_nan_are_dropped_on_the_way_in_and_out(work):
    holes = X[SECOND].copy()
    holes[7, 2] = np.nan
    prepared = prepare(rows(FIRST), FIXED.with_(nan="drop"), work)
    statistics = accumulate(prepared, rows(FIRST), work)
    assert update(statistics, ArraySource(holes, y[SECOND]), work) == 399
    assert statistics.dropped == 1
    assert forget(statistics, ArraySource(holes, y[SECOND]), work) == 399
    assert statistics.dropped == 0
    assert statistics.digest() == accumulate(prepared, rows(FIRST), work).digest()


def test_a_strict_forget_is_training_on_the_rest(work):
    recipe = Recipe(D=40, seed=3, bits="8", kernel="gaussian", pilot="none")
    model = train(rows(FIRST, SECOND, THIRD), recipe).model
    trained, removed = retrain(model, rows(FIRST, THIRD), rows(SECOND), work)
    fresh = train(rows(FIRST, THIRD), recipe)
    assert removed == 400
    assert trained.state.digest() == fresh.state.digest()
    assert trained.model.map.to_parts()[1].keys() == fresh.model.map.to_parts()[1].keys()
    assert np.array_equal(trained.model.weights.coefficients, fresh.model.weights.coefficients)
    assert not np.array_equal(trained.model.scaling.centre, model.scaling.centre)


def test_a_strict_forget_does_not_lose_the_weights_of_rows(work):
    recipe = Recipe(D=40, bits="8", kernel="gaussian", pilot="none")
    both = rows(FIRST, SECOND)
    weights = ArraySource(np.ones((both.n_rows, 1)), np.linspace(1, 2, both.n_rows))
    model = train(Weighted(both, weights, "w"), recipe).model
    with pytest.raises(InputError, match="trained on rows with weights"):
        retrain(model, rows(FIRST), rows(SECOND), work)


@pytest.mark.parametrize(
    ("stays", "leaves", "message"),
    [
        ((FIRST, SECOND, THIRD), SECOND, "nothing to forget"),
        ((FIRST, slice(0, 200)), SECOND, "the shards that stay are more than the model was trained on"),
        ((FIRST,), SECOND, "is in the model and neither to be forgotten nor among those that stay"),
        ((FIRST, SECOND), SECOND, "is in the model and neither"),
    ],
)
def test_a_strict_forget_needs_exactly_the_rest(work, stays, leaves, message):
    model = train(rows(FIRST, SECOND, THIRD), FIXED).model
    with pytest.raises((MismatchError, InputError), match=message):
        retrain(model, rows(*stays), rows(leaves), work)


# -- solving


def test_one_lambda_is_taken_as_it_is_and_gcv_chooses_among_several(sums, work):
    statistics = sums["abc"]
    assert statistics.solve(1e-3, threads=work.threads).weights.ridge == 1e-3
    several = statistics.solve(1e2, 1e-5, threads=work.threads)
    assert several.weights.ridge == 1e-5
    gcv = {entry["lambda"]: entry["gcv"] for entry in several.metadata["lambda_path"]}
    assert gcv[1e-5] < gcv[1e2]
    free = statistics.solve(threads=work.threads)
    assert min(entry["gcv"] for entry in free.metadata["lambda_path"]) <= min(gcv.values())


def test_solving_again_gives_the_weights_of_training(work):
    trained = train(rows(FIRST, SECOND), FIXED)
    source = rows(FIRST, SECOND)
    prepared = Training(source, FIXED, Settings(), work.reporter, work.threads).prepare()
    model = accumulate(prepared, source, work).solve(1e-4, threads=work.threads)
    assert np.array_equal(model.weights.coefficients, trained.model.weights.coefficients)
    assert np.array_equal(model.weights.intercept, trained.model.weights.intercept)


@pytest.mark.parametrize("bits", ["7", "8", "12", "float64"])
@pytest.mark.parametrize("D", [40, 1020])
def test_a_subset_of_the_targets_is_as_if_there_were_no_others(work, bits, D):
    """At D = 1020 the columns of three targets make the matrix large enough for wider panels."""
    Y = np.stack([y, -2 * y + 1, X[:, 3]], axis=1)
    if D > 500:
        Y, few = Y[:60], slice(0, 60)
    else:
        few = slice(0, 900)
    source = ArraySource(X[few], Y)
    statistics = accumulate(prepare(source, FIXED.with_(bits=bits, D=D), work), source, work)
    for outputs in ([0], [1, 2], [2, 0]):
        chosen = sorted(outputs)
        selected = statistics.select(outputs)
        alone = accumulate(selected.prepared, ArraySource(X[few], Y[:, chosen]), work)
        assert selected.digest() == alone.digest() if bits != "float64" else np.allclose(
            selected.state.totals, alone.state.totals, rtol=1e-12, atol=1e-9)  # fmt: skip
    if D < 500:
        both, one = (
            statistics.solve(1e-4, threads=work.threads),
            statistics.select([1]).solve(1e-4, threads=work.threads),
        )
        assert np.allclose(one.weights.coefficients[:, 0], both.weights.coefficients[:, 1], rtol=1e-9)


def test_outputs_that_are_not_there_are_refused(sums, work):
    with pytest.raises(InputError, match="numbers from 0 to 0 are wanted"):
        sums["a"].select([1])
    Xc, c = labelled(200)
    source = ArraySource(Xc, c)
    with pytest.raises(InputError, match="classes, which belong together"):
        accumulate(prepare(source, FIXED, work), source, work).select([0])


def test_too_few_rows_cannot_be_solved(prepared, work):
    with pytest.raises(NumericalError, match="at least two"):
        Statistics.zero(prepared).solve(1e-3, threads=work.threads)


# -- classes that not every site has seen


def test_sites_may_lack_classes_that_were_declared(work):
    Xc, c = labelled(600)
    names = np.array(["low", "middle", "high"])[c]
    low, rest = names == "low", names != "low"
    prepared = prepare(ArraySource(Xc[rest], names[rest]), FIXED.with_(D=200), work, classes=("low", "middle", "high"))
    parts = [accumulate(prepared, ArraySource(Xc[part], names[part]), work) for part in (low, rest)]
    whole = accumulate(prepared, ArraySource(Xc, names), work)
    assert (parts[0] + parts[1]).digest() == whole.digest()
    model = whole.solve(1e-4, threads=work.threads)
    assert (model.labels(model.codes(model.scores(Xc, work.threads))) == names).mean() > 0.8


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.bool_])
def test_declared_classes_are_read_in_the_type_of_the_targets(work, dtype):
    labels = (y > 0).astype(dtype)
    prepared = prepare(ArraySource(X, labels), FIXED.with_(task="classification"), work, classes=("1", "0"))
    assert prepared.coding.classes == (0, 1)


def test_labels_outside_the_declared_classes_are_refused(work):
    names = np.where(y > 0, "up", "down")
    with pytest.raises(DataError, match=r"`classes=\['up', 'level'\]`: the data has the label 'down'"):
        prepare(ArraySource(X, names), FIXED, work, classes=("up", "level"))
    with pytest.raises(InputError, match="'up' is not a label of the targets' type"):
        prepare(ArraySource(X, (y > 0).astype(int)), FIXED, work, classes=("up", "1"))
    with pytest.raises(DataError, match="targets that are not labels"):
        prepare(ArraySource(X, np.stack([y, y], axis=1)), FIXED, work, classes=("1", "0"))
    prepared = prepare(ArraySource(X, names), FIXED, work)
    with pytest.raises(DataError, match="label 'sideways' is not one of the 2 classes"):
        accumulate(prepared, ArraySource(X, np.where(y > 1, "sideways", names)), work)


# -- files


def test_statistics_survive_the_file_and_models_carry_theirs(tmp_path, sums, work):
    sums["a"].save(tmp_path / "a.stats")
    loaded = Statistics.load(tmp_path / "a.stats")
    assert (loaded.digest(), loaded.ledger, loaded.prepared.pipeline.digests()) == (
        sums["a"].digest(), sums["a"].ledger, sums["a"].prepared.pipeline.digests(),
    )  # fmt: skip
    sums["b"].solve(1e-3, threads=work.threads).save(tmp_path / "b.model", state=sums["b"].state)
    assert combine([tmp_path / "a.stats", tmp_path / "b.model"]).digest() == (sums["a"] + sums["b"]).digest()
    assert load_prepared(tmp_path / "b.model").pipeline.digests() == sums["a"].prepared.pipeline.digests()


def test_no_row_of_the_data_is_in_a_statistics_file(tmp_path, sums):
    sums["a"].save(tmp_path / "a.stats")
    archive = read_archive(tmp_path / "a.stats")
    shapes = [info.shape for name in ("arrays", "statistics") for info in archive.array_infos(name).values()]
    assert not any(300 in shape for shape in shapes)


def test_a_prepared_file_fixes_the_map(tmp_path, prepared, sums, work):
    save_prepared(prepared, tmp_path / "recipe.prepared")
    again = load_prepared(tmp_path / "recipe.prepared")
    assert accumulate(again, rows(SECOND), work).digest() == sums["b"].digest()
    with pytest.raises(MismatchError, match="is a prepared archive"):
        Statistics.load(tmp_path / "recipe.prepared")


def test_a_model_without_statistics_says_so(tmp_path):
    train(rows(FIRST), FIXED).model.save(tmp_path / "bare.model")
    with pytest.raises(InputError, match="saved without its statistics"):
        Statistics.load(tmp_path / "bare.model")


def test_damage_is_found(tmp_path, sums):
    sums["a"].save(tmp_path / "a.stats")
    place = tmp_path / "a.stats" / "statistics.safetensors"
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.write_bytes(data)
    with pytest.raises(FileFormatError, match="SHA-256"):
        Statistics.load(tmp_path / "a.stats")


# -- the ledger, by shard


def test_parquet_files_are_shards_of_their_own(tmp_path, work):
    for number, part in enumerate((FIRST, SECOND, THIRD)):
        columns = {name: X[part][:, j] for j, name in enumerate("abcdef")}
        columns = columns if number != 1 else dict(reversed(columns.items()))  # the same columns in another order
        pq.write_table(
            pa.table({"id": np.arange(len(y[part])), **columns, "y": y[part]}), tmp_path / f"{number}.parquet"
        )
    whole = open_source(str(tmp_path), exclude=("id",))
    trained = train(whole, FIXED)
    assert [shard.n_rows for shard in trained.model.ledger.shards().values()].count(400) == 1
    assert trained.model.ledger.count == 900
    one = open_source(str(tmp_path / "1.parquet"), features=whole.feature_names)
    trained.model.save(tmp_path / "m.model", state=trained.state)
    statistics = Statistics.load(tmp_path / "m.model")
    with pytest.raises(MismatchError, match=r"1\.parquet: Rows 0 to 399 would be added a second time"):
        update(statistics, one, work)
    assert forget(statistics, one, work) == 400
    assert statistics.digest() == accumulate(statistics.prepared, rows(FIRST, THIRD), work).digest()


def test_ledgers_follow_the_members_of_nested_lists():
    nested = Shards([rows(FIRST), rows(SECOND, THIRD)])
    flat = ledger_of(rows(FIRST, SECOND, THIRD), RowSet([(0, 900)]))
    assert ledger_of(nested, RowSet([(0, 900)])) == flat
    some = ledger_of(nested, RowSet([(250, 310), (899, 900)]))
    assert sorted((shard.n_rows, shard.rows.to_json()) for shard in some.shards().values()) == [
        (200, [[199, 200]]), (300, [[250, 300]]), (400, [[0, 10]]),
    ]  # fmt: skip


# -- as commands


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    root = tmp_path_factory.mktemp("shards")
    for name, part in zip("abc", (FIRST, SECOND, THIRD), strict=True):
        write_zarr(root / f"{name}.zarr", X[part], y[part], chunk=90)
    done("prepare", root / "a.zarr", *OPTIONS, "--lambda", "1e-4", "--out", root / "all.prepared")
    for names in ("a", "b", "c", "ab", "ac", "abc"):
        done("accumulate", root / "all.prepared", *(root / f"{name}.zarr" for name in names), "--threads", 1, "--quiet",
             "--out", root / f"{names}.stats")  # fmt: skip
    return root


def digest_of(path):
    return Statistics.load(path).digest()


def test_commands_merge_update_and_forget_to_the_same_bits(shelf, tmp_path):
    run = ("--threads", 1, "--json")
    merged = done("merge", shelf / "a.stats", shelf / "b.stats", "--out", tmp_path / "m.model", *run).json
    assert merged["statistics_digest"] == digest_of(shelf / "ab.stats")
    updated = done("update", tmp_path / "m.model", shelf / "c.zarr", *run).json
    assert (updated["added"], updated["rows"], updated["shards"]) == (200, 900, 3)
    assert updated["statistics_digest"] == digest_of(shelf / "abc.stats") == digest_of(tmp_path / "m.model")
    forgotten = done("forget", tmp_path / "m.model", shelf / "b.zarr", "--out", tmp_path / "n.model", *run).json
    assert (forgotten["removed"], forgotten["lambda"]) == (400, updated["lambda"])
    assert digest_of(tmp_path / "n.model") == digest_of(shelf / "ac.stats")
    assert digest_of(tmp_path / "m.model") == digest_of(shelf / "abc.stats")
    slid = done("merge", tmp_path / "m.model", "--minus", shelf / "a.stats", "--minus", shelf / "b.stats",
                "--out", tmp_path / "c.model", *run).json  # fmt: skip
    assert slid["statistics_digest"] == digest_of(shelf / "c.stats")
    assert {path.name for path in tmp_path.iterdir()} == {"m.model", "n.model", "c.model"}


def test_the_order_of_a_merge_does_not_matter_even_to_the_weights(shelf, tmp_path):
    done("merge", *(shelf / f"{name}.stats" for name in "abc"), "--out", tmp_path / "1.model", "--threads", 1)
    done("merge", *(shelf / f"{name}.stats" for name in "cab"), "--out", tmp_path / "2.model", "--threads", 1)
    one, two = Model.load(tmp_path / "1.model"), Model.load(tmp_path / "2.model")
    assert np.array_equal(one.weights.coefficients, two.weights.coefficients)
    assert one.weights.ridge == two.weights.ridge


def test_update_of_statistics_grows_them(shelf, tmp_path):
    done("update", shelf / "a.stats", shelf / "b.zarr", "--out", tmp_path / "ab.stats", "--threads", 1, "--quiet")
    assert read_archive(tmp_path / "ab.stats").kind == "statistics"
    assert digest_of(tmp_path / "ab.stats") == digest_of(shelf / "ab.stats")
    answer = streamrf("update", shelf / "a.stats", shelf / "b.zarr", "--lambda", 1, "--out", tmp_path / "x", "--quiet")
    assert (answer.code, "use `streamrf solve`" in answer.err) == (2, True)


def test_lambda_stays_is_set_or_is_retuned(shelf, tmp_path):
    done("solve", shelf / "a.stats", "--lambda", "0.5", "--out", tmp_path / "m.model", "--threads", 1)
    found = {}
    for name, options in (("stays", ()), ("set", ("--lambda", "1e-3")), ("tuned", ("--retune",))):
        found[name] = done("update", tmp_path / "m.model", shelf / "b.zarr", "--out", tmp_path / name, *options,
                           "--threads", 1, "--json").json["lambda"]  # fmt: skip
    free = done("solve", shelf / "ab.stats", "--out", tmp_path / "free.model", "--json", "--threads", 1).json["lambda"]
    assert found == {"stays": 0.5, "set": 1e-3, "tuned": free}
    both = streamrf(
        "update", tmp_path / "m.model", shelf / "b.zarr", "--lambda", 1, "--retune", "--out", tmp_path / "x"
    )
    assert both.code == 2


def documented_keys(heading):
    """The table in docs/json.md under this heading: keys, and what stands in the column beside them."""
    text = (PROJECT / "docs" / "json.md").read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {key.strip(" `"): row[1] for row in rows for key in row[0].split(",")}


def test_reports_have_the_keys_that_are_documented(shelf, tmp_path):
    model, run = tmp_path / "m.model", ("--threads", 1, "--json")
    commands = [
        ("merge", shelf / "a.stats", shelf / "b.stats", "--out", model),
        ("update", model, shelf / "c.zarr"),
        ("forget", model, shelf / "b.zarr", "--retune"),
        ("solve", shelf / "a.stats", "--lambda", 1, "--out", tmp_path / "s.model"),
        ("accumulate", model, shelf / "b.zarr", "--out", tmp_path / "b.stats"),
        ("update", tmp_path / "b.stats", shelf / "a.zarr"),
    ]
    table = documented_keys("update, forget, accumulate, merge, solve")
    for command in commands:
        found = done(*command, *run).json
        solved = "model" in found
        wanted = {key for key, of in table.items() if "all" in of.split() or command[0] in of}
        wanted |= {key for key, of in table.items() if "where there is a model" in of and solved}
        wanted -= {"statistics" if solved else "model"}
        wanted |= {"model" if solved else "statistics"}
        assert set(found) == wanted, command[0]
        assert all(set(step) == {"lambda", "gcv"} for step in found.get("lambda_path") or ())
    prepared = done("prepare", shelf / "a.zarr", *OPTIONS, "--out", tmp_path / "p.prepared", *run).json
    assert set(prepared) == set(documented_keys("prepare"))
    assert set(prepared["digests"]) == {"map", "scaling", "target coding"}


def test_forget_strictly_as_a_command(shelf, tmp_path):
    options = (*OPTIONS, "--lambda", "1e-4")
    done("train", shelf / "a.zarr", shelf / "b.zarr", *options, "--out", tmp_path / "ab.model")
    done("train", shelf / "b.zarr", *options, "--out", tmp_path / "b.model")
    stays = ("--strict", "--data", shelf / "b.zarr")
    found = done("forget", tmp_path / "ab.model", shelf / "a.zarr", *stays, "--threads", 1, "--json").json
    assert (found["removed"], found["strict"]) == (300, True)
    assert digest_of(tmp_path / "ab.model") == digest_of(tmp_path / "b.model")
    assert (
        load_prepared(tmp_path / "ab.model").pipeline.digests()
        == load_prepared(tmp_path / "b.model").pipeline.digests()
    )


def test_forgetting_some_rows_as_a_command(shelf, tmp_path):
    done("forget", shelf / "ab.stats", shelf / "b.zarr", "--rows", "0:300", "--rows", "310:400",
         "--out", tmp_path / "left.stats", "--threads", 1, "--quiet")  # fmt: skip
    assert Statistics.load(tmp_path / "left.stats").rows == 310
    assert done("forget", tmp_path / "left.stats", shelf / "b.zarr", "--threads", 1, "--json").json["removed"] == 10
    assert digest_of(tmp_path / "left.stats") == digest_of(shelf / "a.stats")


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["update", "abc.stats", "c.zarr"], 5, "c.zarr: Rows 0 to 199 would be added a second time"),
        (["forget", "ab.stats", "c.zarr"], 5, "c.zarr is not among the 2 shards"),
        (["forget", "ab.stats"], 2, "name the shards to forget"),
        (["forget", "ab.stats", "a.zarr", "--strict"], 2, "name each of them with --data"),
        (["forget", "ab.stats", "a.zarr", "--data", "b.zarr"], 2, "name each of them with --data"),
        (["forget", "ab.stats", "a.zarr", "b.zarr", "--rows", "0:1"], 2, "--rows is about the rows of one shard"),
        (["forget", "ab.stats", "a.zarr", "--rows", "200:301"], 2, "START:STOP within the 300 rows"),
        (["merge", "a.stats", "ab.stats", "--out", "x"], 5, "a.zarr: Rows 0 to 299 would be added a second time"),
        (["merge", "a.stats", "--minus", "b.stats", "--out", "x"], 5, "b.zarr is not among the 1 shards"),
        (["merge", "a.stats", "all.prepared", "--out", "x"], 5, "is a prepared archive"),
        (["merge", "a.stats", "--out", "x", "--statistics-only", "--lambda", "1"], 2, "leave out --lambda"),
        (["merge", "a.stats", "--out", "b.stats"], 7, "already exists"),
        (["solve", "a.stats", "--outputs", "1", "--out", "x"], 2, "numbers from 0 to 0 are wanted"),
        (["solve", "a.stats", "--outputs", "one", "--out", "x"], 2, "must be whole numbers separated by commas"),
        (["solve", "a.stats", "--lambda", "-1", "--out", "x"], 2, "--lambda -1"),
        (["solve", "a.stats", "--memory", "1MB", "--out", "x"], 6, "the budget is 1.00 MB"),
        (["solve", "a.zarr", "--out", "x"], 4, "not a complete streamrf archive"),
        (["accumulate", "a.zarr", "a.zarr", "--out", "x"], 4, "not a complete streamrf archive"),
    ],
)
def test_refusals_are_one_sentence_and_write_nothing(shelf, monkeypatch, command, code, message):
    monkeypatch.chdir(shelf)
    before = {path: path.stat().st_mtime_ns for path in shelf.rglob("*")}
    quiet = () if command[0] in ("merge", "solve") else ("--quiet",)
    answer = streamrf(*command, *quiet)
    assert answer.code == code, answer.err
    assert message in answer.sentence
    assert {path: path.stat().st_mtime_ns for path in shelf.rglob("*")} == before


def test_inspect_shows_what_is_in(shelf, tmp_path):
    fixed = done("inspect", shelf / "all.prepared", "--json").json
    sums = done("inspect", shelf / "ab.stats", "--json").json
    assert (fixed["kind"], sums["kind"], sums["rows"]) == ("prepared", "statistics", 700)
    assert fixed["digests"] == sums["digests"]
    assert sums["statistics_digest"] == digest_of(shelf / "ab.stats")
    assert sorted((shard["shard"][-6:], shard["rows"]) for shard in sums["shards"]) == [
        ("a.zarr", 300),
        ("b.zarr", 400),
    ]
    done("merge", shelf / "a.stats", shelf / "b.stats", "--out", tmp_path / "m.model", "--threads", 1)
    model = done("inspect", tmp_path / "m.model", "--json").json
    assert model["shards"] == sums["shards"]
    assert model["history"] == [{"event": "merge", "rows": 400, "rows_in": 700}]
    assert "b.zarr, rows 400, of 400" in done("inspect", tmp_path / "m.model").out


def test_a_budget_is_refused_before_statistics_are_read(shelf, monkeypatch):
    monkeypatch.setattr(memory.memory, "reserved", lambda: 0)
    size = (shelf / "a.stats" / "statistics.safetensors").stat().st_size
    enough_for_one = int(3 * 1.08 * size) + 1
    memory.check_budget([shelf / "a.stats"], enough_for_one, states=1)
    with pytest.raises(BudgetError, match=r"2 statistics of .* and a matrix of twice that"):
        memory.check_budget([shelf / "a.stats"], enough_for_one, states=2)


# -- interrupted and resumed


def test_an_update_is_interrupted_and_resumed_to_the_same_bits(tmp_path, monkeypatch, prepared, sums, work):
    monkeypatch.setattr("streamrf.solvers.plan.SPAN_ROWS", 100)
    kept = Settings(checkpoint=tmp_path / "kept", checkpoint_every=3600)
    source, statistics = ArraySource(X[SECOND], y[SECOND], chunk_rows=100), sums["a"].copy()
    with pytest.raises(Interrupted, match="200 of 400 rows are done and kept"):
        update(statistics, source, Work(work.threads, kept, Impatient(200)))
    assert statistics.digest() == sums["a"].digest()
    other = prepare(rows(FIRST), FIXED.with_(seed=9), work)
    with pytest.raises(MismatchError, match="map"):
        accumulate(other, source, Work(work.threads, kept))
    with pytest.raises(MismatchError, match="rows"):
        accumulate(prepared, source, Work(work.threads, kept), rows=RowSet([(0, 300)]))
    update(statistics, source, Work(work.threads, kept))
    assert statistics.digest() == (sums["a"] + sums["b"]).digest()
    assert statistics.ledger == (sums["a"] + sums["b"]).ledger


def test_checkpoints_are_cleared_when_all_ended_well(shelf, tmp_path):
    saving = ("--checkpoint-every", 0, "--threads", 1, "--quiet")
    done("update", shelf / "a.stats", shelf / "b.zarr", "--out", tmp_path / "ab.stats", *saving)
    done("forget", tmp_path / "ab.stats", shelf / "a.zarr", *saving)
    done("accumulate", shelf / "all.prepared", shelf / "b.zarr", "--out", tmp_path / "b.stats", *saving)
    assert {path.name for path in tmp_path.iterdir()} == {"ab.stats", "b.stats"}
    assert digest_of(tmp_path / "ab.stats") == digest_of(tmp_path / "b.stats") == digest_of(shelf / "b.stats")


# -- the page that explains it


def code_of(language):
    text = (PROJECT / "docs" / "updating-and-forgetting.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def test_what_the_page_says_is_what_happens(tmp_path, monkeypatch):
    """Every command of the page in order, on small shards; only size and pilot are cut down."""
    monkeypatch.chdir(tmp_path)
    commands = [line for block in code_of("bash") for line in block.splitlines()]
    names = sorted({word for line in commands for word in line.split() if word.endswith(".zarr")})
    for number, name in enumerate(names):
        rng = np.random.default_rng(number)
        part = rng.standard_normal((150, 6)).astype(np.float32)
        write_zarr(tmp_path / name, part, np.sin(part[:, 0]) + part[:, 1])
    for line in commands:
        program, *words = line.split()
        assert program == "streamrf"
        small = OPTIONS if words[0] in ("train", "prepare") else ("--threads", "1")
        done(*words, *small)
    for block in code_of("python"):
        exec(block, {})
    assert digest_of("python.model") == digest_of("window.model")
    assert np.array_equal(
        Model.load("python.model").weights.coefficients, Model.load("window.model").weights.coefficients
    )
    kept = done("inspect", "spring.model", "--json").json["shards"]
    assert sorted(shard["shard"].rpartition("/")[2] for shard in kept) == ["june.zarr", "may.zarr"]
