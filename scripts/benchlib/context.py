"""What every benchmark is given: sizes, places, cores, settings, and the peers' environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    given: dict[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = click.echo

    @classmethod
    def make(
        cls, quick: bool, again: bool, results: str | None, work: str | None, only: str | None,
        peers_python: str | None, threads: int | None, given: tuple[str, ...], as_json: bool,
    ) -> Context:  # fmt: skip
        """From the options of the command line; with ``--json`` progress goes to standard error."""
        place = Path(work) if work else WORK
        where = Path(results) if results else (place / "quick" if quick else RESULTS)
        return cls(
            quick, again, where, place, threads or (1 if quick else cores()), tuple(only.split(",")) if only else (),
            Path(peers_python) if peers_python else None, dict(_pair(text) for text in given),
            partial(click.echo, err=as_json),
        )  # fmt: skip

    def open(self, name: str) -> Results:
        """The results of a benchmark. Cells measured with ``--set`` are named after their settings."""
        suffix = " ".join(f"{key}={value}" for key, value in self.given.items())
        return Results(self.results / f"{name}.json", self.again, self.say, f" ({suffix})" if suffix else "")

    def wants(self, name: str) -> bool:
        """Whether ``--only`` lets it through: it names the whole or a part of it."""
        return not self.only or any(word in name for word in self.only)

    def settings(self, defaults: dict[str, Any], toys: dict[str, Any]) -> SimpleNamespace:
        """The settings of a benchmark: its defaults, toy sizes for ``--quick``, then what ``--set`` says."""
        given = {name: _parse(text, defaults[name]) for name, text in self.given.items()}
        return SimpleNamespace(**{**defaults, **(toys if self.quick else {}), **given})


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--set")
    return name, value


def _parse(text: str, default: Any) -> Any:
    """As JSON, unless it is a word; a tuple is separated by commas."""
    if isinstance(default, str):
        return text
    try:
        return tuple(json.loads(f"[{text}]")) if isinstance(default, tuple) else json.loads(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} must be a number, or numbers with commas", param_hint="--set") from None
