"""Which solvers there are. A solver that is defined elsewhere joins them by being a subclass with a name."""

from __future__ import annotations

from streamrf.features.settings import BINNING
from streamrf.solvers import binning, cg, cholesky, newton, sgd  # noqa: F401 (defining them makes them known)
from streamrf.solvers.base import FOURIER, Solver
from streamrf.solvers.settings import SolverSettings


def solvers_for(loss: str, maps: str = FOURIER) -> dict[str, type[Solver]]:
    """The solvers that can do a loss with features of this kind, by name, the preferred one first."""
    return {each.name: each for each in Solver.known if each.maps == maps and loss in each.losses}


def solver_of(recipe: SolverSettings) -> type[Solver]:
    """The solver of a settled recipe."""
    return solvers_for(recipe.loss, BINNING if recipe.map == BINNING else FOURIER)[recipe.solver]


def names() -> tuple[str, ...]:
    """What --solver may be."""
    return tuple(dict.fromkeys(each.name for each in Solver.known))


def losses() -> tuple[str, ...]:
    """What --loss may be."""
    return tuple(dict.fromkeys(loss for each in Solver.known for loss in each.losses))
