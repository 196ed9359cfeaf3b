"""Sections on how a model came about: the search, what was learned, time and memory, settings and provenance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from streamrf.features.trees.map import TreesMap
from streamrf.recipe import AUTO, BINNING, BLEND, NONE
from streamrf.reports.accuracy import format_number
from streamrf.reports.evidence import Evidence
from streamrf.reports.page import COLOURS, WIDE, Section, bars, curve, legend, mark, panel
from streamrf.support.storage.safejson import JSON
from streamrf.support.units import format_bytes, format_count, format_seconds
from streamrf.training.pilot.blend import OF_LANDMARKS
from streamrf.training.pilot.choice import member_rows
from streamrf.training.run import chosen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_COLUMNS = 20
STAGES, MEMORY = ("pilot", "pass", "solve", "total"), ("projected", "peak", "budget")
SCORES = {
    "gcv": "GCV score", "mean_squared_error": "squared error on hold-out rows", "score": "loss on hold-out rows",
}  # fmt: skip


# -- search


def search(evidence: Evidence) -> Section:
    """The pilot's trials, the path of lambda, and the epochs of stochastic gradients."""
    metadata, recipe = evidence.metadata, evidence.model.recipe
    section = Section("search", "Search")
    trials = [t for t in metadata.get("pilot") or () if {"length_scale", "scaling", "kernel", "D", "error"} <= set(t)]
    section.text = "Small fits on a sample choose scaling, kernel and width. " * bool(trials)
    section.text += "λ is chosen on rows that are not fitted to."
    binned = [trial for trial in trials if "grids" in trial]
    if smooth := [trial for trial in trials if "grids" not in trial]:
        caption = "Each point is a small fit, judged on rows it has not seen (1 is no better than the mean)."
        figure = _widths(smooth, recipe.length_scale if evidence.has_kernel else None)
        section.add("widths", caption, figure, f"Error against length scale for {len(smooth)} pilot fits")
    if len(binned) > 1:
        section.add("rounds", "Random binning: small fits in turn. Each has widths for all columns that the"
                    " one before suggests.", _rounds(binned), f"Errors of {len(binned)} fits")  # fmt: skip
    found, what = lambda_path(metadata)
    if len(found) > 1:
        ridges, scores = np.array(found).T
        figure, axes = curve(ridges, scores, ("λ", what), chosen=evidence.model.weights.ridge)
        axes.set_xscale("log")
        axes.ticklabel_format(axis="y", useOffset=False)
        of = " of the landmarks" if BLEND in (recipe.map, evidence.model.map.kind) else ""
        section.add("lambda", f"The error{of} at each ridge penalty.", figure, f"Error against λ, {len(found)} tried")
    epochs = (metadata.get("solver") or {}).get("epochs") or ()
    if len(epochs) > 1:
        section.add("epochs", "Stochastic gradients: the loss on hold-out rows after each epoch.",
                    _steps(range(1, len(epochs) + 1), epochs, ("epoch", "loss on hold-out rows")),
                    f"Loss after each of {len(epochs)} epochs")  # fmt: skip
    if metadata.get("compared"):
        section.text += f" Errors of trials on the same rows: {metadata['compared']}."
    return section


