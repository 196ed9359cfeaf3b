"""Small tables that tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr


def smooth(n: int = 3000, d: int = 6, seed: int = 0, noise: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and a smooth target: a kernel machine learns it, a linear one does not."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + noise * rng.standard_normal(n)
    return X, y


def labelled(n: int = 3000, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = smooth(n, seed=seed)
    edges = np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1])
    return X, np.searchsorted(edges, y)


def write_zarr(path: Path, X: np.ndarray, y: np.ndarray | None, chunk: int = 500, columns: int | None = None) -> str:
    group = zarr.open_group(str(path), mode="w")
    array = group.create_array("X", shape=X.shape, chunks=(chunk, columns or X.shape[1]), dtype=X.dtype)
    array[:] = X
    if y is not None:
        shape = (chunk, *y.shape[1:])
        kept = group.create_array("y", shape=y.shape, chunks=shape, dtype=y.dtype)
        kept[:] = y
    return str(path)
