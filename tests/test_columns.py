"""Raw columns to features: what is learned, what is made of each value, and what is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrf.data.columns import Column, Columns, Handling, scanning
from streamrf.data.columns.encoding import Encoder, as_levels, as_numbers
from streamrf.data.columns.learning import learn_columns
from streamrf.data.open import learn_coding, open_source
from streamrf.data.readers.base import BatchReader
from streamrf.data.source import Span
from streamrf.support.errors import DataError, FileFormatError, InputError
from streamrf.support.storage import safejson


class TableInMemory(BatchReader):
    """A table in memory, cut into batches of a few rows."""

    location = "a table"

    def __init__(self, table: pa.Table, rows: int = 3) -> None:
        self.table, self.schema, self.n_rows, self.rows = table, table.schema, len(table), rows

    def batches(self, names):
        yield from self.table.select(names).combine_chunks().to_batches(self.rows)


def learned(table: pa.Table, rows: int = 3, **handling) -> Columns:
    return learn_columns(TableInMemory(table, rows), table.column_names, Handling(**handling))


def encoded(columns: Columns, table: pa.Table) -> np.ndarray:
    out = np.full((len(table), columns.width), -7.0, columns.dtype)
    Encoder(columns).encode(table, out)
    return out


PEOPLE = pa.table(
    {
        "age": [31.0, None, 45.0, 20.0],
        "city": ["Rome", "Bern", "Rome", "Oslo"],
        "member": [True, False, True, True],
        "born": pa.array([dt.date(1970, 1, 2), dt.date(1969, 12, 31), None, dt.date(2000, 1, 1)]),
    }
)


def test_every_kind_of_column_becomes_numbers():
    columns = learned(PEOPLE, missing="median")
    assert columns.feature_names == (
        "age", "age is missing", "city=Bern", "city=Oslo", "city=Rome", "member",
        "born", "born weekday sin", "born weekday cos", "born day of year sin", "born day of year cos",
        "born is missing",
    )  # fmt: skip
    found = encoded(columns, PEOPLE)
    assert np.delete(found, [7, 8, 9, 10], axis=1).tolist() == [
        [31, 0, 0, 0, 1, 1, 1, 0],
        [31, 1, 1, 0, 0, 0, -1, 0],
        [45, 0, 0, 0, 1, 1, 1, 1],
        [20, 0, 0, 1, 0, 1, 10957, 0],
    ]
    turns = 2 * np.pi * found[:, 6] / np.array([[7], [7], [365.2425], [365.2425]])
    waves = np.stack([np.sin(turns[0]), np.cos(turns[1]), np.sin(turns[2]), np.cos(turns[3])], axis=1)
    assert np.abs(found[:, 7:11] - waves).max() < 1e-6


def test_a_coding_is_told_in_words():
    assert learned(PEOPLE, missing="median").describe() == (
        "4 columns become 12 features (2 numbers, 1 date, 1 one-hot category, 2 flags for missing values)"
    )
    alone = learned(PEOPLE.select(["city"]), categories="onehot")
    assert alone.describe() == "1 column becomes 3 features (1 one-hot category)"
    one = learned(pa.table({"x": [1.0, 2.0]}), missing="median")
    assert one.describe() == "1 column becomes 1 feature (1 number)"


def test_ordinals_are_places_in_sorted_order():
    columns = learned(PEOPLE.select(["city"]), categories="ordinal")
    assert encoded(columns, PEOPLE).ravel().tolist() == [2, 0, 2, 1]


def test_missing_values_stay_missing_where_that_is_asked_for():
    columns = learned(pa.table({"a": [1.0, None], "c": ["x", None]}), missing="error")
    assert columns.feature_names == ("a", "c=x")
    assert np.isnan(encoded(columns, pa.table({"a": [1.0, None], "c": ["x", None]}))[1]).all()


def test_a_missing_category_is_no_level_but_a_flag():
    table = pa.table({"c": ["b", None, "a", "b"]})
    assert encoded(learned(table, missing="median"), table).tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]
    ordinal = learned(table, missing="median", categories="ordinal")
    assert encoded(ordinal, table).tolist() == [[1, 0], [1, 1], [0, 0], [1, 0]]  # the commonest level, and the flag


def test_values_missing_only_later_are_filled_without_a_flag():
    columns = learned(pa.table({"a": [1.0, 3.0], "c": ["x", "y"]}), missing="median")
    later = pa.table({"a": pa.array([None], pa.float64()), "c": pa.array([None], pa.string())})
    assert encoded(columns, later).tolist() == [[2, 0, 0]]


def test_unknown_levels_are_zeros_or_a_place_of_their_own_and_are_counted():
    table, later = pa.table({"c": ["a", "b"]}), pa.table({"c": ["z", "b", "y"]})
    for categories, wanted in (("onehot", [[0, 0], [0, 1], [0, 0]]), ("ordinal", [[2], [1], [2]])):
        columns = learned(table, categories=categories)
        encoder, out = Encoder(columns), np.empty((3, columns.width))
        encoder.encode(later, out)
        assert out.tolist() == wanted
        assert encoder.unknown == {"c": 2}


def test_columns_are_found_by_name_in_any_order_and_storage():
    columns = learned(PEOPLE, missing="median")
    shuffled = PEOPLE.select(["born", "member", "city", "age"]).append_column("more", pa.array([0, 0, 0, 0]))
    assert np.array_equal(encoded(columns, shuffled), encoded(columns, PEOPLE))
    stored = PEOPLE.set_column(1, "city", PEOPLE["city"].combine_chunks().dictionary_encode())
    stored = stored.set_column(3, "born", PEOPLE["born"].cast(pa.timestamp("ns")))
    assert np.array_equal(encoded(columns, stored), encoded(columns, PEOPLE))


def test_numbers_can_be_declared_categories_however_they_are_stored():
    columns = learned(pa.table({"zone": [3, 1, 3]}), categorical=("zone",))
    assert columns.feature_names == ("zone=1", "zone=3")
    for values in ([3, 1], [3.0, 1.0], ["3", "1"]):
        assert encoded(columns, pa.table({"zone": values})).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("stored", [pa.float64(), pa.float32(), pa.float16()])
def test_levels_of_floats_do_not_depend_on_their_neighbours(stored):
    big = 2.0**15 if stored == pa.float16() else 2.0**62
    values = pa.array([1.0, 2.5, big, -0.0, np.inf, -np.inf, np.nan, None], pa.float64()).cast(stored)
    wanted = ["1", "2.5", str(int(big)), "0", None, None, None, None]
    assert as_levels(values).to_pylist() == wanted
    assert [as_levels(values[i : i + 1])[0].as_py() for i in range(len(values))] == wanted
    assert as_levels(values.dictionary_encode()).to_pylist() == wanted


def test_floats_beyond_whole_numbers_have_levels_and_infinite_ones_are_missing():
    assert as_levels(pa.array([1e20, 1.0, -1e300])).to_pylist() == ["1e+20", "1", "-1e+300"]
    table = pa.table({"c": [1.0, np.inf, 1e20, np.nan]})
    columns = learned(table, categorical=("c",), missing="median")
    assert columns.feature_names == ("c=1", "c=1e+20", "c is missing")
    wanted = [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]
    for values in (table["c"], table["c"].combine_chunks().dictionary_encode()):
        assert encoded(columns, pa.table({"c": values})).tolist() == wanted


@pytest.mark.parametrize(
    ("trained", "texts", "codes"),
    [
        ([1067, 1, 20], ["01067", "1.0", "20", "x", None], [1, 0, 2, 3, np.nan]),
        (pa.array([2**63 + 2**40, 1, 2], pa.uint64()), ["9223373136366403584", "01", "2"], [2, 0, 1]),
        ([1.0, 2.5, 1e20], ["1", "02.50", "1e20", "1.00"], [0, 2, 1, 0]),
        ([True, False, True], ["True", "FALSE", "0"], [1, 0, 0]),
        (["01", "1", "1.0"], ["01", "1", "1.0"], [0, 1, 2]),
    ],
)
def test_texts_of_numbers_are_coded_as_the_numbers_were(trained, texts, codes):
    """A CSV file has nothing but text; the table that training saw had numbers."""
    columns = learned(pa.table({"c": trained}), categories="ordinal", categorical=("c",), missing="error")
    columns = Columns.from_json(safejson.decode(safejson.encode(columns.to_json(), "it"), "it"))
    table = pa.table({"c": pa.array(texts, pa.string())})
    assert np.array_equal(encoded(columns, table).ravel(), codes, equal_nan=True)
    stored = pa.table({"c": table["c"].combine_chunks().dictionary_encode()})
    assert np.array_equal(encoded(columns, stored).ravel(), codes, equal_nan=True)


@pytest.mark.parametrize(
    ("values", "days"),
    [
        (pa.array([dt.datetime(1970, 1, 2, 12)], pa.timestamp("ms")), 1.5),
        (pa.array([dt.datetime(1970, 1, 2, 12)], pa.timestamp("us", tz="Europe/Berlin")), 1.5),
        (pa.array([86_400_000], pa.date64()), 1.0),
        (pa.array([dt.timedelta(hours=6)], pa.duration("s")), 0.25),
        (pa.array([dt.time(18)], pa.time32("s")), 0.75),
        (pa.array([dt.time(18)], pa.time64("us")), 0.75),
        (pa.array([Decimal("1.25")], pa.decimal128(5, 2)), 1.25),
    ],
)
def test_dates_are_days_and_decimals_numbers(values, days):
    table = pa.table({"t": values})
    assert encoded(learned(table), table).tolist() == [[days]]


def test_narrow_numbers_stay_narrow():
    assert learned(pa.table({"a": pa.array([1.5], pa.float32()), "c": ["x"]})).dtype == "float32"
    assert learned(pa.table({"a": pa.array([1], pa.int32()), "c": ["x"]})).dtype == "float64"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.sampled_from("abcd")), min_size=1, max_size=40).filter(any),
    st.integers(1, 9), st.randoms(use_true_random=False),
)  # fmt: skip
def test_what_is_learned_depends_on_neither_order_nor_cuts(values, rows, random):
    mixed = values[:]
    random.shuffle(mixed)
    for categories in ("onehot", "ordinal"):
        one, other = (
            learned(pa.table({"c": pa.array(v, pa.string())}), r, categories=categories, missing="median")
            for v, r in ((values, 1000), (mixed, rows))
        )
        assert one == other
        assert Columns.from_json(safejson.decode(safejson.encode(one.to_json(), "it"), "it")) == one


def test_medians_of_many_rows_come_from_a_sample_that_cuts_do_not_change(monkeypatch):
    monkeypatch.setattr(scanning, "SAMPLE_ROWS", 500)
    table = pa.table({"a": np.random.default_rng(0).permutation(20_001).astype(float)})
    one, other = (learned(table, rows, missing="median").columns[0].fill for rows in (7, 4000))
    assert one == other
    assert abs(one - 10_000) < 1500


# -- refusals


def test_one_hot_text_of_more_values_than_allowed_is_refused_with_both_numbers():
    table = pa.table({"id": [f"no {i}" for i in range(300)]})
    with pytest.raises(
        DataError, match=r"'id' of a table is not numeric.*102 different.*first 102 rows.*100.*`exclude=\['id'\]`"
    ):
        learned(table, categories="onehot", max_levels=100)
    assert learned(table, max_levels=300).width == 300
    assert learned(table, categories="ordinal").width == 1


def test_refusals_say_what_to_do():
    with pytest.raises(DataError, match=r"'city'.*not numeric.*`categories='auto'`.*`exclude=\['city'\]`"):
        learned(PEOPLE, categories="error")
    with pytest.raises(DataError, match=r"'l' .*list.*`exclude=\['l'\]`"):
        learned(pa.table({"l": [[1], [2]]}))
    with pytest.raises(DataError, match=r"'n' .*no values.*`exclude=\['n'\]`"):
        learned(pa.table({"n": pa.nulls(3)}))
    with pytest.raises(DataError, match=r"`categorical=\['x'\]`"):
        learned(PEOPLE, categorical=("x",))
    with pytest.raises(DataError, match="two features would be called 'c=a'"):
        learned(pa.table({"c": ["a"], "c=a": [1.0]}))
    with pytest.raises(InputError, match="`max_levels=0`"):
        Handling(max_levels=0)
    encoder = Encoder(learned(PEOPLE))
    with pytest.raises(DataError, match=r"no column 'city'.*trained"):
        encoder.check(PEOPLE.drop_columns(["city"]).schema, "there")
    with pytest.raises(DataError, match=r"'age' of there is of type string, but the model knows numbers"):
        encoder.check(PEOPLE.set_column(0, "age", pa.array(["1"] * 4)).schema, "there")


def test_documents_of_the_first_version_load_for_ever():
    document = {
        "dtype": "float64",
        "columns": [
            {"name": "age", "kind": "number", "fill": 31.0, "flag": True},
            {"name": "city", "kind": "onehot", "levels": ["Bern", "Oslo"], "fill": 0.0},
            {"name": "size", "kind": "ordinal", "levels": ["L", "S"]},
            {"name": "born", "kind": "date"},
        ],
    }
    columns = Columns.from_json(document)
    assert columns.to_json() == document
    assert columns.feature_names == ("age", "age is missing", "city=Bern", "city=Oslo", "size", "born")


def test_a_coding_keeps_how_it_was_asked_for():
    asked = {"missing": "median", "categories": "ordinal", "categorical": ("member",), "max_levels": 7}
    columns = Columns.from_json(safejson.decode(safejson.encode(learned(PEOPLE, **asked).to_json(), "it"), "it"))
    assert columns.handling == Handling(**asked)


def test_how_it_was_asked_for_makes_no_other_coding():
    table = PEOPLE.select(["city"])
    assert learned(table, max_levels=7) == learned(table)


@pytest.mark.parametrize(
    "damage",
    [
        *({"dtype": "float64", "columns": [{"name": "a", "kind": "number"}], "handling": handling} for handling in (
            "auto", [], {"categories": "pickle"}, {"categories": []}, {"max_levels": "1"}, {"max_levels": 0},
            {"max_levels": True}, {"categorical": "ab"}, {"categorical": [1]}, {"missing": 0}, {"run": 1},
        )),
        None, [], {"dtype": "float64"}, {"dtype": "int8", "columns": [{"name": "a", "kind": "number"}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "pickle"}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "onehot"}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "onehot", "levels": ["b", "a"]}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "onehot", "levels": [1]}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "number", "levels": ["a"]}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "number", "fill": "1"}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "number", "run": "1"}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "number"}] * 2},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "onehot", "levels": ["1"], "of": "pickle"}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "onehot", "levels": ["1"], "of": []}]},
        {"dtype": "float64", "columns": [{"name": "a", "kind": "number", "of": "int"}]},
    ],
)  # fmt: skip
def test_damaged_documents_are_refused(damage):
    with pytest.raises(FileFormatError, match="coding of columns"):
        Columns.from_json(damage)


# -- parquet


@pytest.fixture
def people(tmp_path: Path) -> Path:
    table = PEOPLE.append_column("pay", pa.array([1.0, 2.0, 3.0, 4.0]))
    pq.write_table(table, tmp_path / "people.parquet", row_group_size=3)
    return tmp_path / "people.parquet"


def test_a_coded_parquet_source_reads_features(people):
    columns = learn_coding(str(people), Handling(missing="median"), target="pay")
    source = open_source(people, target="pay", columns=columns)
    assert source.feature_names == columns.feature_names
    assert source.target_names == ("pay",)
    assert source.read(Span(1, 4)).X.tolist() == encoded(columns, PEOPLE)[1:].tolist()
    again = open_source(source.spec())
    assert again.fingerprint() == source.fingerprint()
    assert again.columns == columns


def test_several_files_are_coded_alike(people, tmp_path):
    other = pa.table({"city": ["Rome", "Paris"], "pay": [1.0, 2.0]})
    pq.write_table(other, tmp_path / "more.parquet")
    data = [str(people), str(tmp_path / "more.parquet")]
    columns = learn_coding(data, Handling(), target="pay", features=["city"])
    assert columns.columns == (Column("city", "onehot", ("Bern", "Oslo", "Paris", "Rome"), fill=0.0),)
    source = open_source(data, target="pay", columns=columns)
    assert source.read(Span(3, 6)).X.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]


def test_a_table_of_numbers_needs_no_coding(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "y": [0.5, 1.5]}), tmp_path / "t.parquet")
    assert learn_coding(str(tmp_path / "t.parquet"), Handling()) is None


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("values", [[1, 2, 3, 4], [1, None, 3, 4], [None, None], []])
def test_numbers_are_those_of_arrow_without_its_help(kind, values):
    column = pa.array(values, kind)
    theirs = column.to_numpy(zero_copy_only=False)
    for same in (column, pa.array([7, *values], kind)[1:], pa.chunked_array([values[:2], values[2:]], kind)):
        ours = as_numbers(same)
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs, equal_nan=True)