def _widths(trials: Sequence[JSON], best: float | None) -> Figure:
    """Error of each trial against the length scale: a colour for each kernel and scaling, a line for each stage.

    The first trial of a length scale counts, as precisions are tried later.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    lines: dict[tuple[tuple[str, ...], tuple[int, int]], dict[float, float]] = {}
    for trial in trials:
        metric = () if trial.get("metric", NONE) == NONE else ("learned metric",)
        key = (trial["kernel"], trial["scaling"], *metric), (trial["D"], trial.get("rows", 0))
        lines.setdefault(key, {}).setdefault(trial["length_scale"], trial["error"])
    pairs, last = list(dict.fromkeys(pair for pair, _ in lines)), list(lines)[-1][1]
    figure, axes = panel("length scale, in units of the scaled inputs", "unexplained share of variance", WIDE)
    for (pair, stage), points in lines.items():
        widths = sorted(points)
        line, size = ("-", 5.0) if stage == last else (":", 3.5)
        axes.plot(widths, [points[width] for width in widths], line, marker="o", markersize=size,
                  color=COLOURS[pairs.index(pair) % len(COLOURS)])  # fmt: skip
    for number, pair in enumerate(pairs):
        axes.plot([], [], "-", marker="o", markersize=3.5, color=COLOURS[number % len(COLOURS)], label=", ".join(pair))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if best:
        mark(axes, best, "chosen")
    legend(axes, "upper left", (1.01, 1))
    return figure


def _rounds(trials: Sequence[JSON]) -> Figure:
    """Error of each trial of random binning, in their order; a colour for each scaling."""
    figure, axes = panel("fit", "unexplained share of variance")
    for number, scaling in enumerate(dict.fromkeys(trial["scaling"] for trial in trials)):
        own = [(place, trial["error"]) for place, trial in enumerate(trials, 1) if trial["scaling"] == scaling]
        axes.plot(*zip(*own, strict=True), "o", markersize=4, color=COLOURS[number], label=f"{scaling} scaling")
    axes.set_ylim(0, 1.25 * max(trial["error"] for trial in trials))  # with room for the names
    legend(axes, "upper right")
    return figure


def _steps(places: Sequence[int], errors: Sequence[float], labels: tuple[str, str]) -> Figure:
    figure, axes = curve(list(places), errors, labels)
    axes.set_ylim(bottom=min(0.0, min(errors)))
    return figure


def lambda_path(metadata: JSON) -> tuple[list[tuple[float, float]], str]:
    """Lambdas and errors in order, and what the errors are, whichever way lambda was chosen."""
    folds = metadata.get("cross_validation")
    if folds:
        return sorted((row["lambda"], row["mean"]) for row in folds["path"]), "squared error over folds"
    rows = metadata.get("lambda_path") or _solver_path(metadata)
    kind = next((name for name in SCORES if rows and name in rows[0]), "gcv")
    points = sorted((row["lambda"], row[kind]) for row in rows if row.get(kind) is not None and row["lambda"] > 0)
    return points, SCORES[kind]


def _solver_path(metadata: JSON) -> list[JSON]:
    """The lambdas that an iterative solver tried."""
    found = (metadata.get("solver") or {}).get("path") or ()
    return [{"lambda": row["ridge"], "score": row["score"]} for row in found if "ridge" in row and "score" in row]


# -- what was learned before the pass


def learned(evidence: Evidence) -> Section:
    """Learned frequencies, a learned metric, the widths of random binning, or the columns that trees cut."""
    section = Section("learned", "What was learned")
    learning = evidence.metadata.get("learning") or {}
    _add_history(section, learning.get("map") or {})
    if evidence.has_kernel:  # else it brings nothing
        _add_metric(section, evidence, learning.get("metric") or {})
    if BINNING in evidence.kinds:
        _add_binning(section, evidence, evidence.metadata.get("binning") or {})
    if section.pictures:
        section.text = "Learned on a sample of the rows, then fixed before the pass."
    for map in evidence.maps:
        if isinstance(map, TreesMap) and map.trees:
            _add_trees(section, evidence, map)
    return section


def _add_trees(section: Section, evidence: Evidence, map: TreesMap) -> None:
    """How often trees cut in each column; cuts at the same place of a column count as often as they are made."""
    counts = map.cut_counts()
    order = np.argsort(-counts, kind="stable")[:SHOWN_COLUMNS]
    order = order[counts[order] > 0]
    names = [_cut_name(evidence, map, int(column)) for column in order]
    figure = bars(names, counts[order] / counts.sum(), "share of the cuts")
    caption = f"{format_count(map.trees)} trees: the share of their cuts in each input."
    if (order >= map.n_inputs).any():
        caption += " A cut in the order of a category's levels parts those of high targets from those of low ones."
    section.add("trees", caption, figure, f"Most cuts are in {', '.join(names[:3])}")


def _cut_name(evidence: Evidence, map: TreesMap, column: int) -> str:
    """Of an input, or of the category whose levels trees have in order."""
    if column < map.n_inputs:
        return evidence.column_name(column)
    names = [evidence.column_name(int(level)) for level in map.levels.members[column - map.n_inputs]]
    category = {name.partition("=")[0] for name in names}
    what = category.pop() if len(category) == 1 else f"{len(names)} inputs such as {names[0]}"
    return f"order of {what}"


def _add_history(section: Section, told: JSON) -> None:
    """The error that the learning of frequencies followed, at the settings that were chosen."""
    rows = [row for row in told.get("history") or () if all(row.get(key) == told.get(key) for key in ("gamma", "eta"))]
    along = next((name for name in ("iteration", "round") if rows and name in rows[0]), None)
    what = next((name for name in rows[0] if name not in (along, "gamma", "eta")), None) if along else None
    points = [(row[along], row[what]) for row in rows if what and row.get(what) is not None]
    if what is None or along is None or len(points) < 2:
        return
    name = what.replace("_", " ")
    figure = _steps([place for place, _ in points], [error for _, error in points], (along, name))
    alt = f"{name} goes from {points[0][1]:.3g} to {points[-1][1]:.3g}"
    section.add("history", f"Learning of frequencies: {name} at each {along}.", figure, alt)


def _add_metric(section: Section, evidence: Evidence, told: JSON) -> None:
    rows = [row for row in told.get("columns") or () if "column" in row and "share" in row][:SHOWN_COLUMNS]
    if rows and told.get("form") != NONE:  # which was tried, and is not in use
        names = [row.get("name") or evidence.column_name(row["column"]) for row in rows]
        figure = bars(names, np.array([row["share"] for row in rows]), "share of the metric")
        caption = "The learned metric: each input's share of the function's change."
        section.add("metric", caption, figure, f"Most in {', '.join(names[:3])}")


def _add_binning(section: Section, evidence: Evidence, told: JSON) -> None:
    widths = np.array(told.get("length_scales") or [])
    if len(widths) and len(widths) == evidence.model.n_inputs:
        order = np.argsort(widths, kind="stable")[:SHOWN_COLUMNS]
        names = [evidence.column_name(int(column)) for column in order]
        figure = bars(names, 1 / widths[order], "1 / length scale")
        caption = "Random binning: one over the width of the bins. Inputs that do not matter have wide bins."
        section.add("bins", caption, figure, f"The narrowest bins are those of {', '.join(names[:3])}")


# -- cost, settings and provenance


def cost(evidence: Evidence) -> Section:
    """Time, memory and throughput of the run."""
    section, metadata = Section("cost", "Time and memory"), evidence.metadata
    seconds = {k: v for k, v in (metadata.get("seconds") or {}).items() if isinstance(v, int | float)}
    memory = _in_order({k: v for k, v in (metadata.get("memory") or {}).items() if v}, MEMORY)
    seconds = _in_order(seconds, STAGES)
    if seconds:
        stages = {name: value for name, value in seconds.items() if name != "total"}
        total = format_seconds(seconds.get("total", sum(stages.values())))
        figure = bars(list(stages), np.array(list(stages.values())), "seconds")
        section.add("time", f"How {total} were spent.", figure, "Time by stage")
        section.table = [(name, format_seconds(value)) for name, value in seconds.items()]
    if memory:
        figure = bars(list(memory), np.array(list(memory.values())) / 1e6, "MB")
        section.add("memory", "Memory: projected, measured at its peak, and allowed.", figure, "Memory")
        section.table += [(f"memory, {name}", format_bytes(value)) for name, value in memory.items()]
    if metadata.get("rows") and seconds.get("pass"):
        section.table.append(("throughput of the pass", f"{metadata['rows'] / seconds['pass']:,.0f} rows/s"))
    return section


def _in_order(found: dict[str, float], names: Sequence[str]) -> dict[str, float]:
    """As people think of them, not as files sort them."""
    known = [name for name in names if name in found]
    return {name: found[name] for name in (*known, *(name for name in found if name not in known))}


def _main(evidence: Evidence) -> str | None:
    """The figure that judges the model."""
    return next((name for name in ("rmse", "error") if name in (evidence.metadata.get("holdout") or {})), None)


def settings(evidence: Evidence) -> Section:
    """Every setting, and which of them streamrf chose."""
    asked, rows = evidence.metadata.get("asked") or {}, member_rows(evidence.metadata.get("members"), _main(evidence))
    members = evidence.metadata.get("members") or ()
    without = _settings_of_none(evidence)
    for name, value in chosen(evidence.model.recipe).items():
        if name == "scaling" and members:  # a blend has none of its own
            value = ", ".join(f"{each['scaling']} for {each['map']}" for each in members)
        if value in (None, AUTO) or name in without:  # nothing had to choose it, or nothing in the model has it
            continue
        by_itself = name in asked and asked[name] in ("auto", None) and value not in ("auto", None)
        rows.append((name.replace("_", " "), format_number(value) + (" (chosen)" if by_itself else "")))
    return Section("settings", "Settings", "What was set, and what was chosen on a sample of the rows.", table=rows)


def _settings_of_none(evidence: Evidence) -> set[str]:
    """Settings that no part of the model has: of losses that it was not trained with, and of members left out."""
    recipe = evidence.model.recipe
    found = {name for name, loss in (("quantile", "quantile"), ("huber_epsilon", "huber")) if recipe.loss != loss}
    if recipe.map == BLEND:
        found |= set() if evidence.has_kernel else {*OF_LANDMARKS, "D", "length_scale", "gamma", "ridge"}
        found |= set() if BINNING in evidence.kinds else {"grids", "table_bits"}
    return found


def provenance(evidence: Evidence) -> Section:
    """Data, digests, versions and events."""
    model, metadata = evidence.model, evidence.metadata
    data = metadata.get("data") or {}
    rows = [("command", metadata.get("command"))]
    rows += [("data", data.get("describe")), ("fingerprint", data.get("fingerprint"))]
    rows += [(f"shard {i}", f"{s.label}: {format_count(s.rows.count)} of {format_count(s.n_rows)} rows")
             for i, s in enumerate(list(model.ledger.shards().values())[:20], 1)]  # fmt: skip
    left_out = model.columns.left_out if model.columns else ()
    rows += [(f"column left out: {name}", why) for name, why in left_out]
    rows += [("rows left out", format_number(metadata.get("dropped") or 0))]
    rows += [("digest of the sums", metadata.get("statistics_digest"))]
    rows += [(f"event {i}", f"{event.get('event')}, {format_number(event.get('rows'))} rows")
             for i, event in enumerate(metadata.get("history") or (), 1)]  # fmt: skip
    rows += evidence.versions.items()
    table = [(name, str(value)) for name, value in rows if value is not None]
    return Section(
        "provenance", "Provenance", "Where the model comes from. Equal digests mean equal bits.", table=table
    )
