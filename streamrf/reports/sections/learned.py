"""What was learned before the pass: frequencies, a metric, or the widths of random binning."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.reports import figures
from streamrf.reports.evidence import Evidence
from streamrf.reports.figures import Picture
from streamrf.reports.page import Section

SHOWN_COLUMNS = 20


def learned(evidence: Evidence) -> Section:
    """Pictures of whatever of these the model has."""
    section = Section("learned", "What was learned", "Before the pass, on a sample of the rows; then it was fixed.")
    learning = evidence.model.metadata.get("learning") or {}
    found = [
        _history(learning.get("map") or {}),
        _metric(evidence, learning.get("metric") or {}),
        _binning(evidence, evidence.model.metadata.get("binning") or {}),
    ]
    section.pictures = [picture for picture in found if picture is not None]
    return section


def _history(told: dict[str, Any]) -> Picture | None:
    """The curve of whichever error the learning of frequencies followed, at the settings that were taken."""
    rows = [row for row in told.get("history") or () if all(row.get(key) == told.get(key) for key in ("gamma", "eta"))]
    along = next((name for name in ("iteration", "round") if rows and name in rows[0]), None)
    what = next((name for name in rows[0] if name not in (along, "gamma", "eta")), None) if along else None
    points = [(row[along], row[what]) for row in rows if what and row.get(what) is not None]
    if what is None or along is None or len(points) < 2:
        return None
    name = what.replace("_", " ")
    return Picture(
        "history", f"Learning of frequencies: {name} as it went on.",
        figures.steps([i for i, _ in points], [e for _, e in points], along, name),
        f"{name} goes from {points[0][1]:.3g} to {points[-1][1]:.3g}",
    )  # fmt: skip


def _metric(evidence: Evidence, told: dict[str, Any]) -> Picture | None:
    rows = [row for row in told.get("columns") or () if "column" in row and "share" in row][:SHOWN_COLUMNS]
    if not rows:
        return None
    names = [row.get("name") or evidence.column_name(row["column"]) for row in rows]
    shares = np.array([row["share"] for row in rows])
    caption = "The learned metric: how much of the function's change lies in each input."
    drawn = figures.amounts(names, shares, "share of the metric")
    return Picture("metric", caption, drawn, f"Most in {', '.join(names[:3])}")


def _binning(evidence: Evidence, told: dict[str, Any]) -> Picture | None:
    widths = np.array(told.get("length_scales") or [])
    if not len(widths) or len(widths) != evidence.model.n_inputs:
        return None
    order = np.argsort(widths, kind="stable")[:SHOWN_COLUMNS]
    names = [evidence.column_name(int(column)) for column in order]
    caption = "Random binning: one over the width of the bins. An input that does not matter has wide ones."
    drawn = figures.amounts(names, 1 / widths[order], "1 / length scale")
    return Picture("bins", caption, drawn, f"The narrowest bins are those of {', '.join(names[:3])}")
