"""Dask collections on a cluster of real processes: the bits of the path, and no row in the driver but samples."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from cluster_tools import Counts, Stops, local_cluster, wait_until
from distributed import Client
from sklearn.base import clone
from tables import smooth, write_zarr

import streamrf
from streamrf.data.open import open_source
from streamrf.data.partitions import Collection
from streamrf.data.source import Span
from streamrf.engines.base import Next, Pass
from streamrf.engines.cluster import ClusterEngine
from streamrf.support import errors
from streamrf.support.progress import Interrupted

dd = pytest.importorskip("dask.dataframe")

ROWS = 3000
RECIPE = streamrf.Recipe(D=48, kernel="gaussian", length_scale=1.5, bits="8", ridge=1e-4, pilot="none")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Workers without a limit of memory: nothing is kept there unasked."""
    with local_cluster(2) as found:
        yield found


@pytest.fixture
def client(cluster: Any) -> Client:
    client = cluster[1]
    wait_until(lambda: len(client.run(os.getpid, on_error="ignore")) >= 2)
    return client


@pytest.fixture(autouse=True)
def nothing_in_the_driver(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A partition that is computed here fails the test; workers are other processes."""

    def refuse(self: Collection, number: int, names: Any) -> Any:
        raise AssertionError("a partition in the driver")

    if "client" in request.fixturenames:
        monkeypatch.setattr(Collection, "_load", refuse)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zarr store, and parquet with text, categories of many levels, dates and gaps."""
    place, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    write_zarr(place / "t.zarr", *smooth(ROWS), chunk=100)
    frame = pd.DataFrame(
        {
            "a": np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(size=ROWS)),
            "text": np.where(rng.random(ROWS) < 0.1, None, rng.choice(["u", "v", "w"], ROWS)),
            "many": rng.choice([f"level {i}" for i in range(60)], ROWS),
            "category": pd.Categorical(rng.choice(["low", "high"], ROWS)),
            "when": pd.date_range("2024-01-01", periods=ROWS, freq="h"),
            "whole": rng.integers(0, 50, ROWS).astype(np.int32),
            "flag": rng.random(ROWS) < 0.5,
        }
    )
    frame["price"] = frame["a"].fillna(0) * 2 + frame["whole"] / 10 + rng.normal(size=ROWS)
    frame.to_parquet(place / "t.parquet", row_group_size=250)
    return place


@pytest.fixture(scope="module")
def from_paths(folder: Path) -> dict[str, Any]:
    return {
        "zarr": streamrf.train(str(folder / "t.zarr"), RECIPE),
        "parquet": streamrf.train(str(folder / "t.parquet"), RECIPE, target="price"),
    }


def frame_at(folder: Path) -> Any:
    return dd.read_parquet(folder / "t.parquet", split_row_groups=True)


def delayed_parts(folder: Path) -> list[Any]:
    def load(start: int) -> pd.DataFrame:
        return pd.read_parquet(folder / "t.parquet")[start : start + 700]

    return [dask.delayed(load)(start) for start in range(0, ROWS, 700)]


FRAMES: dict[str, Callable[[Path], Any]] = {
    "read_parquet": frame_at,
    "from_delayed": lambda folder: dd.from_delayed(delayed_parts(folder)),
    "delayed": delayed_parts,
    "persisted": lambda folder: frame_at(folder).persist(),
    "lazy after persisted": lambda folder: frame_at(folder).persist().assign(flag=lambda frame: ~~frame["flag"]),
    "repartitioned": lambda folder: frame_at(folder).repartition(npartitions=5),
}  # fmt: skip


