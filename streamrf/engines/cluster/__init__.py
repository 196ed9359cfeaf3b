"""Sums and predictions on the workers of a Dask cluster: of any ``Client``, wherever it comes from."""

from streamrf.engines.cluster.engine import ClusterEngine

__all__ = ["ClusterEngine"]
