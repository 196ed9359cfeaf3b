"""Which solvers there are. A solver that is defined elsewhere joins them by being a subclass with a name."""

from __future__ import annotations

from streamrf.features.settings import BINNING
from streamrf.solvers import binning, cg, cholesky, newton, sgd  # noqa: F401 (defining them makes them known)
from streamrf.solvers.base import Solver
from streamrf.solvers.settings import FOURIER, KNOWN, SolverSettings


def candidates(recipe: SolverSettings) -> list[type[Solver]]:
    """The solvers that can do what a recipe asks for, the preferred one first."""
    maps = BINNING if recipe.map == BINNING else FOURIER
    known = [each for each in KNOWN if issubclass(each, Solver) and each.maps == maps and recipe.loss in each.losses]
    return known if recipe.solver == "auto" else [each for each in known if each.name == recipe.solver]


def solver_of(recipe: SolverSettings) -> type[Solver]:
    """The solver of a settled recipe."""
    return candidates(recipe)[0]
