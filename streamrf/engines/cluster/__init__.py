"""Sums and predictions on the workers of a Dask cluster. Nothing else in the package imports distributed."""

from streamrf.engines.cluster.engine import Address, ClusterEngine, connect

__all__ = ["Address", "ClusterEngine", "connect"]
