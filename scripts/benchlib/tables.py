"""Tables on disk that all contestants read: zarr with X (float32) and y, in chunks of rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

CHUNK = 20_000
Rows = tuple[np.ndarray, np.ndarray]
Target = Callable[[np.ndarray], np.ndarray]


def write_table(path: Path, X: np.ndarray, y: np.ndarray, chunk: int = CHUNK) -> Path:
    group = zarr.open_group(str(path), mode="w")
    for name, values in (("X", X), ("y", y)):
        chunks = (min(chunk, len(values)), *values.shape[1:])
        group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype)[:] = values
    return path


def once(path: Path, make: Callable[[Path], object]) -> Path:
    """What ``make`` writes, unless it is there; half a table never is."""
    if not path.exists():
        part = path.with_name(f"part-{path.name}")
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        make(part)
        part.rename(path)
    return path


def bends(X: np.ndarray) -> np.ndarray:
    """A smooth function of a few columns."""
    return np.sin(X[:, 0] + X[:, 1 % X.shape[1]]) + 0.5 * np.cos(X[:, 2 % X.shape[1]]) * X[:, 3 % X.shape[1]]


def generated(path: Path, rows: int, inputs: int, **options: Any) -> Path:
    """A table of any size, unless it is there."""
    return once(path, lambda part: generate(part, rows, inputs, **options))


def generate(
    path: Path, rows: int, inputs: int, *, classes: int = 0, noise: float = 0.3, seed: int = 0,
    target: Target = bends, chunk: int = 100_000,
) -> None:  # fmt: skip
    """Normal inputs and a function of them with noise, written a chunk at a time."""
    group, chunk = zarr.open_group(str(path), mode="w"), min(chunk, rows)
    X = group.create_array("X", shape=(rows, inputs), chunks=(chunk, inputs), dtype="float32")
    y = group.create_array("y", shape=(rows,), chunks=(chunk,), dtype="int64" if classes else "float32")
    for number, start in enumerate(range(0, rows, chunk)):
        rng = np.random.default_rng([seed, number])
        block = rng.standard_normal((min(chunk, rows - start), inputs), dtype=np.float32)
        values = target(block) + noise * rng.standard_normal(len(block), dtype=np.float32)
        X[start : start + len(block)] = block
        y[start : start + len(block)] = into_classes(values, classes) if classes else values


def into_classes(values: np.ndarray, classes: int) -> np.ndarray:
    """Classes of about equal size: which share of a bell curve a value falls into. One class more than none is two."""
    from scipy.special import ndtr

    return np.minimum((ndtr(values) * classes).astype(np.int64), classes - 1)


def arrays(path: Path) -> Rows:
    """X and y of a table, in memory."""
    group = zarr.open_group(str(path), mode="r")
    return group["X"][:], group["y"][:]
