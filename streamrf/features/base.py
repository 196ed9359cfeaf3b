"""What a feature map is to a statistic or a predictor, and predictions from features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import DTypeLike

from streamrf.features.precision import Precision
from streamrf.features.scores import BATCH, BATCH_BYTES, LANES, batch_rows, dot_rows
from streamrf.support.errors import InputError
from streamrf.support.simd import aligned_empty
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import ALONE, Threads

Arrays = dict[str, np.ndarray]
Features = Callable[[slice, np.ndarray], np.ndarray]
"""The features of some rows: written to the buffer that is given, or from where they are kept."""


class RowScorer(Protocol):
    """A map with coefficients: scaled inputs in, scores out."""

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64."""


class FeatureMap(ABC):
    """Fixed features of scaled inputs; a feature is between -1 and 1 (or an integer that stands for it).

    Defining a subclass with a ``kind`` registers it: ``map_from_parts`` then reads model files that have such a map.
    """

    FAMILIES: ClassVar[dict[str, type[FeatureMap]]] = {}

    kind: ClassVar[str]
    precision: Precision

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if kind := vars(cls).get("kind"):
            known = cls.FAMILIES.setdefault(kind, cls)
            if known.__qualname__ != cls.__qualname__:
                raise InputError(f"there are {kind!r} maps already: choose another kind")
            cls.FAMILIES[kind] = cls

    @property
    @abstractmethod
    def n_inputs(self) -> int:
        """Columns of the scaled inputs."""

    @property
    @abstractmethod
    def n_features(self) -> int: ...

    @property
    def width(self) -> int:
        """Columns an output block needs: the features, rounded up to what the kernel writes at once."""
        return self.n_features

    @property
    @abstractmethod
    def amplitudes(self) -> np.ndarray:
        """(n_features,) float64: feature times amplitude is z, with z(x)'z(y) ~ k(x, y)."""

    @abstractmethod
    def compute(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        """Features of scaled X into ``out[:len(X), :n_features]``; columns up to ``width`` may be overwritten."""

    @abstractmethod
    def to_parts(self) -> tuple[JSON, Arrays]:
        """JSON, which has the ``kind``, and arrays for the model file."""

    @classmethod
    @abstractmethod
    def from_parts(cls, document: JSON, arrays: Arrays) -> Self:
        """The map of ``to_parts``; parts that do not fit together are a FileFormatError."""

    @property
    def report(self) -> JSON:
        """How learning went, where the map was learned; not kept in files."""
        return {}

    def scorer(self, coefficients: np.ndarray, intercept: np.ndarray) -> RowScorer:
        """Predictions with coefficients (n_features, outputs) of the features as they are written."""
        return Scorer(self, coefficients, intercept)

    def __reduce__(self) -> tuple[object, ...]:
        """Sent to another process as it is to a file: what is packed for this CPU stays here."""
        return type(self).from_parts, self.to_parts()

    def block(self, rows: int, dtype: DTypeLike, extra: int = 0) -> np.ndarray:
        """An output block for so many rows, with room for ``extra`` columns after the features."""
        return np.empty((rows, max(self.width, self.n_features + extra)), dtype)

    def dense(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """z(X) as (n, n_features) float64: for tests, pilots and small data."""
        dtype = np.int16 if self.precision.exact else self.precision.inputs
        out = self.block(len(X), dtype)
        self.compute(X, out, threads)
        return out[:, : self.n_features] * self.amplitudes


def scored_width(map: FeatureMap) -> int:
    """Columns of features that are to be scored: what the map writes, in whole vectors."""
    return -(-max(map.width, map.n_features) // LANES) * LANES


class Scorer:
    """A feature map with coefficients: scaled inputs in, scores out."""

    def __init__(
        self, map: FeatureMap, coefficients: np.ndarray, intercept: np.ndarray, room: int = BATCH_BYTES
    ) -> None:
        self.map = map
        self.dtype = map.precision.inputs
        self.intercept = np.asarray(intercept, np.float64)  # targets may lie far from zero and close together
        self.width = scored_width(map)
        self.batch = batch_rows(self.width * map.precision.features.itemsize, room)
        self._coefficients = aligned_empty((coefficients.shape[1], self.width), self.dtype)
        self._coefficients[:] = 0
        self._coefficients[:, : map.n_features] = coefficients.T

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64 scores of scaled inputs."""

        def features(rows: slice, room: np.ndarray) -> np.ndarray:
            self.map.compute(X[rows], room, ALONE)
            return room

        return self.scores_from(features, len(X), threads)

    def scores_from(self, features: Features, count: int, threads: Threads) -> np.ndarray:
        """The same of so many rows, whose features are to be had a batch at a time."""
        out = np.empty((count, len(self.intercept)))
        step = max(BATCH, -(-count // (4 * threads.count * BATCH)) * BATCH)  # some for each thread

        def batches(first: int) -> None:
            room = self.batch_features()
            last = min(first + step, count)
            for start in range(first, last, self.batch):
                rows = slice(start, min(start + self.batch, last))
                dot_rows(features(rows, room), rows.stop - start, self._coefficients, self.intercept, out[rows])

        threads.each(batches, range(0, count, step))
        return out

    def batch_features(self) -> np.ndarray:
        """Room for the features of one batch."""
        return np.zeros((self.batch, self.width), self.map.precision.features)

    def score_features(self, Z: np.ndarray, rows: int) -> np.ndarray:
        """(rows, outputs) scores of the first rows of Z, features as the map writes them."""
        out = np.empty((rows, len(self.intercept)))
        dot_rows(Z, rows, self._coefficients, self.intercept, out)
        return out
