"""What the peers share: reading, scaling, Fourier features, ridge weights, errors and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE = 20_000
Tries = Iterator[tuple[float, dict[str, Any]]]  # errors on a hold-out, and the settings that gave them


@dataclass
class Job:
    """A task as a peer gets it, and the clock that its training runs on."""

    train: Path
    test: Path
    classes: int
    settings: dict[str, Any]
    threads: int
    seconds: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[str, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        import zarr  # not every peer reads it

        self.X, self.y = (zarr.open_group(str(self.train), mode="r")[name] for name in "Xy")
        self.rows, self.inputs = self.X.shape
        self.outputs = self.classes if self.classes > 2 else 1

    def blocks(self, rows: int = 20_000) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return blocks(self.train, rows)

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        return self.X[:], self.y[:]

    def sample(self, rows: int = SAMPLE) -> tuple[np.ndarray, np.ndarray]:
        """The first rows: those of a table are shuffled."""
        return self.X[:rows], self.y[:rows]

    def timed(self, work: Callable[[], Any]) -> Any:
        """Do what belongs to training."""
        start = time.perf_counter()
        found = work()
        self.seconds += time.perf_counter() - start
        return found

    def error(self, predict: Callable[[np.ndarray], np.ndarray]) -> float:
        """Share of wrong classes, or root mean squared error, on the test table."""
        pairs = [(loss(predict(X), y, self.classes), y) for X, y in blocks(self.test, 10_000)]
        losses, y = (np.concatenate(part) for part in zip(*pairs, strict=True))
        if self.classes:
            return float(losses.mean())
        self.scores["relative_error"] = float(np.sqrt(losses.sum() / (y.astype(float) ** 2).sum()))
        return float(losses.mean()) ** 0.5


def search(tries: Callable[[Job], Tries]) -> Callable[[Job], dict[str, Any]]:
    """The settings with the least error, how many were tried, and how long it took."""

    def run(job: Job) -> dict[str, Any]:
        start = time.perf_counter()
        found = [(error, number, settings) for number, (error, settings) in enumerate(tries(job))]
        return {**min(found)[2], "tried": len(found), "seconds": time.perf_counter() - start}

    return run


def blocks(path: Path, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    import zarr

    X, y = (zarr.open_group(str(path), mode="r")[name] for name in "Xy")
    for start in range(0, X.shape[0], X.chunks[0]):  # each chunk is decoded once, however small the blocks are
        here = slice(start, start + X.chunks[0])
        inputs, labels = X[here], y[here]
        for first in range(0, len(inputs), rows):
            yield inputs[first : first + rows], labels[first : first + rows]


def loss(predicted: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    return (predicted != y).astype(float) if classes else (predicted - y) ** 2


def targets(y: np.ndarray, classes: int) -> np.ndarray:
    """Columns to regress on: a number, -1 and 1, or one column a class."""
    if classes > 2:
        return (y[:, None] == np.arange(classes)).astype(np.float32)
    return (2.0 * y - 1 if classes else y).astype(np.float32)[:, None]


def decide(scores: np.ndarray, classes: int) -> np.ndarray:
    if classes > 2:
        return scores.argmax(axis=1)
    return (scores[:, 0] > 0).astype(np.int64) if classes else scores[:, 0]


# -- scaling


@dataclass(frozen=True)
class Scaling:
    """Nothing, zero mean and unit variance, or that of a signed logarithm. 0/1 columns are left as they are.

    ``every`` is zero mean and unit variance of 0/1 columns too.
    """

    kind: str
    mean: np.ndarray
    factor: np.ndarray

    @classmethod
    def fit(cls, kind: str, X: np.ndarray) -> Scaling:
        V = bent(X) if kind == "log" else X
        spread = V.std(axis=0)
        left = (((X == 0) | (X == 1)).all(axis=0) & (kind != "every")) | (spread == 0) | (kind == "none")
        mean, factor = np.where(left, 0, V.mean(axis=0)), np.where(left, 1, 1 / np.where(spread > 0, spread, 1))
        return cls(kind, mean.astype(np.float32), factor.astype(np.float32))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        V = bent(X) if self.kind == "log" else X
        return ((V - self.mean) * self.factor).astype(np.float32)


def bent(X: np.ndarray) -> np.ndarray:
    binary = ((X == 0) | (X == 1)).all(axis=0)
    return np.where(binary, X, np.sign(X) * np.log1p(np.abs(X)))


# -- features


class Cosines:
    """Random Fourier features of the Gaussian kernel in float32, as one would write them."""

    def __init__(self, inputs: int, D: int, length_scale: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.W = rng.standard_normal((inputs, D)).astype(np.float32) / np.float32(length_scale)
        self.b = rng.uniform(0, 2 * np.pi, D).astype(np.float32)
        self.factor = np.float32(np.sqrt(2 / D))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        Z = X @ self.W
        Z += self.b
        np.cos(Z, out=Z)
        Z *= self.factor
        return Z


def make_features(job: Job) -> tuple[Scaling, Cosines]:
    scaling = Scaling.fit(job.settings["scaling"], job.sample()[0])
    return scaling, Cosines(job.inputs, job.settings["D"], job.settings["length_scale"])


# -- ridge


@dataclass
class Sums:
    """Z'Z, Z'Y and the means, from which ridge weights with an intercept are solved."""

    G: np.ndarray
    C: np.ndarray
    z: np.ndarray
    y: np.ndarray
    rows: int

    @classmethod
    def of(cls, Z: np.ndarray, Y: np.ndarray) -> Sums:
        return cls(Z.T @ Z, Z.T @ Y, Z.sum(axis=0, dtype=float), Y.sum(axis=0, dtype=float), len(Z))

    def weights(self, ridge: float, lower: bool = False) -> tuple[np.ndarray, np.ndarray]:
        from scipy.linalg import cho_factor, cho_solve

        S = self.G.astype(np.float64) / self.rows
        zm, ym = self.z / self.rows, self.y / self.rows
        S -= np.outer(zm, zm)
        S[np.diag_indices_from(S)] += ridge
        factor = cho_factor(S, lower=lower, overwrite_a=True, check_finite=False)
        w = cho_solve(factor, self.C / self.rows - np.outer(zm, ym))
        return w, ym - zm @ w


def solved(sums: Sums, ridge: float, lower: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Weights at this penalty, or at the next power of ten at which sums in floats are still positive definite."""
    for factor in (1, 10, 100, 1000):
        try:
            return sums.weights(factor * ridge, lower)
        except np.linalg.LinAlgError:
            continue
    return sums.weights(1e4 * ridge, lower)


def linear(features: Callable[[np.ndarray], np.ndarray], w: np.ndarray, a: np.ndarray, classes: int) -> Callable:
    w, a = w.astype(np.float32), a.astype(np.float32)
    return lambda X: decide(features(X) @ w + a, classes)
