"""From a model to a report, and from a report to files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamrf.data.source import Source
from streamrf.features.blend import BlendMap
from streamrf.features.trees.map import TreesMap
from streamrf.recipe import AUTO
from streamrf.reports.accuracy import NAMES, errors
from streamrf.reports.curve import learning
from streamrf.reports.evidence import Evidence, gather_evidence
from streamrf.reports.history import cost, learned, provenance, search, settings
from streamrf.reports.importance import inputs
from streamrf.reports.page import Section, page
from streamrf.reports.plots import load_matplotlib
from streamrf.reports.segments import segments
from streamrf.reports.usage import kernel, spectrum
from streamrf.support.settings import with_flags
from streamrf.support.storage.files import atomic_write, refuse_existing
from streamrf.support.threads import Threads
from streamrf.support.units import format_count, format_seconds
from streamrf.training.pilot.choice import member_name

SECTIONS = (
    errors,
    segments,
    learning,
    inputs,
    search,
    learned,
    spectrum,
    kernel,
    cost,
    settings,
    provenance,
)  # in page order


@dataclass
class Report:
    """The sections that have content, ready to be written."""

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
    """Refuse a report that cannot be written to ``path``, before time is spent on it."""
    load_matplotlib()
    if not overwrite:
        refuse_existing(Path(path))


def make_report(model: str | Path, source: Source | None = None, *, threads: Threads) -> Report:
    """A report on the model file, with errors and curves from ``source`` if it is given."""
    load_matplotlib()
    evidence = gather_evidence(model, source, threads)
    made = [section for section in (make(evidence) for make in SECTIONS) if not section.is_empty]
    return Report(Path(model).name, lead(evidence), tiles(evidence), made, footer(evidence))


def lead(evidence: Evidence) -> str:
    """One sentence about the model, and what training warned of."""
    model = evidence.model
    known = model.recipe.kernel != AUTO and (evidence.has_kernel or not isinstance(model.map, BlendMap))
    kind = f", {model.recipe.kernel} kernel" if known else ""
    what = f"{model.coding.describe()}, {format_count(model.n_inputs)} inputs{kind}."
    warnings = (f"Warning: {with_flags(text)}" for text in model.metadata.get("warnings", ()))
    return " ".join([what[:1].upper() + what[1:], *warnings])


def tiles(evidence: Evidence) -> list[tuple[str, str]]:
    """The numbers people look for first."""
    model, metadata = evidence.model, evidence.metadata
    found = [("rows", format_count(metadata["rows"]))] if metadata.get("rows") else []
    if isinstance(model.map, BlendMap):
        *others, last = dict.fromkeys(member_name({"map": map.kind}) for map in evidence.maps)
        found.append(("blend of", f"{', '.join(others)} and {last}") if others else ("model", last))
    elif isinstance(model.map, TreesMap):
        found.append(("trees", format_count(model.map.trees)))
    elif hasattr(model.map, "n_features"):
        found.append(("features", f"{format_count(model.map.n_features)} at {model.recipe.bits} bits"))
    if isinstance(model.map, BlendMap):
        found += [("λ of landmarks", f"{model.weights.ridge:.3g}")] if evidence.has_kernel else []
    elif not isinstance(model.map, TreesMap):
        found.append(("λ", f"{model.weights.ridge:.3g}"))
    holdout = metadata.get("holdout") or {}
    for name in ("error", "balanced_accuracy", "rmse", "r2", "auc"):
        if isinstance(holdout.get(name), float):
            found.append((f"hold-out {NAMES.get(name, name.replace('_', ' '))}", f"{holdout[name]:.4g}"))
    if (metadata.get("seconds") or {}).get("total"):
        found.append(("time", format_seconds(metadata["seconds"]["total"])))
    return found


def footer(evidence: Evidence) -> str:
    version = evidence.versions.get("streamrf", "")
    return f"Made by streamrf {version}. This page loads nothing from the network."
