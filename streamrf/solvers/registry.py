"""Which solvers there are. A solver that is defined elsewhere joins them by being a subclass with a name."""

from __future__ import annotations

from streamrf.solvers import (  # noqa: F401 (defining them makes them known)
    bin_newton,
    binning,
    boosting,
    cg,
    cholesky,
    newton,
    sgd,
    stacking,
)
from streamrf.solvers.base import Solver
from streamrf.solvers.settings import KNOWN, SolverSettings, solvers_for


def candidates(recipe: SolverSettings) -> list[type[Solver]]:
    """The solvers that can do what a recipe asks for, the preferred one first."""
    able = solvers_for(recipe.loss, recipe.solved_maps, recipe.bits)
    names = able if recipe.solver == "auto" else [name for name in able if name == recipe.solver]
    known = (each for each in KNOWN if issubclass(each, Solver) and each.maps == recipe.solved_maps)
    return [each for each in known if each.name in names]


def solver_of(recipe: SolverSettings) -> type[Solver]:
    """The solver of a settled recipe."""
    return candidates(recipe)[0]
