"""streamrf as a contestant: its own commands, in processes of their own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from benchlib.context import Context
from benchlib.results import Cell, rounded
from benchlib.running import Ended, run
from benchlib.tables import generated

Tables = tuple[Path, Path]
TOY = ("--pilot", "none")
TOY_BLEND = (*TOY, "--map", "blend", "--D", 32, "--grids", 8)  # what runs with nothing set, of toy size


def streamrf(
    context: Context, *args: object, timeout: float = 900, limit: int | None = None, threads: int = 0
) -> Ended:
    threads = threads or context.threads
    command = [sys.executable, "-m", "streamrf", *map(str, args), "--threads", str(threads), "--json"]
    return run(command, timeout=timeout, threads=threads, limit=limit)


def model_of(context: Context) -> Path:
    """Where the model that was trained last is."""
    return context.work / "models" / "bench.model"


def train(context: Context, tables: Tables, *options: object, limit: int | None = None, timeout: float = 900) -> Cell:
    """Train and test with some options: what is searched for is told apart from what is trained."""
    model = model_of(context)
    shutil.rmtree(model, ignore_errors=True)
    model.parent.mkdir(parents=True, exist_ok=True)
    common = ("--out", model, "--overwrite", "--no-statistics", "--no-checkpoint", *(TOY if context.quick else ()))
    ended = streamrf(context, "train", tables[0], *common, *options, limit=limit, timeout=timeout)
    if not ended.ok:
        return failure(ended)
    report = ended.json()
    tested = streamrf(context, "evaluate", model, tables[1])
    return cell_of(ended, report, tested.json()) if tested.ok else failure(tested)


def failure(ended: Ended) -> Cell:
    return {"ok": False, "why": ended.why, "wall": round(ended.seconds, 2), "peak": ended.peak}


def cell_of(ended: Ended, report: dict[str, Any], scores: dict[str, Any]) -> Cell:
    seconds, chosen = report["seconds"], report["chosen"]
    learned = {"learning": report["learning"]} if report["learning"] else {}
    kept = ("kernel", "length_scale", "map", "form", "scaling", "ridge", "D", "grids", "bits", "solver")
    return rounded({
        "ok": True, "error": error_of(scores), "search": seconds.get("pilot", 0.0),
        "train": seconds["total"] - seconds.get("pilot", 0.0), "wall": ended.seconds, "cpu": ended.cpu,
        "peak": max(ended.peak, report["memory"]["peak"]), "scores": short(scores),
        "settings": {name: chosen[name] for name in kept if chosen.get(name) is not None}, "seconds": seconds,
        "holdout": short(report["holdout"] or {}), **learned,
    })  # fmt: skip


def error_of(scores: dict[str, Any]) -> float:
    """Share of wrong classes, or the root mean squared error."""
    return scores["error"] if "error" in scores else scores["rmse"]


def short(scores: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in scores.items() if isinstance(value, float | int)}


def warm_up(context: Context, classes: int = 0) -> None:
    """Compile what there is to compile, so that no contestant's clock runs meanwhile. Toys need not care."""
    if not context.quick:
        table = generated(context.work / "tables" / f"warm-{classes}.zarr", 2000, 20, classes=classes)
        for options in (("--D", 64), ("--D", 64, "--solver", "cg"), ("--map", "binning", "--grids", 4)):
            train(context, (table, table), *options, "--memory", "1GB")
