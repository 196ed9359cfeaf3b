"""What `streamrf train` says at its end: about ten lines, and more with `--verbose`."""

from __future__ import annotations

import shlex
from typing import Any

from streamrf.cli.display import baseline_text, in_flags, print_table
from streamrf.recipe import BINNING, LANDMARKS, TREES
from streamrf.support.units import format_bytes, format_count, format_seconds
from streamrf.training.pilot.choice import learning_rows, member_name, member_rows

Lines = list[tuple[str, str]]
# The figures that judge a model, the first of them that it has; the others are shown with --verbose.
MAIN = ("rmse", "error", "log_loss")
BESIDE = {"rmse": ("r2",), "error": ("log_loss", "auc")}


def show(report: dict[str, Any], *, verbose: bool = False, warned: bool = False) -> None:
    """The `--json` object of a run as a table for people, without warnings that they have just seen."""
    seconds, memory = report["seconds"], report["memory"]
    members = report.get("members")
    has_kernel = not members or any(each["map"] == LANDMARKS for each in members)  # which lambda and metric are of
    print_table([
        ("model", report["model"]),
        ("rows", format_count(report["rows"])),
        *_holdout(report["holdout"] or {}, verbose),
        *_cross_validation(report["cross_validation"]),
        *_map(report),
        *([("lambda", f"{report['chosen']['ridge']:.3g}")] if "ridge" in report["chosen"] and has_kernel else []),
        *(learning_rows(report["learning"]) if has_kernel else []),
        *(_larger_budget(report.get("larger_budget")) if has_kernel else []),
        ("time", ", ".join(f"{name} {format_seconds(value)}" for name, value in seconds.items())),
        ("memory", f"peak {format_bytes(memory['peak'])}, projected {format_bytes(memory['projected'])},"
                   f" budget {format_bytes(memory['budget'])}"),
        *([("statistics", report["statistics_digest"][:16])] if verbose else []),
        *([("report", report["report"])] if report.get("report") else []),  # a strict forget draws none
        *(("warning", in_flags(text)) for text in ([] if warned else report.get("warnings", ()))),
        ("next", f"streamrf predict {shlex.quote(report['model'])} NEW_DATA --out predictions.parquet"),
    ])  # fmt: skip


def _holdout(found: dict[str, Any], verbose: bool) -> Lines:
    """Figures of rows that chose nothing, with their intervals; what one gets without the model."""
    figures = {name: value for name, value in found.items() if isinstance(value, float)}
    if not figures:
        return []
    main = next((name for name in MAIN if name in figures), next(iter(figures)))
    shown = figures if verbose else [main, *(name for name in BESIDE.get(main, ()) if name in figures)]
    lines = [(f"hold-out {name.replace('_', ' ')}", _figure(name, found)) for name in shown]
    lines[0] = (lines[0][0], f"{lines[0][1]} on {format_count(found['rows'])} rows that chose nothing")
    baseline = [("baseline", baseline_text(found["baseline"]))] if found.get("baseline") else []
    linear = (found.get("linear") or {}).get(main)
    return lines + baseline + ([("linear ridge", f"{main.replace('_', ' ')} {linear:.5g}")] if linear else [])


def _figure(name: str, found: dict[str, Any]) -> str:
    ends = (found.get("interval") or {}).get(name)
    return f"{found[name]:.5g}" + (f" [{ends[0]:.5g}, {ends[1]:.5g}]" if ends else "")


def _larger_budget(found: dict[str, Any] | None) -> Lines:
    if not found:
        return []
    buys = f"`budget='{found['seconds']:.0f}s'` buys {format_count(found['features'])} landmarks"
    return [("more time", in_flags(f"{buys}; by the trials their error falls by {found['fall']:.0%}"))]


def _cross_validation(found: dict[str, Any] | None) -> Lines:
    if not found:
        return []
    error = f"{found['mean_squared_error']:.5g} ± {found['spread']:.2g} over {found['folds']} folds"
    gcv = f", GCV {found['gcv']:.5g}" if found["gcv"] is not None else ""
    return [("squared error", error + gcv)]


def _map(report: dict[str, Any]) -> Lines:
    if report.get("members"):
        return _blend(report)
    if report.get("trees"):
        return [("map", _trees(report["trees"]))]
    return _binning(report["binning"], report["chosen"]) if report["binning"] else _fourier(report)


def _blend(report: dict[str, Any]) -> Lines:
    """How much of each member, what each came to alone, and the settings of each in brief."""
    figure = next((name for name in MAIN if name in (report["holdout"] or {})), None)
    brief = {LANDMARKS: _landmarks, BINNING: _grids, TREES: lambda report, member: _trees(report["trees"])}
    settings = [(member_name(each), brief[each["map"]](report, each)) for each in report["members"]]
    return [*member_rows(report["members"], figure), *settings]


def _landmarks(report: dict[str, Any], member: dict[str, Any]) -> str:
    chosen = report["chosen"]
    kernel = f"{chosen['kernel']}, length scale {chosen['length_scale']:.4g} on {member['scaling']} inputs"
    return f"{member['features']} ({report['bits']} bits), {kernel}"


def _grids(report: dict[str, Any], member: dict[str, Any]) -> str:
    bins = report["binning"]
    return f"{bins['grids']} grids of {bins['slots']:,} hashed bins, {bins['steps']} steps"


def _trees(found: dict[str, Any]) -> str:
    leaves, rows = format_count(found["leaves"]), format_count(found["rows"])
    return f"{found['trees']:,} trees of up to {leaves} leaves, grown on {rows} rows"


def _fourier(report: dict[str, Any]) -> Lines:
    chosen = report["chosen"]
    return [
        ("features", f"{report['D']} ({chosen['map']}, {report['bits']} bits)"),
        ("kernel", f"{chosen['kernel']}, length scale {chosen['length_scale']:.4g} on {chosen['scaling']} inputs"),
    ]


def _binning(found: dict[str, Any], chosen: dict[str, Any]) -> Lines:
    """Grids, how full their bins are, and the steps of the solver."""
    widths = f"{min(found['length_scales']):.3g} to {max(found['length_scales']):.3g}"
    place = {"memory": "in memory", "disk": "on disk"}.get(found["cache"], "nowhere")
    return [
        ("map", f"random binning, {found['grids']} grids of {found['slots']:,} hashed bins"),
        ("kernel", f"{chosen['kernel']}, length scales {widths} on {chosen['scaling']} inputs"),
        ("cells", f"{found['bins']:,.0f} in a grid, {found['colliding']:.1%} of them share a bin,"
                  f" {found['empty']:.0%} of bins are empty"),
        ("steps", f"{found['steps']} of conjugate gradients, bin indices cached {place}"),
    ]  # fmt: skip
