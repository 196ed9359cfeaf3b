"""`faults`: kills, stops, failed reads and full disks at random moments: the right bits, or a sentence and a resume.

Each run is train, predict or update, here or on a cluster of two workers, with one to three faults. It must end with
the bits of an undisturbed run, or in one sentence, after which the same command without faults gives those bits. The
same number is the same choice of faults; the moments depend on the machine.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchlib.context import Context
from benchlib.faulted import Weather, WeatherOnWorkers, run_command
from benchlib.places import ROOT, SCRIPTS
from benchlib.results import Cell, Results, judged
from benchlib.tables import generated

MINUTES = "about a quarter of an hour for 100 runs on two cores"
DEFAULTS = {"runs": 100, "first": 0, "seconds": 120.0}
TOYS = {"runs": 2}
OPTIONS = ("runs",)  # settings that are options as well
ROWS, INPUTS, CHUNK = 20_000, 6, 500
SETTINGS = ("--D", "32", "--pilot", "none", "--length-scale", "2", "--bits", "8", "--lambda", "1e-4", "--threads", "1")
PASS_SECONDS = 1.5  # of a command, so that something can happen meanwhile
COMMANDS = ("train", "predict", "update")
DRIVER = ("killed", "Ctrl-C", "terminated", "frozen for a moment")
READS = ("reads fail twice", "reads fail", "slow read", "full disk")
WORKER = ("worker killed", "worker frozen for a moment", "worker leaves", "worker paused", "all workers killed")
BAD = ("wrong bits", "traceback", "hang", "half an output", "no resume")


def run(context: Context) -> Results:
    settings, results = context.settings(DEFAULTS, TOYS), context.open("faults")
    with Field(context.work / "faults", settings.seconds) as field:
        for number in range(settings.first, settings.first + settings.runs):
            results.cell(str(number), lambda number=number: Run(field, number).cell())
    return results


class Field:
    """What all runs share: tables, a model and statistics, the right answers, and a cluster once one is needed."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.data, self.more = (
            str(generated(folder / f"{name}.zarr", ROWS, INPUTS, chunk=CHUNK, seed=seed))
            for seed, name in enumerate(("data", "more"))
        )
        self.model, self.stats, prepared = (str(folder / name) for name in ("m.model", "s.stats", "r.prepared"))
        trained = self.done("train", self.data, *SETTINGS, "--out", self.model, "--overwrite")
        self.done("prepare", self.data, *SETTINGS, "--out", prepared, "--overwrite")
        before = self.done("accumulate", prepared, self.data, "--out", self.stats, "--overwrite")
        shutil.rmtree(folder / "u.stats", ignore_errors=True)
        shutil.copytree(self.stats, folder / "u.stats")
        after = self.done("update", folder / "u.stats", self.more)
        self.done("predict", self.model, self.more, "--out", folder / "p.npy", "--overwrite")
        self.digests = {name: each["statistics_digest"] for name, each in
                        (("train", trained), ("before", before), ("update", after))}  # fmt: skip
        self.predictions = np.load(folder / "p.npy")
        self.cluster: Any = None

    def done(self, *args: object) -> dict[str, Any]:
        """What a command prints that nothing happens to."""
        out, err = self.folder / "out", self.folder / "err"
        process = start(Weather(str(self.folder)), [*map(str, args), "--json"], out, err)
        process.join()
        if process.exitcode:
            raise RuntimeError(err.read_text())
        return json.loads(out.read_text())

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *_: object) -> None:
        """Dask gives workers a few seconds to close: what a busy machine needs longer for, or a run left in a bad way,
        goes with this process."""
        if self.cluster:
            with contextlib.suppress(TimeoutError):
                self.cluster.__exit__(None, None, None)
            self.cluster = None

    def client(self) -> Any:
        """Of two workers that answer, whatever the runs before did to theirs."""
        if self.cluster and not _healthy(self.cluster.client):
            self.__exit__()
        if not self.cluster:
            self.cluster = Workers()
        return self.cluster.client


class Workers(contextlib.ExitStack):
    """Two worker processes, started again when they die."""

    def __init__(self) -> None:
        super().__init__()
        import dask
        from distributed import Client, LocalCluster

        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(SCRIPTS)])
        # a busy machine may take longer to start a worker again than Dask waits for it
        patient = {"distributed.comm.timeouts.connect": "5s", "distributed.deploy.lost-worker-timeout": "5 minutes"}
        self.enter_context(dask.config.set(patient))
        self.cluster = self.enter_context(
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=60)
        )
        self.client = self.enter_context(Client(self.cluster))


def _healthy(client: Any) -> bool:
    for _ in range(20):
        answers = client.run(os.getpid, on_error="ignore")
        if len(answers) == len(client.scheduler_info(n_workers=-1)["workers"]) == 2:
            return True
        time.sleep(0.5)
    return False


