"""What every benchmark is given: sizes, places, cores, and the peers' environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from benchlib.machine import cores
from benchlib.places import RESULTS, WORK
from benchlib.results import Results


@dataclass(frozen=True)
class Context:
    quick: bool = False
    again: bool = False
    results: Path = RESULTS
    work: Path = WORK
    threads: int = 0
    only: tuple[str, ...] = ()
    peers_python: Path | None = None

    @classmethod
    def make(cls, quick: bool, again: bool, results: str | None, work: str | None, only: str | None, peers: str | None):
        place = Path(work) if work else WORK
        where = Path(results) if results else (place / "quick" if quick else RESULTS)
        names = tuple(only.split(",")) if only else ()
        return cls(quick, again, where, place, 1 if quick else cores(), names, Path(peers) if peers else None)

    def open(self, name: str) -> Results:
        return Results(self.path(name), self.again, click.echo)

    def path(self, name: str) -> Path:
        return self.results / f"{name}.json"

    def wants(self, name: str) -> bool:
        """Whether ``--only`` lets it through: it names the whole or a part of it."""
        return not self.only or any(word in name for word in self.only)
