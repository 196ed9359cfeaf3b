"""Running a program in a process of its own: its time, its peak of resident memory, limits, and how it ended."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchlib.places import ROOT, SCRIPTS

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|[Cc]annot allocate|[Uu]nable to allocate|ArrayMemoryError|[Mm]emory allocation|OutOfMemory"
)


@dataclass(frozen=True)
class Ended:
    """How a process ended, what it said, and what it used."""

    code: int
    out: str
    err: str
    seconds: float
    peak: int
    timed_out: bool
    cpu: float = 0.0  # seconds

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out

    @property
    def why(self) -> str:
        """One sentence for a failure, without the folders of this machine."""
        if self.timed_out:
            return f"not done after {self.seconds:.0f} s"
        if OUT_OF_MEMORY.search(self.err):
            return "out of memory"
        if self.code < 0 or self.code > 128:
            return f"ended by signal {signal.Signals(abs(self.code) % 128).name}"
        lines = [line for line in self.err.splitlines() if line.strip()] or ["no message"]
        return re.sub(r"(/[\w.+-]+){2,}", "...", lines[-1])[:200]

    def json(self) -> Any:
        """The last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


class Watch(threading.Thread):
    """Looks at a process and its children while they live, and keeps the most that each has ever held."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.held, self.over = pid, {pid: 0}, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            self.look()

    def look(self) -> None:
        try:
            pids = [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        except psutil.Error:
            return
        for pid in pids:
            self.held[pid] = max(self.held.get(pid, 0), high_water_mark(pid))

    @property
    def peak(self) -> int:
        return sum(self.held.values())


def high_water_mark(pid: int | str) -> int:
    """The most a process has held; not ``ru_maxrss``, which Linux hands on from whoever started it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def run(command: list[str], *, timeout: float, threads: int, limit: int | None = None, **environment: str) -> Ended:
    """Run a command to its end, its time or the limit on its memory (``ulimit -d``, in bytes)."""
    if limit is not None:
        command = ["bash", "-c", f'ulimit -d {limit // 1024}; exec "$@"', "bash", *command]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start, cpu = time.perf_counter(), _cpu()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env=_environment(threads, environment), start_new_session=True, cwd=ROOT
        )
        watch = Watch(process.pid)
        watch.start()
        timed_out = _wait(process, timeout)
        seconds = time.perf_counter() - start
        watch.over.set()
        watch.join()
        for file in (out, err):
            file.seek(0)
        return Ended(process.returncode, out.read(), err.read(), seconds, watch.peak, timed_out, _cpu() - cpu)


def _cpu() -> float:
    """CPU seconds of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait(process: subprocess.Popen[str], timeout: float) -> bool:
    """Whether the time ran out; then it is ended with all that it started."""
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return False


def _environment(threads: int, more: dict[str, str]) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(SCRIPTS)])
    return {**os.environ, "PYTHONPATH": paths, **dict.fromkeys(THREAD_VARIABLES, str(threads)), **more}
