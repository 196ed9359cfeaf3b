"""Ways from a prepared run to weights, by the name of their solver."""

from __future__ import annotations

from streamrf.routes.base import Fitted, Route, Run
from streamrf.routes.cg import CGRoute
from streamrf.routes.direct import DirectRoute

ROUTES: dict[str, type[Route]] = {"cholesky": DirectRoute, "cg": CGRoute}

__all__ = ["ROUTES", "DirectRoute", "Fitted", "Route", "Run"]
