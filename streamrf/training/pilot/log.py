"""What an interrupted pilot leaves behind: its finished trials, so that the run that resumes it need not repeat them.

A pilot asks for its trials in a fixed order, because work is counted and not timed. So the log is a list: while the
trials asked for are those that it has, their results are read from it, and the choice is that of a run without a break.
The steps of searches that run side by side are known by their names instead, until the whole search is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from streamrf.features.learned.kernel_ridge import Fit
from streamrf.recipe import Recipe
from streamrf.support import __version__
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.progress import Interrupted
from streamrf.support.storage.checkpoint import Checkpoint, Clock
from streamrf.support.storage.files import AnyPath
from streamrf.support.storage.safejson import JSON
from streamrf.support.storage.tensors import total_bytes
from streamrf.training.pilot.choice import BinningTrial, Choice, Trial

SAVE_EVERY = 1.0  # seconds, or later where saving is slow
_CHOICES, _ARRAYS = "choices", ("metric", "length_scales")
STEP_BYTES = 2 * 2**20  # of a step that is kept
_STEPS, _COEFFICIENTS, _TURNED, _LOSSES = "steps", "coefficients", "turned", "losses"

T = TypeVar("T")
Packed = tuple[JSON, dict[str, np.ndarray]]


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
        self._choices: dict[str, Choice] = {}
        self._steps: dict[str, Packed] = {}
        self._lock = Lock()  # of the steps, which several threads may finish
        if self._checkpoint and self._checkpoint.exists():
            self._load(self._checkpoint)

    @property
    def count(self) -> int:
        """Trials that are kept."""
        chosen = sum(len(choice.trials) for choice in self._choices.values())
        return len(self._entries) + len(self._steps) + chosen

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

    def chosen(self, name: str, choose: Callable[[], Choice]) -> Choice:
        """What the search of one map chose, as a whole; its steps, whose names begin with it, are then needed no
        more."""
        if name not in self._choices:
            choice = choose()
            with self._lock:
                self._choices[name] = choice
                self._steps = {step: kept for step, kept in self._steps.items() if not step.startswith(f"{name}: ")}
                self._save()
        return self._choices[name]

    # -- steps, by their names

    def fit(self, name: str, make: Callable[[], Fit]) -> Fit:
        """An exact fit: from the log, or made and added to it."""
        return self._step(name, make, _packed_fit, _fit_of)

    def trial(self, name: str, make: Callable[[], Trial]) -> Trial:
        return self._step(name, make, lambda trial: (_to_json(trial), {}), lambda packed: _from_json(packed[0]))

    def figure(self, name: str, make: Callable[[], float]) -> float:
        return self._step(name, make, lambda error: ({"error": _finite(error)}, {}), lambda kept: _error_of(kept[0]))

    def _step(self, name: str, make: Callable[[], T], pack: Callable[[T], Packed], of: Callable[[Packed], T]) -> T:
        if self._checkpoint is None:
            return make()
        if (kept := self._steps.get(name)) is not None:
            return of(kept)
        made = make()
        packed = pack(made)
        if total_bytes(packed[1]) <= STEP_BYTES:
            with self._lock:
                self._steps[name] = packed
                if self._clock.due():
                    self._save()
        return made

    # -- files

    def save(self) -> None:
        with self._lock:
            self._save()

    def _save(self) -> None:
        if self._checkpoint is None or not (self._entries or self._choices or self._steps):
            return
        arrays = {f"losses.{number}": entry.losses for number, entry in enumerate(self._entries)}
        extra: JSON = {"trials": [[entry.asked, _to_json(entry.done)] for entry in self._entries]}
        extra[_CHOICES] = {name: _choice_to_json(choice) for name, choice in self._choices.items()}
        for name, choice in self._choices.items():
            arrays |= {f"{name}.{key}": array for key in _ARRAYS if (array := getattr(choice, key)) is not None}
        for number, (name, (document, own)) in enumerate(self._steps.items()):
            extra.setdefault(_STEPS, []).append([name, document, list(own)])
            arrays |= {f"{_STEPS}.{number}.{key}": array for key, array in own.items()}
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
            choices = {name: _choice_of(name, each, saved.arrays) for name, each in saved.extra[_CHOICES].items()}
            steps = {
                name: (document, {key: saved.arrays[f"{_STEPS}.{number}.{key}"] for key in keys})
                for number, (name, document, keys) in enumerate(saved.extra.get(_STEPS, ()))
            }
            self._entries, self._choices, self._steps = kept, choices, steps
        except (MismatchError, FileFormatError, KeyError, TypeError, ValueError):
            checkpoint.clear()


def _finite(error: float) -> float | None:
    """What came to nothing has an infinite error, which JSON cannot hold."""
    return float(error) if np.isfinite(error) else None


def _error_of(document: JSON) -> float:
    return np.inf if document["error"] is None else float(document["error"])


def _to_json(trial: Trial) -> JSON:
    return {**vars(trial), "error": _finite(trial.error)}


def _from_json(document: JSON) -> Trial:
    kind = BinningTrial if "grids" in document else Trial
    return kind(**{**document, "error": _error_of(document)})


def _packed_fit(fit: Fit) -> Packed:
    """Coefficients keep their order in memory, on which the last digits of products may depend."""
    document = {name: value for name, value in vars(fit).items() if name not in (_COEFFICIENTS, _LOSSES)}
    document |= {"error": _finite(fit.error), "tried": list(fit.tried)}
    arrays = {} if fit.losses is None else {_LOSSES: fit.losses}
    if fit.coefficients is None:
        return document, arrays
    turned = not fit.coefficients.flags.c_contiguous
    kept = np.ascontiguousarray(fit.coefficients.T if turned else fit.coefficients)
    return {**document, _TURNED: turned}, {**arrays, _COEFFICIENTS: kept}


def _fit_of(packed: Packed) -> Fit:
    document, arrays = packed
    told = {name: value for name, value in document.items() if name != _TURNED}
    kept = arrays.get(_COEFFICIENTS)
    coefficients = kept.T if kept is not None and document[_TURNED] else kept
    told |= {"error": _error_of(document), "tried": tuple(document["tried"])}
    return Fit(**told, coefficients=coefficients, losses=arrays.get(_LOSSES))


def _choice_to_json(choice: Choice) -> JSON:
    return {
        "recipe": choice.recipe.to_json(), "growth": choice.growth, "mixed": choice.mixed, "notes": choice.notes,
        "trials": [_to_json(trial) for trial in choice.trials],
    }  # fmt: skip


def _choice_of(name: str, document: JSON, arrays: dict[str, np.ndarray]) -> Choice:
    return Choice(
        Recipe.from_json(document["recipe"]), tuple(_from_json(trial) for trial in document["trials"]),
        growth=float(document["growth"]), mixed=bool(document["mixed"]), notes=dict(document["notes"]),
        metric=arrays.get(f"{name}.metric"), length_scales=arrays.get(f"{name}.length_scales"),
    )  # fmt: skip


def pilot_place(checkpoint: AnyPath) -> str:
    """Where the trials of a run are, next to the sums of its pass."""
    return f"{str(checkpoint).rstrip('/')}/pilot"


def can_resume(checkpoint: AnyPath) -> bool:
    """Whether a run left sums or trials."""
    return Checkpoint(checkpoint).exists() or Checkpoint(pilot_place(checkpoint)).exists()
