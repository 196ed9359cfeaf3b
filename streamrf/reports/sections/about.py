"""What the model is, where it came from and what it cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.reports import figures
from streamrf.reports.evidence import Evidence
from streamrf.reports.figures import Picture
from streamrf.reports.page import Section
from streamrf.reports.words import number
from streamrf.support.units import format_bytes, format_count, format_seconds
from streamrf.training.run import chosen


def settings(evidence: Evidence) -> Section:
    """Every setting, and which of them were left to the pilot."""
    model = evidence.model
    asked = model.metadata.get("asked") or {}
    rows = []
    for name, value in chosen(model.recipe).items():
        by_itself = name in asked and asked[name] in ("auto", None) and value not in ("auto", None)
        rows.append((name.replace("_", " "), number(value) + (" (chosen)" if by_itself else "")))
    return Section(
        "settings", "Settings", "What was asked for, and what was chosen on a sample of the rows.", table=rows
    )


def provenance(evidence: Evidence) -> Section:
    """Data, digests, versions and history."""
    model, story = evidence.model, evidence.model.metadata
    data = story.get("data") or {}
    rows = [("data", data.get("describe")), ("fingerprint", data.get("fingerprint"))]
    rows += [(f"shard {i}", f"{s.label}: {format_count(s.rows.count)} of {format_count(s.n_rows)} rows")
             for i, s in enumerate(list(model.ledger.shards().values())[:20], 1)]  # fmt: skip
    rows += [
        ("rows left out", number(story.get("dropped") or 0)),
        ("digest of the sums", story.get("statistics_digest")),
    ]
    rows += [(f"event {i}", _event(event)) for i, event in enumerate(story.get("history") or (), 1)]
    rows += [(name, version) for name, version in evidence.versions.items()]
    table = [(name, str(value)) for name, value in rows if value is not None]
    return Section("provenance", "Provenance", "Where it came from. Equal digests mean equal bits.", table=table)


def _event(event: dict[str, Any]) -> str:
    return f"{event.get('event')}, {number(event.get('rows'))} rows"


def cost(evidence: Evidence) -> Section:
    """Time, memory and throughput of the run."""
    section, story = Section("cost", "Time and memory"), evidence.model.metadata
    seconds = {k: v for k, v in (story.get("seconds") or {}).items() if isinstance(v, int | float)}
    memory = {k: v for k, v in (story.get("memory") or {}).items() if v}
    if seconds:
        stages = {name: value for name, value in seconds.items() if name != "total"}
        total = format_seconds(seconds.get("total", sum(stages.values())))
        section.pictures.append(
            Picture(
                "time",
                f"Where {total} went.",
                figures.amounts(list(stages), np.array(list(stages.values())), "seconds"),
                "Time by stage",
            )
        )
        section.table = [(name, format_seconds(value)) for name, value in seconds.items()]
    if memory:
        sizes = figures.amounts(list(memory), np.array(list(memory.values())) / 2**20, "MiB")
        caption = "Memory: what was projected, held at the worst, and allowed."
        section.pictures.append(Picture("memory", caption, sizes, "Memory"))
        section.table += [(f"memory, {name}", format_bytes(value)) for name, value in memory.items()]
    if story.get("rows") and seconds.get("pass"):
        section.table.append(("throughput of the pass", f"{story['rows'] / seconds['pass']:,.0f} rows/s"))
    return section
