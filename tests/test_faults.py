"""What goes wrong on clusters, with real processes: the run ends with the same bits, or with one clear sentence."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import dask
import numpy as np
import pandas as pd
import pytest
import s3fs
import zarr
from cluster_tools import Counts, Stops, devour, local_cluster, traces, wait_until
from commands import FAST, streamrf
from distributed import Client, WorkerPlugin
from s3_server import s3_bucket
from tables import smooth, write_zarr

from streamrf.api import predict
from streamrf.cli.connection import Address, connect
from streamrf.data import locations
from streamrf.data.locations import WAITS, persistently
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.readers.zarr import ZarrSource
from streamrf.data.source import Span
from streamrf.engines.base import Next, Pass
from streamrf.engines.cluster import ClusterEngine, workers
from streamrf.engines.cluster import engine as cluster_engine
from streamrf.recipe import Recipe
from streamrf.statistics.moments import Moments, moments_of
from streamrf.support.errors import BudgetError, ClusterError, ExistsError, StorageError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import Threads
from streamrf.training.run import Settings, Training, train

ROWS, LAST_CHUNK = 6000, 5900
QUICK = {"distributed.comm.timeouts.connect": "5s"}
FIXED = Recipe(D=48, kernel="gaussian", length_scale=1.5, scaling="standard", bits="8", ridge=1e-4, pilot="none")
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_zarr(tmp_path_factory.mktemp("data") / "t.zarr", *smooth(ROWS), chunk=100)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_cluster(2, config=QUICK) as found:
        found[1].register_plugin(Impatient())
        yield found


@pytest.fixture
def client(cluster: Any) -> Client:
    """Two workers that answer, whatever the tests before did to theirs."""
    started, client = cluster
    while not all_answer(client):
        with contextlib.suppress(AssertionError):
            wait_until(lambda: all_answer(client), 2)
            break
        started.scale(len(started.workers) + 1)
    return client


def all_answer(client: Client) -> bool:
    """Whether there are two workers and none that was killed and is still on the scheduler's list."""
    answers = client.run(os.getpid, on_error="ignore")
    return 2 <= len(answers) == len(client.scheduler_info()["workers"])


def pids(client: Client) -> list[int]:
    return sorted(client.run(os.getpid).values())


class Impatient(WorkerPlugin):
    """Workers that try again at once: how long they wait is looked at in `test_waits_grow_and_end`."""

    name = "impatient"

    def setup(self, worker: Any) -> None:
        locations.WAITS = tuple(wait / 20 for wait in WAITS)


class At:
    """A watcher that does something once, when so many rows are summed."""

    def __init__(self, rows: int, action: Callable[[], Any]) -> None:
        self.rows, self.action, self.done = rows, action, False

    def __call__(self, job: Pass[Any], pending: int) -> Next:
        if not self.done and job.done.count + pending >= self.rows:
            self.done = True
            self.action()
        return Next.CONTINUE


def count_rows(client: Client, path: str, *watchers: Any, seconds: float = 0.2, **settings: Any) -> Pass[Any]:
    """A pass that takes about ``6 * seconds / workers`` seconds."""
    source = open_source(path)
    job = Pass.start(Counts(source.n_rows, seconds=seconds, **settings), source, span_rows=200)

    def watch(job: Pass[Any], pending: int) -> Next:
        return max((watcher(job, pending) for watcher in watchers), key=list(Next).index, default=Next.CONTINUE)

    ClusterEngine(client, group_seconds=0.2).run(job, watch)
    return job


def assert_once(job: Pass[Any]) -> None:
    assert (job.state.counts == 1).all()
    assert job.done.spans() == (Span(0, ROWS),)


