"""Dask collections as sources, without a cluster: what every source must do, and what is theirs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sources_conformance import NAMES, ROWS, SourceConformance, make_X, make_y

import streamrf
from streamrf.data.columns import Handling, scanning
from streamrf.data.columns.learning import learn_columns
from streamrf.data.open import open_source
from streamrf.data.partitions import Collection, at_hand, keys_of, known_collection
from streamrf.data.readers.collections import DaskBatches, DaskFrame
from streamrf.data.source import Span
from streamrf.support import errors

dd = pytest.importorskip("dask.dataframe")

RECIPE = streamrf.Recipe(D=32, pilot="none", length_scale=2.0, bits="8", ridge=1e-4)


class TestArrays(SourceConformance):
    """Chunked in rows and columns; the targets in other chunks."""

    x_types = ("f4", "f8", "i4", "?")

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        rows = da.from_array(X, chunks=(chunk_rows, 2))
        return {"data": rows if y is None else (rows, da.from_array(y, chunks=chunk_rows + 3))}


class TestFrames(SourceConformance):
    names = NAMES
    x_types = ("f4", "f8", "i1", "i4", "i8", "u2", "?")

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        columns = {name: X[:, i] for i, name in enumerate(NAMES)}
        targets = [] if y is None else list((y if y.ndim == 2 else y[:, None]).T)
        columns |= {f"y{j}": column for j, column in enumerate(targets)}
        frame = dd.from_pandas(pd.DataFrame(columns), chunksize=chunk_rows, sort=False)
        return {"data": frame, "target": [f"y{j}" for j in range(len(targets))] or "y0"}


class TestDelayedFrames(TestFrames):
    """A list of frames that are delayed is one table."""

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        choice = super().store(folder, X, y, chunk_rows)
        return {**choice, "data": list(choice["data"].to_delayed())}


def test_chunks_are_those_of_the_array():
    X = da.from_array(make_X(), chunks=((40, 0, 57), 5))
    assert open_source(X, need_targets=False).chunks() == (Span(0, 40), Span(40, ROWS))


def test_rows_that_nobody_has_counted_are_counted():
    X, y = make_X(), make_y("float")
    rows, targets = da.from_array(X, chunks=(30, 5)), da.from_array(y, chunks=45)
    some, wanted = rows[rows[:, 0] > 0], targets[rows[:, 0] > 0]
    assert np.isnan(some.shape[0])
    source = open_source(some, y=wanted)
    assert np.array_equal(source.read(Span(0, source.n_rows)).X, X[X[:, 0] > 0])
    assert np.array_equal(source.read_targets(Span(0, source.n_rows)), y[X[:, 0] > 0])
    with pytest.raises(errors.DataError, match="they must match"):
        open_source(some, y=targets)


def test_a_partition_that_changes_is_refused():
    calls: list[int] = []

    @dask.delayed
    def load() -> pd.DataFrame:
        calls.append(1)
        return pd.DataFrame({"a": np.arange(10.0 + len(calls)), "y": 1.0})

    source = open_source(dd.from_delayed([load()], meta=pd.DataFrame({"a": [0.0], "y": [0.0]})))
    with pytest.raises(errors.DataError, match=r"had 11 rows and now has 12: .* every time"):
        source.read(Span(0, 5))


def test_a_partition_is_computed_once_for_neighbouring_reads():
    calls: list[int] = []

    @dask.delayed
    def load(start: float) -> pd.DataFrame:
        calls.append(1)
        return pd.DataFrame({"a": np.arange(start, start + 10), "y": 1.0})

    source = open_source(dd.from_delayed([load(0.0), load(10.0)], meta=pd.DataFrame({"a": [0.0], "y": [0.0]})))
    calls.clear()
    for start in range(0, 20, 5):
        assert source.read(Span(start, start + 5)).X[:, 0].tolist() == [*range(start, start + 5)]
    assert len(calls) == 2


def test_what_tasks_raise_is_one_sentence():
    def broken(part: pd.DataFrame) -> pd.DataFrame:
        raise ZeroDivisionError("no such luck")

    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(9.0), "y": 1.0}), npartitions=3)
    late = frame.map_partitions(lambda part: part if "y" not in part else broken(part), meta=frame._meta)
    source = open_source(frame)
    source.dask.collection, source.dask._graphs = late, {}
    source.dask._parts = {}
    with pytest.raises(errors.DataError, match=r"partition 1 of the dask frame cannot be computed \(ZeroDiv"):
        source.read(Span(4, 5))


def test_types_are_those_of_all_partitions(tmp_path):
    """Whole numbers that have gaps in one partition only, categories coded anew in each, objects of several types."""
    parts = [
        pd.DataFrame({"n": np.arange(4, dtype=np.int16), "c": pd.Categorical(list("aabb")), "o": [1, 2, 3, 4]}),
        pd.DataFrame({"n": [1.0, np.nan, 3.0, 4.0], "c": pd.Categorical(list("zyxw")), "o": list("uuvv")}),
    ]
    parts = [part.assign(y=1.0) for part in parts]
    frame = dd.from_delayed([dask.delayed(part) for part in parts], meta=parts[0].assign(o="x"), verify_meta=False)
    source = open_source(frame, columns=Handling(missing="median"))
    assert {column.name: column.levels for column in source.columns.columns} == {
        "n": (), "c": tuple("abwxyz"), "o": tuple("1234uv"),
    }  # fmt: skip
    assert source.x_dtype == np.float32
    assert source.read(Span(5, 6)).X[0, :2].tolist() == [2.0, 1.0]  # the median, and the flag of a gap


def test_rows_that_are_sorted_are_computed_once(caplog):
    """Where every partition needs all others, partitions are stored first."""
    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(200.0)[::-1] % 17, "y": np.arange(200.0)}), npartitions=10)
    with caplog.at_level("INFO", "streamrf"):
        source = open_source(frame.shuffle("a"))
    assert "the dask frame is written to" in caplog.text
    assert sorted(source.read_targets(Span(0, 200)).tolist()) == [*range(200)]


def test_weights_and_groups_may_be_dask_arrays_too():
    rng = np.random.default_rng(0)
    X, w, groups = rng.normal(size=(600, 3)), rng.integers(1, 4, 600).astype(float), rng.integers(0, 50, 600)
    y = X[:, 0] + 0.1 * rng.normal(size=600)
    wanted = streamrf.train((X, y), RECIPE, sample_weight=w, holdout_by=groups)
    rows, targets = da.from_array(X, chunks=(100, 2)), da.from_array(y, chunks=150)
    for weights in (w, da.from_array(w, chunks=70)):
        found = streamrf.train(
            rows, RECIPE, y=targets, sample_weight=weights, holdout_by=da.from_array(groups, chunks=90)
        )
        assert np.array_equal(found.model.weights.coefficients, wanted.model.weights.coefficients)


def test_partitions_can_be_handed_over():
    source = open_source(da.ones((6, 2), chunks=(3, 2)), y=da.zeros(6, chunks=3))
    keys = keys_of(source.partitions(Span(0, 3)))
    assert [(key[1], key[2]) for key in keys] == [(0, ("y",)), (0, ("X",))]
    values = [np.full(3, 7.0), np.full((3, 2), 8.0)]
    with at_hand(dict(zip(keys, values, strict=True))):
        block = source.read(Span(0, 3))
    assert set(block.X.flat) == {8.0}
    assert set(block.y) == {7.0}


def test_a_collection_that_is_gone_is_refused():
    source = open_source(da.ones((6, 2), chunks=(3, 2)), y=da.zeros(6, chunks=3))
    spec, token = source.spec(), source.dask.token
    assert known_collection(token) is source.dask
    del source
    with pytest.raises(errors.MismatchError, match="does not know, or no longer"):
        open_source(**spec)


def test_estimators_take_collections():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(400, 3)), columns=list("abc"))
    y = frame["a"] * 2 + frame["b"]
    settings = {"D": 32, "pilot": "none", "length_scale": 2.0, "bits": "8", "ridge": 1e-4, "threads": 1}
    wanted = streamrf.KernelRegressor(**settings).fit(frame, y)
    lazy, targets = dd.from_pandas(frame, npartitions=3), dd.from_pandas(y, npartitions=4)
    for model in (
        streamrf.KernelRegressor(**settings).fit(lazy, targets),
        streamrf.KernelRegressor(**settings).fit(lazy.assign(y=targets), "y"),
        streamrf.KernelRegressor(**settings).fit(lazy.to_dask_array(lengths=True), y.to_numpy()),
    ):
        assert np.array_equal(model.model_.weights.coefficients, wanted.model_.weights.coefficients)
        assert np.array_equal(model.predict(lazy), wanted.predict(frame))
    assert model.score(lazy.to_dask_array(lengths=True), targets) == pytest.approx(wanted.score(frame, y))
    by_name = streamrf.KernelRegressor(**settings).fit(lazy.assign(y=targets), "y")
    assert np.array_equal(by_name.predict(lazy[["c", "b", "a"]].assign(more=1)), wanted.predict(frame))
    with pytest.raises(errors.InputError, match="the target must be a column"):
        streamrf.KernelRegressor(**settings).fit(lazy.assign(s="text"), targets)
    with pytest.raises(errors.InputError, match="there is no y"):
        streamrf.KernelRegressor(**settings).fit(lazy.to_dask_array(lengths=True))


def test_columns_are_learned_from_parts_as_from_the_whole(monkeypatch):
    """Levels that are listed, that are too many to list in one part or only in all, medians of a sample, infinities."""
    rng = np.random.default_rng(2)
    n, few = 40_000, np.where(np.arange(40_000) < 100, "rare", "common")
    frame = pd.DataFrame(
        {
            "few": np.where(rng.random(n) < 0.1, None, few),
            "many": [f"level {i}" for i in rng.integers(0, 30_000, n)],
            "some": [f"level {i}" for i in rng.integers(0, 200, n)],
            "number": np.where(rng.random(n) < 0.01, np.inf, rng.normal(size=n)),
            "when": pd.date_range("2024-01-01", periods=n, freq="min"),
            "y": rng.normal(size=n),
        }
    )
    monkeypatch.setattr(scanning, "SAMPLE_ROWS", 5000)
    monkeypatch.setattr(scanning, "LISTED_LEVELS", 15_000)
    parts = DaskFrame(dd.from_pandas(frame, npartitions=7)).columns()
    names = [name for name in frame.columns if name != "y"]
    wanted = learn_columns(parts, names, Handling())
    assert parts.spread(names, len) is None
    monkeypatch.setattr(Collection, "is_remote", True)
    asked = []
    monkeypatch.setattr(DaskBatches, "batches", lambda *_: asked.append(1) or [])
    found = learn_columns(parts, names, Handling())
    assert found.to_json() == wanted.to_json()
    assert not asked
    assert {column.name: column.kind for column in found.columns} == {
        "few": "onehot", "many": "target", "some": "target", "number": "number", "when": "date",
    }  # fmt: skip