def start(weather: Weather, args: list[str], out: Path, err: Path) -> Any:
    """A command in a process of its own, forked from one that has imported everything: that takes a moment only."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["__main__", "benchlib.faulted", "streamrf.training.run", "streamrf.training.update"]
    )
    process = context.Process(target=run_command, args=(weather, args, out, err))
    process.start()
    return process


class Run:
    """One command, its faults, and how it ended."""

    def __init__(self, field: Field, number: int) -> None:
        self.field, self.random = field, random.Random(number)
        self.command, engine = self.random.choice(COMMANDS), self.random.choice(("local", "cluster"))
        possible = DRIVER + READS + (WORKER if engine == "cluster" else ())
        self.kinds = self.random.sample(possible, self.random.choice((1, 1, 2, 3)))
        self.client = field.client() if engine == "cluster" else None
        self.folder = field.folder / f"run-{number}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        pause = PASS_SECONDS * 500 / ROWS * (2 if self.client else 1)
        self.weather = Weather(str(self.folder), pause, self.random.randrange(ROWS))

    def cell(self) -> Cell:
        with self._place() as place:
            outcome, told = self._ended(place)
        shutil.rmtree(self.folder)
        engine = "cluster" if self.client else "local"
        return {"command": self.command, "engine": engine, "kinds": ", ".join(self.kinds), "outcome": outcome,
                "told": told.replace(f"{self.field.folder}/", ""), "ok": True}  # fmt: skip

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        """Where the command writes: on a disk that is soon full, where that is a fault and we may mount one."""
        place = self.folder / "place"
        place.mkdir()
        size = _bytes(Path(self.field.stats)) + self.random.randrange(4096, 150_000)
        mounted = "full disk" in self.kinds and _mount(place, size)
        if "full disk" in self.kinds and not mounted:
            self.weather = replace(self.weather, file_bytes=self.random.randrange(2048, 50_000))
        try:
            if self.command == "update":
                shutil.copytree(self.field.stats, place / "s.stats")
            yield place
        finally:
            if mounted:
                subprocess.run(["umount", "-l", str(place)], check=True)

    def _args(self, place: Path) -> list[str]:
        kept = ["--checkpoint", str(place / "kept"), "--checkpoint-every", "0.3s"]
        output = place / ("p.zarr" if self.client else "p.npy")
        args = {
            "train": ["train", self.field.data, *SETTINGS, "--out", str(place / "m.model"), "--overwrite", *kept],
            "predict": ["predict", self.field.model, self.field.more, "--out", str(output), "--overwrite"],
            "update": ["update", str(place / "s.stats"), self.field.more],
        }[self.command]
        address = ["--scheduler", self.client.scheduler.address] if self.client else []
        return [*args, *address, "--json", "--quiet"]

    def _ended(self, place: Path) -> tuple[str, str]:
        first = self._started(place, self._in_weather())
        if first is None:
            return "hang", "with faults"
        code, out, told = first
        if code == 0:
            return ("right" if self._is_right(place, out) else "wrong bits"), ""
        killed = code in (-signal.SIGKILL, -signal.SIGTERM)  # before there is anything to save, it ends at once
        if "Traceback" in told or not (told or killed):
            return "traceback", told[-2000:]
        if self._is_half(place):
            return "half an output", told
        if "full disk" in self.kinds:
            subprocess.run(["mount", "-o", "remount,size=50m", str(place)], check=False, stderr=subprocess.DEVNULL)
        again = self._started(place, Weather(str(self.folder)), ())
        if again is None:
            return "hang", "when resumed"
        if again[0]:
            return "no resume", again[2]
        kind = "killed, resumed" if killed else "a sentence, resumed"
        return (kind if self._is_right(place, again[1]) else "wrong bits"), told

    def _in_weather(self) -> Weather:
        times = {"reads fail twice": 2, "reads fail": 10**6}
        failures = max((times.get(kind, 0) for kind in self.kinds), default=0)
        return replace(self.weather, failures=failures, slow=2.0 if "slow read" in self.kinds else 0.0)

    def _started(self, place: Path, weather: Weather, kinds: tuple[str, ...] | None = None) -> Any:
        """Exit code, standard output and standard error of the command; None if it takes too long."""
        for name in ("begun", "started"):
            (self.folder / name).unlink(missing_ok=True)
        if self.client:
            self.client.register_plugin(WeatherOnWorkers(weather))
        out, err = self.folder / "out", self.folder / "err"
        out.touch(), err.touch()
        process, over = start(weather, self._args(place), out, err), threading.Event()
        threads = [self._later(kind, process.pid, over) for kind in (self.kinds if kinds is None else kinds)]
        process.join(self.field.seconds)
        code = process.exitcode
        over.set()
        process.kill()
        process.join()
        for thread in filter(None, threads):
            thread.join()
        if self.client:
            with contextlib.suppress(OSError):  # of a worker that was killed a moment ago; the next run has its own
                self.client.unregister_worker_plugin("weather")
        return None if code is None else (code, out.read_text(), err.read_text().strip())

    def _later(self, kind: str, pid: int, over: threading.Event) -> threading.Thread | None:
        """Have this happen at a random moment of the pass, or before it or after it."""
        action = self._actions().get(kind)
        if action is None:
            return None
        mark, delay = self.random.choice(("begun", "started", "started")), self.random.uniform(0, PASS_SECONDS)

        def wait_and_do() -> None:
            while not (self.folder / mark).exists() and not over.wait(0.01):
                pass
            if not over.wait(delay):
                with contextlib.suppress(ProcessLookupError, IndexError):  # it has ended; there is no worker just now
                    action(pid)

        thread = threading.Thread(target=wait_and_do)
        thread.start()
        return thread

    def _actions(self) -> dict[str, Callable[[int], None]]:
        return {
            "killed": lambda pid: os.kill(pid, signal.SIGKILL),
            "Ctrl-C": lambda pid: os.kill(pid, signal.SIGINT),
            "terminated": lambda pid: os.kill(pid, signal.SIGTERM),
            "frozen for a moment": _freeze,
            "worker killed": lambda _: os.kill(self._worker()[1], signal.SIGKILL),
            "worker frozen for a moment": lambda _: _freeze(self._worker()[1]),
            "worker leaves": lambda _: self._leave(),
            "worker paused": lambda _: self._pause(),
            "all workers killed": lambda _: [os.kill(pid, signal.SIGKILL) for pid in self._pids().values()] and None,
        }

    def _pids(self) -> dict[str, int]:
        return self.client.run(os.getpid, on_error="ignore")

    def _worker(self) -> tuple[str, int]:
        return self.random.choice(sorted(self._pids().items()))

    def _leave(self) -> None:
        address, _ = self._worker()
        self.client.cluster.scale(len(self.client.cluster.workers) + 1)
        self.client.retire_workers([address])

    def _pause(self) -> None:
        address, _ = self._worker()
        for status in ("paused", "running"):
            self.client.run(_set_status, status, workers=[address], on_error="ignore")
            time.sleep(1.0)

    def _is_right(self, place: Path, out: str) -> bool:
        if self.command != "predict":
            return json.loads(out)["statistics_digest"] == self.field.digests[self.command]
        found = np.load(place / "p.npy") if not self.client else zarr.open_group(str(place / "p.zarr"))["prediction"][:]
        return np.array_equal(found, self.field.predictions)

    def _is_half(self, place: Path) -> bool:
        """Whether a command that failed left something under the name of its output that is neither old nor new."""
        if self.command == "update":
            found = self.field.done("inspect", place / "s.stats")["statistics_digest"]
            if found == self.field.digests["update"]:  # it was done, and ended before it could say so: once is enough
                shutil.rmtree(place / "s.stats")
                shutil.copytree(self.field.stats, place / "s.stats")
            return found not in (self.field.digests["before"], self.field.digests["update"])
        output = place / ("m.model" if self.command == "train" else "p.zarr" if self.client else "p.npy")
        if not output.exists():
            return False
        if self.command == "train":
            return self.field.done("inspect", output)["statistics_digest"] != self.field.digests["train"]
        return not self._is_right(place, "")


def _set_status(status: str, dask_worker: Any) -> None:
    from distributed.core import Status

    dask_worker.status = Status[status]


def _freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(1.5)
    finally:
        os.kill(pid, signal.SIGCONT)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _mount(place: Path, size: int) -> bool:
    options = ["-t", "tmpfs", "-o", f"size={size // 4096 * 4096}", "tmpfs", str(place)]
    return os.geteuid() == 0 and subprocess.run(["mount", *options], stderr=subprocess.DEVNULL).returncode == 0


def lines(cells: dict[str, Cell]) -> list[str]:
    """How many runs with each fault ended in which way, and whether any ended badly."""
    by_kind: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for cell in cells.values():
        total[cell["outcome"]] += 1
        for kind in cell["kinds"].split(", "):
            by_kind.setdefault(kind, Counter())[cell["outcome"]] += 1
    bad = [f"{number}: {cell['outcome']}: {cell['told']}" for number, cell in cells.items() if cell["outcome"] in BAD]
    return [
        *(f"{kind}: {_listed(counts)}" for kind, counts in sorted(by_kind.items())),
        *bad,
        judged(f"{total.total():,} runs: {_listed(total)} (wanted: no {', '.join(BAD)})", not bad),
    ]


def _listed(outcomes: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(outcomes.items()))