class TestWorkers:
    @pytest.mark.parametrize("rows", [500, 5500])
    def test_killed(self, client: Client, data: str, rows: int) -> None:
        victim = pids(client)[0]
        kill = At(rows, lambda: os.kill(victim, signal.SIGKILL))
        assert_once(count_rows(client, data, kill))
        assert kill.done

    def test_all_killed_at_once_with_checkpoints_under_way(self, client: Client, data: str) -> None:
        def kill_all() -> None:
            for pid in pids(client):
                os.kill(pid, signal.SIGKILL)

        assert_once(count_rows(client, data, At(3000, kill_all), lambda job, pending: Next.COLLECT))

    def test_killed_while_training(self, client: Client, data: str) -> None:
        expected = train(open_source(data), FIXED).state.digest()
        victim = pids(client)[1]
        settings, killer = Settings(engine=ClusterEngine(client, group_seconds=0.0)), Kills(victim)
        assert train(open_source(data), FIXED, settings, killer).state.digest() == expected
        assert killer.done

    def test_paused_for_a_moment(self, client: Client, data: str) -> None:
        victim = pids(client)[0]
        stop = At(2000, lambda: os.kill(victim, signal.SIGSTOP))
        later = threading.Timer(1.0, os.kill, (victim, signal.SIGCONT))
        assert_once(count_rows(client, data, stop, At(2000, later.start)))
        later.join()

    def test_paused_until_it_is_given_up_and_then_revived(self, client: Client, data: str, tmp_path: Path) -> None:
        """It comes back with a sum that another makes again meanwhile."""
        addresses = {str(pid): address for address, pid in client.run(os.getpid).items()}
        victims: list[str] = []

        def stop() -> None:
            victims.extend(line[1] for line in traces(tmp_path) if line[0] == "update")  # it has summed something
            os.kill(int(victims[0]), signal.SIGSTOP)
            client.run_on_scheduler(give_up, address=addresses[victims[0]])  # as Dask does after minutes of silence

        revive = At(4000, lambda: os.kill(int(victims[0]), signal.SIGCONT))
        try:
            job = count_rows(client, data, At(2000, stop), revive, trace=str(tmp_path), seconds=0.4)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(victims[0]), signal.SIGCONT)
        assert_once(job)
        assert revive.done
        summed = sum(int(line[3]) for line in traces(tmp_path) if line[0] == "update")
        assert summed > ROWS  # some rows were summed twice, and counted once

    def test_frozen_for_good(self, client: Client, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Others do its task and what it has summed, long before Dask gives it up; when it is back, nothing changes."""
        monkeypatch.setattr(workers, "FROZEN", 3.0)
        stopped: list[int] = []

        def stop() -> None:
            stopped.extend(int(line[1]) for line in traces(tmp_path) if line[0] == "update")
            os.kill(stopped[0], signal.SIGSTOP)

        started = time.monotonic()
        try:
            job = count_rows(client, data, At(2000, stop), trace=str(tmp_path), seconds=0.4)
            assert time.monotonic() - started < 100  # it was 594 s
        finally:
            os.kill(stopped[0], signal.SIGCONT)
        assert_once(job)

    def test_many_leave_in_good_order_over_the_same_rows(self, data: str) -> None:
        """Nobody died, so nobody ran out of memory: the run goes on."""
        with local_cluster(1, config=QUICK) as (cluster, client):
            left: set[str] = set()

            def leave(job: Pass[Any], pending: int) -> Next:
                workers = list(client.scheduler_info()["workers"])
                if len(left) < 4 and client.run_on_scheduler(tasks_processing):
                    cluster.scale(len(cluster.workers) + 1)
                    left.update(client.retire_workers(workers))  # one that nobody can take over from stays
                    client.wait_for_workers(1)
                return Next.CONTINUE

            assert_once(count_rows(client, data, leave, seconds=0.6))
        assert len(left) >= 4

    def test_an_adaptive_cluster_grows(self, data: str) -> None:
        with local_cluster(1, config={**QUICK, "distributed.adaptive.target-duration": "1s"}) as (cluster, client):
            cluster.adapt(minimum=1, maximum=3, interval="200ms")
            source = open_source(data)
            job = Pass.start(Counts(ROWS, seconds=5.0), source, span_rows=200)

            def until_three(job: Pass[Any], pending: int) -> Next:
                return Next.STOP if len(client.scheduler_info()["workers"]) == 3 else Next.CONTINUE

            ClusterEngine(client, group_seconds=1.0).run(job, until_three)
            assert job.done.count < ROWS
            assert job.state.counts.sum() == job.done.count

    def test_joins_late(self, data: str, tmp_path: Path) -> None:
        with local_cluster(1, config=QUICK) as (cluster, client):
            first = pids(client)[0]

            def grow_now() -> None:
                cluster.scale(2)
                client.wait_for_workers(2)

            grow = At(200, grow_now)
            assert_once(count_rows(client, data, grow, seconds=0.8, trace=str(tmp_path)))
        helped = {line[1] for line in traces(tmp_path) if line[0] == "update"}
        assert str(first) in helped
        assert len(helped) == 2

    def test_leaves_in_good_order(self, client: Client, data: str) -> None:
        address = next(iter(client.scheduler_info()["workers"]))
        leave = At(3000, lambda: client.retire_workers([address]))
        assert_once(count_rows(client, data, leave))
        client.cluster.scale(2)

    def test_over_its_memory_limit(self, data: str) -> None:
        config = {**QUICK, "distributed.worker.memory.pause": False}
        words = r"several workers were lost.*rows .*ran out of memory.*400 MB.*`D`"
        with (
            local_cluster(1, config=config, memory_limit="400MB") as (_, client),
            pytest.raises(ClusterError, match=words),
        ):
            count_rows(client, data, hunger=450_000_000, hold="never")  # until it is killed

    def test_workers_of_our_own_come_back_however_long_it_takes(self) -> None:
        """Dask would close the nanny of one that is not back in time, and the run would have no worker for good."""
        with (
            dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}),
            connect(Address(workers=1, threads=1)) as client,
        ):
            (first,) = pids(client)
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: first not in client.run(os.getpid, on_error="ignore").values())
            wait_until(lambda: client.run(os.getpid, on_error="ignore"))
            assert client.cluster.workers  # Dask has not given it up

    def test_one_is_paused_by_dask(self, data: str) -> None:
        """What it was given and never begins is done by the other, and what it holds still counts."""
        config = {**QUICK, "distributed.worker.memory.pause": 0.5, "distributed.worker.memory.terminate": False}
        with local_cluster(2, config=config, memory_limit="700MB") as (_, client):
            victim = next(iter(client.scheduler_info()["workers"]))

            def eat_now() -> None:
                client.run(devour, 450_000_000, workers=[victim])
                wait_until(lambda: statuses(client)[victim] == "paused")

            assert_once(count_rows(client, data, At(1500, eat_now), seconds=0.5))
            assert statuses(client)[victim] == "paused"

    def test_paused_by_dask_for_good(self, data: str, tmp_path: Path) -> None:
        """Its memory fills up with what is never freed: Dask gives it no more work, and nobody else is there."""
        config = {**QUICK, "distributed.worker.memory.pause": 0.5, "distributed.worker.memory.terminate": False}
        source = open_source(data)
        with local_cluster(1, config=config, memory_limit="600MB") as (_, client):
            engine = ClusterEngine(client, group_seconds=0.1, patience=1.0)

            def go_on_once_paused(job: Pass[Any], pending: int) -> Next:
                if "paused" in statuses(client).values():
                    (tmp_path / "go").touch()
                return Next.CONTINUE

            job = Pass.start(Counts(ROWS, hunger=400_000_000, hold=str(tmp_path / "go")), source, span_rows=200)
            with pytest.raises(BudgetError, match=r"paused by Dask for 1.0 s.*600 MB.*more memory, or lower `D`"):
                engine.run(job, go_on_once_paused)

    def test_none_left(self, data: str) -> None:
        with local_cluster(1, config=QUICK) as (cluster, client):
            source = open_source(data)
            job = Pass.start(Counts(ROWS, seconds=1.0), source, span_rows=200)

            def leave() -> None:
                cluster.scale(0)
                wait_until(lambda: not client.scheduler_info()["workers"])

            with pytest.raises(ClusterError, match=r"no worker for 1.0 s.*last checkpoint"):
                ClusterEngine(client, group_seconds=0.1, patience=1.0).run(job, At(200, leave))


def statuses(client: Client) -> dict[str, str]:
    return {address: worker["status"] for address, worker in client.scheduler_info()["workers"].items()}


class Kills(Reporter):
    """Kills a process once some rows are done."""

    def __init__(self, pid: int) -> None:
        self.pid, self.done = pid, False

    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        if done and not self.done:
            self.done = True
            os.kill(self.pid, signal.SIGKILL)


class Saved(Reporter):
    """Does something once a checkpoint is there."""

    def __init__(self, place: Path, action: Callable[[], Any]) -> None:
        self.place, self.action, self.done = place, action, False

    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        if not self.done and list(self.place.glob("*.json")):
            self.done = True
            self.action()


async def give_up(address: str, dask_scheduler: Any) -> None:
    await dask_scheduler.remove_worker(address, stimulus_id="silence")


class Flaky(WorkerPlugin):
    """Makes one chunk fail so many times on each worker; or always."""

    name = "flaky"

    def __init__(self, row: int, failures: int, folder: str) -> None:
        self.row, self.failures, self.folder = row, failures, folder

    def setup(self, worker: Any) -> None:
        self.read = ZarrSource.read

        def read(source: Any, span: Span) -> Any:
            if span.start <= self.row < span.stop and len(os.listdir(self.folder)) < self.failures:
                (Path(self.folder) / f"{os.getpid()}-{time.monotonic_ns()}").touch()
                raise StorageError("the chunk cannot be read (a network that comes and goes)")
            return self.read(source, span)

        ZarrSource.read = read  # type: ignore[method-assign]

    def teardown(self, worker: Any) -> None:
        ZarrSource.read = self.read  # type: ignore[method-assign]


@contextlib.contextmanager
def flaky(client: Client, row: int, failures: int, folder: Path) -> Iterator[None]:
    client.register_plugin(Flaky(row, failures, str(folder)))
    try:
        yield
    finally:
        client.unregister_worker_plugin("flaky")


class TestReads:
    def test_a_chunk_that_fails_twice(self, client: Client, data: str, tmp_path: Path) -> None:
        with flaky(client, 1234, 2, tmp_path):
            assert_once(count_rows(client, data, seconds=0.0))
        assert len(os.listdir(tmp_path)) == 2

    def test_a_chunk_that_always_fails(self, client: Client, data: str, tmp_path: Path) -> None:
        with (
            flaky(client, 1234, 10**6, tmp_path),
            pytest.raises(StorageError, match=r"comes and goes.*not even at the 4th try"),
        ):
            count_rows(client, data, seconds=0.0)
        assert_once(count_rows(client, data, seconds=0.0))  # and the cluster is as good as before

    def test_a_run_over_such_a_chunk_is_finished_later(self, client: Client, data: str, tmp_path: Path) -> None:
        """What was summed is saved as the run ends; once the store is well again, the rest is done and no more."""
        expected = train(open_source(data), FIXED).state.digest()
        failures, reads, place = (tmp_path / name for name in ("failures", "reads", "kept"))
        failures.mkdir(), reads.mkdir()
        settings = Settings(checkpoint=place, checkpoint_every=300, engine=ClusterEngine(client, group_seconds=0.1))
        with flaky(client, 5000, 10**6, failures), pytest.raises(StorageError):
            train(open_source(data), FIXED, settings)
        saved = saved_rows(place)
        assert saved > 0
        with traced(client, reads):
            assert train(open_source(data), FIXED, settings).state.digest() == expected
        assert rows_read(reads) == ROWS - saved

    def test_waits_grow_and_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []
        monkeypatch.setattr(time, "sleep", waits.append)

        def fail(_: Any) -> None:
            raise StorageError("no")

        with pytest.raises(StorageError, match="4th try"):
            persistently(fail, None)
        assert tuple(waits) == WAITS == tuple(sorted(WAITS))

    @pytest.mark.parametrize("cause", [FileNotFoundError(), PermissionError()])
    def test_what_does_not_mend_itself_is_not_tried_again(self, cause: OSError) -> None:
        tries = []

        def fail(_: Any) -> None:
            tries.append(1)
            raise StorageError("no") from cause

        with pytest.raises(StorageError, match=r"^no$"):
            persistently(fail, None)
        assert len(tries) == 1


@contextlib.contextmanager
def scheduler_of_its_own(folder: Path, *others: tuple[str, ...]) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler, a worker, and others with options, each a process that can be killed; the address, and they."""
    file, paths = folder / "scheduler.json", os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "DASK_DISTRIBUTED__ADMIN__TICK__LIMIT": "1h"}

    def start(*args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *args]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def written() -> bool:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return "address" in json.loads(file.read_text())
        return False

    where = ["--scheduler-file", str(file), "--no-dashboard", "--host", "127.0.0.1"]
    processes = [start("scheduler", "--port", "0", *where)]
    try:
        wait_until(written)
        processes += [start("worker", "--nthreads", "1", *where, *options) for options in ((), *others)]
        yield json.loads(file.read_text())["address"], processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


