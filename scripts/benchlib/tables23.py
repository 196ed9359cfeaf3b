"""`tables23`: Tables 2 and 3 of Li et al. (2019), by bench_maps and bench_learned."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click

from benchlib.context import Context
from benchlib.ours import failure
from benchlib.places import DATA, SCRIPTS
from benchlib.results import Cell, rounded
from benchlib.running import run as run_process

MINUTES = "about 12 minutes, of which MNIST takes 5; its errors do not depend on how busy the machine is"
SETS = {"Wine": "wine_white.parquet", "Parkinson": "parkinsons.parquet", "CPU": "comp_activ.npz", "Adult": "a9a.npz",
        "Covtype": "covtype.parquet", "MNIST": "mnist.npz"}  # fmt: skip
SEEDS = {"maps": 5, "learned": 2}


def run(context: Context) -> None:
    results = context.open("tables23")
    for name, file in SETS.items():
        if not (DATA / file).exists():
            click.echo(f"{name}: {file} is not there: skipped")
            continue
        if context.quick and name != "Wine":
            continue
        if context.wants("maps"):
            results.cell(f"maps/{name}", lambda name=name: maps(context, name))
        if context.wants("learned"):
            results.cell(f"learned/{name}", lambda name=name: learned(context, name))
    results.write()


def maps(context: Context, name: str) -> Cell:
    sizes = ("--rows", 200, "--seeds", 1) if context.quick else ("--seeds", SEEDS["maps"])
    return script(context, "bench_maps", "table2", "--data", name, *sizes)


def learned(context: Context, name: str) -> Cell:
    sizes = ("--quick",) if context.quick else ("--seeds", SEEDS["learned"])
    cell = script(context, "bench_learned", "--only", name, "--tables", "2", "3", *sizes)
    if cell["ok"]:  # the script names the paper's figures for all sets
        paper = cell["found"].pop("paper")
        cell["paper"] = {table: figures[name] for table, figures in paper.items()}
    return cell


def script(context: Context, name: str, *options: object) -> Cell:
    """What a script of ours writes with --json."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, str(SCRIPTS / name), *map(str, options), "--json", str(out)]
        ended = run_process(command, timeout=900, threads=context.threads)
        if not ended.ok:
            return failure(ended)
        return rounded({"ok": True, "seconds": ended.seconds, "found": json.loads(out.read_text())}, 4)