def same(found: Any, wanted: Any) -> bool:
    return (
        found.model.metadata["statistics_digest"] == wanted.model.metadata["statistics_digest"]
        and np.array_equal(found.model.weights.coefficients, wanted.model.weights.coefficients)
        and found.source.fingerprint() == wanted.source.fingerprint()
    )


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_give_the_bits_of_the_path(kind: str, client: Client, folder: Path, from_paths: dict[str, Any]) -> None:
    frame, wanted = FRAMES[kind](folder), from_paths["parquet"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no "Sending large graph"
        found = streamrf.train(frame, RECIPE, target="price")
    assert same(found, wanted)
    assert found.plan.workers is not None


def test_predictions_and_metrics_are_made_where_the_rows_are(
    client: Client, folder: Path, from_paths: dict[str, Any], tmp_path: Path
) -> None:
    model, path, frame = from_paths["parquet"].model, str(folder / "t.parquet"), frame_at(folder)
    wanted = streamrf.predict(model, path)
    assert np.array_equal(streamrf.predict(model, frame), wanted)
    assert streamrf.evaluate(model, frame) == streamrf.evaluate(model, path)
    for lazy in (frame, frame.persist()):
        out = tmp_path / f"{id(lazy)}.parquet"
        assert streamrf.predict(model, lazy, out=out, keep=["text", "whole"]) == ROWS
        written = pd.read_parquet(out)
        assert np.array_equal(written["prediction"], wanted)
        assert written["whole"].tolist() == pd.read_parquet(path)["whole"].tolist()


@pytest.mark.parametrize("kind", ["chunks", "from_zarr", "persisted", "beside numpy"])
def test_arrays_give_the_bits_of_the_path(kind: str, client: Client, folder: Path, from_paths: dict[str, Any]) -> None:
    X, y = smooth(ROWS)
    arrays = {
        "chunks": (da.from_array(X, chunks=(170, 2)), da.from_array(y, chunks=230)),
        "from_zarr": (da.from_zarr(folder / "t.zarr" / "X"), da.from_zarr(folder / "t.zarr" / "y")),
        "persisted": (da.from_array(X, chunks=(170, 2)).persist() * 1, da.from_array(y, chunks=230).persist()),
        "beside numpy": (da.from_array(X, chunks=(170, 6)), y),
    }
    rows, targets = arrays[kind]
    assert same(streamrf.train(rows, RECIPE, y=targets), from_paths["zarr"])


def test_rows_that_nobody_has_counted(client: Client) -> None:
    X, y = smooth(ROWS)
    rows, targets = da.from_array(X, chunks=(170, 6)), da.from_array(y, chunks=230)
    some = rows[:, 0] > 0
    with client.as_current():
        found = streamrf.train(rows[some], RECIPE, y=targets[some])
    assert same(found, streamrf.train((X[X[:, 0] > 0], y[X[:, 0] > 0]), RECIPE))


SEVERAL = {
    "binning": {"map": "binning", "grids": 20, "D": None, "bits": "auto", "length_scale": None, "kernel": "auto"},
    "cg": {"solver": "cg"},
    "sgd": {"solver": "sgd", "loss": "hinge", "shards": 4, "epochs": 2},
}


@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize("is_kept", [False, True])
def test_several_passes(kind: str, is_kept: bool, client: Client, tmp_path: Path) -> None:
    recipe, (X, y) = streamrf.Recipe(**{**RECIPE.to_json(), **SEVERAL[kind]}), smooth(ROWS)
    path = write_zarr(tmp_path / "t.zarr", X, (y > 0).astype(int) if kind == "sgd" else y, chunk=100)
    rows, targets = (da.from_zarr(f"{path}/{name}") for name in "Xy")
    found = streamrf.train(rows.persist() if is_kept else rows, recipe, y=targets)
    wanted = streamrf.train(path, recipe)
    assert np.array_equal(found.model.weights.coefficients, wanted.model.weights.coefficients)


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_worker_that_is_killed(is_kept: bool, client: Client, folder: Path) -> None:
    frame = frame_at(folder).persist() if is_kept else frame_at(folder)
    source = open_source(
        frame,
        target="price",
        columns=streamrf.Model and {"dtype": "float64", "columns": [{"name": "a", "kind": "number"}]},
    )
    victim, killed = next(iter(client.run(os.getpid).values())), []

    def watch(job: Pass[Any], pending: int) -> Next:
        if not killed and job.done.count + pending > ROWS // 3:
            killed.append(os.kill(victim, signal.SIGKILL))
        return Next.CONTINUE

    job = Pass.start(Counts(ROWS, seconds=0.5), source, nan="drop")
    ClusterEngine(client, group_seconds=0.2).run(job, watch)
    gaps = int(pd.read_parquet(folder / "t.parquet")["a"].isna().sum())
    assert killed
    assert job.dropped == gaps
    assert job.state.counts.sum() == ROWS - gaps
    assert job.state.counts.max() == 1


def test_a_run_that_was_stopped_is_resumed(client: Client, folder: Path, tmp_path: Path) -> None:
    X, y = (da.from_zarr(folder / "t.zarr" / name) for name in "Xy")
    recipe = RECIPE.with_(D=500)

    def settings() -> streamrf.Settings:
        return streamrf.Settings(checkpoint=tmp_path / "c", engine=ClusterEngine(client, group_seconds=0.0))

    with pytest.raises(Interrupted):
        streamrf.train(X, recipe, settings(), Stops(1000), y=y)
    with pytest.raises(errors.MismatchError, match="the dask collection"):
        streamrf.train(X.rechunk((500, 6)), recipe, settings(), y=y)
    assert same(streamrf.train(X, recipe, settings(), y=y), streamrf.train(str(folder / "t.zarr"), recipe))


def test_estimators_find_the_current_client(client: Client, folder: Path, from_paths: dict[str, Any]) -> None:
    settings = {"D": 48, "kernel": "gaussian", "length_scale": 1.5, "bits": "8", "ridge": 1e-4, "pilot": "none"}
    model = streamrf.KernelRegressor(**settings).fit(frame_at(folder), "price")
    assert np.array_equal(model.model_.weights.coefficients, from_paths["parquet"].model.weights.coefficients)
    assert np.array_equal(model.predict(frame_at(folder)), streamrf.predict(model.model_, str(folder / "t.parquet")))
    assert model.score(frame_at(folder), "price") == pytest.approx(model.score(str(folder / "t.parquet"), "price"))
    named = clone(streamrf.KernelRegressor(**settings, engine=client))  # for stored data it must be named
    assert named.engine is client
    assert clone(streamrf.KernelRegressor(engine=(engine := ClusterEngine(client)))).engine is engine
    stored = named.fit(str(folder / "t.parquet"), "price").model_.metadata
    assert stored["statistics_digest"] == model.model_.metadata["statistics_digest"]
    assert pickle.loads(pickle.dumps(named)).engine is None
    with pytest.raises(errors.InputError, match="cannot be opened by another process"):
        named.fit(*smooth(200))


def test_what_fits_is_kept_in_the_memory_of_the_cluster(folder: Path, from_paths: dict[str, Any]) -> None:
    frame = frame_at(folder)
    with local_cluster(1, memory_limit="2GB") as (_, client):
        engine = ClusterEngine(client)
        assert 0 < engine.free_memory() < 2e9
        there = engine.kept(frame)
        assert len(there.to_delayed()) == frame.npartitions
        wait_until(lambda: len(client.has_what()[next(iter(client.has_what()))]) >= frame.npartitions)
        large = da.zeros((10**9, 2), chunks=(10**7, 2))
        assert engine.kept(large) is large
        assert engine.kept(str(folder)) == str(folder)
        X, y = smooth(ROWS)
        assert engine.kept((da.from_array(X, chunks=(500, 6)), y))[1] is y
        assert same(streamrf.train(frame, RECIPE, target="price"), from_paths["parquet"])


def test_partitions_that_fail_are_one_sentence(client: Client, tmp_path: Path) -> None:
    def broken(part: pd.DataFrame) -> pd.DataFrame:
        if (tmp_path / "now").exists():
            raise ZeroDivisionError("no such luck")
        return part

    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(90.0), "b": 1.0, "y": 1.0}), npartitions=3)
    source = open_source(frame.map_partitions(broken, meta=frame._meta), target="y")
    assert source.fingerprint()
    (tmp_path / "now").touch()
    with pytest.raises(errors.DataError, match=r"cannot be computed \(ZeroDivisionError: no such luck"):
        ClusterEngine(client).run(Pass.start(Counts(90), source))
    with pytest.raises(errors.DataError, match=r"cannot be computed \(ZeroDivisionError: no such luck"):
        source.read(Span(0, 1))
