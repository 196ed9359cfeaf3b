"""What an interrupted pilot leaves behind: its finished trials, so that the run that resumes it need not repeat them.

A pilot asks for its trials in a fixed order, because work is counted and not timed. So the log is a list: while the
trials asked for are those that it has, their results are read from it, and the choice is that of a run without a break.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.recipe import Recipe
from streamrf.support import __version__
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.progress import Interrupted
from streamrf.support.storage.checkpoint import Checkpoint, Clock
from streamrf.support.storage.files import AnyPath
from streamrf.support.storage.safejson import JSON
from streamrf.training.pilot.choice import BinningTrial, Choice, Trial

SAVE_EVERY = 5.0  # seconds
_BINNING = "binning"


@dataclass
class _Entry:
    asked: list[Any]  # the settings of the trial
    done: Trial
    losses: np.ndarray


class TrialLog:
    """The finished trials of one pilot, in a folder beside the checkpoint of the pass; without one nothing is kept."""

    def __init__(self, checkpoint: AnyPath | None = None, identity: JSON | None = None) -> None:
        self._checkpoint = Checkpoint(pilot_place(checkpoint)) if checkpoint else None
        self._identity = {**(identity or {}), "version": __version__}
        self._clock = Clock(SAVE_EVERY)
        self._entries: list[_Entry] = []
        self._next = 0
        self._binned: Choice | None = None
        if self._checkpoint and self._checkpoint.exists():
            self._load(self._checkpoint)

    @property
    def count(self) -> int:
        """Trials that are kept."""
        return len(self._entries)

    def recall(self, asked: Trial) -> tuple[Trial, np.ndarray] | None:
        """The result of a trial, if the interrupted pilot got that far; one that asked for something else is forgotten
        from here on."""
        if self._next >= len(self._entries):
            return None
        entry = self._entries[self._next]
        if entry.asked != list(asked.settings):
            del self._entries[self._next :]
            return None
        self._next += 1
        return entry.done, entry.losses

    def record(self, asked: Trial, done: Trial, losses: np.ndarray) -> Trial:
        """Add a finished trial, and save now and then."""
        self._entries.append(_Entry(list(asked.settings), done, losses))
        self._next = len(self._entries)
        if self._clock.due():
            self.save()
        return done

    def binned(self, choose: Callable[[], Choice]) -> Choice:
        """What the search of random binning chose, as a whole."""
        if self._binned is None:
            self._binned = choose()
            self.save()
        return self._binned

    def save(self) -> None:
        if self._checkpoint is None or (not self._entries and self._binned is None):
            return
        arrays = {f"losses.{number}": entry.losses for number, entry in enumerate(self._entries)}
        extra: JSON = {"trials": [[entry.asked, _to_json(entry.done)] for entry in self._entries]}
        if self._binned is not None and self._binned.length_scales is not None:
            arrays[_BINNING] = self._binned.length_scales
            extra[_BINNING] = {
                "recipe": self._binned.recipe.to_json(), "growth": self._binned.growth, "mixed": self._binned.mixed,
                "trials": [vars(trial) for trial in self._binned.trials],
            }  # fmt: skip
        with self._clock.saving():
            self._checkpoint.save(self._identity, [], arrays, extra)

    def stopped(self) -> Interrupted:
        """What to say after Ctrl-C, with everything saved."""
        if self._checkpoint is None:
            return Interrupted("stopped in the pilot, and nothing was kept")
        self.save()
        return Interrupted(f"stopped in the pilot: {self.count} trials are kept in {self._checkpoint.place}")

    def _load(self, checkpoint: Checkpoint) -> None:
        """Of another run, or of one that left half a file, nothing is used: trials are cheap next to a pass."""
        try:
            saved = checkpoint.load(self._identity)
            assert saved is not None
            kept = [
                _Entry(asked, _from_json(done), saved.arrays[f"losses.{number}"])
                for number, (asked, done) in enumerate(saved.extra["trials"])
            ]
            self._entries, self._binned = kept, _binned_of(saved.extra.get(_BINNING), saved.arrays)
        except (MismatchError, FileFormatError, KeyError, TypeError, ValueError):
            checkpoint.clear()


def _to_json(trial: Trial) -> JSON:
    """A trial that came to nothing has an infinite error, which JSON cannot hold."""
    return {**vars(trial), "error": trial.error if np.isfinite(trial.error) else None}


def _from_json(document: JSON) -> Trial:
    return Trial(**{**document, "error": np.inf if document["error"] is None else document["error"]})


def _binned_of(document: Any, arrays: dict[str, np.ndarray]) -> Choice | None:
    if document is None:
        return None
    trials = tuple(BinningTrial(**trial) for trial in document["trials"])
    recipe = Recipe.from_json(document["recipe"])
    growth, mixed = float(document["growth"]), bool(document["mixed"])
    return Choice(recipe, trials, length_scales=arrays[_BINNING], growth=growth, mixed=mixed)


def pilot_place(checkpoint: AnyPath) -> str:
    """Where the trials of a run are, next to the sums of its pass."""
    return f"{str(checkpoint).rstrip('/')}/pilot"


def can_resume(checkpoint: AnyPath) -> bool:
    """Whether a run left sums or trials."""
    return Checkpoint(checkpoint).exists() or Checkpoint(pilot_place(checkpoint)).exists()
