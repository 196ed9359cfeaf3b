"""Stochastic gradients: epochs of legs, legs of parts that run side by side and meet in their average.

Chunks come in a seeded random order, rows are shuffled within a part, mini-batches are preconditioned by the leading
directions of a sample, and iterates are averaged. A leg is one sum over its parts, so it is saved, resumed and carried
out by a cluster like any other pass; for a fixed number of parts the weights are the same on every engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.data.readers.memory import CountingSource
from streamrf.data.source import Block, Span
from streamrf.solvers.base import Fitted, Run
from streamrf.solvers.factors import BATCH, SGD_ROWS, EigenFactor, part_rows, parts_of_a_leg
from streamrf.solvers.iterative import IterativeSolver
from streamrf.solvers.judging import as_read, shares
from streamrf.solvers.newton import LAMBDA_SHARE, plain_calibration
from streamrf.solvers.plan import Sizes
from streamrf.solvers.preconditioners import SampleRows
from streamrf.statistics.descent import Descent, Pace
from streamrf.statistics.losses import Loss, class_loss
from streamrf.statistics.scores import Weights

EPOCHS = 10
RANK = 256
LEAST_ROWS, ROWS_SHARE = 1000, 32  # of the sample that is looked at: a part of all, within bounds
LENGTHS = (4.0, 1.0, 0.25, 0.0625)  # tried on the sample, in units of what leverages allow
DECAY = 0.75  # of the length of steps
GAIN, PATIENCE = 0.002, 2  # epochs without a gain that end a run


class SGD(IterativeSolver):
    """Hinge, squared hinge and logistic losses."""

    name = "sgd"
    losses = ("hinge", "squared-hinge", "logistic")
    preference = 3
    usual_passes, vectors = 5, 12

    @classmethod
    def _end_bytes(cls, sizes: Sizes) -> int:
        """Every part of a leg ends at a point of its own."""
        parts = parts_of_a_leg(sizes.rows, sizes.row_bytes, sizes.recipe.shards or 1)
        return (2 * sizes.outputs * 8 * (sizes.recipe.D + 1) + 8) * parts

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        if self.recipe.loss == "logistic":
            self.calibration = plain_calibration(self.pipeline.coding.outputs)

    def fit(self) -> Fitted:
        state = self.open()
        with self.run.timed("solve"):
            self._eigen = self._leading_directions()
            self._pace = self._chosen_pace()
            self._restore()
            self._epochs()
        weights = self._weights(self._best)
        facts = {
            "loss": self.recipe.loss, "epochs": self._scores, "parts": self._shards,
            "step": self._pace.length,
        }  # fmt: skip
        return self.finish(state, weights, facts)

    @property
    def _shards(self) -> int:
        return self.recipe.shards or 1

    @property
    def _loss(self) -> Loss:
        return class_loss(self.recipe.loss, self.pipeline.coding.outputs)

    @property
    def _ridge(self) -> float:
        share = 1.0 if self.ridge_given else LAMBDA_SHARE.get(self.recipe.loss, 1.0)
        return self.first_ridge * share

    def _leading_directions(self) -> EigenFactor:
        rows = self._few
        X = self.pipeline.scaled(rows.X)
        sample = SampleRows.of(self.pipeline.map, X, self.moments.mean, self.threads, self.weighed(rows).weights)
        return EigenFactor.of(sample, min(RANK, len(rows) // 8), self.threads)

    @property
    def _few(self) -> Block:
        """So few rows of the sample that looking at them takes a small part of an epoch; spread over all of it."""
        assert self.sample is not None
        rows = int(np.clip(self.run.source.n_rows // ROWS_SHARE, LEAST_ROWS, SGD_ROWS))
        return self.sample.take(slice(0, None, -(-len(self.sample) // rows)))

    def _chosen_pace(self) -> Pace:
        """The longest steps that pay on the sample: judged on rows that were held out, or on the sample itself."""
        loss = self._loss
        allowed = 1.0 / (1.0 + self._eigen.leverage(2 * self._ridge / loss.curvature) / BATCH)
        epoch = max(1.0, self.run.source.n_rows / (BATCH * self._shards))
        paces = [Pace(allowed * factor, epoch / 4, DECAY, BATCH, self._ridge) for factor in LENGTHS]
        return min(paces, key=self._trial)

    def _trial(self, pace: Pace) -> float:
        """The loss after one leg through the sample at this pace."""
        rows = _InMemory(as_read(self.pipeline.coding, self._few))
        leg = self._leg(rows, ((Span(0, rows.n_rows),),), self._origin(), 0, (self.recipe.seed, 99), pace)
        state = leg.zero()
        leg.update(state, Block(np.zeros((1, 1)), np.zeros(1), np.zeros(1, np.int64)), self.threads)
        score = self._score(state.mean()[1])
        return score if np.isfinite(score) else np.inf

    def _origin(self) -> np.ndarray:
        k, D = self.moments.cross.shape
        return np.zeros((2, k, D + 1))

    def _restore(self) -> None:
        self._scores: list[float] = []
        self._point, self._best = self._origin(), self._origin()[1]
        self._epoch, self._next_leg, self._steps = 0, 0, 0
        kept = self.kept("sgd")
        if kept:
            document, arrays = kept
            self._scores = document["scores"]
            self._epoch, self._next_leg, self._steps = document["epoch"], document["leg"], document["steps"]
            self._point, self._best = arrays["point"], arrays["best"]

    def _keep(self) -> None:
        document = {"scores": self._scores, "epoch": self._epoch, "leg": self._next_leg, "steps": self._steps}
        self.keep("sgd", document, {"point": self._point, "best": self._best})

    def _epochs(self) -> None:
        most = self.recipe.epochs or EPOCHS
        while self._epoch < most and not self._stale():
            legs = self._legs(self._epoch)
            while self._next_leg < len(legs):
                self._keep()
                self._run_leg(legs[self._next_leg])
                self._next_leg += 1
            self._epoch, self._next_leg = self._epoch + 1, 0
            self._judge()

    def _run_leg(self, parts: tuple[tuple[Span, ...], ...]) -> None:
        seed = (self.recipe.seed, self._epoch, self._next_leg)
        leg = self._leg(self.rows, parts, self._point, self._steps, seed, self._pace)
        title = f"epoch {self._epoch + 1}, leg {self._next_leg + 1}"
        state = self.passes.sum(leg, title, CountingSource(len(parts)))
        self._point = state.mean()
        self._steps += -(-int(state.rows.max(initial=0)) // self._pace.batch)

    def _leg(
        self, source: Any, parts: Any, start: np.ndarray, steps: int, seed: tuple[int, ...], pace: Pace
    ) -> Descent:
        k, D = self.moments.cross.shape
        gradient = self.gradient(self._loss, np.zeros((D, k)), np.zeros(k))
        return Descent(
            source, parts, gradient, self._eigen, self.moments.mean, pace, start, steps, seed, self.recipe.nan
        )

    def _legs(self, epoch: int) -> list[tuple[tuple[Span, ...], ...]]:
        """All rows in parts of about the same size, chunks in a random order of this epoch."""
        source = self.run.source
        rows = part_rows(source.n_rows, source.n_features * source.x_dtype.itemsize, self._shards)
        spans = [piece for chunk in source.chunks() for piece in _cut(chunk, rows)]
        order = np.random.default_rng([self.recipe.seed, epoch, 7]).permutation(len(spans))
        parts = _gathered([spans[i] for i in order], rows)
        return [tuple(parts[i : i + self._shards]) for i in range(0, len(parts), self._shards)]

    def _judge(self) -> None:
        if self.holdout is None:
            self._best = self._point[1]
            self._scores.append(0.0)
            return
        score = self._score(self._point[1])
        if score < min(self._scores, default=np.inf):
            self._best = self._point[1].copy()
        self._scores.append(score)
        self.reporter.detail(f"epoch {self._epoch}: hold-out loss {score:.5g}")

    def _score(self, point: np.ndarray) -> float:
        rows = self.judging_rows
        losses = self._loss.values(self.judging_scores(self._weights(point)), rows.targets)
        return float((self.holdout_weights if self.holdout is not None else shares(self.weighed(rows))) @ losses)

    def _stale(self) -> bool:
        if self.holdout is None or len(self._scores) <= PATIENCE:
            return False
        before, after = min(self._scores[:-PATIENCE]), min(self._scores[-PATIENCE:])
        return after > before - GAIN * abs(before)

    def _weights(self, point: np.ndarray) -> Weights:
        coefficients = (point[:, :-1] * self.moments.amplitudes).T
        return Weights(coefficients, point[:, -1] - self.moments.mean @ coefficients, self._ridge)


class _InMemory:
    """Rows at hand, read as a source is."""

    def __init__(self, rows: Block) -> None:
        self.rows, self.n_rows = rows, len(rows)

    def read(self, span: Span) -> Block:
        return self.rows.take(slice(span.start, span.stop))


def _cut(chunk: Span, rows: int) -> list[Span]:
    return [Span(first, min(first + rows, chunk.stop)) for first in range(chunk.start, chunk.stop, rows)]


def _gathered(spans: list[Span], rows: int) -> list[tuple[Span, ...]]:
    """Spans put together until there are so many rows."""
    parts: list[tuple[Span, ...]] = []
    waiting: list[Span] = []
    for span in spans:
        if waiting and sum(map(len, waiting)) + len(span) > rows:
            parts.append(tuple(waiting))
            waiting = []
        waiting.append(span)
    return [*parts, tuple(waiting)] if waiting else parts
