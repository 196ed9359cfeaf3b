"""Frames that a library can hold and we cannot take as they are: each is a model, or one sentence with the fix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import streamrf
from streamrf import KernelRegressor, Recipe
from streamrf.models.model import Model
from streamrf.support import errors

SETTINGS: dict[str, Any] = {"D": 16, "pilot": "none", "length_scale": 2.0, "ridge": 1e-4, "threads": 1}
ROWS = 200


@pytest.fixture(scope="module")
def table() -> pa.Table:
    x = np.random.default_rng(0).normal(size=ROWS)
    return pa.table({"x": x, "c": np.where(x > 0, "high", "low"), "y": 2 * x})


def test_a_column_without_a_name_is_saved_and_found(table, tmp_path):
    """Parquet and frames may have one; CSV calls it by its place."""
    odd = table.rename_columns(["x", "", "y"])
    pq.write_table(odd, tmp_path / "t.parquet")
    trained = streamrf.train(tmp_path / "t.parquet", Recipe(D=16, pilot="none", length_scale=2.0), target="y")
    trained.model.save(tmp_path / "t.model")
    assert Model.load(tmp_path / "t.model").columns.names == ["x", ""]
    wanted = streamrf.predict(trained.model, tmp_path / "t.parquet")
    assert np.array_equal(streamrf.load(tmp_path / "t.model").predict(odd.select(["", "x"])), wanted)


def test_names_that_are_there_twice_are_named(table, tmp_path):
    twice = pa.table([table["x"], table["x"], table["c"], table["y"]], names=["x", "x", "c", "y"])
    pq.write_table(twice, tmp_path / "t.parquet")
    with pa.ipc.new_file(tmp_path / "t.arrow", twice.schema) as file:
        file.write_table(twice)
    places = [twice, twice.to_reader(), tmp_path / "t.parquet", tmp_path / "t.arrow"]
    for data in places:
        with pytest.raises(errors.DataError, match="more than one column called 'x': names must be unique"):
            KernelRegressor(**SETTINGS).fit(data, "y")


def test_types_that_parquet_does_not_have_are_left_out_of_what_is_spilled(table, tmp_path, caplog):
    caplog.set_level("INFO", logger="streamrf")
    span = pa.array([pa.MonthDayNano([1, 2, 3])] * ROWS)
    odd = table.append_column("span", span).append_column("runs", pc.run_end_encode(table["y"].combine_chunks()))
    with pa.ipc.new_file(tmp_path / "t.arrow", odd.schema) as file:
        file.write_table(odd)
    wanted = KernelRegressor(**SETTINGS).fit(table, "y").predict(table)
    for data, again in ((odd.to_reader(), odd.to_reader()), (tmp_path / "t.arrow", odd)):
        found = KernelRegressor(**SETTINGS).fit(data, "y")
        assert "left out: 'span' (month_day_nano_interval), 'runs' (run_end_encoded" in caplog.text
        caplog.clear()
        assert np.array_equal(found.predict(again), wanted)


def test_whole_numbers_of_more_than_64_bits(table, caplog):
    """Of Python they become text, of polars floats."""
    caplog.set_level("INFO", logger="streamrf")
    frame = table.to_pandas().assign(wide=[10**30 + i % 3 for i in range(ROWS)])
    kind = streamrf.open_source(frame, target="y", columns=streamrf.data.columns.Handling()).columns.columns[2]
    assert kind.levels == tuple(str(10**30 + i) for i in range(3))
    assert "column 'wide' is read as text" in caplog.text
    wide = pl.from_arrow(table).with_columns(wide=pl.int_range(ROWS).cast(pl.Int128))
    plain = wide.with_columns(pl.col("wide").cast(pl.Float64))
    wanted = KernelRegressor(**SETTINGS).fit(plain, "y").predict(plain)
    for frame in (wide, wide.lazy()):
        assert np.array_equal(KernelRegressor(**SETTINGS).fit(frame, "y").predict(frame), wanted)


def test_targets_whose_names_are_no_text(table):
    numbered = table.to_pandas().set_axis([0, 1, 2], axis=1)
    fitted = KernelRegressor(**SETTINGS).fit(numbered, 2)
    assert fitted.score(numbered, 2) > 0.9
    wanted = KernelRegressor(**SETTINGS).fit(table, "y").predict(table)
    assert np.array_equal(fitted.predict(numbered[[0, 1]]), wanted)
    nested = table.to_pandas().set_axis([("in", "x"), ("in", "c"), ("out", "y")], axis=1)
    nested.columns = pd.MultiIndex.from_tuples(nested.columns)
    assert np.array_equal(KernelRegressor(**SETTINGS).fit(nested, ("out", "y")).predict(nested), wanted)
    with pytest.raises(errors.InputError, match="columns are named by text, as in '2', not by 2"):
        streamrf.train(numbered, target=2)  # type: ignore[arg-type]


def test_what_is_no_table_is_told_how_to_become_one(table):
    with pytest.raises(errors.InputError, match=r"a dict is no table: .*pandas.DataFrame\(data\)"):
        KernelRegressor(**SETTINGS).fit(table.to_pydict(), "y")
    with pytest.raises(errors.DataError, match=r"labels, not numbers: .*KernelClassifier"):
        KernelRegressor(**SETTINGS).fit(table, "c")
    with pytest.raises(errors.InputError, match=r"`missing` is not an option.*into `columns` \(a Handling\)"):
        streamrf.train(table, target="y", missing="error")
