"""Sums and predictions on the workers of a Dask cluster. Nothing else in the package imports distributed."""

from streamrf.engines.cluster.addresses import connect
from streamrf.engines.cluster.engine import ClusterEngine

__all__ = ["ClusterEngine", "connect"]
