"""Landmarks: rows, or centres of k-means, that stand for the data when the kernel is compared."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from streamrf.features.learned.ekal import Landmarks
from streamrf.support.errors import DataError

SMALL = 4_000_000  # entries up to which plain k-means is quick
BATCH = 2048
ROUNDS = 30


def sample_landmarks(X: np.ndarray, n: int, rng: np.random.Generator) -> Landmarks:
    """n different rows, which all count the same."""
    if n > len(X):
        raise DataError(f"{n} landmarks are wanted and the sample has {len(X)} rows: give more rows or fewer landmarks")
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
            raise DataError(f"{n} clusters are wanted and the sample has {len(X)} rows: give more rows")
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
