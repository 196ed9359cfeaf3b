"""From a model to a report, and from a report to files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamrf.data.source import Source
from streamrf.models.model import Model
from streamrf.reports import sections
from streamrf.reports.evidence import Evidence, gather_evidence
from streamrf.reports.page import Section, page
from streamrf.reports.plots import load_matplotlib
from streamrf.support.storage.files import atomic_write, refuse_existing
from streamrf.support.threads import Threads
from streamrf.support.units import format_count, format_seconds


@dataclass
class Report:
    """The sections that have something to show, ready to be written."""

    title: str
    lead: str
    tiles: list[tuple[str, str]]
    sections: list[Section]
    footer: str

    @property
    def html(self) -> str:
        """The whole page, with nothing outside it."""
        return page(self.title, self.lead, self.tiles, self.sections, self.footer)

    @property
    def pictures(self) -> list[str]:
        return [picture.name for section in self.sections for picture in section.pictures]

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        atomic_write(path, self.html.encode(), overwrite=overwrite)

    def save_pictures(self, folder: str | Path, *, overwrite: bool = False) -> list[Path]:
        """One PNG for each picture."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        written = []
        for section in self.sections:
            for picture in section.pictures:
                written.append(Path(folder) / f"{picture.name}.png")
                atomic_write(written[-1], picture.png(), overwrite=overwrite)
        return written


def check_report(path: str | Path, *, overwrite: bool) -> None:
    """Whether a report can be written there: ask before minutes are spent."""
    load_matplotlib()
    if not overwrite:
        refuse_existing(Path(path))


def make_report(
    model: str | Path, source: Source | None = None, *, threads: Threads, title: str | None = None
) -> Report:
    """A report on the model at a path, with errors and curves from ``source`` where it is given."""
    load_matplotlib()
    evidence = gather_evidence(model, source, threads)
    made = [section for section in (make(evidence) for make in sections.ALL) if not section.is_empty]
    name = title or Path(model).name
    return Report(name, lead(evidence.model), tiles(evidence), made, footer(evidence))


def lead(model: Model) -> str:
    """One sentence about what it is."""
    kind = model.recipe.kernel
    return f"{model.coding.describe()}, {format_count(model.n_inputs)} inputs, {kind} kernel.".capitalize()


def tiles(evidence: Evidence) -> list[tuple[str, str]]:
    """The figures people look for first."""
    model, story = evidence.model, evidence.model.metadata
    found = [("rows", format_count(story["rows"]))] if story.get("rows") else []
    if hasattr(model.map, "n_features"):
        found.append(("features", f"{format_count(model.map.n_features)} at {model.recipe.bits} bits"))
    found.append(("λ", f"{model.weights.ridge:.3g}"))
    holdout = story.get("holdout") or {}
    for name in ("error", "rmse", "r2", "auc"):
        if isinstance(holdout.get(name), float):
            found.append((f"hold-out {name}", f"{holdout[name]:.4g}"))
    if (story.get("seconds") or {}).get("total"):
        found.append(("time", format_seconds(story["seconds"]["total"])))
    return found


def footer(evidence: Evidence) -> str:
    version = evidence.versions.get("streamrf", "")
    return f"Made by streamrf {version}. This page loads nothing from anywhere."
