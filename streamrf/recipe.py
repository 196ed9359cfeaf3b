"""The recipe: every setting of a run, ``auto`` where the pilot chooses. A settled recipe has no ``auto`` left.

Settings are declared in the room that heeds them (features/settings.py, solvers/settings.py), each with its default,
its allowed values and its help text. The command line, the estimators and the reference pages read them from here.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from streamrf.features.fourier import Learning
from streamrf.features.settings import ANY, BINNING, BLEND, DEFAULT_D, LANDMARKS, TREES
from streamrf.solvers import registry  # noqa: F401 (whose solvers a recipe can name)
from streamrf.solvers.settings import SolverSettings, solvers_for
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.settings import AUTO, NONE, setting
from streamrf.support.storage import safejson
from streamrf.support.units import parse_seconds

__all__ = [
    "ANY", "AUTO", "BINNING", "BINNING_ONLY", "BLEND", "DEFAULT_D", "FOURIER_ONLY", "LANDMARKS", "NONE", "NOT_OF_TREES",
    "TREES", "Recipe",
]  # fmt: skip

# What both maps have; where neither map nor D is given, any other setting asks for Fourier features.
SHARED = (
    "budget", "D", "map", "grids", "table_bits", "scaling", "task", "threshold", "class_weight", "holdout", "nan",
    "seed",
)  # fmt: skip
FOURIER_ONLY = ("D", "bits", "form")  # what random binning does not have
BINNING_ONLY = ("grids", "table_bits")
NOT_OF_TREES = (*FOURIER_ONLY, *BINNING_ONLY, "kernel", "length_scale", "metric", "ridge")
_PREDICTION_LOSS_OF = {"hinge": "hinge", "squared-hinge": "hinge", "logistic": "logistic"}  # others: squared


@dataclass(frozen=True)
class Recipe(SolverSettings):
    """What `streamrf train` is asked for; ``None`` and ``auto`` leave the choice to the pilot.

    With neither ``D``, ``map`` nor a setting of Fourier features, landmarks, random binning and trees are blended.
    """

    pilot: str = setting(
        AUTO, "Choose settings on a sample of rows, or use the documented defaults.", choices=lambda: (AUTO, NONE)
    )

    budget: float | str | None = setting(
        None, "With neither `D` nor a map: about how long training may take on two modest cores, such as 5min; it"
        " decides how many features there are, on every machine alike.", metavar="TIME",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.map == AUTO and self.D is None:
            object.__setattr__(self, "map", self._unnamed_map())
        super().__post_init__()
        if self.budget is not None:
            self._check_budget()

    @property
    def seconds(self) -> float | None:
        """The budget of time, in seconds."""
        return None if self.budget is None else parse_seconds(self.budget)

    def _check_budget(self) -> None:
        try:
            seconds = parse_seconds(self.budget or 0)
        except InputError:
            seconds = 0.0
        if not seconds > 0:
            self.refuse("budget", "must be a time, such as 90s or 5min")
        if self.map not in (ANY, BLEND, LANDMARKS, BINNING, TREES):  # which are what such a run may settle for
            self.refuse("budget", "must be left out where `D`, a map or a setting of Fourier features is given")
        object.__setattr__(self, "budget", seconds)

    def _unnamed_map(self) -> str:
        """The map that the other settings speak of."""
        if self.grids is not None or self.table_bits is not None or str(self.kernel).startswith("bins:"):
            return BINNING
        own = (each for each in fields(self) if each.name not in SHARED)
        return AUTO if any(getattr(self, each.name) != each.default for each in own) else ANY

    @property
    def settled_metric(self) -> str:
        """Without a pilot there is none unless one is asked for."""
        return NONE if self.pilot == NONE and self.metric == AUTO else super().settled_metric

    @property
    def can_be_binned(self) -> bool:
        """Whether random binning, in a blend, has all the other settings."""
        try:
            self.with_(map=BINNING)
        except InputError:
            return False
        return bool(solvers_for(self.loss, BLEND))

    def as_fourier(self) -> Recipe:
        """This recipe where only Fourier features will do: their sums can be added and subtracted."""
        return self.with_(map=AUTO, budget=None) if self.map == ANY else self

    def learning(self, task: str) -> Learning:
        """What the learning of frequencies is told."""
        loss = _PREDICTION_LOSS_OF.get(self.loss) if self.prediction_loss == AUTO else self.prediction_loss
        return Learning(
            self.landmarks, self.learning_iterations, self.learning_steps, self.weight_decay, self.eta, loss, task
        )

    def with_(self, **changes: Any) -> Recipe:
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Recipe:
        known = {each.name for each in fields(cls)}
        if unknown := set(document) - known:
            raise FileFormatError(
                f"the recipe has settings that this version does not know: {', '.join(sorted(unknown))}"
            )
        try:
            return cls(**document)
        except (InputError, TypeError) as error:
            raise FileFormatError(f"the recipe is damaged: {error}") from error

    def fingerprint(self) -> str:
        return hashlib.sha256(safejson.encode(self.to_json(), "the recipe")).hexdigest()[:16]
