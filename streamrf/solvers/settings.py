"""The settings that solvers heed: loss, penalty, solver, and how lambda is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import ClassVar, Protocol

from streamrf.features.settings import OWN, FeatureSettings
from streamrf.support.errors import InputError
from streamrf.support.settings import AUTO, NOT_NEGATIVE, POSITIVE, Range, setting

PRECONDITIONERS = ("sample", "nystrom")
CLASS_WEIGHTS = ("balanced",)
AIMS = (AUTO, "f1")  # what a threshold may be chosen for: balanced accuracy, or F1 of the second class


PROBABILITY = Range(0, 1, above=True, below=True)
FOURIER = "fourier"  # every map but random binning, trees and blends
WIDE = "20"  # bits of features that not every solver can sum


class Declared(Protocol):
    """What settings must know of a solver."""

    name: ClassVar[str]
    losses: ClassVar[tuple[str, ...]]
    maps: ClassVar[str]
    wide: ClassVar[bool]


KNOWN: list[type[Declared]] = []  # every solver, the preferred ones first; defining one adds it


def solver_names() -> tuple[str, ...]:
    """What ``solver`` may be."""
    return tuple(dict.fromkeys(each.name for each in KNOWN))


def losses() -> tuple[str, ...]:
    """What ``loss`` may be."""
    return tuple(dict.fromkeys(loss for each in KNOWN for loss in each.losses))


def losses_of(maps: str) -> tuple[str, ...]:
    """What ``loss`` may be with features of this kind."""
    return tuple(dict.fromkeys(loss for each in KNOWN if each.maps == maps for loss in each.losses))


def solvers_for(loss: str, maps: str = FOURIER, bits: str = AUTO) -> tuple[str, ...]:
    """The names of the solvers that can do a loss with features of this kind, the preferred one first."""
    return tuple(
        each.name for each in KNOWN if each.maps == maps and loss in each.losses and (each.wide or bits != WIDE)
    )


@dataclass(frozen=True)
class SolverSettings(FeatureSettings):
    """What decides the weights, given the features."""

    ridge: float | None = setting(
        None, "Ridge penalty; chosen on hold-out rows by default.", flag="lambda", within=NOT_NEGATIVE
    )
    solver: str = setting(
        AUTO, "cholesky sums a D x D matrix in one pass; cg passes over the rows some twenty times instead; newton and"
        " sgd are for other losses.", choices=solver_names, group="solver",
    )  # fmt: skip
    preconditioner: str = setting(
        AUTO, "What speeds up cg and newton: the factor of a sample of rows, or a sketch.",
        choices=lambda: PRECONDITIONERS, group="solver",
    )  # fmt: skip
    loss: str = setting("squared", "What is minimised.", choices=losses)
    quantile: float = setting(
        0.5, "`loss='quantile'`: the quantile to predict.", within=Range(0, 1, above=True, below=True), group="solver"
    )
    huber_epsilon: float = setting(
        1.35, "`loss='huber'`: residuals beyond so many robust standard deviations count linearly.", within=POSITIVE,
        group="solver",
    )  # fmt: skip
    class_weight: str | None = setting(
        None, "Let every class count for as much, however few rows it has.", choices=lambda: CLASS_WEIGHTS
    )
    threshold: float | str | None = setting(
        None, "Two classes: predict the second where its probability is above this (0.5), or above what hold-out rows"
        " choose: auto for the best balanced accuracy, f1 for the best F1 of the second class.", metavar="auto|f1|P",
        some=lambda: AIMS,
    )  # fmt: skip
    epochs: int | None = setting(
        None, "`solver='sgd'`: most passes over the rows (10); hold-out rows stop them.", within=Range(1, 10_000),
        group="solver",
    )  # fmt: skip
    shards: int | None = setting(
        None, "`solver='sgd'`: parts of the rows that run side by side and are averaged (1).", flag="parts",
        within=Range(1, 100_000), group="solver",
    )  # fmt: skip
    holdout: float | None = setting(
        None,
        "Share of rows that judge, and of others that choose lambda (a tenth each, at most 20,000 rows).",
        within=Range(0, 1, below=True),
    )
    cv: int | None = setting(
        None, "Choose lambda by K-fold cross-validation, in the same one pass.", metavar="K", within=Range(2, 100)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.map in OWN:
            self._check_own()
        else:
            able = solvers_for(self.loss)
            if self.solver not in (AUTO, *able):
                self.refuse("solver", f"must be {' or '.join((AUTO, *able))}: the loss is {self.loss}")
        self._check_bits()
        self._check_descent(solvers_for(self.loss)[0] if self.solver == AUTO else self.solver)
        self._check_threshold()
        if self.cv is not None and self.loss != "squared":
            raise InputError(f"`cv` is for the squared loss: `loss={self.loss!r}` is judged by `holdout` rows")
        if self.cv is not None and self.solver not in (AUTO, "cholesky"):
            raise InputError(f"`cv` goes with `solver='cholesky'`, not with {self.solver}: use `holdout`")

    @property
    def solved_maps(self) -> str:
        """The kind of features that a solver must be for."""
        return self.map if self.map in OWN else FOURIER

    @property
    def takes_wide(self) -> bool:
        """Whether the solver, or one that ``auto`` may stand for, has exact sums of 20-bit features."""
        able = solvers_for(self.loss, self.solved_maps, WIDE)
        return bool(able) if self.solver == AUTO else self.solver in able

    def _check_bits(self) -> None:
        if self.bits == WIDE and not self.takes_wide:
            solver = solvers_for(self.loss)[0] if self.solver == AUTO else self.solver
            self.refuse("bits", f"must be at most 12, or floats: {solver} multiplies integers of up to 16 bits")

    def _check_threshold(self) -> None:
        """A number may come as text. One that is chosen needs rows to choose it."""
        if self.threshold is None:
            return
        if self.threshold not in AIMS:
            try:
                threshold = float(self.threshold)
            except (TypeError, ValueError):
                threshold = nan
            if threshold not in PROBABILITY:
                self.refuse("threshold", f"must be {', '.join(AIMS)}, or a probability {PROBABILITY}")
            object.__setattr__(self, "threshold", threshold)
        elif self.holdout == 0:
            self.refuse("threshold", "must be a number where `holdout` is 0: hold-out rows choose it")

    def _check_own(self) -> None:
        if self.cv is not None:
            raise InputError(f"`cv` chooses lambda for Fourier features: {self.map} is judged by `holdout` rows")
        able, losses = solvers_for(self.loss, self.map), losses_of(self.map)
        if not able:
            smooth = ", whose corner squared-hinge rounds off" if self.loss == "hinge" and len(losses) > 1 else ""
            self.refuse("loss", f"must be {' or '.join(losses)}: {self.map} has no {self.loss}{smooth}")
        if self.solver not in (AUTO, *able):
            loss = "" if len(losses) == 1 else f" for the {self.loss} loss"
            self.refuse("solver", f"must be auto or {' or '.join(able)}: {self.map} has no other{loss}")

    def _check_descent(self, solver: str) -> None:
        """Refuse what only stochastic gradients would heed, where another solver will be taken."""
        if solver == "sgd":
            return
        able = ", ".join(loss for loss in losses() if "sgd" in solvers_for(loss))
        for name in ("epochs", "shards"):
            if getattr(self, name) is not None:
                self.refuse(
                    name, f"this is a setting of `solver='sgd'`, which is for the losses {able}: leave it out, or ask"
                    f" for that solver (the loss is {self.loss})",
                )  # fmt: skip
