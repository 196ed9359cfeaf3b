"""Stochastic gradients as a sum over parts of the rows: each part is a run of its own, from the same start.

A leg of an epoch is a few parts. Every part reads its spans, shuffles its rows and goes through them in mini-batches;
what it ends with is written to its own place of the state, so parts meet in any order, on any engine, to the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np

from streamrf.data.locations import persistently
from streamrf.data.screening import screen
from streamrf.data.source import Block, Partition, Source, Span, joined
from streamrf.data.split import Split
from streamrf.statistics.base import State, Statistic
from streamrf.statistics.gradient import Gradient
from streamrf.statistics.losses import Loss
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.threads import Threads

AVERAGING = 3.0  # later points count for more in the average, by this power of their number


class BatchPreconditioner(Protocol):
    """Small enough for every mini-batch."""

    def apply(self, gradient: np.ndarray, shift: float) -> np.ndarray: ...


@dataclass
class DescentState(State):
    """Where each part ended: its last point and its average."""

    points: np.ndarray  # (parts, 2, k, D + 1) float64
    rows: np.ndarray  # (parts,) int64

    def __iadd__(self, other: DescentState) -> Self:
        self.points += other.points
        self.rows += other.rows
        return self

    def __isub__(self, other: DescentState) -> Self:
        self.points -= other.points
        self.rows -= other.rows
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {"descent.points": self.points, "descent.rows": self.rows}

    def mean(self) -> np.ndarray:
        """(2, k, D + 1): every part by its rows, added in the order of the parts."""
        shares = self.rows / max(int(self.rows.sum()), 1)
        total = np.zeros(self.points.shape[1:])
        for share, point in zip(shares, self.points, strict=True):
            total += share * point
        return total


@dataclass(frozen=True)
class Pace:
    """How long steps are: ``length`` at first, falling as the steps that were made to the power ``decay``."""

    length: float
    slowing: float  # steps after which they fall
    decay: float
    batch: int
    ridge: float

    def at(self, step: int) -> float:
        return self.length / float(1.0 + step / self.slowing) ** self.decay


@dataclass
class Descent(Statistic[DescentState]):
    """One leg. ``gradient`` says how rows pull (its coefficients are replaced at every step); scores are centred."""

    source: Source
    parts: tuple[tuple[Span, ...], ...]
    gradient: Gradient
    factor: BatchPreconditioner
    centre: np.ndarray  # (D,) mean raw feature
    pace: Pace
    start: np.ndarray  # (2, k, D + 1): the point and the average so far
    steps: int  # made before
    seed: tuple[int, ...]
    nan: str = "error"

    def __reduce__(self) -> tuple[Any, ...]:
        """Elsewhere the source is opened again, by what it is called."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "source"}
        return _opened_there, (json.dumps(self.source.spec()), self.source.fingerprint(), values)

    def partitions(self, span: Span) -> Iterable[Partition]:
        """Of a dask collection, what must be computed for some of the parts."""
        spans = (rows for part in self.parts[span.start : span.stop] for rows in part)
        return [each for rows in spans for each in self.source.partitions(rows)]

    def zero(self) -> DescentState:
        return DescentState(np.zeros((len(self.parts), *self.start.shape)), np.zeros(len(self.parts), np.int64))

    def load(self, arrays: dict[str, np.ndarray]) -> DescentState:
        for name, wanted in self.zero().arrays().items():
            found = arrays.get(name)
            if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
                raise FileFormatError(f"{name} of a descent is not {wanted.dtype} of shape {wanted.shape}")
        return DescentState(arrays["descent.points"], arrays["descent.rows"])

    def nbytes(self) -> int:
        return len(self.parts) * (self.start.nbytes + 8)

    def update(self, state: DescentState, block: Block, threads: Threads) -> None:
        """The rows of ``block`` are numbers of parts."""
        for number in block.index.tolist():
            rows = self._without_inputs(self._rows(number))
            point, average = self.start.copy()
            for step, batch in enumerate(self._batches(rows, number), self.steps):
                self._step(point, average, step, batch, threads)
            state.points[number] = point, average
            state.rows[number] = len(rows)

    def _without_inputs(self, rows: Block) -> Block:
        """Rows whose features are kept need no inputs, which every mini-batch would gather."""
        kept = self.gradient.features
        return replace(rows, X=rows.X[:, :0]) if kept is not None and kept.holds(rows.index) else rows

    def _rows(self, number: int) -> Block:
        """All rows of a part that are not held out, in memory."""
        blocks = [screen(persistently(self.source.read, span), self.nan, self.source)[0] for span in self.parts[number]]
        rows = joined(blocks)
        return rows.take(~self.gradient.split.held(rows))

    def _batches(self, rows: Block, number: int) -> Iterator[Block]:
        order = np.random.default_rng([*self.seed, number]).permutation(len(rows))
        for first in range(0, len(order), self.pace.batch):
            yield rows.take(order[first : first + self.pace.batch])

    def _step(self, point: np.ndarray, average: np.ndarray, step: int, batch: Block, threads: Threads) -> None:
        gradient, weight = self._gradient(point, batch, threads)
        if not weight > 0:
            return
        slopes, pulls = gradient
        slopes = slopes / weight + 2 * self.pace.ridge * point[:, :-1]
        loss = self.gradient.pull
        assert isinstance(loss, Loss)
        moved = self.factor.apply(slopes.astype(np.float32), 2 * self.pace.ridge / loss.curvature)
        length = self.pace.at(step) / loss.curvature
        point[:, :-1] -= length * moved
        point[:, -1] -= length * pulls / weight
        average += (point - average) * ((AVERAGING + 1) / (step + AVERAGING + 1))

    def _gradient(
        self, point: np.ndarray, batch: Block, threads: Threads
    ) -> tuple[tuple[np.ndarray, np.ndarray], float]:
        """Sums of the slopes (k, D) in amplitude-scaled features and of the pulls (k,), and the weight of the rows."""
        amplitudes = self.gradient.map.amplitudes
        coefficients = (point[:, :-1] * amplitudes).T
        intercept = point[:, -1] - self.centre @ coefficients
        statistic = replace(self.gradient, coefficients=coefficients, intercept=intercept, split=Split(), _kept={})
        state = statistic.zero()
        statistic.update(state, batch, threads)
        sums, pulls = statistic.sums(state)
        return ((sums - pulls[:, None] * self.centre) * amplitudes, pulls), statistic.weight(state)


def _opened_there(spec: str, fingerprint: str, values: dict[str, Any]) -> Descent:
    return Descent(source=_source(spec, fingerprint), **values)


@lru_cache(maxsize=4)
def _source(spec: str, fingerprint: str) -> Source:
    """Opened once, and again where other data was stored there meanwhile."""
    from streamrf.data.open import open_source

    source = open_source(**json.loads(spec))
    if source.fingerprint() != fingerprint:
        raise MismatchError(
            f"a worker finds other data at that place (fingerprint {source.fingerprint()[:12]}, expected"
            f" {fingerprint[:12]}): every worker must see the same files"
        )
    return source
