"""Prediction and evaluation: the same pass over rows, with a model in place of a statistic's map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.data.source import Block, Source, work_spans
from streamrf.data.writers import Sink
from streamrf.engines.base import Engine, Pass
from streamrf.engines.local import LocalEngine, pieces, read_ahead
from streamrf.models.model import Model
from streamrf.statistics.scores import Scores
from streamrf.support.errors import DataError, InputError
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads

SPAN_ROWS, SPAN_BYTES = 65_536, 256 * 2**20


def predict_rows(model: Model, source: Source, sink: Sink, *, threads: Threads, reporter: Reporter, proba: bool) -> int:
    """Write a prediction for every row, in row order, a block at a time; the number of rows."""
    model.check_fits(source)
    reporter.started("predicting", source.n_rows, 0)
    done = 0
    for block, _, span in read_ahead(source, work_spans(source, SPAN_ROWS, SPAN_BYTES), "error"):
        for rows, piece in pieces(block, span):
            sink.write(rows.start, predictions(model, piece, threads, proba))
            done += len(piece)
            reporter.advanced(done, None)
    reporter.finished()
    return done


@dataclass
class Predictor:
    """What workers need to predict: the columns of a block."""

    model: Model
    proba: bool

    def __call__(self, block: Block, threads: Threads) -> dict[str, np.ndarray]:
        return predictions(self.model, block, threads, self.proba)


def predict_elsewhere(model: Model, source: Source, parts: Any, *, engine: Any, reporter: Reporter, proba: bool) -> int:
    """Have the workers of a cluster write the predictions; no row comes here."""
    model.check_fits(source)
    reporter.started("predicting", source.n_rows, 0)
    engine.write(Predictor(model, proba), source, parts, lambda done: reporter.advanced(done, None))
    reporter.finished()
    return source.n_rows


def prediction_columns(model: Model, proba: bool) -> list[tuple[str, np.dtype]]:
    """Names and types of what ``predict`` writes."""
    if proba and not model.is_classifier:
        raise InputError("--proba: this model predicts numbers, it has no probabilities")
    if model.is_classifier:
        columns: list[tuple[str, np.dtype]] = [("prediction", np.asarray(model.coding.classes).dtype)]
        if proba:
            columns += [(f"p_{label}", np.dtype(np.float64)) for label in model.coding.classes]
        return columns
    kinds = ("prediction",) if model.posterior is None else ("prediction", "std")
    return [(name, np.dtype(np.float64)) for kind in kinds for name in _of_outputs(kind, model.coding.outputs)]


def _of_outputs(kind: str, outputs: int) -> list[str]:
    return [kind] if outputs == 1 else [f"{kind}_{i}" for i in range(outputs)]


def predictions(model: Model, block: Block, threads: Threads, proba: bool) -> dict[str, np.ndarray]:
    """The columns of a block."""
    scores = model.scores(block.X, threads)
    names = [name for name, _ in prediction_columns(model, proba)]
    if not model.is_classifier:
        if model.posterior is not None:
            scores = np.concatenate([scores, model.deviations(block.X, threads)], axis=1)
        return {name: scores[:, i] for i, name in enumerate(names)}
    columns = {"prediction": model.labels(model.codes(scores))}
    if proba:
        chances = model.probabilities(scores)
        columns |= {name: chances[:, i] for i, name in enumerate(names[1:])}
    return columns


def evaluate_rows(
    model: Model, source: Source, *, threads: Threads, reporter: Reporter, nan: str = "error",
    engine: Engine | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Metrics of the model on every row of the source."""
    model.check_fits(source)
    statistic = Scores(model)
    job = Pass.start(statistic, source, nan=nan)
    reporter.started("evaluating", source.n_rows, 0)
    engine = engine or LocalEngine(threads)
    state = engine.run(job, lambda job: reporter.advanced(job.done.count + job.pending, None))
    reporter.finished()
    if not state.sums["rows"][0]:
        raise DataError(f"none of the {source.n_rows} rows can be used: every one has NaN")
    return statistic.metrics(state)
