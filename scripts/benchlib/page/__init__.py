"""docs/benchmarks.md, made of the results: every figure and every verdict on it comes from the JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchlib.page import campaigns, compared, flat, forms, grown, honesty, papers, scaled, whole
from benchlib.page.words import machine_lines
from benchlib.places import PAGE, PICTURES, RESULTS, SCALING
from benchlib.results import read

Found = dict[str, dict[str, Any]]
SECTIONS = {  # heading of each, the result it is made of, and what makes its lines
    "Nothing set": ("tables", whole.tables),
    "Rahimi and Recht, Table 1": ("table1", papers.table1),
    "Li et al., Tables 2 and 3": ("tables23", papers.tables23),
    "Peers": ("peers", compared.peers),
    "More rows than memory": ("memory", compared.memory),
    "Larger than the machine": ("larger", flat.larger),
    "Error against time": ("curve", compared.curve),
    "Limits of the machine": ("limits", grown.limits),
    "Growth": ("growth", grown.growth),
    "Reported and fresh": ("honest", honesty.problems),
    "Reported and test": ("honest-tables", honesty.tables),
    "Things that go wrong": ("faults", campaigns.faulty_runs),
    "Files changed at random": ("fuzz", campaigns.changed_files),
    "Tables in several forms": ("forms", forms.several),
    "Categories of many levels": ("zips", forms.levels),
    "CSV larger than memory": ("csv", forms.text),
}
HEAD = """# Benchmarks

This page is made by `scripts/bench page` from `docs/benchmarks/*.json`; nothing in it is written by hand.
`scripts/bench all` measures everything, `scripts/bench NAME --only WORD` a part, and `--quick` shows that it runs.

**How it is measured.** All contestants read the same tables (zarr, shuffled with a fixed seed) and are tested on the
same rows. Each runs in a process of its own with the same number of threads. Training time includes reading. What is
searched for on a hold-out (widths, penalties, depths; the pilot of streamrf) is timed apart. Memory is the most that
was resident. Errors are shares of wrong classes, or root mean squared errors."""


def load(results: Path) -> Found:
    """Every result that is there."""
    names = {name for name, _ in SECTIONS.values()} | {"scaling"}
    return {name: read(path) for name in sorted(names) if (path := results / f"{name}.json").exists()}


def text(found: Found) -> str:
    """The whole page."""
    found = {name: each for name, each in found.items() if name != "scaling"}  # it has a page of its own
    lines = [HEAD, "", *machine_lines(found)]
    for heading, (name, section) in SECTIONS.items():
        lines += ["", f"## {heading}", ""]
        lines += section(found) if name in found else [f"Not measured yet: `scripts/bench {name}` does."]
    return "\n".join(lines).rstrip() + "\n"


def section_of(name: str, found: Found) -> list[str]:
    """What the page says of one benchmark."""
    return next((section(found) for each, section in SECTIONS.values() if each == name), [])


def make(results: Path = RESULTS, out: Path = PAGE, pictures: Path = PICTURES) -> str:
    """Write the page and draw its pictures; the page of scaling lies beside it."""
    from benchlib.page.draw import draw

    found = load(results)
    drawn = draw(found, pictures)
    out.write_text(text(found), encoding="utf-8")
    if "scaling" in found:
        scaling = scaled.written_into(SCALING.read_text(encoding="utf-8"), found["scaling"]["cells"])
        out.with_name(SCALING.name).write_text(scaling, encoding="utf-8")
    return f"{out.name}: {len(found)} of {len(SECTIONS) + 1} results, {len(drawn)} pictures"
