"""`fuzz`: files changed at random. No traceback, hang, memory above the budget, or silent change under a checksum.

Models, statistics, checkpoints, zarr, parquet, npy, CSV and JSON lines are changed, byte by byte or in their content
with every digest made right again, and then used. A process that hangs or dies is replaced, and the next change tried.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

from benchlib.context import Context
from benchlib.places import ROOT
from benchlib.results import Cell, Results, judged

MINUTES = "about an hour for 10,000 mutations on two cores"
DEFAULTS = {"mutations": 10_000, "first": 0, "seconds": 10.0, "budget": 10**9}
TOYS = {"mutations": 48, "seconds": 60.0}
KINDS = ("model", "statistics", "checkpoint", "zarr", "parquet", "npy", "csv", "jsonl")
BAD = ("unexpected", "hang", "memory", "silent", "crash")
START = 120.0  # seconds for a process to import everything and write the files that are changed


def run(context: Context) -> Results:
    settings, results = context.settings(DEFAULTS, TOYS), context.open("fuzz")
    for number, kind in enumerate(KINDS):
        count = settings.mutations // len(KINDS) + (number < settings.mutations % len(KINDS))
        if count and context.wants(kind):
            results.cell(kind, lambda kind=kind, count=count: Campaign(context, settings, kind).run(count))
    return results


class Campaign:
    """All changes of one kind of file, each by its number: the same number is the same change."""

    def __init__(self, context: Context, settings: Any, kind: str) -> None:
        self.context, self.settings, self.kind = context, settings, kind
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def run(self, count: int) -> Cell:
        at, stop = self.settings.first, self.settings.first + count
        while at < stop:
            at = self._batch(at, stop)
        return {"mutations": count, "outcomes": dict(self.counts), "examples": self.examples}

    def _batch(self, first: int, stop: int) -> int:
        """As many changes as one process lives for; the number of the next."""
        process = start_child(self.context, self.kind, first, stop, self.settings.budget)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_forward, args=(process, lines), daemon=True).start()
        at, wait = first, START
        try:
            while at < stop:
                line = lines.get(timeout=wait)
                if not line:
                    return self._note(at, "crash", f"exit code {process.wait()}")
                found = json.loads(line)
                wait = self.settings.seconds
                if "outcome" in found:
                    at = self._note(at, found["outcome"], found["told"])
        except queue.Empty:
            return self._note(at, "hang", f"no answer after {wait:.0f} s")
        finally:
            process.kill()
            process.wait()
        return at

    def _note(self, number: int, outcome: str, told: str) -> int:
        self.counts[outcome] += 1
        if outcome in BAD:
            self.examples.setdefault(outcome, []).append(f"{number}: {told}")
            self.context.say(f"{self.kind} {number}: {outcome}: {told}")
        return number + 1


def start_child(context: Context, kind: str, first: int, stop: int, budget: int) -> subprocess.Popen[str]:
    work = context.work / "fuzz" / kind
    work.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    command = [sys.executable, "-m", "benchlib.fuzzed", kind, str(work), str(first), str(stop), str(budget)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _forward(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def lines(cells: dict[str, Cell]) -> list[str]:
    """How many changes ended in which way, and whether any ended badly."""
    total: Counter[str] = Counter()
    for cell in cells.values():
        total.update(cell["outcomes"])
    told = [f"{kind}: {_listed(cell['outcomes'])}" for kind, cell in cells.items()]
    found = sum(total[name] for name in BAD)
    return [
        *told,
        judged(f"{sum(total.values()):,} changes: {_listed(total)} (wanted: no {', '.join(BAD)})", not found),
    ]


def _listed(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(outcomes.items()))
