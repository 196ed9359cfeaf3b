"""The Dask engine with real worker processes: the bits of the local engine, from the command line and from Python."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from cluster_tools import Counts, Stops, heaps_of_many_threads, local_cluster, traces, wait_until
from commands import run_alone
from distributed import Client
from tables import labelled, smooth, write_zarr

import streamrf
from streamrf.cli import main
from streamrf.cli.connection import Address, connect
from streamrf.data.elsewhere import identity_of
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Source, Span
from streamrf.data.writers import TableWriter, open_shared_writer
from streamrf.data.writers import zarr as zarr_writer
from streamrf.engines.base import STATES, Next, Pass, WorkerNeeds
from streamrf.engines.cluster import ClusterEngine
from streamrf.engines.cluster.passes import Dispatcher
from streamrf.engines.cluster.tasks import RowsToRead, Shared, sum_rows
from streamrf.engines.cluster.workers import Task, Workers
from streamrf.models.model import Model
from streamrf.models.predict import PredictedColumns, evaluate_rows, predict_rows, prediction_columns
from streamrf.recipe import Recipe
from streamrf.statistics.rowset import RowSet
from streamrf.support import memory
from streamrf.support.errors import BudgetError, ClusterError, DataError, InputError, MismatchError, StorageError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import Threads
from streamrf.training.run import Settings, Training, train

FIXED = Recipe(D=48, kernel="gaussian", length_scale=1.5, scaling="standard", bits="8", ridge=1e-4, pilot="none")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One worker at first: starting a process takes longer than most of these tests.

    Dask removes copies from workers that do not need them just then: how often they get one would be a matter of luck.
    """
    with local_cluster(1, config={"distributed.scheduler.active-memory-manager.start": False}) as (cluster, client):
        yield cluster, client


@pytest.fixture
def client(cluster: Any) -> Client:
    """Two workers, or more."""
    return with_workers(cluster, 2)


