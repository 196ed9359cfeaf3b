"""Landmarks: rows that stand for the data when the kernel is compared, alone, by clusters, and in pairs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from streamrf.features.kernels import Kernel, NormKernel
from streamrf.support.errors import DataError, MismatchError

SMALL = 4_000_000  # entries up to which plain k-means is quick
BATCH = 2048
ROUNDS = 30


class Landmarks(NamedTuple):
    """Rows that stand for the data, and the share of the data that each stands for."""

    X: np.ndarray  # (n, d)
    weights: np.ndarray  # (n,)


def sample_landmarks(X: np.ndarray, n: int, rng: np.random.Generator) -> Landmarks:
    """n different rows, which all count the same."""
    if n > len(X):
        raise DataError(f"{n} landmarks were asked for, of {len(X)} rows: give more rows or fewer landmarks")
    return Landmarks(X[rng.choice(len(X), n, replace=False)], np.full(n, 1.0 / n))


@dataclass(frozen=True, eq=False)
class Clusters:
    """Groups of near rows by k-means. None is empty, so there may be fewer than asked for."""

    X: np.ndarray  # the rows, those of one cluster next to one another
    starts: np.ndarray  # (n,): where each cluster begins in X
    sizes: np.ndarray  # (n,)

    @classmethod
    def find(cls, X: np.ndarray, n: int, seed: int) -> Clusters:
        """At most n clusters: k-means, by small batches where the sample is large."""
        from sklearn.cluster import KMeans, MiniBatchKMeans
        from sklearn.exceptions import ConvergenceWarning

        if n > len(X):
            raise DataError(f"{n} clusters were asked for, of {len(X)} rows: give more rows")
        options = {"n_clusters": n, "n_init": 1, "max_iter": ROUNDS, "random_state": seed}
        means = KMeans(**options) if X.size <= SMALL else MiniBatchKMeans(**options, batch_size=BATCH)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of fewer different rows than clusters, which is fine
            labels = means.fit(X).labels_
        sizes = np.bincount(labels, minlength=n)
        starts = np.cumsum(sizes) - sizes
        return cls(X[np.argsort(labels, kind="stable")], starts[sizes > 0], sizes[sizes > 0])

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def weights(self) -> np.ndarray:
        """The share of the rows that each cluster has."""
        return self.sizes / len(self.X)

    def centres(self) -> Landmarks:
        """The mean of each cluster."""
        sums = np.add.reduceat(np.asarray(self.X, np.float64), self.starts, axis=0)
        return Landmarks(sums / self.sizes[:, None], self.weights)

    def closest(self) -> Landmarks:
        """The row of each cluster nearest to its centre: in many columns a centre is unlike any row."""
        gaps = ((self.X - np.repeat(self.centres().X, self.sizes, axis=0)) ** 2).sum(axis=1)
        ends = self.starts + self.sizes
        rows = [start + int(np.argmin(gaps[start:end])) for start, end in zip(self.starts, ends, strict=True)]
        return Landmarks(self.X[rows], self.weights)

    def members(self, rng: np.random.Generator) -> Landmarks:
        """A random row of each cluster: two draws give pairs without bias, more even than those of random rows."""
        return Landmarks(self.X[self.starts + rng.integers(self.sizes)], self.weights)


# -- pairs of landmarks


def kernel_values(kernel: Kernel, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The kernel between rows, by one matrix product where it is a function of the Euclidean distance."""
    if not (isinstance(kernel, NormKernel) and kernel.order == 2):
        return kernel(X, Y)
    X, Y = (np.asarray(rows, np.float64) / kernel.length_scale for rows in (X, Y))
    squares = (X**2).sum(axis=1)[:, None] + (Y**2).sum(axis=1) - 2.0 * (X @ Y.T)
    return kernel.profile(np.sqrt(np.maximum(squares, 0.0)))


class Waves(NamedTuple):
    """cos(XW') and sin(XW'), (n, F) each."""

    cos: np.ndarray
    sin: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, W: np.ndarray) -> Waves:
        angles = X @ W.T
        return cls(np.cos(angles), np.sin(angles))

    def approximation(self, p: np.ndarray, other: Waves) -> np.ndarray:
        """The kernel that frequencies of weights p give between the two sides."""
        return (self.cos * p) @ other.cos.T + (self.sin * p) @ other.sin.T


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of a landmark on the left and one on the right, their weights, and the kernel between them."""

    left: np.ndarray  # (n, d)
    right: np.ndarray  # (m, d); the same array as ``left`` if landmarks are paired with one another
    left_weights: np.ndarray  # (n,), q^2 of the paper: they add up to 1
    right_weights: np.ndarray  # (m,)
    kernel: np.ndarray  # (n, m)

    @classmethod
    def within(cls, kernel: Kernel, X: np.ndarray, weights: np.ndarray | None = None) -> Pairs:
        """Every landmark with every one, itself included: the loss as the paper writes it."""
        X = np.asarray(X, np.float64)
        weights = _checked(X, weights)
        return cls(X, X, weights, weights, kernel_values(kernel, X, X))

    @classmethod
    def between(cls, kernel: Kernel, left: Landmarks, right: Landmarks, dtype: type = np.float64) -> Pairs:
        """Landmarks of two draws: no row meets itself, so the loss is that of the data without bias."""
        values = kernel_values(kernel, left.X, right.X)
        parts = (left.X, right.X, left.weights, right.weights, values)
        return cls(*(np.asarray(part, dtype) for part in parts))

    @property
    def symmetric(self) -> bool:
        return self.left is self.right

    @cached_property
    def kernel_square(self) -> float:
        """The loss of a map that is zero everywhere."""
        return float(self.left_weights @ self.kernel**2 @ self.right_weights)

    def waves(self, W: np.ndarray) -> tuple[Waves, Waves]:
        """Cosines and sines of both sides."""
        left = Waves.of(self.left, W)
        return left, left if self.symmetric else Waves.of(self.right, W)


def _checked(X: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    if X.ndim != 2 or len(X) < 2:
        raise DataError(f"landmarks are at least two rows, and these have shape {X.shape}: give more rows")
    weights = np.full(len(X), 1.0 / len(X)) if weights is None else np.asarray(weights, np.float64)
    if weights.shape != (len(X),):
        raise MismatchError(f"{len(X)} landmarks do not go with weights of shape {weights.shape}: give one each")
    return weights
