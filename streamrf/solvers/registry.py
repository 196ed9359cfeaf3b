"""Ways from a prepared run to weights, by the name of their solver."""

from __future__ import annotations

from streamrf.recipe import BINNING, Recipe
from streamrf.solvers.base import Fitted, Route, Run
from streamrf.solvers.binning import BinningRoute
from streamrf.solvers.cg import CGRoute
from streamrf.solvers.cholesky import DirectRoute
from streamrf.solvers.newton import NewtonRoute
from streamrf.solvers.sgd import SGDRoute

ROUTES: dict[str, type[Route]] = {"cholesky": DirectRoute, "cg": CGRoute, "newton": NewtonRoute, "sgd": SGDRoute}


def route_of(recipe: Recipe) -> type[Route]:
    """The route of a settled recipe."""
    return BinningRoute if recipe.map == BINNING else ROUTES[recipe.solver]


__all__ = ["ROUTES", "DirectRoute", "Fitted", "Route", "Run", "route_of"]
