"""Data frames of every library, in the functions and the estimators: by name, in any order, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamrf
from streamrf.data.columns import Handling
from streamrf.data.frames import has_only_numbers, is_frame
from streamrf.support import errors

ROWS = 400
SETTINGS = {"D": 32, "pilot": "none", "length_scale": 2.0, "bits": "8", "ridge": 1e-4, "threads": 1}
RECIPE = streamrf.Recipe(D=32, pilot="none", length_scale=2.0, bits="8", ridge=1e-4)
CODING = Handling(missing="median")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """A column of each kind that pandas has, with gaps."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=ROWS)
    made = pd.DataFrame(
        {
            "a": np.where(rng.random(ROWS) < 0.1, np.nan, a),
            "object": pd.Series(rng.choice(["u", "v"], ROWS).tolist(), dtype=object),
            "string": pd.array(rng.choice(["x", "y", "z"], ROWS).tolist(), dtype="string"),
            "category": pd.Categorical(rng.choice(["low", "high"], ROWS)),
            "nullable": pd.array(np.where(rng.random(ROWS) < 0.1, None, 3), dtype="Int64"),
            "when": pd.date_range("2024-01-01", periods=ROWS, freq="h"),
            "flag": rng.random(ROWS) < 0.5,
            "price": a * 2 + 1,
        }
    )
    return made.drop(columns=["object"]).assign(object=made["object"])


def from_dask(frame: pd.DataFrame) -> Any:
    return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3)


def from_duckdb(frame: pd.DataFrame) -> Any:
    duckdb = pytest.importorskip("duckdb")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    return duckdb.connect().from_arrow(table)


class Capsule:
    """Nothing but the stream of the Arrow C interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def as_arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": lambda frame: pl.from_pandas(frame),
    "lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "arrow": as_arrow,
    "batch": lambda frame: as_arrow(frame).combine_chunks().to_batches()[0],
    "reader": lambda frame: as_arrow(frame).to_reader(max_chunksize=90),
    "capsule": lambda frame: Capsule(as_arrow(frame)),
    "dask": from_dask,
    "duckdb": from_duckdb,
}


@pytest.fixture(scope="module")
def trained(frame, tmp_path_factory) -> tuple[str, np.ndarray, Path]:
    """Digest, predictions and model of the same table as parquet."""
    place = tmp_path_factory.mktemp("frames")
    pq.write_table(as_arrow(frame), place / "t.parquet")
    found = streamrf.train(str(place / "t.parquet"), RECIPE, target="price", columns=CODING)
    found.model.save(place / "m.model", state=found.state)
    digest = found.model.metadata["statistics_digest"]
    return digest, streamrf.predict(found.model, str(place / "t.parquet")), place / "m.model"


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_of_any_kind_is_trained_on_predicted_and_measured(kind, frame, trained):
    digest, wanted, _ = trained
    make = KINDS[kind]
    assert is_frame(make(frame))
    found = streamrf.train(make(frame), RECIPE, target="price", columns=CODING)
    assert found.model.metadata["statistics_digest"] == digest
    assert np.array_equal(streamrf.predict(found.model, make(frame.drop(columns="price"))), wanted)
    assert streamrf.evaluate(found.model, make(frame))["r2"] > 0.5


@pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "duckdb"])
def test_estimators_take_names_of_targets(kind, frame):
    whole = frame.dropna()
    make = KINDS[kind]
    model = streamrf.KernelRegressor(**SETTINGS).fit(make(whole), "price")
    wanted = model.predict(make(whole))
    shuffled = whole[["flag", "price", *[name for name in whole.columns if name not in ("flag", "price")]]]
    assert np.array_equal(model.predict(make(shuffled.assign(more="extra"))), wanted)
    assert model.score(make(whole), "price") == pytest.approx(
        1 - ((whole["price"] - wanted) ** 2).mean() / whole["price"].var(ddof=0)
    )
    strange = whole.assign(string="never seen", category="nor this")
    assert np.isfinite(model.predict(make(strange))).all()
    with pytest.raises(errors.DataError, match=r"no column 'string' in .*there is .*'when'"):
        model.predict(make(whole.drop(columns="string")))


def test_targets_may_be_beside_a_frame_with_text(frame):
    whole = frame.dropna()
    inputs, y = whole.drop(columns="price"), whole["price"]
    by_name = streamrf.KernelRegressor(**SETTINGS).fit(whole, "price")
    beside = streamrf.KernelRegressor(**SETTINGS).fit(inputs, y)
    assert np.array_equal(beside.predict(inputs), by_name.predict(inputs))
    assert beside.score(inputs, y) == pytest.approx(by_name.score(whole, "price"))
    labels = np.where(y > y.median(), "dear", "cheap")
    classifier = streamrf.KernelClassifier(**SETTINGS).fit(inputs, labels)
    assert classifier.score(inputs, labels) > 0.7
    assert set(classifier.predict(inputs)) == {"dear", "cheap"}
    with pytest.raises(errors.InputError, match="one target for each row"):
        streamrf.KernelRegressor(**SETTINGS).fit(inputs, y[:-1])


def test_batches_of_frames_add_up(frame):
    whole = frame.dropna()
    grown = streamrf.KernelRegressor(**SETTINGS).partial_fit(whole, "price").partial_fit(whole[:100], "price")
    assert grown.statistics_.rows == len(whole) + 100


def test_a_loaded_model_finds_columns_by_name(frame, trained):
    _, wanted, path = trained
    model = streamrf.load(path)
    assert isinstance(model, streamrf.KernelRegressor)
    assert np.array_equal(model.predict(frame[frame.columns[::-1]].assign(extra=1)), wanted)


def test_frames_of_numbers_stay_arrays_for_scikit_learn():
    frame = pd.DataFrame({"a": [1.0, 2], "b": [1, 2]})
    for each in (frame, pl.from_pandas(frame), as_arrow(frame)):
        assert has_only_numbers(each)
    assert not has_only_numbers(frame.assign(c="x"))
    assert not is_frame(frame["a"])
    assert not is_frame(frame.to_numpy())


def test_objects_of_several_types_are_text(caplog):
    frame = pd.DataFrame({"a": [1, "x", 2.5, None] * 10, "y": range(40)})
    with caplog.at_level("INFO", "streamrf"):
        source = streamrf.open_source(frame, columns=CODING)
    assert source.columns.columns[0].levels == ("1", "2.5", "x")
    assert "column 'a' is read as text" in caplog.text
    twice = pd.DataFrame([[1, 2, 3]], columns=["a", "a", "y"])
    with pytest.raises(errors.DataError, match="more than one column called 'a'"):
        streamrf.open_source(twice)


def test_what_is_spilled_is_said_and_vanishes(frame, caplog):
    with caplog.at_level("INFO", "streamrf"):
        source = streamrf.open_source(KINDS["reader"](frame), target="price", columns=CODING)
    assert "is written to" in caplog.text
    folder = Path(source.location)
    assert folder.exists()
    del source
    assert not folder.exists()


def test_an_option_that_nobody_knows_is_refused(frame):
    """As it would be passed over in silence: settings of a model are easily taken for options."""
    with pytest.raises(errors.InputError, match=r"`map` is not an option of files.*goes into `recipe`"):
        streamrf.train(frame, target="price", map="trees")