def with_workers(cluster: Any, count: int) -> Client:
    cluster[0].scale(max(count, len(cluster[0].workers)))
    cluster[1].wait_for_workers(count)
    return cluster[1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_zarr(tmp_path_factory.mktemp("data") / "t.zarr", *smooth(6000), chunk=100)


@pytest.fixture(scope="module")
def expected(data: str) -> str:
    return train(open_source(data), FIXED).state.digest()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Model:
    X, y = labelled(2000)
    return train(ArraySource(X, np.array(["low", "middle", "high"])[y]), FIXED).model


def counted(engine: ClusterEngine, path: str, **settings: Any) -> Pass[Any]:
    source = open_source(path)
    job = Pass.start(Counts(source.n_rows, **settings), source, span_rows=300)
    engine.run(job)
    return job


class TestBits:
    def test_one_worker(self, cluster: Any, data: str, expected: str) -> None:
        settings = Settings(engine=ClusterEngine(cluster[1]))
        assert train(open_source(data), FIXED, settings).state.digest() == expected

    @pytest.mark.parametrize("seconds", [0.0, 0.05, 10.0])
    def test_group_sizes_and_order_do_not_matter(
        self, client: Client, data: str, expected: str, seconds: float
    ) -> None:
        order = np.random.default_rng(3).permutation
        engine = ClusterEngine(client, group_seconds=seconds, order=order)
        assert train(open_source(data), FIXED, Settings(engine=engine)).state.digest() == expected

    @pytest.mark.parametrize("recipe", [FIXED.with_(bits="12"), FIXED.with_(scaling="minmax"), FIXED.with_(cv=3)])
    def test_every_kind_of_pass(self, client: Client, data: str, recipe: Recipe) -> None:
        settings = Settings(engine=ClusterEngine(client))
        there, here = train(open_source(data), recipe, settings), train(open_source(data), recipe)
        assert there.state.digest() == here.state.digest()
        assert np.array_equal(there.model.weights.coefficients, here.model.weights.coefficients)
        assert there.model.metadata["holdout"] == here.model.metadata["holdout"]

    def test_rows_with_nan_are_left_out_and_counted(self, client: Client, tmp_path: Path) -> None:
        X, y = smooth(2000)
        X[[5, 700, 701]] = np.nan
        source = open_source(write_zarr(tmp_path / "t.zarr", X, y, 100))
        with pytest.raises(DataError, match="row 5"):
            train(source, FIXED, Settings(engine=ClusterEngine(client)))
        recipe = FIXED.with_(nan="drop")
        there = train(source, recipe, Settings(engine=ClusterEngine(client)))
        assert there.model.metadata["dropped"] == 3
        assert there.state.digest() == train(source, recipe).state.digest()

    def test_shards_of_parquet_and_npy(self, client: Client, tmp_path: Path) -> None:
        X, y = smooth(2000)
        pd.DataFrame({**{f"x{i}": X[:, i] for i in range(6)}, "y": y}).to_parquet(tmp_path / "t.parquet")
        np.save(tmp_path / "X.npy", X)
        np.save(tmp_path / "y.npy", y)
        shards = [str(tmp_path / "t.parquet")] * 2
        for source in (open_source(shards, target="y"), open_source(tmp_path)):
            job = Pass.start(Counts(source.n_rows), source)
            assert (ClusterEngine(client).run(job).counts == 1).all()


class TestWorkers:
    def test_the_statistic_reaches_each_worker_once_and_every_worker_works(
        self, client: Client, data: str, tmp_path: Path
    ) -> None:
        job = counted(ClusterEngine(client, group_seconds=0.1), data, seconds=0.1, trace=str(tmp_path))
        assert (job.state.counts == 1).all()
        lines = [line for line in traces(tmp_path) if line[1] != str(os.getpid())]
        arrivals = [pid for what, pid, *_ in lines if what == "arrived"]
        workers = {pid for what, pid, *_ in lines if what == "update"}
        assert len(workers) == 2
        assert set(arrivals) == workers
        # one worker has it from us and passes it on as a copy of its own: it may be unpacked there once more
        assert len(arrivals) <= len(workers) + 1

    def test_a_task_has_all_threads_and_the_worker_to_itself(self, data: str, tmp_path: Path) -> None:
        with local_cluster(1, threads=3) as (_, client):
            job = counted(ClusterEngine(client, group_seconds=0), data, seconds=0.01, trace=str(tmp_path))
        assert (job.state.counts == 1).all()  # Counts fails where two updates run at once
        assert {line[2] for line in traces(tmp_path) if line[0] == "update"} == {"3"}

    @pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another C library has other heaps")
    def test_threads_of_a_worker_share_a_few_heaps(self, client: Client, data: str) -> None:
        counted(ClusterEngine(client, group_seconds=0), data, seconds=0.1)
        for before, after in client.run(heaps_of_many_threads).values():
            assert before == after

    def test_progress_comes_from_the_workers(self, client: Client, data: str) -> None:
        source = open_source(data)
        job = Pass.start(Counts(source.n_rows, seconds=0.2), source, span_rows=300)
        seen: list[int] = []

        def watch(job: Pass[Any], pending: int) -> Next:
            seen.append(job.done.count + pending)
            return Next.CONTINUE

        ClusterEngine(client, group_seconds=30).run(job, watch)
        assert seen[-1] == source.n_rows
        assert len(set(seen)) > 5
        assert all(after >= before for before, after in itertools.pairwise(seen))

    def test_many_chunks_are_few_tasks(self, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where all workers are equally fast, however busy this machine is."""
        monkeypatch.setattr(Dispatcher, "rate", 1e6)
        table = pd.DataFrame({"x": np.arange(30_000.0), "y": 1.0})
        transitions = []
        for rows in (10, 3000):
            table.to_parquet(tmp_path / "t.parquet", row_group_size=rows)
            source = open_source(tmp_path / "t.parquet")
            assert len(source.chunks()) == 30_000 // rows
            before = client.run_on_scheduler(transitions_so_far)
            assert (ClusterEngine(client).run(Pass.start(Counts(30_000), source)).counts == 1).all()
            transitions.append(client.run_on_scheduler(transitions_so_far) - before)
        assert transitions[0] < 6 * transitions[1]  # for three hundred times the chunks; groups follow a live cluster

    def test_dask_shows_what_is_done_and_has_nothing_to_warn_of(self, client: Client, data: str) -> None:
        """Tasks by their names and in a span, and a statistic of 30 MB that is sent beside them."""
        source, seen = open_source(data), set[str]()
        job = Pass.start(Counts(source.n_rows, seconds=0.1, ballast=bytes(30_000_000)), source, span_rows=300)

        def watch(job: Pass[Any], pending: int) -> Next:
            seen.update(client.run_on_scheduler(names_and_spans))
            return Next.CONTINUE

        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "Sending large graph of size 30 MiB"
            ClusterEngine(client, group_seconds=0.1).run(job, watch)
        assert seen >= {"streamrf-sum-rows-Counts", "streamrf-add-sums-Counts", "streamrf/Counts"}

    def test_nothing_stays_on_the_workers(self, client: Client, data: str) -> None:
        counted(ClusterEngine(client), data)
        wait_until(lambda: not client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)))


def test_tasks_change_nothing_they_are_given(client: Client, data: str) -> None:
    """Else a task that is done a second time, after its result was lost, would count rows twice."""
    source = open_source(data)
    shared = Shared((), Counts(source.n_rows), identity_of(source, "a test"))
    with Workers.of_pass(client, "test", shared) as workers:

        def counts(task: Task) -> np.ndarray:
            return client.gather(task.future, direct=True)["arrays"]["counts"].copy()

        rows = [RowsToRead((span,)) for span in (Span(0, 100), Span(100, 300))]
        first, second = workers.submit(sum_rows, [(each, [], []) for each in rows])
        before = counts(first), counts(second)
        third, inputs = RowsToRead((Span(300, 350),)), [first.future, second.future]
        both = workers.submit(sum_rows, [(third, [], inputs)] * 2)
        none = workers.submit(sum_rows, [(RowsToRead(()), [], inputs)])
        assert np.array_equal(counts(both[0]), counts(both[1]))
        assert counts(both[0]).sum() == 350
        assert counts(none[0]).sum() == 300
        assert all(np.array_equal(counts(task), was) for task, was in zip((first, second), before, strict=True))


def names_and_spans(dask_scheduler: Any) -> list[str]:
    names = {key[0].rpartition("-")[0] for key in dask_scheduler.tasks if isinstance(key, tuple)}
    return [*names, *("/".join(span.name) for span in dask_scheduler.extensions["spans"].spans.values())]


def transitions_so_far(dask_scheduler: Any) -> int:
    return dask_scheduler.transition_counter


class TestMistakes:
    def test_arrays_in_memory_cannot_be_opened_elsewhere(self, client: Client) -> None:
        with pytest.raises(InputError, match="store them as zarr, parquet or npy"):
            train(ArraySource(*smooth(500)), FIXED, Settings(engine=ClusterEngine(client)))

    def test_workers_must_see_the_same_data(self, client: Client, tmp_path: Path) -> None:
        X, y = smooth(500)
        source = open_source(write_zarr(tmp_path / "t.zarr", X, y, 100))
        job = Pass.start(Counts(500), source)
        source.fingerprint()
        write_zarr(tmp_path / "t.zarr", X + 1, y, 100)
        with pytest.raises(MismatchError, match="finds other data"):
            ClusterEngine(client).run(job)
        (tmp_path / "t.zarr").rename(tmp_path / "elsewhere.zarr")
        with pytest.raises(StorageError, match=r"on worker tcp://.*does not exist.*same place"):
            ClusterEngine(client).run(Pass.start(Counts(500), source))

    def test_an_asynchronous_client(self) -> None:
        with pytest.raises(InputError, match="asynchronous"):
            ClusterEngine(SimpleNamespace(asynchronous=True)).workers()

    def test_addresses(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="give one of them"):
            Address("tcp://127.0.0.1:1", workers=2)
        with (
            pytest.raises(InputError, match=r"neither an address.*nor the scheduler file"),
            connect(Address("nowhere.json")),
        ):
            pass
        with (
            pytest.raises(InputError, match="no certificate or key at"),
            connect(Address("tls://a:1", tls_ca="no.pem")),
        ):
            pass

    def test_no_scheduler_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("streamrf.cli.connection.CONNECT_SECONDS", 0.5)
        with (
            pytest.raises(ClusterError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"),
            connect(Address("tcp://127.0.0.1:9")),
        ):
            pass


class TestPlan:
    def test_states_are_counted(self) -> None:
        parts = {"statistics": 100, "hold-out rows": 5, "block": 7, "reading": 11}
        libraries = memory.LIBRARIES + memory.COMPILED
        needs = WorkerNeeds.of(parts, [2 * libraries, None])
        assert needs.projected == libraries + int(1.08 * (STATES * 105 + 18))
        assert "up to 5 states of 105 B" in needs.describe()
        needs.check()
        with pytest.raises(BudgetError, match=r"each worker is projected to need .* limit of 500 MB.*`D`"):
            WorkerNeeds.of(parts, [500_000_000, 2 * libraries]).check()

    def test_workers_are_not_charged_with_what_this_process_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        parts = {"statistics": 100, "hold-out rows": 5, "block": 7, "reading": 11}
        needs = WorkerNeeds.of(parts, [None])
        monkeypatch.setattr(memory, "resident", lambda: 10**12)
        assert WorkerNeeds.of(parts, [None]) == needs

    def test_workers_hold_no_more_than_was_projected(self, data: str, tmp_path: Path) -> None:
        """With checkpoints collected on the way, when most states are alive."""
        with local_cluster(2) as (cluster, client):
            options = ("--scheduler", cluster.scheduler_address, "--json", *OPTIONS, "--D", "1500")
            needs = run_alone("plan", data, *options).json["workers"]
            engine = ClusterEngine(client, group_seconds=0.1)
            settings = Settings(checkpoint=tmp_path / "kept", checkpoint_every=0.5, engine=engine)
            train(open_source(data), FIXED.with_(D=1500), settings)
            peaks = client.run(memory.peak).values()
        assert needs["state_bytes"] > 9_000_000
        assert 4 * needs["state_bytes"] < max(peaks) < needs["projected"]

    def test_a_run_is_refused_before_the_pass(self, data: str) -> None:
        with local_cluster(1, memory_limit="300MB") as (_, client):
            engine = ClusterEngine(client)
            with pytest.raises(BudgetError, match="each worker is projected to need"):
                train(open_source(data), FIXED.with_(D=4000), Settings(engine=engine))


class TestCheckpoints:
    def test_saves_on_the_way_and_stops_and_goes_on(
        self, client: Client, data: str, expected: str, tmp_path: Path
    ) -> None:
        source = open_source(data)
        engine = ClusterEngine(client, group_seconds=0.0)
        settings = Settings(checkpoint=tmp_path / "kept", checkpoint_every=0.0, engine=engine)
        with pytest.raises(Interrupted, match=r"rows are done and kept in"), Threads(1) as threads:
            Training(source, FIXED, settings, Stops(2000), threads).run()
        with Threads(1) as threads:
            again = Training(source, FIXED, settings, Reporter(), threads)
            saved = again._checkpoint().load(again.identity())  # type: ignore[union-attr]
            assert saved is not None
            assert 0 < RowSet.from_json(saved.ledger).count < source.n_rows
            assert again.run().state.digest() == expected

    def test_a_checkpoint_of_the_cluster_is_one_of_the_local_engine_too(
        self, client: Client, data: str, expected: str, tmp_path: Path
    ) -> None:
        source = open_source(data)
        engine = ClusterEngine(client, group_seconds=0.0)
        settings = Settings(checkpoint=tmp_path / "kept", engine=engine)
        with pytest.raises(Interrupted), Threads(1) as threads:
            Training(source, FIXED, settings, Stops(1000), threads).run()
        assert train(source, FIXED, Settings(checkpoint=tmp_path / "kept")).state.digest() == expected

    @pytest.mark.parametrize("next_engine", ["cluster", "local"])
    def test_rows_that_are_left_out_are_counted_once(self, client: Client, tmp_path: Path, next_engine: str) -> None:
        X, y = smooth(3000)
        X[[3, 4, 999, 1000, 2999]] = np.nan
        source = open_source(write_zarr(tmp_path / "t.zarr", X, y, 100))
        recipe = FIXED.with_(nan="drop")
        settings = Settings(
            checkpoint=tmp_path / "kept", checkpoint_every=0.0, engine=ClusterEngine(client, group_seconds=0.0)
        )
        for rows in (600, 1800):
            with pytest.raises(Interrupted), Threads(1) as threads:
                Training(source, recipe, settings, Stops(rows), threads).run()
        if next_engine == "local":
            settings = Settings(checkpoint=tmp_path / "kept")
        again, fresh = train(source, recipe, settings), train(source, recipe)
        assert again.model.metadata["dropped"] == fresh.model.metadata["dropped"] == 5
        assert again.state.digest() == fresh.state.digest()


class TestOutputs:
    @pytest.fixture
    def rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(zarr_writer, "CHUNK_ROWS", 256)
        return write_zarr(tmp_path / "new.zarr", labelled(3000, seed=4)[0], None, chunk=100)

    @pytest.mark.parametrize("ending", [".zarr", ".parquet"])
    def test_predictions_are_those_of_the_local_engine(
        self, client: Client, classifier: Model, rows: str, tmp_path: Path, ending: str
    ) -> None:
        source = open_source(rows, need_targets=False)
        columns = prediction_columns(classifier, proba=True)
        engine = ClusterEngine(client, group_seconds=0.0)
        with open_shared_writer(tmp_path / f"out{ending}", source.n_rows, columns) as parts:
            predict_on(engine, classifier, source, parts, proba=True)
        with Threads(1) as threads:
            expected = PredictedColumns(classifier, proba=True)(source.read(Span(0, source.n_rows)), threads)
        found = read_columns(tmp_path / f"out{ending}")
        assert list(expected) == [name for name, _ in columns]
        assert all(np.array_equal(found[name], values) for name, values in expected.items())

    def test_no_row_passes_through_the_driver(
        self, client: Client, classifier: Model, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither on its way in nor on its way out."""
        source = open_source(rows, need_targets=False)
        source.fingerprint()

        def refuse(*_: Any) -> None:
            raise AssertionError("the driver has rows")

        monkeypatch.setattr(type(source), "read", refuse)
        monkeypatch.setattr(zarr.Array, "__setitem__", refuse)
        engine = ClusterEngine(client)
        with open_shared_writer(tmp_path / "out.zarr", 3000, prediction_columns(classifier, False)) as parts:
            predict_on(engine, classifier, source, parts, proba=False)
        assert (engine.run(Pass.start(Counts(3000), source)).counts == 1).all()

    def test_numbers_as_npy(self, client: Client, rows: str, data: str, tmp_path: Path) -> None:
        model = train(open_source(data), FIXED).model
        source = open_source(rows, need_targets=False)
        with open_shared_writer(tmp_path / "out.npy", source.n_rows, prediction_columns(model, False)) as parts:
            predict_on(ClusterEngine(client), model, source, parts, proba=False)
        with Threads(1) as threads:
            expected = model.scores(source.read(Span(0, source.n_rows)).X, threads)[:, 0]
        assert np.array_equal(np.load(tmp_path / "out.npy"), expected)

    @pytest.mark.parametrize("ending", [".zarr", ".parquet", ".npy"])
    def test_a_failure_leaves_nothing_behind(
        self, client: Client, classifier: Model, tmp_path: Path, ending: str
    ) -> None:
        X, _ = labelled(600)
        X[577] = np.nan
        source = open_source(write_zarr(tmp_path / "new.zarr", X, None, 100), need_targets=False)
        columns = prediction_columns(classifier, False)
        engine = ClusterEngine(client, group_seconds=0.0)
        with (
            pytest.raises(DataError, match="row 577"),
            open_shared_writer(tmp_path / f"out{ending}", source.n_rows, columns) as parts,
        ):
            predict_on(engine, classifier, source, parts, proba=False)
        assert [path.name for path in tmp_path.iterdir()] == ["new.zarr"]

    def test_what_cannot_be_written_by_many(self, tmp_path: Path) -> None:
        for path in (tmp_path / "out.csv", "s3://bucket/out.zarr"):
            with pytest.raises(InputError, match=r"\.npy, \.parquet, \.zarr on a disk that all of them see"):
                open_shared_writer(path, 10, [("prediction", np.dtype(float))])

    def test_parts_are_replaced_only_when_asked(self, tmp_path: Path) -> None:
        columns = [("prediction", np.dtype(float))]
        for overwrite in (False, True):
            with open_shared_writer(tmp_path / "out.parquet", 4, columns, overwrite=overwrite) as parts:
                parts.write(0, {"prediction": np.arange(4.0)})
        with pytest.raises(FileExistsError):
            open_shared_writer(tmp_path / "out.parquet", 4, columns)
        (tmp_path / "out.parquet" / "notes.txt").write_text("mine")
        with pytest.raises(FileExistsError, match="not replaced even with"):
            open_shared_writer(tmp_path / "out.parquet", 4, columns, overwrite=True)

    def test_verbs_of_python(self, client: Client, data: str, tmp_path: Path) -> None:
        """Any client will do, in every verb that reads rows."""
        engine = ClusterEngine(client)
        trained = streamrf.train(data, FIXED, Settings(engine=engine))
        assert trained.state.digest() == streamrf.train(data, FIXED).state.digest()
        there = streamrf.evaluate(trained.model, data, engine=engine)
        assert there == streamrf.evaluate(trained.model, data)
        out = tmp_path / "p.npy"
        assert streamrf.predict(trained.model, data, out=out, engine=engine) == 6000
        assert np.array_equal(np.load(out), streamrf.predict(trained.model, data))
        with pytest.raises(InputError, match="set out= to a place that all can reach"):
            streamrf.predict(trained.model, data, engine=engine)

    def test_evaluation(self, client: Client, classifier: Model, tmp_path: Path) -> None:
        X, y = labelled(2000, seed=7)
        source = open_source(write_zarr(tmp_path / "t.zarr", X, np.array(["low", "middle", "high"])[y], 100))
        with Threads(1) as threads:
            here = evaluate_rows(classifier, source, threads=threads, reporter=Reporter())
            engine = ClusterEngine(client, group_seconds=0.0)
            there = evaluate_rows(classifier, source, threads=threads, reporter=Reporter(), engine=engine)
        assert there == here


def predict_on(engine: ClusterEngine, model: Model, source: Source, writer: TableWriter, *, proba: bool) -> None:
    with Threads(1) as threads:
        made = PredictedColumns(model, proba)
        predict_rows(made, source, writer, threads=threads, reporter=Reporter(), engine=engine)


def read_columns(path: Path) -> Any:
    if path.suffix == ".parquet":
        assert len(list(path.iterdir())) > 2
        return pd.read_parquet(path)
    return {name: array[:] for name, array in zarr.open_group(str(path), mode="r").arrays()}


def run(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    main([*args, "--json"])
    return json.loads(capsys.readouterr().out)


OPTIONS = ["--D", "48", "--kernel", "gaussian", "--length-scale", "1.5", "--scaling", "standard", "--bits", "8"]
OPTIONS += ["--lambda", "1e-4", "--pilot", "none"]


class TestCommands:
    def test_train_evaluate_predict_on_a_cluster(
        self, cluster: Any, data: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        address, model = cluster[0].scheduler_address, str(tmp_path / "m.model")
        trained = run(capsys, "train", data, *OPTIONS, "--out", model, "--scheduler", address)
        assert trained["statistics_digest"] == expected
        file = tmp_path / "scheduler.json"
        file.write_text(json.dumps({"address": address}))
        there = run(capsys, "evaluate", model, data, "--scheduler", str(file))
        assert there == run(capsys, "evaluate", model, data)
        out = str(tmp_path / "p.zarr")
        assert run(capsys, "predict", model, data, "--out", out, "--scheduler", address)["rows"] == 6000
        assert zarr.open_group(out, mode="r")["prediction"].shape == (6000,)

    def test_statistics_are_made_and_changed_on_a_cluster(
        self, cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Every command of the algebra that reads rows, with the digests of the local engine."""
        X, y = smooth(3000)
        north = write_zarr(tmp_path / "north.zarr", X[:2000], y[:2000], 100)
        south = write_zarr(tmp_path / "south.zarr", X[2000:], y[2000:], 100)
        recipe = str(tmp_path / "recipe.prepared")
        run(capsys, "prepare", north, *OPTIONS, "--out", recipe)
        found: dict[str, list[str]] = {"here": [], "there": []}
        for where, extra in (("here", []), ("there", ["--scheduler", cluster[0].scheduler_address])):
            stats = str(tmp_path / f"{where}.stats")
            for command in (
                ["accumulate", recipe, north, "--out", stats], ["update", stats, south], ["forget", stats, north],
            ):  # fmt: skip
                found[where].append(run(capsys, *command, *extra)["statistics_digest"])
        assert found["there"] == found["here"]
        assert len(set(found["here"])) == 3

    def test_cross_validation_on_a_cluster(
        self, cluster: Any, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = [*OPTIONS[:-4], "--pilot", "none", "--cv", "3", "--out", str(tmp_path / "m.model"), "--overwrite"]
        here = run(capsys, "train", data, *options)
        there = run(capsys, "train", data, *options, "--scheduler", cluster[0].scheduler_address)
        same = ("statistics_digest", "cross_validation", "holdout", "chosen")
        assert [there[name] for name in same] == [here[name] for name in same]

    def test_levels_that_training_had_not_seen_are_counted_on_all_workers(
        self, cluster: Any, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rng = np.random.default_rng(0)
        table = pd.DataFrame({"c": rng.choice(["a", "b"], 3000), "x": rng.standard_normal(3000)})
        table["y"] = table["x"] + (table["c"] == "a")
        table.to_parquet(tmp_path / "t.parquet")
        strange = table.assign(c=np.where(np.arange(3000) % 3 == 0, "new", table["c"]))
        strange.to_parquet(tmp_path / "new.parquet", row_group_size=100)
        model, out = str(tmp_path / "m.model"), str(tmp_path / "p.parquet")
        main(["train", str(tmp_path / "t.parquet"), "--target", "y", *OPTIONS, "--out", model, "--quiet"])
        capsys.readouterr()
        found = []
        for where in ([], ["--scheduler", cluster[0].scheduler_address]):
            main(["predict", model, str(tmp_path / "new.parquet"), "--out", out, "--overwrite", *where])
            main(["evaluate", model, str(tmp_path / "new.parquet"), *where])
            found += re.findall(r"([\d,]+) in 'c'", capsys.readouterr().err)
        assert found == ["1,000"] * 4

    def test_plan_knows_the_workers(self, cluster: Any, data: str, capsys: pytest.CaptureFixture[str]) -> None:
        main(["plan", data, *OPTIONS, "--scheduler", cluster[0].scheduler_address])
        assert re.search(r"workers +on each of \d+ workers: .* up to 5 states of", capsys.readouterr().out)
        with local_cluster(1, memory_limit="500MB") as (small, _), pytest.raises(SystemExit) as stopped:
            main(["plan", data, *OPTIONS, "--scheduler", small.scheduler_address, "--json"])
        printed = capsys.readouterr()
        found = json.loads(printed.out)["workers"]
        assert (found["workers"], found["states"], found["limit"]) == (1, STATES, 500_000_000)
        assert stopped.value.code == BudgetError.exit_code
        assert "each worker is projected to need" in printed.err

    def test_workers_of_our_own(self, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        main(["train", data, *OPTIONS, "--out", str(tmp_path / "m.model"), "--workers", "2"])
        captured = capsys.readouterr()
        weights = train(open_source(data), FIXED).model.weights.coefficients
        assert np.array_equal(Model.load(tmp_path / "m.model").weights.coefficients, weights)
        assert "2 workers" in captured.err
        assert "up to 5 states" in captured.err
        assert "dashboard at http://" in captured.err

    def test_tls(self, data: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from distributed import Security

        security = Security.temporary()
        files = {"ca": security.tls_ca_file, "cert": security.tls_client_cert, "key": security.tls_client_key}
        options = []
        for name, pem in files.items():
            (tmp_path / f"{name}.pem").write_text(pem)
            options += [f"--tls-{name}", str(tmp_path / f"{name}.pem")]
        with local_cluster(1, security=security, protocol="tls://") as (cluster, _):
            address = cluster.scheduler_address
            assert address.startswith("tls://")
            trained = run(
                capsys, "train", data, *OPTIONS, "--out", str(tmp_path / "m.model"), "--scheduler", address, *options
            )
        assert trained["statistics_digest"] == expected

    def test_an_error_on_a_worker_is_one_sentence(self, cluster: Any, tmp_path: Path) -> None:
        """Dask prints no traceback of its own before it."""
        X, y = smooth(2000)
        X[700] = np.nan
        path = write_zarr(tmp_path / "t.zarr", X, y, 100)
        where = ("--scheduler", cluster[0].scheduler_address, "--quiet")
        answer = run_alone("train", path, *OPTIONS, "--out", str(tmp_path / "m.model"), *where)
        assert answer.code == DataError.exit_code
        assert "row 700" in answer.err
        assert len(answer.err.strip().splitlines()) == 1

    def test_mistakes_are_one_sentence(self, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for extra, words in (
            (["--scheduler", "tcp://127.0.0.1:9", "--workers", "2"], "give one of them"),
            (["--tls-ca", "ca.pem"], "certificates are for a cluster"),
        ):
            with pytest.raises(SystemExit) as stopped:
                main(["train", data, *OPTIONS, "--out", str(tmp_path / "m.model"), "--quiet", *extra])
            assert stopped.value.code == 2
            assert words in capsys.readouterr().err


def test_four_workers(cluster: Any, data: str, expected: str) -> None:
    """Last, because the other tests are quicker with two."""
    settings = Settings(engine=ClusterEngine(with_workers(cluster, 4), group_seconds=0.02))
    assert train(open_source(data), FIXED, settings).state.digest() == expected
