"""Sums and predictions on the workers of a Dask cluster. Nothing else in the package imports distributed."""

from streamrf.engines.cluster.connection import Address, connect
from streamrf.engines.cluster.engine import ClusterEngine

__all__ = ["Address", "ClusterEngine", "connect"]