class TestSchedulerAndDriver:
    def test_a_worker_whose_lifetime_ends(self, data: str, tmp_path: Path) -> None:
        """As a batch system or a spot instance has it: no death, and what it has summed counts."""
        short = ("--lifetime", "15s")
        with scheduler_of_its_own(tmp_path, short) as (address, processes), Client(address, timeout="60s") as client:
            client.wait_for_workers(2, timeout=60)

            def until_it_left(job: Pass[Any], pending: int) -> Next:
                return Next.STOP if processes[2].poll() is not None else Next.CONTINUE

            job = count_rows(client, data, until_it_left, seconds=10.0)
        assert processes[2].returncode == 0
        assert job.state.counts.max() == 1
        assert job.state.counts.sum() == job.done.count

    def test_the_scheduler_goes(self, data: str, tmp_path: Path) -> None:
        with scheduler_of_its_own(tmp_path) as (address, processes), Client(address, timeout="60s") as client:
            client.wait_for_workers(1, timeout=60)
            kill = At(500, processes[0].kill)
            with pytest.raises(ClusterError, match=r"scheduler at tcp://.* does not answer.*last checkpoint"):
                count_rows(client, data, kill)

    def test_the_scheduler_freezes(self, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workers, "NO_ANSWER", 2.0)
        with scheduler_of_its_own(tmp_path) as (address, processes), Client(address, timeout="60s") as client:
            client.wait_for_workers(1, timeout=60)
            freeze = At(500, lambda: processes[0].send_signal(signal.SIGSTOP))
            with pytest.raises(ClusterError, match=r"scheduler at tcp://.* does not answer.*last checkpoint"):
                count_rows(client, data, freeze)
            processes[0].kill()

    def test_a_run_that_lost_its_scheduler_is_finished_at_another(
        self, client: Client, data: str, tmp_path: Path
    ) -> None:
        expected, reads = train(open_source(data), FIXED).state.digest(), tmp_path / "reads"
        reads.mkdir()
        settings = Settings(checkpoint=tmp_path / "kept", checkpoint_every=0.0)
        with scheduler_of_its_own(tmp_path) as (address, processes), Client(address, timeout="60s") as first:
            first.wait_for_workers(1, timeout=60)
            first.register_plugin(Reads(str(reads), held_from=LAST_CHUNK))  # it cannot be done before it is killed
            settings.engine = ClusterEngine(first, group_seconds=0.0)
            with pytest.raises(ClusterError, match=r"scheduler at tcp://.* does not answer"):
                train(open_source(data), FIXED, settings, Saved(tmp_path / "kept", processes[0].kill))
        saved = saved_rows(tmp_path / "kept")
        assert 0 < saved < ROWS
        forget_traces(reads)
        settings = Settings(checkpoint=tmp_path / "kept", engine=ClusterEngine(client))
        with traced(client, reads):
            assert train(open_source(data), FIXED, settings).state.digest() == expected
        assert rows_read(reads) == ROWS - saved

    def test_a_checkpoint_is_collected_whatever_all_workers_are_stuck_in(
        self, client: Client, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They hold sums, and an addition would wait behind what they are doing."""
        monkeypatch.setattr(cluster_engine, "STUCK", 0.5)
        trace, done = tmp_path / "reads", list[int]()
        trace.mkdir()

        def watch(job: Pass[Any], pending: int) -> Next:
            if len(list(tmp_path.glob("reads.held-*"))) < len(client.scheduler_info()["workers"]):
                return Next.CONTINUE
            if job.done.count and not done:
                done.append(job.done.count)
                go_file(trace).touch()
            return Next.COLLECT

        with traced(client, trace, held_from=1500):
            job = count_rows(client, data, watch)
        assert 0 < done[0] <= 1500
        assert_once(job)

    def test_the_driver_is_killed_and_the_next_one_resumes(self, client: Client, data: str, tmp_path: Path) -> None:
        expected = train(open_source(data), FIXED).state.digest()
        trace = tmp_path / "reads"
        trace.mkdir()
        command = [sys.executable, "-m", "streamrf", "train", data, "--D", "48", "--kernel", "gaussian", "--json"]
        command += ["--length-scale", "1.5", "--scaling", "standard", "--bits", "8", "--lambda", "1e-4"]
        command += ["--pilot", "none", "--out", str(tmp_path / "m.model"), "--scheduler", client.scheduler.address]
        command += ["--checkpoint", str(tmp_path / "kept"), "--checkpoint-every", "0s"]
        with traced(client, trace, held_from=LAST_CHUNK):
            driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=TESTS.parent)
            saves = tmp_path / "kept"
            wait_until(lambda: driver.poll() is not None or list(saves.glob("*.json")))
            assert driver.poll() is None  # it cannot be done: the last chunk is held
            driver.kill()
            driver.wait()
            done = saved_rows(saves)
            wait_until(lambda: not client.run_on_scheduler(tasks_known))
            go_file(trace).touch()
            wait_until(lambda: not any(client.run(tasks_running).values()))
            forget_traces(trace)
            report = json.loads(subprocess.check_output([*command, "--resume"], cwd=TESTS.parent))
            read_again = rows_read(trace)
        assert 0 < done < ROWS
        assert report["statistics_digest"] == expected
        assert not saves.exists()
        assert read_again <= ROWS - done + 2 * 64  # nothing that was saved; the first and last rows are looked at again


def saved_rows(folder: Path) -> int:
    """Rows in the newest save."""
    newest = max(folder.glob("*.json"))
    return sum(stop - start for start, stop in json.loads(newest.read_text())["ledger"])


def tasks_known(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.tasks)


def tasks_processing(dask_scheduler: Any) -> int:
    return sum(len(worker.processing) for worker in dask_scheduler.workers.values())


def tasks_running(dask_worker: Any) -> int:
    """How many there are, with those that are cancelled and have not noticed yet."""
    return len(dask_worker.state.executing)


def rows_read(folder: Path) -> int:
    """Rows that workers have read since the last ``forget_traces``."""
    return sum(int(path.read_text()) for path in folder.iterdir())


def forget_traces(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


class Reads(WorkerPlugin):
    """Writes down how many rows were read; holds reads of rows from ``held_from`` on until the go-file is there."""

    name = "reads"

    def __init__(self, folder: str, held_from: int = ROWS) -> None:
        self.folder, self.held_from = Path(folder), held_from

    def setup(self, worker: Any) -> None:
        self.read = ZarrSource.read

        def read(source: Any, span: Span) -> Any:
            if span not in (Span(0, 64), Span(ROWS - 64, ROWS)):  # no fingerprint
                if span.stop > self.held_from:
                    self.folder.with_suffix(f".held-{os.getpid()}").touch()
                    wait_until(go_file(self.folder).exists)
                (self.folder / f"{os.getpid()}-{time.monotonic_ns()}").write_text(str(len(span)))
            return self.read(source, span)

        ZarrSource.read = read  # type: ignore[method-assign]

    def teardown(self, worker: Any) -> None:
        ZarrSource.read = self.read  # type: ignore[method-assign]


def go_file(folder: Path) -> Path:
    return folder.with_suffix(".go")


@contextlib.contextmanager
def traced(client: Client, folder: Path, held_from: int = ROWS) -> Iterator[None]:
    client.register_plugin(Reads(str(folder), held_from))
    try:
        yield
    finally:
        go_file(folder).touch()
        client.unregister_worker_plugin("reads")


class Weather(BaseHTTPRequestHandler):
    """Stands between clients and a store: passes everything on, slowly, and fails where ``storm`` says so."""

    protocol_version = "HTTP/1.1"
    store = ""
    storm: Callable[[str, int], bool] = staticmethod(lambda path, times: False)  # the object, and how often it was read
    reads: ClassVar[Counter[str]] = Counter()

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def pass_on(self) -> None:
        path = self.path.partition("?")[0]
        if self.command == "GET":
            time.sleep(0.01)
            self.reads[path] += 1
            if self.storm(path, self.reads[path]):
                self.answer(500, {}, b"<Error><Code>InternalError</Code></Error>")
                return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        there = http.client.HTTPConnection(self.store)
        there.request(self.command, self.path, body, dict(self.headers))
        response = there.getresponse()
        self.answer(response.status, dict(response.getheaders()), response.read(), response.headers["Content-Length"])

    def answer(self, status: int, headers: dict[str, str], body: bytes, length: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on


@pytest.fixture(scope="class")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 bucket behind the weather, with the same table as zarr and as parquet."""
    X, y = smooth(2000)
    with s3_bucket() as address:
        Weather.store = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
        group = zarr.open_group(f"{address}/t.zarr", mode="w")
        group.create_array("X", data=X, chunks=(100, 6))
        group.create_array("y", data=y, chunks=(1000,))
        frame = pd.DataFrame({**{f"x{i}": X[:, i] for i in range(6)}, "y": y})
        frame.to_parquet(f"{address}/t.parquet", row_group_size=100)
        s3fs.S3FileSystem.clear_instance_cache()
        server = ThreadingHTTPServer(("127.0.0.1", 0), Weather)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
            patch.setenv("AWS_MAX_ATTEMPTS", "1")  # so that it is our own tries that count
            yield address
        server.shutdown()


@pytest.fixture(scope="class")
def remote(bucket: str) -> Iterator[Client]:
    settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    with local_cluster(2, env=settings) as (_, client):
        client.register_plugin(Impatient())
        yield client


@pytest.fixture
def fair(monkeypatch: pytest.MonkeyPatch) -> None:
    Weather.reads.clear()
    monkeypatch.setattr(Weather, "storm", staticmethod(lambda path, times: False))


@pytest.mark.usefixtures("fair")
class TestRemoteStores:
    @pytest.mark.parametrize(("name", "culprit"), [("t.zarr", "/X/c/7/0"), ("t.parquet", "t.parquet")])
    def test_reads_that_fail_for_a_moment(
        self, remote: Client, bucket: str, monkeypatch: pytest.MonkeyPatch, name: str, culprit: str
    ) -> None:
        X, _ = smooth(2000)
        source = open_source(f"{bucket}/{name}")
        engine = ClusterEngine(remote, group_seconds=0.2)
        engine.run(Pass.start(Moments(6), source, span_rows=200))  # both workers open it: from here on they only read
        Weather.reads.clear()
        monkeypatch.setattr(Weather, "storm", staticmethod(lambda path, n: path.endswith(culprit) and n <= 2))
        found = engine.run(Pass.start(Moments(6), source, span_rows=200))
        assert found.digest() == moments_of(X).digest()
        assert max(n for path, n in Weather.reads.items() if path.endswith(culprit)) > 2

    def test_what_is_said_and_written_holds_no_credentials(self, remote: Client, bucket: str, tmp_path: Path) -> None:
        """Everything a command says to people and programs, and every file of the model."""
        address = remote.scheduler.address  # type: ignore[union-attr]
        model = tmp_path / "m.model"
        command = ["train", f"{bucket}/t.zarr", *FAST, "--out", model, "--scheduler", address]
        good, bad = streamrf(*command), streamrf("evaluate", model, f"{bucket}/missing.zarr", "--scheduler", address)
        assert (good.code, bad.code) == (0, StorageError.exit_code)
        texts = [good.out, good.err, bad.out, bad.err, *(str(path.read_bytes()) for path in model.iterdir())]
        assert f"{bucket}/t.zarr" in good.err
        assert not any("very-secret" in text for text in texts)

    def test_predictions_are_written_to_the_store_by_the_workers(self, remote: Client, bucket: str) -> None:
        X, y = smooth(2000)
        model, out, engine = train(ArraySource(X, y), FIXED).model, f"{bucket}/out.parquet", ClusterEngine(remote)
        files = s3fs.S3FileSystem()
        for overwrite in (False, True):
            assert predict(model, f"{bucket}/t.zarr", out=out, engine=engine, overwrite=overwrite) == 2000
            files.invalidate_cache()
            names = sorted(path.rpartition("/")[2] for path in files.ls(out))
            assert names[0] == "_SUCCESS"
            assert len({name.split("-")[2] for name in names[1:]}) == 1  # none of the run before
            frame = pd.concat([pd.read_parquet(f"{out}/{name}") for name in names[1:]])
            assert np.array_equal(frame["prediction"], predict(model, X))
        with pytest.raises(ExistsError, match="`overwrite=True`"):
            predict(model, f"{bucket}/t.zarr", out=out, engine=engine)

    def test_predictions_that_fail_leave_nothing_in_the_store(
        self, remote: Client, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, out = train(ArraySource(*smooth(2000)), FIXED).model, f"{bucket}/failed.parquet"
        source = open_source(f"{bucket}/t.zarr")
        monkeypatch.setattr(Weather, "storm", staticmethod(lambda path, n: path.endswith("/X/c/7/0")))
        engine = ClusterEngine(remote, group_seconds=0.0)
        with pytest.raises(StorageError, match="4th try"):
            predict(model, source, out=out, engine=engine)
        files = s3fs.S3FileSystem()
        files.invalidate_cache()
        assert not files.exists(out)

    def test_a_chunk_that_is_never_read(self, remote: Client, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        source = open_source(f"{bucket}/t.zarr")
        monkeypatch.setattr(Weather, "storm", staticmethod(lambda path, n: path.endswith("/X/c/7/0")))
        with pytest.raises(StorageError, match=r"rows 700:800 of X in s3://shelf/t.zarr cannot be read.*4th try"):
            ClusterEngine(remote).run(Pass.start(Counts(2000), source))

    def test_checkpoints_in_the_store_hold_no_credentials(self, remote: Client, bucket: str, tmp_path: Path) -> None:
        source, place = open_source(f"{bucket}/t.zarr"), f"{bucket}/kept"
        expected = train(ArraySource(*smooth(2000)), FIXED).state.digest()
        engine = ClusterEngine(remote, group_seconds=0.0)
        settings = Settings(checkpoint=place, checkpoint_every=0.0, engine=engine)  # type: ignore[arg-type]
        with pytest.raises(Interrupted), Threads(1) as threads:
            Training(source, FIXED, settings, Stops(500), threads).run()
        files = s3fs.S3FileSystem()
        saves = files.ls(place)
        assert saves
        assert not any(b"very-secret" in files.cat_file(path) for path in saves)
        with Threads(1) as threads:
            again = Training(source, FIXED, settings, Reporter(), threads)
            trained = again.run()
            assert trained.state.digest() == expected
        trained.model.save(tmp_path / "m.model", state=trained.state)
        assert not any(b"very-secret" in path.read_bytes() for path in (tmp_path / "m.model").iterdir())
        files.invalidate_cache()
        assert not files.exists(place)
