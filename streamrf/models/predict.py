"""Prediction and evaluation of the rows of a source. Predictions go to any writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from streamrf.data.open import open_source
from streamrf.data.partitions import asked, reads_remotely
from streamrf.data.screening import screen
from streamrf.data.source import Block, Partition, Source, Span, work_spans
from streamrf.data.writers import ArrayWriter, TableWriter, Writer, write_blocks
from streamrf.engines.base import Engine, Pass, showing
from streamrf.engines.local import LocalEngine, read_pieces
from streamrf.models.model import Model
from streamrf.solvers.passes import scan_targets
from streamrf.statistics.metrics import Unit
from streamrf.statistics.scores import Scores
from streamrf.support.errors import DataError, InputError
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads

SPAN_ROWS, SPAN_BYTES = 65_536, 256 * 2**20


FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet may run begins with one of these


class Kept(Protocol):
    """Raw columns that go beside the predictions of some rows."""

    types: list[tuple[str, np.dtype]]

    def rows(self, index: np.ndarray) -> dict[str, np.ndarray]: ...


class KeptOfSource:
    """Raw columns of a source. Another process opens the source anew."""

    def __init__(self, source: Source, asked: Sequence[str]) -> None:
        self._source, self.types = source, source.kept_types(asked)

    def rows(self, index: np.ndarray) -> dict[str, np.ndarray]:
        return self._source.read_kept(Span(int(index[0]), int(index[-1]) + 1), self.types)

    def partitions(self, span: Span) -> Iterable[Partition]:
        """What the columns of a span are read from, where that is a dask collection."""
        names = tuple(name for name, _ in self.types)
        return [(collection, number, names) for collection, number, _ in self._source.partitions(span)]

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self._source.spec(), "types": self.types}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._source, self.types = open_source(**state["spec"]), state["types"]


@dataclass
class PredictedColumns:
    """Returns the predicted columns of a block of rows, after those that are kept.

    With ``escape`` a text that a spreadsheet would take for a formula begins with a quote.
    """

    model: Model
    proba: bool
    kept: Kept | None = None
    escape: bool = False

    def types(self) -> list[tuple[str, np.dtype]]:
        """Names and types of the columns."""
        predicted, kept = prediction_columns(self.model, self.proba), self.kept.types if self.kept else []
        both = {name for name, _ in predicted} & {name for name, _ in kept}
        if both:
            raise InputError(
                f"the data has a column '{min(both)}', as the predictions have: name other columns in `keep`"
            )
        return [(_escaped(name) if self.escape else name, dtype) for name, dtype in [*kept, *predicted]]

    def partitions(self, span: Span) -> Iterable[Partition]:
        return self.kept.partitions(span) if isinstance(self.kept, KeptOfSource) else ()

    def __call__(self, block: Block, threads: Threads) -> dict[str, np.ndarray]:
        kept = self.kept.rows(block.index) if self.kept else {}
        columns = {**kept, **self._predicted(block, threads)}
        return {_escaped(name): _escaped_values(each) for name, each in columns.items()} if self.escape else columns

    def _predicted(self, block: Block, threads: Threads) -> dict[str, np.ndarray]:
        model, scores = self.model, self.model.scores(block.X, threads)
        names = [name for name, _ in prediction_columns(model, self.proba)]
        if not model.is_classifier:
            if model.posterior is not None:
                scores = np.concatenate([scores, model.deviations(block.X, threads)], axis=1)
            return {name: scores[:, i] for i, name in enumerate(names)}
        columns = {"prediction": model.labels(model.codes(scores))}
        if self.proba:
            chances = model.probabilities(scores)
            columns |= {name: chances[:, i] for i, name in enumerate(names[1:])}
        return columns


def _escaped(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULAS) else text


def _escaped_values(values: np.ndarray) -> np.ndarray:
    return np.array([_escaped(text) for text in values.tolist()], "U") if values.dtype.kind == "U" else values


def prediction_columns(model: Model, proba: bool) -> list[tuple[str, np.dtype]]:
    """Names and types of the columns that ``PredictedColumns`` returns."""
    if proba and not model.is_classifier:
        raise InputError("`proba`: this model predicts numbers, it has no probabilities")
    if model.is_classifier:
        columns: list[tuple[str, np.dtype]] = [("prediction", np.asarray(model.coding.classes).dtype)]
        if proba:
            columns += [(f"p_{label}", np.dtype(np.float64)) for label in model.coding.classes]
        return columns
    kinds = ("prediction",) if model.posterior is None else ("prediction", "std")
    outputs = model.coding.outputs
    known = model.target_names or ()
    ends = known if len(known) == outputs else range(outputs)
    names = [kind if outputs == 1 else f"{kind}_{end}" for kind in kinds for end in ends]
    return [(name, np.dtype(np.float64)) for name in names]


class WritingEngine(Protocol):
    """An engine whose workers write an output; the cluster engine is one."""

    def write(
        self, columns: PredictedColumns, source: Source, parts: TableWriter, watch: Callable[[int], None], /
    ) -> None: ...


def predict_rows(
    made: PredictedColumns, source: Source, writer: Writer, *, threads: Threads, reporter: Reporter,
    engine: WritingEngine | None = None,
) -> int:  # fmt: skip
    """Write a prediction for every row of a source, here or by the workers of ``engine``; return the number of rows."""
    made.model.check_fits(source)
    reporter.started("predicting", source.n_rows, 0)

    def watch(rows: int) -> None:
        reporter.advanced(rows, None)

    if engine is None:
        write_blocks(made, source_blocks(source), writer, threads, watch)
    else:
        assert isinstance(writer, TableWriter)
        engine.write(made, source, writer, watch)
    reporter.finished()
    return source.n_rows


def gather_scores(model: Model, source: Source, threads: Threads, *, deviations: bool = False) -> np.ndarray:
    """(rows, outputs): the scores of every row of a source, or their standard deviations."""
    model.check_fits(source)
    scores, of_rows = np.empty((source.n_rows, model.coding.outputs)), model.deviations if deviations else model.scores
    if reads_remotely(source):
        spans = work_spans(source, SPAN_ROWS, SPAN_BYTES)
        for span, found in zip(spans, asked(_scored, source, [(span,) for span in spans], of_rows), strict=True):
            scores[span.start : span.stop] = found
        return scores

    def score(block: Block, threads: Threads) -> dict[str, np.ndarray]:
        return {"scores": of_rows(block.X, threads)}

    write_blocks(score, source_blocks(source), ArrayWriter({"scores": scores}), threads)
    return scores


def _scored(source: Source, span: Span, of_rows: Callable[[np.ndarray, Threads], np.ndarray]) -> np.ndarray:
    """Scores of a span, on a worker that has its rows."""
    block, _ = screen(source.read(span), "error", source)
    with Threads(1) as threads:
        return of_rows(block.X, threads)


def source_blocks(source: Source) -> Iterator[Block]:
    """All rows of a source, in order."""
    for _, piece in read_pieces(source, work_spans(source, SPAN_ROWS, SPAN_BYTES), "error"):
        yield piece


def evaluate_rows(
    model: Model, source: Source, *, threads: Threads, reporter: Reporter, nan: str = "error",
    engine: Engine | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Metrics of the model on every row of the source, by their weights where the source has them."""
    model.check_fits(source)
    engine = engine or LocalEngine(threads)
    statistic = Scores(model.predictor, _unit(source, engine))
    job = Pass.start(statistic, source, nan=nan)
    reporter.started("evaluating", source.n_rows, 0)
    state = engine.run(job, showing(reporter))
    reporter.finished()
    if not state.sums["rows"][0]:
        raise DataError(f"none of the {source.n_rows} rows can be used: every one has NaN or the weight 0")
    return statistic.metrics(state)


def _unit(source: Source, engine: Engine) -> Unit | None:
    """What weights are counted in; those of all rows are read for it, beforehand."""
    if not source.has_weights:
        return None
    heaviest = scan_targets(source, engine).heaviest
    if not heaviest > 0:
        raise DataError(f"none of the {source.n_rows} rows has a positive weight: check `sample_weight`")
    return Unit.of(heaviest)
