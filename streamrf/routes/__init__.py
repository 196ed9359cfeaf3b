"""Ways from a prepared run to weights, by the name of their solver."""

from __future__ import annotations

from streamrf.recipe import BINNING, Recipe
from streamrf.routes.base import Fitted, Route, Run
from streamrf.routes.binning import BinningRoute
from streamrf.routes.cg import CGRoute
from streamrf.routes.direct import DirectRoute
from streamrf.routes.newton import NewtonRoute
from streamrf.routes.sgd import SGDRoute

ROUTES: dict[str, type[Route]] = {"cholesky": DirectRoute, "cg": CGRoute, "newton": NewtonRoute, "sgd": SGDRoute}


def route_of(recipe: Recipe) -> type[Route]:
    """The route of a settled recipe."""
    return BinningRoute if recipe.map == BINNING else ROUTES[recipe.solver]


__all__ = ["ROUTES", "DirectRoute", "Fitted", "Route", "Run", "route_of"]
