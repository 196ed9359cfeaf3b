"""The Python interface: the verbs of the command line as functions, for all data that ``open_source`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamrf.data.columns import Handling, known_choice, names_of
from streamrf.data.open import open_source
from streamrf.data.source import Source
from streamrf.data.writers import is_shared, open_shared_writer, open_writer
from streamrf.engines.current import engine_for
from streamrf.models.model import Model
from streamrf.models.predict import (
    KeptOfSource,
    PredictedColumns,
    evaluate_rows,
    gather_scores,
    predict_rows,
    prediction_columns,
)
from streamrf.recipe import Recipe
from streamrf.reports.importance import Importance, measure_importance
from streamrf.solvers.plan import Plan
from streamrf.support.errors import InputError
from streamrf.support.live import reporter_for
from streamrf.support.progress import Reporter
from streamrf.support.threads import Threads, available_cores
from streamrf.support.units import size_of
from streamrf.training import run as training
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, Trained
from streamrf.training.warm import compiling


def plan(
    data: Any,
    recipe: Recipe | None = None,
    *,
    threads: int | None = None,
    memory: int | str | None = None,
    target: str | Sequence[str] | None = None,
    **options: Any,
) -> Plan:
    """Estimate the memory of training without reading a row. ``plan(...).check()`` fails if it does not fit.

    Parameters
    ----------
    data : Any
        All that ``open_source`` takes.
    recipe : Recipe or None, default=None
        Settings of the model.
    threads : int or None, default=None
        Threads to use; all cores by default.
    memory : int, str or None, default=None
        Memory budget: bytes, or text such as ``"2GB"``; 80 % of free memory by default.
    target : str, sequence of str or None, default=None
        The target column, or several.
    **options : Any
        As for ``open_source``.
    """
    source = open_source(data, target=target, **{"columns": Handling(), **options})
    outputs = max(1, source.n_outputs)
    return plan_run(
        source,
        recipe or Recipe(),
        outputs=outputs,
        threads=threads or available_cores(),
        budget=size_of("memory", memory),
    )


def train(
    data: Any,
    recipe: Recipe | None = None,
    settings: Settings | None = None,
    reporter: Reporter | None = None,
    *,
    target: str | Sequence[str] | None = None,
    verbose: int = 0,
    **options: Any,
) -> Trained:
    """Train on ``data``. The result holds the model and its statistics.

    Columns that are not numbers are coded, as on the command line; ``columns`` says how (a ``Handling``).

    Parameters
    ----------
    data : Any
        All that ``open_source`` takes.
    recipe : Recipe or None, default=None
        Settings of the model; the pilot chooses what it leaves open.
    settings : Settings or None, default=None
        How the run is carried out: threads, memory, checkpoints, a cluster.
    reporter : Reporter or None, default=None
        Is told of everything the run does.
    target : str, sequence of str or None, default=None
        The target column, or several.
    verbose : int, default=0
        Without a reporter, print progress: 1 for one updating line, 2 for every trial and detail.
    **options : Any
        As for ``open_source``.
    """
    reporter, settings = reporter or reporter_for(verbose), settings or Settings()
    if not isinstance(options.get("y", "y"), str):
        data = (data, options.pop("y"))
    if (engine := engine_for(settings.engine, data)) is not None:
        data, settings = engine.kept(data), replace(settings, engine=engine)
    with compiling(recipe or Recipe()):
        source = open_source(data, target=target, reporter=reporter, **{"columns": Handling(), **options})
        return training.train(source, recipe, settings, reporter)


def predict(
    model: Model | str | Path,
    data: Any,
    *,
    proba: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    keep: str | Sequence[str] = (),
    threads: int | None = None,
    engine: Any = None,
    **options: Any,
) -> np.ndarray | int:
    """Predict every row and return an array in row order, or write it to ``out`` and return the number of rows.

    Parameters
    ----------
    model : Model, str or Path
        A model or the place of one.
    data : Any
        All that ``open_source`` takes; columns are found by name.
    proba : bool, default=False
        Give the probability of each class instead of the label (in a file: beside it).
    out : str, Path or None, default=None
        Where predictions are written; the ending says how.
    overwrite : bool, default=False
        Replace what is there.
    keep : str or sequence of str, default=()
        Columns of a table that are written beside the predictions; ``"all"`` for every one.
    threads : int or None, default=None
        Threads to use; all cores by default.
    engine : ClusterEngine, distributed.Client or None, default=None
        A cluster whose workers write ``out``; for dask collections the current client.
    **options : Any
        As for ``open_source``.
    """
    model = _model(model)
    source = _source_for(model, data, options, need_targets=False)
    engine = engine_for(engine, data if out is not None and is_shared(out) else None)
    prediction_columns(model, proba)  # fails early where there are no probabilities
    if out is None and engine is not None:
        raise InputError("the workers of a cluster write the predictions: set out= to a place that all can reach")
    with Threads(threads) as pool:
        if out is None:
            return _finished(model, gather_scores(model, source, pool), proba)
        open_output = open_writer if engine is None else open_shared_writer
        made = PredictedColumns(model, proba, KeptOfSource(source, names_of(keep)) if keep else None)
        with open_output(out, source.n_rows, made.types(), overwrite=overwrite) as writer:
            return predict_rows(made, source, writer, threads=pool, reporter=Reporter(), engine=engine)


def evaluate(
    model: Model | str | Path,
    data: Any,
    *,
    nan: str = "error",
    threads: int | None = None,
    engine: Any = None,
    sample_weight: Any = None,
    **options: Any,
) -> dict[str, Any]:
    """Metrics of the model on data with known targets, as `streamrf evaluate` prints them.

    Parameters
    ----------
    model : Model, str or Path
        A model or the place of one.
    data : Any
        Rows with known targets: all that ``open_source`` takes.
    nan : str, default='error'
        What to do with rows that have NaN: ``"error"`` or ``"drop"``.
    threads : int or None, default=None
        Threads to use; all cores by default.
    engine : Engine, distributed.Client or None, default=None
        A cluster that does the summing; for dask collections the current client.
    sample_weight : str, array or None, default=None
        The array or column of weights, or an array: a row of weight 2 counts as two rows.
    **options : Any
        As for ``open_source``.
    """
    model = _model(model)
    if sample_weight is not None:
        options["sample_weight"] = sample_weight
    source = _source_for(model, data, options, need_targets=True)
    with Threads(threads) as pool:
        found = engine_for(engine, source)
        return evaluate_rows(model, source, threads=pool, reporter=Reporter(), nan=nan, engine=found)


def importance(
    model: Model | str | Path,
    data: Any,
    *,
    rows: int = 5000,
    repeats: int = 5,
    partial: str | Sequence[str] = (),
    seed: int = 0,
    threads: int | None = None,
    **options: Any,
) -> Importance:
    """How much worse predictions get when a column is shuffled, the most important column first.

    All codes of a column are shuffled together. Use rows that the model was not trained on.

    Parameters
    ----------
    model : Model, str or Path
        A model or the place of one.
    data : Any
        Rows with known targets: all that ``open_source`` takes.
    rows : int, default=5000
        Size of the sample that is shuffled.
    repeats : int, default=5
        Shuffles of each column. Their standard deviation is the ``spread`` of the result.
    partial : str or sequence of str, default=()
        Columns whose partial dependence is computed too: the mean prediction at values of the column.
    seed : int, default=0
        Another number draws other rows and shuffles.
    threads : int or None, default=None
        Threads to use; all cores by default.
    **options : Any
        As for ``open_source``.

    Returns
    -------
    Importance
        With ``names``, ``mean``, ``spread``, ``rises`` and ``dependence``; notebooks show it as a table.
    """
    model = _model(model)
    source, columns = (
        _source_for(model, data, options, need_targets=True),
        [partial] if isinstance(partial, str) else partial,
    )
    with Threads(threads) as pool:
        return measure_importance(model, source, pool, rows=rows, repeats=repeats, partial=columns, seed=seed)


def _finished(model: Model, scores: np.ndarray, proba: bool) -> np.ndarray:
    if proba:
        return model.probabilities(scores)
    if model.is_classifier:
        return model.labels(model.codes(scores))
    return scores[:, 0] if scores.shape[1] == 1 else scores


def _model(model: Model | str | Path) -> Model:
    return model if isinstance(model, Model) else Model.load(model)


def _source_for(model: Model, data: Any, options: dict[str, Any], *, need_targets: bool) -> Source:
    return open_source(data, need_targets=need_targets, **{**known_choice(model), **options})
